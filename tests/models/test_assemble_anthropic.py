"""Anthropic's event streams, as servers really send them, become one right message and the deltas that make it up."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    Delta,
    MalformedResponseError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamCutError,
)
from agentgraph.models.assemble_anthropic import AnthropicAssembler

SSE = Path(__file__).parent.parent / "sse"
RECORDED = sorted([*SSE.glob("llamacpp-anthropic-*.sse"), *SSE.glob("aimock-anthropic-*.sse")])


def assembler() -> AnthropicAssembler:
    ids = (f"new_{n}" for n in itertools.count())
    return AnthropicAssembler("model 'm' at host", lambda: next(ids), "the id")


def assemble(body: bytes, cuts: Iterable[int] = ()) -> tuple[AssistantMessage, list[Delta]]:
    made = assembler()
    places = [0, *sorted({c % (len(body) + 1) for c in cuts}), len(body)]
    deltas = [d for a, b in itertools.pairwise(places) for d in made.feed(body[a:b])] + made.finish()
    return checked(deltas)


def checked(deltas: list[Delta]) -> tuple[AssistantMessage, list[Delta]]:
    """The message and the deltas before it, which make it up."""
    assert [d.response is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
    response = deltas.pop().response
    assert response is not None
    message = response.message
    assert "".join(d.text for d in deltas) == message.text
    assert "".join(d.reasoning for d in deltas) == "".join(p.text for p in message.reasoning)
    calls: dict[int, ToolCall] = {}
    for d in deltas:
        if d.index is None:
            continue
        begun = calls.get(d.index) or ToolCall(d.call_id or "", d.name or "")
        calls[d.index] = ToolCall(begun.id, begun.name, begun.arguments + d.arguments)
    assert [calls[i] for i in sorted(calls)] == message.tool_calls
    return message, deltas


def stream(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "r1", "model": "m1", "content": [], "usage": usage or None}}


def begin(index: int | None, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def change(index: int | None, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def say(text: str, index: int = 0) -> dict[str, Any]:
    return change(index, "text_delta", text=text)


def pieces(index: int, *texts: str) -> list[dict[str, Any]]:
    return [change(index, "input_json_delta", partial_json=t) for t in texts]


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None = "end_turn", usage: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, **fields}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def message_of(*events: dict[str, Any]) -> AssistantMessage:
    return assemble(stream(*events))[0]


# -- recorded streams


def test_a_recorded_text_stream_gives_its_text() -> None:
    message, deltas = assemble((SSE / "llamacpp-anthropic-text.sse").read_bytes())
    assert (message.id, message.text, message.finish_reason) == ("the id", "Hello, welcome to my world.", "stop")
    assert message.usage == Usage(26, 8, 15)
    assert message.metadata["model"] == "smollm2-135m"
    assert [d.text for d in deltas] == ["Hello", ",", " welcome", " to", " my", " world", "."]


@pytest.mark.parametrize(
    ("name", "cities"),
    [("llamacpp-anthropic-tool-calls-two", ["Oslo", "Rome"]), ("aimock-anthropic-tool-calls-two", ["Paris", "Oslo"])],
)
def test_a_recorded_stream_of_two_calls_gives_both(name: str, cities: list[str]) -> None:
    message, _ = assemble((SSE / f"{name}.sse").read_bytes())
    assert [json.loads(c.arguments) for c in message.tool_calls] == [{"city": c} for c in cities]
    assert [c.name for c in message.tool_calls] == ["get_weather", "get_weather"]
    assert (message.text, message.finish_reason) == ("", "tool_calls")


def test_a_recorded_stream_with_reasoning_keeps_its_signature() -> None:
    message, _ = assemble((SSE / "aimock-anthropic-reasoning.sse").read_bytes())
    signature = "aimock-placeholder-signature"
    assert message.text == "42"
    assert message.reasoning == [ReasoningPart("Six times seven.", signature, {"type": "thinking"})]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
@settings(max_examples=50)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_wherever_a_recorded_stream_is_cut_it_says_the_same(path: Path, ending: bytes, cuts: list[int]) -> None:
    body = path.read_bytes()
    expected = assemble(body)
    assert assemble(body.replace(b"\n", ending), cuts) == expected


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_a_recorded_stream_says_the_same_byte_by_byte(path: Path) -> None:
    body = path.read_bytes()
    assert assemble(body, range(len(body))) == assemble(body)


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
@settings(max_examples=50)
@given(data=st.data())
def test_a_recorded_stream_that_ends_early_is_whole_or_an_error(path: Path, data: st.DataObject) -> None:
    body = path.read_bytes()
    whole, _ = assemble(body)
    cut = body[: data.draw(st.integers(0, len(body)))]
    made = assembler()
    told = "".join(d.text for d in made.feed(cut))
    assert made.partial == told
    if b'"stop_reason":"' in cut and cut.split(b'"stop_reason":"')[1].find(b"\n\n") >= 0:
        message = made.finish()[-1].response
        assert message is not None
        assert (message.message.text, message.message.tool_calls) == (whole.text, whole.tool_calls)
    else:
        with pytest.raises(StreamCutError, match="model 'm' at host: the stream ended early"):
            made.finish()


@given(st.binary(max_size=300))
def test_bytes_of_no_protocol_are_no_answer(body: bytes) -> None:
    made = assembler()
    try:
        assert list(made.feed(body)) == []
        with pytest.raises(StreamCutError):
            made.finish()
    except (ProviderError, MalformedResponseError):
        pass


# -- blocks


def test_a_block_that_stops_after_the_next_has_begun_is_told_apart_by_its_index() -> None:
    message = message_of(
        start(),
        begin(0, "tool_use", id="a", name="f"),
        *pieces(0, '{"x":'),
        begin(1, "tool_use", id="b", name="g"),
        *pieces(1, '{"y":'),
        *pieces(0, "1}"),
        stop(0),
        *pieces(1, "2}"),
        stop(1),
        *end("tool_use"),
    )
    assert message.tool_calls == [ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", '{"y":2}')]


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str]]:
    """Several calls at once: the events of each in order, mixed with those of the others."""
    arguments = draw(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2), max_size=4))
    told = [json.dumps(a, ensure_ascii=False) for a in arguments]
    queues: list[list[dict[str, Any]]] = []
    for i, text in enumerate(told):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        places = [0, *cuts, len(text)]
        empty: dict[str, Any] = {"input": {}} if draw(st.booleans()) else {}
        opening = begin(i, "tool_use", id=f"id{i}", name=f"n{i}", **empty)
        queues.append([opening, *pieces(i, *(text[a:b] for a, b in itertools.pairwise(places))), stop(i)])
    events = [queue.pop(0) for queue in queues]
    while left := [q for q in queues if q]:
        events.append(draw(st.sampled_from(left)).pop(0))
    return events, told


@settings(max_examples=60)
@given(interleaved())
def test_calls_whose_pieces_are_mixed_stay_apart(calls: tuple[list[dict[str, Any]], list[str]]) -> None:
    events, told = calls
    message = message_of(start(), *events, *end("tool_use"))
    assert message.tool_calls == [ToolCall(f"id{i}", f"n{i}", text) for i, text in enumerate(told)]


def test_a_call_without_any_input_has_empty_arguments() -> None:
    message = message_of(start(), begin(0, "tool_use", id="a", name="now"), *pieces(0, ""), stop(0), *end("tool_use"))
    assert message.tool_calls == [ToolCall("a", "now", "")]


@pytest.mark.parametrize("streamed", [True, False])
def test_input_that_comes_with_the_beginning_counts_where_no_pieces_follow(streamed: bool) -> None:
    later = pieces(0, '{"x": 2}') if streamed else []
    message = message_of(start(), begin(0, "tool_use", id="a", name="f", input={"x": 1}), *later, *end("tool_use"))
    assert json.loads(message.tool_calls[0].arguments) == {"x": 2 if streamed else 1}


@pytest.mark.parametrize("given_id", [None, "", 7, "same"])
def test_each_call_has_an_id_of_its_own(given_id: Any) -> None:
    calls = [begin(i, "tool_use", id=given_id, name="f") for i in range(2)]
    message = message_of(start(), *calls, *end("tool_use"))
    ids = [c.id for c in message.tool_calls]
    assert ids == (["same", "same_2"] if given_id == "same" else ["new_0", "new_1"])


def test_a_server_without_indexes_means_the_block_begun_last() -> None:
    message = message_of(
        start(),
        begin(None, "text", text=""),
        change(None, "text_delta", text="Hi"),
        begin(None, "tool_use", id="a", name="f"),
        change(None, "input_json_delta", partial_json="{}"),
        *end("tool_use"),
    )
    assert (message.text, message.tool_calls) == ("Hi", [ToolCall("a", "f", "{}")])


def test_text_and_thinking_are_read_though_their_block_was_not_begun() -> None:
    message = message_of(start(), change(0, "thinking_delta", thinking="Hm."), say("Yes.", 1), *end())
    assert (message.text, [p.text for p in message.reasoning]) == ("Yes.", ["Hm."])


def test_blocks_events_and_pieces_of_unknown_types_are_left_out() -> None:
    message = message_of(
        start(),
        {"type": "ping"},
        {"type": "something_new", "index": 0},
        begin(0, "server_tool_use", id="s", name="web_search", input={}),
        *pieces(0, '{"query": "x"}'),
        stop(0),
        begin(1, "web_search_tool_result", tool_use_id="s", content=[]),
        begin(2, "text", text="", citations=[]),
        change(2, "citations_delta", citation={"type": "x"}),
        change(2, "text_delta", text="Found."),
        change(2, "new_delta", text="?"),
        *end(),
    )
    assert (message.text, message.tool_calls, message.reasoning) == ("Found.", [], [])


def test_several_texts_are_one() -> None:
    message = message_of(start(), begin(0, "text", text="One"), begin(1, "text", text=""), say(", two", 1), *end())
    assert message.text == "One, two"


@pytest.mark.case("D16")
def test_a_surrogate_pair_that_was_cut_is_joined() -> None:
    halves = b"".join(
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n' % half
        for half in (rb"a\ud83d", rb"\ude00b \ud83d")
    )
    message, deltas = assemble(halves + stream(*end()))
    assert message.text == "a\U0001f600b \ufffd"
    assert [d.text for d in deltas] == ["a", "\U0001f600b ", "\ufffd"]


# -- thinking


def test_thinking_is_told_as_it_comes_and_keeps_its_signature() -> None:
    message, deltas = assemble(
        stream(
            start(),
            begin(0, "thinking", thinking="", signature=""),
            change(0, "thinking_delta", thinking="One, "),
            change(0, "thinking_delta", thinking="two."),
            change(0, "signature_delta", signature="sig"),
            stop(0),
            begin(1, "redacted_thinking", data="secret"),
            begin(2, "text", text=""),
            say("Two.", 2),
            *end(),
        )
    )
    assert [d.reasoning for d in deltas if d.reasoning] == ["One, ", "two."]
    assert message.reasoning == [
        ReasoningPart("One, two.", "sig", {"type": "thinking"}),
        ReasoningPart("", None, {"type": "redacted_thinking", "data": "secret"}),
    ]


def test_thinking_between_text_and_calls_keeps_its_place() -> None:
    message = message_of(
        start(),
        begin(0, "thinking", thinking="A", signature="a"),
        begin(1, "text", text="Look."),
        begin(2, "thinking", thinking="B", signature="b"),
        begin(3, "tool_use", id="1", name="f"),
        begin(4, "thinking", thinking="C", signature="c"),
        begin(5, "tool_use", id="2", name="g"),
        *end("tool_use"),
    )
    assert [p.data for p in message.reasoning] == [
        {"type": "thinking"},
        {"type": "thinking", "after": [5, 0]},
        {"type": "thinking", "after": [5, 1]},
    ]


# -- the end


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        ("something_new", "something_new"),
        (None, None),
    ],
)
def test_a_stop_reason_becomes_a_finish_reason(reason: str | None, finish: str | None) -> None:
    assert message_of(start(), say("x"), *end(reason)).finish_reason == finish


@pytest.mark.parametrize("reason", ["tool_use", "end_turn", None])
def test_an_answer_with_calls_finished_with_them(reason: str | None) -> None:
    assert message_of(start(), begin(0, "tool_use", id="a", name="f"), *end(reason)).finish_reason == "tool_calls"


def test_a_call_that_the_limit_cut_is_handed_on_as_it_came() -> None:
    message = message_of(
        start(), begin(0, "tool_use", id="a", name="f"), *pieces(0, '{"x": "un'), stop(0), *end("max_tokens")
    )
    assert (message.finish_reason, message.tool_calls) == ("length", [ToolCall("a", "f", '{"x": "un')])


def test_what_else_is_told_of_the_end_stands_in_the_metadata() -> None:
    details = {"type": "refusal", "category": "x"}
    message = message_of(start(), say("x"), *end("stop_sequence", stop_sequence="END", stop_details=details))
    assert message.metadata == {"model": "m1", "response_id": "r1", "stop_sequence": "END", "stop_details": details}


def test_nothing_is_read_after_the_end() -> None:
    made = assembler()
    assert list(made.feed(stream(start(), *end()) + stream(say("more")))) == []
    assert made.done
    assert made.finish()[-1].response is not None


def test_the_answer_is_whole_when_its_stop_reason_is_known() -> None:
    made = assembler()
    list(made.feed(stream(start(), say("x"), end()[0])))
    assert (made.finished, made.done) == (True, False)
    assert [d.response is not None for d in made.finish()] == [True]


@pytest.mark.case("C8")
def test_a_stream_cut_inside_a_call_is_an_error() -> None:
    made = assembler()
    list(made.feed(stream(start(), begin(0, "tool_use", id="a", name="f"), *pieces(0, '{"x"'), stop(0))))
    with pytest.raises(StreamCutError):
        made.finish()


# -- usage


@pytest.mark.case("I13")
@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({"input_tokens": 25, "output_tokens": 1}, {"output_tokens": 15}, Usage(25, 15)),
        ({"input_tokens": 25, "output_tokens": 1}, {"input_tokens": 30, "output_tokens": 15}, Usage(30, 15)),
        ({"input_tokens": 25, "output_tokens": 1}, {"input_tokens": None, "output_tokens": 15}, Usage(25, 15)),
        ({"input_tokens": 25, "output_tokens": 1}, None, Usage(25, 1)),
        ({}, {"output_tokens": 15}, Usage(None, 15)),
        ({}, None, None),
        ({}, {"output_tokens": "many"}, Usage()),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 2, "output_tokens": 1},
            {"output_tokens": 15, "output_tokens_details": {"thinking_tokens": 9}},
            Usage(25, 15, 20, 9),
        ),
    ],
)
def test_of_each_number_the_last_one_counts(first: dict[str, Any], last: Any, usage: Usage | None) -> None:
    assert message_of(start(**first), say("x"), *end("end_turn", last)).usage == usage


def test_what_the_cache_took_stands_in_the_metadata() -> None:
    message = message_of(start(input_tokens=3, cache_creation_input_tokens=2), say("x"), *end())
    assert message.metadata["cache_creation_input_tokens"] == 2


# -- errors


@pytest.mark.case("C15")
@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("overloaded_error", OverloadedError, 529),
        ("rate_limit_error", RateLimitError, 429),
        ("authentication_error", AuthenticationError, 401),
        ("permission_error", AuthenticationError, 403),
        ("not_found_error", BadRequestError, 404),
        ("request_too_large", BadRequestError, 413),
        ("billing_error", BadRequestError, 402),
        ("api_error", ServerError, 500),
        ("timeout_error", ServerError, 504),
        ("something_new", ProviderError, None),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_error_event_is_raised_as_its_kind(
    kind: str, error: type[ProviderError], status: int | None, named: bool
) -> None:
    made = assembler()
    told = json.dumps({"type": "error", "error": {"type": kind, "message": "too bad"}, "request_id": "q1"})
    body = (b"event: error\n" if named else b"") + f"data: {told}\n\n".encode()
    assert [d.text for d in made.feed(stream(start(), say("Hel")))] == ["Hel"]
    with pytest.raises(error, match="too bad") as raised:
        list(made.feed(body))
    assert (type(raised.value), raised.value.status_code, raised.value.code) == (error, status, kind)
    assert made.partial == "Hel"


def test_what_stands_before_an_error_in_the_same_bytes_is_told_first() -> None:
    body = stream(start(), say("Hel"), {"type": "error", "error": {"type": "api_error", "message": "no"}})
    deltas = iter(assembler().feed(body))
    assert next(deltas).text == "Hel"
    with pytest.raises(ServerError):
        next(deltas)


@pytest.mark.parametrize("text", ["{malformed", "[1]", '{"type": "content_block_delta", "delta": 7}'])
def test_what_is_no_event_is_malformed(text: str) -> None:
    with pytest.raises(MalformedResponseError, match="model 'm' at host: this is no answer of the protocol"):
        list(assembler().feed(f"data: {text}\n\n".encode()))


@pytest.mark.parametrize("text", ['"bad luck"', '{"error": "bad luck"}', '{"error": {"message": "bad luck"}}'])
def test_an_error_of_any_shape_is_an_error(text: str) -> None:
    with pytest.raises(ProviderError, match="bad luck"):
        list(assembler().feed(f"data: {text}\n\n".encode()))


# -- in one piece


def test_a_whole_response_gives_the_same_as_the_stream() -> None:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "\ud83d \u00e9"}},
        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
    ]
    usage = {"input_tokens": 5, "output_tokens": 7}
    body = {"type": "message", "id": "r1", "model": "m1", "content": content, "stop_reason": "tool_use", "usage": usage}
    deltas = assembler().whole(json.dumps(body).encode())
    assert deltas[-1].response is not None
    assert deltas[-1].response.raw["content"][1] == {"type": "text", "text": "Look:"}
    streamed, _ = assemble(
        stream(
            start(input_tokens=5, output_tokens=1),
            begin(0, "thinking", thinking="", signature=""),
            change(0, "thinking_delta", thinking="Hm."),
            change(0, "signature_delta", signature="s"),
            begin(1, "text", text=""),
            say("Look:", 1),
            begin(2, "tool_use", id="a", name="f", input={}),
            *pieces(2, '{"x": "\ufffd', ' \u00e9"}'),
            begin(3, "tool_use", id="b", name="now", input={}),
            *end("tool_use", {"output_tokens": 7}),
        )
    )
    assert checked(deltas)[0] == streamed


@pytest.mark.parametrize("body", [b"{}", b'{"type": "message"}', b"{malformed", b"", b'{"choices": []}', b"[]"])
def test_a_whole_response_without_a_message_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        assembler().whole(body)


def test_a_whole_response_that_is_an_error_is_raised() -> None:
    body = json.loads((SSE / "llamacpp-error-anthropic-overflow.json").read_text())
    with pytest.raises(ContextLengthError):
        assembler().whole(json.dumps(body).encode())
