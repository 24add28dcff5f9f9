"""Streams of OpenAI's responses, as servers really send them, become one right message and its deltas."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage
from agentgraph.models import (
    ContentFilterError,
    Delta,
    MalformedResponseError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamCutError,
)
from agentgraph.models.assemble_responses import RESPONSES, ResponsesAssembler

SSE = Path(__file__).parent.parent / "sse"
RECORDED = sorted(path.name for path in SSE.glob("*-responses-*.sse"))


def assembler() -> ResponsesAssembler:
    ids = (f"new_{n}" for n in itertools.count())
    return ResponsesAssembler("model 'm' at host", lambda: next(ids), "the id", server="host")


def checked(deltas: list[Delta]) -> tuple[AssistantMessage, list[Delta]]:
    """The message, and the deltas before the last one, which must make it up."""
    assert [d.response is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
    *told, last = deltas
    assert last.response is not None
    message = last.response.message
    assert "".join(d.text for d in told) == message.text
    assert "".join(d.reasoning for d in told) == "".join(r.text for r in message.reasoning)
    for index, call in enumerate(message.tool_calls):
        first, *rest = [d for d in told if d.index == index]
        assert (first.call_id, first.name) == (call.id, call.name)
        assert first.arguments + "".join(d.arguments for d in rest) == call.arguments
        assert not any(d.call_id or d.name for d in rest)
    return message, told


def assemble(body: bytes, size: int | None = None) -> tuple[AssistantMessage, list[Delta]]:
    made = assembler()
    size = size or len(body)
    return checked([d for i in range(0, len(body), size) for d in made.feed(body[i : i + size])] + made.finish())


def stream(*events: dict[str, Any], completed: dict[str, Any] | None = None, end: bool = True) -> bytes:
    response = {"id": "r1", "model": "m-2026", "status": "completed", **(completed or {})}
    last = [{"type": f"response.{response['status']}", "response": response}] if end else []
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in [*events, *last]).encode()


def added(kind: str, place: int | None = None, **item: Any) -> dict[str, Any]:
    return located({"type": "response.output_item.added", "item": {"type": kind, **item}}, place)


def done(kind: str, place: int | None = None, **item: Any) -> dict[str, Any]:
    return located({"type": "response.output_item.done", "item": {"type": kind, **item}}, place)


def located(event: dict[str, Any], place: int | None) -> dict[str, Any]:
    return event if place is None else {**event, "output_index": place}


def text(delta: Any, place: int | None = None, **fields: Any) -> dict[str, Any]:
    return located({"type": "response.output_text.delta", "delta": delta, **fields}, place)


def arguments(delta: str, place: int | None = None, **fields: Any) -> dict[str, Any]:
    return located({"type": "response.function_call_arguments.delta", "delta": delta, **fields}, place)


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "output_text", "text": t, "annotations": []} for t in texts]


OSLO = '{"city": "Oslo"}'
ROME = '{"city": "Rome"}'


# -- recorded streams


def test_a_recorded_text_stream_gives_its_text_and_usage() -> None:
    message, deltas = assemble((SSE / "llamacpp-responses-text.sse").read_bytes())
    assert [d.text for d in deltas] == ["Hello", ",", " welcome", " to", " my", " world", "."]
    assert (message.id, message.text, message.finish_reason) == ("the id", "Hello, welcome to my world.", "stop")
    assert message.usage == Usage(26, 8, 25)
    assert message.metadata == {"model": "smollm2-135m", "response_id": "resp_h1VzEuZgYEx7qmGjDX7arLR9CVhIk9La"}


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("llamacpp-responses-tool-call", [("get_weather", {"city": "Paris"})]),
        ("aimock-responses-tool-calls-two", [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]),
    ],
)
def test_a_recorded_stream_of_tool_calls_gives_the_calls(name: str, calls: list[tuple[str, Any]]) -> None:
    message, _ = assemble((SSE / f"{name}.sse").read_bytes())
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == calls
    assert (message.text, message.finish_reason, message.reasoning) == ("", "tool_calls", [])
    assert message.tool_calls[0].id.startswith("call_")


def test_a_recorded_stream_with_reasoning_keeps_the_item_and_its_place() -> None:
    message, deltas = assemble((SSE / "aimock-responses-reasoning.sse").read_bytes())
    assert (message.text, [d.reasoning for d in deltas if d.reasoning]) == ("42", ["Six times seven."])
    (part,) = message.reasoning
    assert part.text == "Six times seven."
    assert part.data is not None
    assert part.data["encrypted_content"].startswith("YWlt")
    heads = message.metadata[RESPONSES]
    assert (heads["server"], [i["type"] for i in heads["items"]]) == ("host", ["reasoning", "message"])


@pytest.mark.case("C11")
@pytest.mark.parametrize("name", RECORDED)
@given(size=st.integers(1, 300))
def test_a_recorded_stream_gives_the_same_in_pieces_of_any_size(name: str, size: int) -> None:
    body = (SSE / name).read_bytes()
    assert assemble(body, size) == assemble(body)


@pytest.mark.case("C8")
@pytest.mark.parametrize("name", RECORDED)
@given(data=st.data())
def test_a_recorded_stream_that_is_cut_before_its_end_is_no_message(name: str, data: st.DataObject) -> None:
    body = (SSE / name).read_bytes()
    end = body.index(b"event: response.completed")
    made = assembler()
    deltas = list(made.feed(body[: data.draw(st.integers(0, end))]))
    with pytest.raises(StreamCutError, match="model 'm' at host: the stream ended early"):
        made.finish()
    assert not any(d.response for d in deltas)
    assert made.partial == "".join(d.text for d in deltas)


@pytest.mark.parametrize("name", RECORDED)
def test_the_same_response_in_one_piece_is_the_same_message(name: str) -> None:
    body = (SSE / name).read_bytes()
    completed = json.loads(body.rsplit(b"data: ", 1)[1])["response"]
    whole, _ = checked(assembler().whole(json.dumps(completed).encode()))
    assert whole == assemble(body)[0]


# -- which item an event is about


def test_interleaved_calls_go_by_their_place_though_every_event_has_another_id() -> None:
    body = stream(
        added("function_call", 0, id="x1", call_id="1", name="a", arguments=""),
        added("function_call", 1, id="x2", call_id="2", name="b", arguments=""),
        arguments(OSLO[:4], 0, item_id="x3"),
        arguments(ROME[:6], 1, item_id="x4"),
        arguments(OSLO[4:], 0, item_id="x5"),
        arguments(ROME[6:], 1, item_id="x6"),
        done("function_call", 0, id="x7", call_id="1", name="a", arguments=OSLO),
        done("function_call", 1, id="x8", call_id="2", name="b", arguments=ROME),
    )
    assert assemble(body)[0].tool_calls == [ToolCall("1", "a", OSLO), ToolCall("2", "b", ROME)]


@given(st.permutations([0, 0, 0, 1, 1, 1]))
def test_interleaved_calls_go_by_their_ids_where_there_is_no_place(turns: list[int]) -> None:
    parts = [iter([arguments(t[i : i + 6], item_id=id) for i in (0, 6, 12)]) for id, t in (("x", OSLO), ("y", ROME))]
    opened = [added("function_call", id=i, call_id=c, name="f") for i, c in (("x", "1"), ("y", "2"))]
    message, _ = assemble(stream(*opened, *(next(parts[turn]) for turn in turns)))
    assert message.tool_calls == [ToolCall("1", "f", OSLO), ToolCall("2", "f", ROME)]


def test_events_that_name_no_item_are_about_the_last_one_of_their_kind() -> None:
    body = stream(
        added("function_call", call_id="1", name="a"),
        arguments(OSLO),
        done("function_call", call_id="1", name="a", arguments=OSLO),
        added("function_call", call_id="2", name="b"),
        arguments(ROME),
        text("Both."),
    )
    message, _ = assemble(body)
    assert (message.text, [c.arguments for c in message.tool_calls]) == ("Both.", [OSLO, ROME])


def test_pieces_that_name_no_item_go_to_the_last_of_their_kind_that_has_not_ended() -> None:
    body = stream(added("function_call", call_id="1", name="a"), text("Look", item_id=[1]), arguments(OSLO), text("."))
    message, _ = assemble(body)
    assert (message.text, message.tool_calls) == ("Look.", [ToolCall("1", "a", OSLO)])
    ended = [done("function_call", call_id=id, name="f", arguments="{}") for id in ("1", "2")]
    assert [c.id for c in assemble(stream(*ended))[0].tool_calls] == ["1", "2"]


def test_nothing_of_a_call_is_told_before_its_name() -> None:
    made = assembler()
    assert list(made.feed(stream(arguments(OSLO[:5], item_id="x"), end=False))) == []
    told = made.feed(stream(done("function_call", id="x", call_id="1", name="a", arguments=OSLO), end=False))
    assert list(told) == [
        Delta(index=0, call_id="1", name="a", arguments=OSLO[:5]),
        Delta(index=0, arguments=OSLO[5:]),
    ]


@pytest.mark.parametrize("id", [{}, {"call_id": None}, {"call_id": ""}, {"call_id": 7}])
def test_a_call_without_an_id_gets_a_new_one(id: dict[str, Any]) -> None:
    body = stream(*(done("function_call", k, id=f"x{k}", name="f", arguments="{}", **id) for k in (0, 1)))
    assert [c.id for c in assemble(body)[0].tool_calls] == ["new_0", "new_1"]


def test_an_id_that_a_server_gives_twice_is_made_unique() -> None:
    body = stream(*(done("function_call", k, name="f", arguments="{}", call_id="c") for k in (0, 1)))
    assert [c.id for c in assemble(body)[0].tool_calls] == ["c", "c_2"]


# -- what comes whole, or not at all


def test_an_item_without_deltas_is_taken_when_it_is_done() -> None:
    call = done("function_call", 1, id="f", call_id="1", name="a", arguments=OSLO)
    message, deltas = assemble(stream(done("message", 0, id="m", content=said("Look", "ing.")), call))
    assert (message.text, message.tool_calls) == ("Looking.", [ToolCall("1", "a", OSLO)])
    assert [d.text for d in deltas if d.text] == ["Looking."]


def test_the_last_response_completes_what_no_event_told() -> None:
    output = [{"type": "message", "id": "m", "content": said("Hello.")}]
    assert assemble(stream(completed={"output": output}))[0].text == "Hello."
    begun = assemble(stream(text("Hel", 0, item_id="other"), completed={"output": output}))
    assert [d.text for d in begun[1]] == ["Hel", "lo."]


def test_what_stands_in_an_item_that_only_begins_is_told_when_it_comes() -> None:
    summary = [{"type": "summary_text", "text": "Hm"}]
    piece = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Hm."}
    begun = [added("reasoning", 0, summary=summary), piece, added("message", 1, content=said("Ye")), text("Yes.", 1)]
    message, _ = assemble(stream(*begun))
    assert (message.text, [r.text for r in message.reasoning]) == ("Yes.", ["Hm."])


def test_a_whole_item_that_differs_from_what_was_told_changes_nothing() -> None:
    body = stream(text("Hello", 0), done("message", 0, id="m", content=said("Good day")))
    assert assemble(body)[0].text == "Hello"
    two = [{"type": "message", "content": said("x")}, {"type": "message", "content": said("y")}]
    assert assemble(stream(text("Hello", 0), completed={"output": two}))[0].text == "Hello"


def test_arguments_that_came_with_the_beginning_of_a_call_count_where_no_more_comes() -> None:
    opening = added("function_call", 0, call_id="1", name="a", arguments=OSLO)
    assert assemble(stream(opening))[0].tool_calls == [ToolCall("1", "a", OSLO)]
    message, _ = assemble(stream(opening, arguments(OSLO[:3], 0), arguments(OSLO[3:], 0)))
    assert message.tool_calls == [ToolCall("1", "a", OSLO)]


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_call_whose_name_never_comes_is_handed_on_for_the_tool_node_to_answer(name: Any) -> None:
    body = stream(arguments(OSLO, 0), done("function_call", 0, call_id="1", name=name, arguments=OSLO))
    assert assemble(body)[0].tool_calls == [ToolCall("new_0", "", OSLO)]


def test_a_call_that_the_output_limit_cut_is_handed_on_as_it_came() -> None:
    events = [added("function_call", 0, call_id="1", name="a"), arguments('{"ci', 0)]
    end = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    message, _ = assemble(stream(*events, completed=end))
    assert (message.finish_reason, message.tool_calls) == ("length", [ToolCall("1", "a", '{"ci')])


# -- reasoning, refusals, items of other types


def test_parts_of_a_summary_are_paragraphs() -> None:
    summary = [{"type": "summary_text", "text": t} for t in ("First.", "Then.")]
    events = [
        added("reasoning", 0, id="rs"),
        *(
            event
            for k, part in enumerate(summary)
            for event in (
                {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": k},
                {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": part["text"]},
            )
        ),
        done("reasoning", 0, id="rs", summary=summary, encrypted_content="e"),
    ]
    message, _ = assemble(stream(*events))
    item = {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "e"}
    assert message.reasoning == [ReasoningPart("First.\n\nThen.", data=item)]
    assert assemble(stream(events[0], events[-1]))[0].reasoning == message.reasoning


def test_reasoning_that_is_told_in_full_is_read() -> None:
    content = [{"type": "reasoning_text", "text": "Hm."}]
    told = {"type": "response.reasoning_text.delta", "item_id": "rs", "delta": "Hm."}
    body = stream(told, done("reasoning", id="rs", summary=[], content=content))
    assert [r.text for r in assemble(body)[0].reasoning] == ["Hm."]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_refusal_is_the_answers_text_and_marked(streamed: bool) -> None:
    whole = done("message", 0, content=[{"type": "refusal", "refusal": "I won't."}])
    pieces = [{"type": "response.refusal.delta", "output_index": 0, "delta": text} for text in ("I ", "won't.")]
    message, deltas = assemble(stream(*pieces) if streamed else stream(whole))
    assert (message.text, message.metadata["refusal"]) == ("I won't.", True)
    assert len([d for d in deltas if d.text]) == (2 if streamed else 1)


def test_a_providers_own_tool_is_kept_as_it_came_and_the_order_of_all_items_too() -> None:
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "q"}}
    note = {"type": "url_citation", "url": "https://x"}
    body = stream(
        text("Let me ", 0, item_id="m1"),
        text("see.", 0, item_id="m1"),
        done("message", 0, id="m1", phase="commentary", content=said("Let me see.")),
        {"type": "response.output_item.done", "output_index": 1, "item": search},
        done("message", 2, id="m2", content=[{"type": "output_text", "text": "Yes.", "annotations": [note]}]),
        done("function_call", 3, id="fc", call_id="1", name="f", arguments="{}"),
    )
    message, _ = assemble(body)
    assert (message.text, message.reasoning) == ("Let me see.Yes.", [ReasoningPart(data=search)])
    assert message.metadata["annotations"] == [note]
    assert message.metadata[RESPONSES]["items"] == [
        {"type": "message", "id": "m1", "phase": "commentary", "length": 11},
        {"type": "web_search_call", "id": "ws"},
        {"type": "message", "id": "m2", "length": 4},
        {"type": "function_call", "id": "fc"},
    ]


def test_events_of_unknown_types_and_odd_fields_do_not_cost_the_answer() -> None:
    odd: list[dict[str, Any]] = [
        {"type": "response.queued", "response": 3},
        {"type": "response.created", "response": {"id": "r0", "model": None}},
        {"type": "response.created", "response": "?"},
        {"type": "response.web_search_call.searching", "item_id": "?", "output_index": None},
        {"type": "keepalive", "sequence_number": 9},
        {"type": "response.output_item.added", "item": "?"},
        text(None, 0),
        text("Hi", 0, logprobs=[1], output_index="0"),
    ]
    message, _ = assemble(stream(*odd, completed={"usage": "none", "output": [None, 7]}))
    assert (message.text, message.usage) == ("Hi", None)


@pytest.mark.case("D16")
def test_an_emoji_cut_into_two_escapes_is_one_character() -> None:
    message, deltas = assemble(stream(text("a\ud83d", 0), text("\ude00b", 0)))
    assert (message.text, [d.text for d in deltas]) == ("a\U0001f600b", ["a", "\U0001f600b"])
    half, _ = assemble(stream(text("a\ud83d", 0)))
    assert half.text == "a\ufffd"


def test_what_comes_after_the_end_is_not_read() -> None:
    made = assembler()
    list(made.feed(stream(text("Hi", 0)) + b"data: {malformed\n\n"))
    assert made.done
    message, _ = checked([Delta("Hi"), *made.finish()])
    assert (message.text, message.finish_reason) == ("Hi", "stop")


def test_the_beginning_names_model_and_response_where_the_end_does_not() -> None:
    created = {"type": "response.created", "response": {"id": "r0", "model": "m0"}}
    message, _ = assemble(stream(created, text("Hi", 0), completed={"id": None, "model": None}))
    assert message.metadata == {"model": "m0", "response_id": "r0"}


def test_an_end_mark_ends_a_stream_of_a_server_that_tells_no_end() -> None:
    message, _ = assemble(stream(text("Hi", 0), end=False) + b"data: [DONE]\n\n")
    assert (message.text, message.finish_reason) == ("Hi", "stop")


# -- the end, and errors


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("odd", "odd"), (None, "incomplete")],
)
def test_an_incomplete_answer_tells_why(reason: str | None, finish: str) -> None:
    end = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    message, _ = assemble(stream(text("Half", 0), completed=end))
    assert (message.text, message.finish_reason) == ("Half", finish)


def test_an_answer_of_which_the_filter_left_nothing_is_an_error() -> None:
    end = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    with pytest.raises(ContentFilterError, match="model 'm' at host: the provider's filter refused the answer"):
        assemble(stream(completed=end))


@pytest.mark.case("I13")
def test_usage_has_cached_and_reasoning_tokens() -> None:
    usage = {
        "input_tokens": 75,
        "input_tokens_details": {"cached_tokens": 32},
        "output_tokens": 1186,
        "output_tokens_details": {"reasoning_tokens": 1024},
        "total_tokens": 1261,
    }
    *_, last = [*(made := assembler()).feed(stream(text("x", 0), completed={"usage": usage})), *made.finish()]
    assert last.usage == Usage(75, 1186, 32, 1024)


@pytest.mark.case("C9")
@pytest.mark.parametrize(
    ("event", "kind", "status"),
    [
        ({"type": "error", "code": "server_error", "message": "bad luck", "param": None}, ServerError, 500),
        ({"type": "error", "error": {"type": "rate_limit_exceeded", "message": "bad luck"}}, RateLimitError, 429),
        ({"type": "error", "error": {"code": 529, "message": "bad luck"}}, OverloadedError, 529),
        ({"type": "error", "code": None, "message": "bad luck"}, ProviderError, None),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_error_event_is_an_error_with_text_and_code(
    event: dict[str, Any], kind: type[ProviderError], status: int | None, named: bool
) -> None:
    made = assembler()
    body = stream(event, end=False)
    if not named:
        body = body.removeprefix(b"event: error\n")
    with pytest.raises(kind, match=r"model 'm' at host: .*bad luck") as raised:
        list(made.feed(body))
    assert (type(raised.value), raised.value.status_code) == (kind, status)


@pytest.mark.case("C15")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", ServerError),
        ("rate_limit_exceeded", RateLimitError),
        ("invalid_prompt", ContentFilterError),
        ("image_content_policy_violation", ContentFilterError),
        ("vector_store_timeout", ProviderError),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_failed_response_is_an_error_of_its_code(code: str, kind: type[ProviderError], streamed: bool) -> None:
    failed: dict[str, Any] = {
        "id": "r1",
        "status": "failed",
        "error": {"code": code, "message": "bad luck"},
        "output": [],
    }
    made = assembler()
    with pytest.raises(kind, match="bad luck") as raised:
        list(made.feed(stream(completed=failed)) if streamed else made.whole(json.dumps(failed).encode()))
    assert (type(raised.value), raised.value.code) == (kind, code)


def test_a_failed_response_without_a_reason_is_an_error() -> None:
    with pytest.raises(ProviderError, match="model 'm' at host: "):
        list(assembler().feed(stream(completed={"status": "failed", "error": None})))


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "r1"}',
        b'{"status": "in_progress", "output": []}',
        b'{"output": 7}',
        b"[]",
        b"{malformed",
        b"\xff",
    ],
)
def test_what_is_no_response_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedResponseError, match="model 'm' at host: "):
        assembler().whole(body)


def test_what_is_no_event_is_an_error() -> None:
    with pytest.raises(MalformedResponseError):
        list(assembler().feed(b"data: {malformed\n\n"))
    with pytest.raises(MalformedResponseError, match="this is no response"):
        list(assembler().feed(stream({"type": "response.completed", "response": [1]}, end=False)))
