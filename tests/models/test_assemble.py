"""Chat-completions streams, as servers really send them, become one right message and the deltas that make it up."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, decode, encode
from agentgraph.models import (
    BadRequestError,
    ContextLengthError,
    Delta,
    MalformedResponseError,
    ModelError,
    OverloadedError,
    ProviderError,
    ServerError,
    StreamCutError,
)
from agentgraph.models.assemble import ChatAssembler

SSE = Path(__file__).parent.parent / "sse"


def assembler() -> ChatAssembler:
    ids = (f"new_{n}" for n in itertools.count())
    return ChatAssembler("model 'm' at host", lambda: next(ids), "the id")


def assemble(body: bytes, size: int | None = None) -> tuple[AssistantMessage, list[Delta]]:
    made = assembler()
    size = size or len(body)
    deltas = [d for i in range(0, len(body), size) for d in made.feed(body[i : i + size])] + made.finish()
    assert [d.response is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
    response = deltas.pop().response
    assert response is not None
    assert_deltas_make_up(response.message, deltas)
    return response.message, deltas


def assert_deltas_make_up(message: AssistantMessage, deltas: list[Delta]) -> None:
    assert "".join(d.text for d in deltas) == message.text
    calls: dict[int, ToolCall] = {}
    for d in deltas:
        if d.index is None:
            continue
        if d.index not in calls:
            assert d.call_id
            calls[d.index] = ToolCall(d.call_id, d.name or "", "")
        begun = calls[d.index]
        calls[d.index] = ToolCall(begun.id, begun.name, begun.arguments + d.arguments)
    assert [calls[i] for i in sorted(calls)] == message.tool_calls


def stream(*chunks: object, done: bool = True) -> bytes:
    lines = [json.dumps(c) if not isinstance(c, str) else c for c in chunks] + ["[DONE]"] * done
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def chunk(content: str | None = None, calls: list[dict[str, Any]] | None = None, **choice: Any) -> dict[str, Any]:
    delta = {k: v for k, v in (("content", content), ("tool_calls", calls)) if v is not None}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]}


def call(arguments: Any = None, *, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return {**fields, "function": function}


def calls_of(pieces: Iterable[list[dict[str, Any]]]) -> list[ToolCall]:
    chunks = [chunk(calls=piece) for piece in pieces]
    return assemble(stream(*chunks, chunk(finish_reason="tool_calls")))[0].tool_calls


OSLO = '{"city": "Oslo"}'
ROME = '{"city": "Rome"}'


# -- recorded streams


@pytest.mark.parametrize(
    ("name", "text", "finish", "usage"),
    [
        ("llamacpp-after-tool", "Paris is the capital of France.", "stop", Usage(249, 8, 187)),
        ("llamacpp-text-no-usage", "Hello, welcome to my world.", "stop", None),
        ("llamacpp-length", "The story is about a young", "length", Usage(26, 6, 14)),
        ("llamacpp-logprobs", "I'm", "length", Usage(23, 2, 15)),
        ("llamacpppython-text", "Hello, hello!", "stop", None),
    ],
)
def test_a_recorded_text_stream_gives_its_text(name: str, text: str, finish: str, usage: Usage | None) -> None:
    message, _ = assemble((SSE / f"{name}.sse").read_bytes())
    assert (message.text, message.finish_reason, message.usage) == (text, finish, usage)
    assert message.tool_calls == []


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("llamacpp-tool-call", [("get_weather", {"city": "Paris"})]),
        ("llamacpp-tool-calls-two", [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]),
        ("llamacpp-tool-call-required", [("add", {"a": 17, "b": 25})]),
        ("llamacpppython-tool-call-named", [("get_weather", {"city": "Paris"})]),
        ("aimock-openai-tool-calls-two", [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]),
    ],
)
def test_a_recorded_stream_of_tool_calls_gives_the_calls(name: str, calls: list[tuple[str, Any]]) -> None:
    message, _ = assemble((SSE / f"{name}.sse").read_bytes())
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == calls
    assert len({c.id for c in message.tool_calls}) == len(calls)
    assert (message.text, message.finish_reason) == ("", "tool_calls")


def test_a_recorded_stream_of_json_gives_the_json() -> None:
    message, _ = assemble((SSE / "llamacpp-json-schema.sse").read_bytes())
    assert json.loads(message.text)["name"] == "get_weather"


def test_a_recorded_stream_with_reasoning_keeps_it_apart_from_the_text() -> None:
    message, deltas = assemble((SSE / "aimock-openai-reasoning.sse").read_bytes())
    assert (message.text, message.reasoning) == ("42", [ReasoningPart("Six times seven.")])
    assert [d.reasoning for d in deltas if d.reasoning] == ["Six times seven."]


@pytest.mark.parametrize(
    ("name", "finish", "arguments"),
    [
        ("llamacpp-tool-call-cut-by-length", "length", "{"),
        ("llamacpp-tool-call-broken-by-stop-word", "tool_calls", '{"'),
    ],
)
def test_a_call_that_the_model_did_not_end_is_handed_on_as_it_came(name: str, finish: str, arguments: str) -> None:
    message, _ = assemble((SSE / f"{name}.sse").read_bytes())
    assert message.finish_reason == finish
    assert [c.arguments for c in message.tool_calls] == [arguments]


@pytest.mark.parametrize("name", ["llamacpp-killed-mid-stream", "aimock-openai-cut-mid-stream"])
def test_a_recorded_stream_that_was_cut_is_no_message(name: str) -> None:
    made = assembler()
    list(made.feed((SSE / f"{name}.sse").read_bytes()))
    with pytest.raises(StreamCutError, match="model 'm' at host: the stream ended early"):
        made.finish()
    assert made.partial


@pytest.mark.case("C11")
@pytest.mark.parametrize("name", ["llamacpp-text", "llamacpp-tool-calls-two", "llamacpppython-tool-call-named"])
@given(size=st.integers(1, 300))
def test_a_recorded_stream_gives_the_same_in_pieces_of_any_size(name: str, size: int) -> None:
    body = (SSE / f"{name}.sse").read_bytes()
    assert assemble(body, size) == assemble(body)


def test_a_recorded_response_in_one_piece_is_the_same_message_as_a_stream() -> None:
    last = assembler().whole((SSE / "llamacpp-tool-calls-two.json").read_bytes())[-1].response
    assert last is not None
    streamed, _ = assemble((SSE / "llamacpp-tool-calls-two.sse").read_bytes())
    told = [(c.name, c.arguments) for c in last.message.tool_calls]
    assert told == [("get_weather", OSLO), ("get_weather", ROME)]
    assert told == [(c.name, c.arguments) for c in streamed.tool_calls]
    assert (last.message.usage, last.message.finish_reason) == (streamed.usage, streamed.finish_reason)
    assert last.raw["object"] == "chat.completion"


# -- which call a piece belongs to


@pytest.mark.case("C1")
def test_calls_without_index_begin_with_their_id_and_name() -> None:
    assert calls_of(
        [
            [call(name="a", id="1")],
            [call('{"x"')],
            [call(": 1}")],
            [call("", name="b", id="2")],
            [call("{}")],
        ]
    ) == [ToolCall("1", "a", '{"x": 1}'), ToolCall("2", "b", "{}")]


@pytest.mark.case("C3")
@pytest.mark.case("C14")
def test_interleaved_pieces_go_by_their_index() -> None:
    opening = [call("", name=n, id=i, index=k) for k, (i, n) in enumerate([("1", "a"), ("2", "b")])]
    pieces = [[call(text, index=k, name=name)] for text, k, name in ((OSLO[:5], 0, None), (ROME[:9], 1, ""))]
    rest = [[call(OSLO[5:], index=0)], [call(ROME[9:], index=1, name="", id="")]]
    assert calls_of([opening, *pieces, *rest]) == [ToolCall("1", "a", OSLO), ToolCall("2", "b", ROME)]


@pytest.mark.case("C14")
@given(st.permutations([0, 0, 0, 1, 1, 1]))
def test_arguments_name_and_id_of_each_call_may_come_in_any_interleaving(turns: list[int]) -> None:
    parts = [
        iter([call(OSLO, index=0), call(name="a", index=0), call(id="1", index=0)]),
        iter([call(ROME, index=1), call(name="b", index=1), call(id="2", index=1)]),
    ]
    assert calls_of([next(parts[turn])] for turn in turns) == [ToolCall("1", "a", OSLO), ToolCall("2", "b", ROME)]


@pytest.mark.case("C14")
def test_nothing_of_a_call_is_told_before_its_id_and_name() -> None:
    made = assembler()
    assert list(made.feed(stream(chunk(calls=[call('{"x', index=0)]), done=False))) == []
    assert list(made.feed(stream(chunk(calls=[call(name="a", index=0)]), done=False))) == []
    told = made.feed(stream(chunk(calls=[call('": 1}', index=0, id="1")]), done=False))
    assert list(told) == [Delta(index=0, call_id="1", name="a", arguments='{"x": 1}')]


@pytest.mark.case("C10")
@pytest.mark.parametrize("repeated", [None, "a"])
def test_nested_arguments_are_not_closed_too_early(repeated: str | None) -> None:
    pieces = [[call(text, name=repeated)] for text in ('{"a":{"b":"x"', "}", "}")]
    assert calls_of([[call(name="a", id="1")], *pieces]) == [ToolCall("1", "a", '{"a":{"b":"x"}}')]


@pytest.mark.case("C12")
@pytest.mark.parametrize("index", [{}, {"index": None}])
def test_one_chunk_may_have_two_whole_calls(index: dict[str, None]) -> None:
    both = [call(OSLO, name="a", id="1", **index), call(ROME, name="a", id="2", **index)]
    assert calls_of([both]) == [ToolCall("1", "a", OSLO), ToolCall("2", "a", ROME)]


@pytest.mark.case("C12")
def test_bare_pieces_go_to_the_call_last_opened_and_a_later_index_still_works() -> None:
    pieces = [
        [call(name="a", id="1")],
        [call(OSLO[:3])],
        [call(OSLO[3:])],
        [call(name="b", id="2")],
        [call(ROME[:3])],
        [call(ROME[3:], index=1)],
        [call(" ", index=0)],
    ]
    assert calls_of(pieces) == [ToolCall("1", "a", OSLO + " "), ToolCall("2", "b", ROME)]


@pytest.mark.case("C12")
def test_a_call_without_an_id_gets_a_new_one() -> None:
    pieces = [[call(OSLO, name="a", index=0)], [call(ROME, name="a", index=1)]]
    assert calls_of(pieces) == [ToolCall("new_0", "a", OSLO), ToolCall("new_1", "a", ROME)]


def test_whole_calls_of_one_tool_with_neither_index_nor_id_are_two() -> None:
    assert [c.arguments for c in calls_of([[call(OSLO, name="a")], [call(ROME, name="a")]])] == [OSLO, ROME]
    assert [c.name for c in calls_of([[call(name="a"), call(name="a")]])] == ["a", "a"]


def test_an_id_that_a_server_gives_twice_is_made_unique() -> None:
    pieces = [[call(OSLO, name="a", id="x", index=0)], [call(ROME, name="a", id="x", index=1)]]
    assert calls_of(pieces) == [ToolCall("x", "a", OSLO), ToolCall("x_2", "a", ROME)]
    bare = [[call(OSLO, name="a", id="x")], [call(ROME[:4], name="a", id="x")], [call(ROME[4:], id="x")]]
    assert calls_of(bare) == [ToolCall("x", "a", OSLO), ToolCall("x_2", "a", ROME)]


def test_a_server_that_numbers_every_call_0_is_understood_by_the_ids() -> None:
    pieces = [[call(name="a", id="1", index=0)], [call(OSLO, index=0)], [call(name="a", id="2", index=0)]]
    assert calls_of([*pieces, [call(ROME, index=0)]]) == [ToolCall("1", "a", OSLO), ToolCall("2", "a", ROME)]


def test_a_name_or_id_that_is_repeated_in_every_piece_is_not_appended() -> None:
    pieces = [[call(text, name="a", id="1", index=0)] for text in (OSLO[:4], OSLO[4:], " ")]
    assert calls_of(pieces) == [ToolCall("1", "a", OSLO + " ")]


def test_arguments_sent_as_an_object_become_their_text() -> None:
    assert calls_of([[call({"x": 1}, name="a", id="1")]]) == [ToolCall("1", "a", '{"x":1}')]


def test_an_id_that_is_a_number_becomes_text() -> None:
    assert calls_of([[call("{}", name="a", id=7)]]) == [ToolCall("7", "a", "{}")]


# -- text


def test_an_emoji_cut_into_two_escapes_is_one_character() -> None:
    message, deltas = assemble(stream(chunk("a\ud83d"), chunk("\ude00b"), chunk(finish_reason="stop")))
    assert message.text == "a\U0001f600b"
    assert [d.text for d in deltas] == ["a", "\U0001f600b"]


@pytest.mark.parametrize("text", ["\ud83d", "x\ude00y"])
def test_half_a_surrogate_pair_becomes_the_replacement_character(text: str) -> None:
    message, _ = assemble(stream(chunk(text)))
    assert message.text.strip("xy") == "\ufffd"
    message.text.encode()


def test_an_emoji_cut_in_a_calls_arguments_is_one_character() -> None:
    pieces = [[call('"\ud83d', name="a", id="1")], [call('\ude00"')]]
    assert calls_of(pieces) == [ToolCall("1", "a", '"\U0001f600"')]


def test_content_may_be_a_list_of_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Hello"},
        {"type": "image_url", "image_url": "x"},
    ]
    message, _ = assemble(stream({"choices": [{"delta": {"content": parts}}]}))
    assert (message.text, message.reasoning) == ("Hello", [ReasoningPart("Hm.")])


def test_a_refusal_is_the_answers_text_and_marked() -> None:
    message, _ = assemble(stream({"choices": [{"delta": {"content": None, "refusal": "I won't."}}]}))
    assert message.text == "I won't."
    assert message.metadata["refusal"] is True


def test_fields_of_an_unexpected_type_do_not_cost_the_answer() -> None:
    odd = {"content": "Hi", "reasoning": {"x": 1}, "refusal": False, "unknown": [1]}
    choice = {"index": None, "delta": odd, "finish_reason": "", "logprobs": {"x": float("nan")}}
    message, _ = assemble(stream({"choices": [choice], "id": 7, "usage": "none", "model": None}))
    assert (message.text, message.usage) == ("Hi", None)


def test_of_several_answers_the_first_is_the_message() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "two"}, "finish_reason": "length"}]}
    message, _ = assemble(stream(chunk("one"), other, chunk(finish_reason="stop")))
    assert (message.text, message.finish_reason) == ("one", "stop")


@pytest.mark.parametrize(
    ("word", "ours"), [("eos", "stop"), ("max_tokens", "length"), ("function_call", "tool_calls"), ("odd", "odd")]
)
def test_a_finish_reason_of_another_dialect_is_translated(word: str, ours: str) -> None:
    assert assemble(stream(chunk("x", finish_reason=word)))[0].finish_reason == ours


def test_a_server_that_says_stop_after_calls_means_tool_calls() -> None:
    message, _ = assemble(stream(chunk(calls=[call("{}", name="a", id="1")]), chunk(finish_reason="stop")))
    assert message.finish_reason == "tool_calls"


def test_the_message_has_the_id_that_was_asked_for_and_names_the_servers_model() -> None:
    message, _ = assemble(stream({**chunk("x"), "id": "r1", "model": "m-2026"}))
    assert message.id == "the id"
    assert message.metadata == {"model": "m-2026", "response_id": "r1"}


# -- usage


@pytest.mark.case("C5")
@pytest.mark.case("I13")
def test_usage_in_a_last_chunk_without_choices_is_taken() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    message, _ = assemble(stream(chunk("x", finish_reason="stop"), {"choices": [], "usage": usage}))
    assert message.usage == Usage(9, 4, 3, 2)


@pytest.mark.case("C6")
def test_usage_that_is_null_in_all_chunks_but_one_is_taken_from_that() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    chunks = [
        {**chunk("x"), "usage": None},
        {**chunk(finish_reason="stop"), "usage": usage},
        {**chunk(), "usage": None},
    ]
    message, _ = assemble(stream(*chunks))
    assert message.usage == Usage(9, 4)


@pytest.mark.case("I13")
def test_usage_on_every_chunk_is_cumulative() -> None:
    chunks = [{**chunk("x"), "usage": {"prompt_tokens": 7, "completion_tokens": n}} for n in (10, 50, 100)]
    message, _ = assemble(stream(*chunks))
    assert message.usage == Usage(7, 100)


@pytest.mark.case("I13")
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({}, Usage()),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": "5", "prompt_tokens_details": ""}, Usage()),
    ],
)
def test_usage_that_is_not_told_is_unknown_and_not_0(usage: Any, expected: Usage | None) -> None:
    message, _ = assemble(stream({**chunk("x", finish_reason="stop"), "usage": usage}))
    assert message.usage == expected


# -- ends and errors


def test_the_end_mark_alone_ends_an_answer() -> None:
    assert assemble(stream(chunk("x")))[0].text == "x"


def test_a_finish_reason_alone_ends_an_answer() -> None:
    assert assemble(stream(chunk("x", finish_reason="stop"), done=False))[0].text == "x"


def test_what_follows_the_end_mark_is_not_read() -> None:
    assert assemble(stream(chunk("x")) + stream(chunk("y")))[0].text == "x"


@pytest.mark.parametrize(
    ("error", "kind", "status", "text"),
    [
        ({"error": {"message": "overloaded", "code": 529}}, OverloadedError, 529, "overloaded"),
        ({"error": {"message": "slow", "code": None}}, ProviderError, None, "slow"),
        ({"error": {"message": "slow", "type": "server_error"}}, ServerError, 500, "slow"),
        ({"error": "no room"}, ProviderError, None, "no room"),
        ("no room", ProviderError, None, "no room"),
        ({"object": "error", "message": "bad", "code": 400}, BadRequestError, 400, "bad"),
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, ContextLengthError, None, "too long"),
    ],
)
@pytest.mark.case("C15")
def test_an_error_inside_the_stream_has_its_type_and_text(
    error: object, kind: type[ProviderError], status: int | None, text: str
) -> None:
    made = assembler()
    assert [d.text for d in made.feed(stream(chunk("some"), done=False))] == ["some"]
    with pytest.raises(ProviderError, match=f"model 'm' at host: .*{text}") as raised:
        list(made.feed(stream(json.dumps(error))))
    assert type(raised.value) is kind
    assert raised.value.status_code == status
    assert made.partial == "some"


def test_a_recorded_error_inside_the_stream_has_its_type_and_text() -> None:
    with pytest.raises(ServerError, match="does not match the expected peg-native format") as raised:
        list(assembler().feed((SSE / "llamacpp-error-in-stream.sse").read_bytes()))
    assert (raised.value.status_code, raised.value.code) == (500, "server_error")


def test_an_error_event_is_an_error() -> None:
    with pytest.raises(OverloadedError, match="busy"):
        list(assembler().feed(b'event: error\ndata: {"error": {"type": "overloaded_error", "message": "busy"}}\n\n'))


@pytest.mark.parametrize("data", ["{half", "[1]", '{"choices": 3}', "<html>"])
def test_what_is_no_chunk_is_an_error_that_shows_it(data: str) -> None:
    with pytest.raises(MalformedResponseError) as raised:
        list(assembler().feed(stream(data)))
    assert data in str(raised.value)
    assert raised.value.body == data


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{malformed json: <<<chaos>>>", b'{"choices": []}', b'{"choices": [{}]}']
)
def test_a_whole_response_without_a_message_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        assembler().whole(body)


@pytest.mark.parametrize("data", ["[" * 5_000, '{"error": ' * 5_000, '{"error": ' + "[" * 5_000 + "]" * 5_000 + "}"])
def test_brackets_without_end_are_an_error_of_ours(data: str) -> None:
    with pytest.raises(ModelError):
        list(assembler().feed(stream(data)))


def test_a_number_without_end_where_nobody_looks_costs_no_more_than_the_raw_response() -> None:
    number = b"9" * 5_000
    *_, last = assembler().whole(b'{"choices": [{"message": {"content": "Hi"}}], "n": ' + number + b"}")
    assert last.response is not None
    assert (last.response.message.text, last.response.raw) == ("Hi", None)


@pytest.mark.parametrize("odd", ["\ud83d", 2**70, True])
def test_a_message_can_be_stored_whatever_the_server_tells_besides_its_text(odd: Any) -> None:
    piece = call("{}", name="f\ude00", id="1\ud83d", index=0)
    body = stream({**chunk(calls=[piece], finish_reason="odd\ud83d"), "model": odd, "usage": {"prompt_tokens": odd}})
    message, _ = assemble(body)
    assert decode(encode([message])) != []
    assert message.tool_calls == [ToolCall("1\ufffd", "f\ufffd", "{}")]


keys = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index", "usage"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values | st.fixed_dictionaries({"choices": st.lists(json_values, max_size=2)}), max_size=4))
def test_whatever_comes_gives_a_message_or_an_error_of_ours(values: list[Any]) -> None:
    try:
        assemble(stream(*map(json.dumps, values)))
    except ModelError:
        pass
