"""Streams of Gemini's generateContent become one right message and its deltas."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage
from agentgraph.models import (
    BadRequestError,
    ContentFilterError,
    Delta,
    MalformedResponseError,
    OverloadedError,
    StreamCutError,
)
from agentgraph.models.assemble_gemini import GEMINI, GeminiAssembler

SSE = Path(__file__).parent.parent / "sse"
RECORDED = sorted(path.name for path in SSE.glob("*-gemini-*.sse"))


def assembler() -> GeminiAssembler:
    ids = (f"new_{n}" for n in itertools.count())
    return GeminiAssembler("model 'm' at host", lambda: next(ids), "the id", server="host")


def checked(deltas: list[Delta]) -> tuple[AssistantMessage, list[Delta]]:
    """The message, and the deltas before the last one, which must make it up."""
    assert [d.response is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
    *told, last = deltas
    assert last.response is not None
    message = last.response.message
    assert "".join(d.text for d in told) == message.text
    assert "".join(d.reasoning for d in told) == "".join(r.text for r in message.reasoning)
    calls = [ToolCall(d.call_id or "", d.name or "", d.arguments) for d in told if d.index is not None]
    assert calls == message.tool_calls
    assert [d.index for d in told if d.index is not None] == list(range(len(calls)))
    return message, told


def assemble(body: bytes, size: int | None = None) -> tuple[AssistantMessage, list[Delta]]:
    made = assembler()
    size = size or len(body)
    return checked([d for i in range(0, len(body), size) for d in made.feed(body[i : i + size])] + made.finish())


def chunk(*parts: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {}) | fields]}


def stream(*chunks: dict[str, Any]) -> bytes:
    return "".join(f"data: {json.dumps(c)}\r\n\r\n" for c in chunks).encode()


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"text": said, **fields}


def call(name: str, args: Any = None, **fields: Any) -> dict[str, Any]:
    inner = {"name": name} | ({} if args is None else {"args": args})
    return {"functionCall": inner | ({"id": fields.pop("id")} if "id" in fields else {}), **fields}


# -- recorded streams


def test_a_recorded_stream_of_tool_calls_gives_the_calls() -> None:
    message, _ = assemble((SSE / "aimock-gemini-tool-calls-two.sse").read_bytes())
    assert message.tool_calls == [
        ToolCall("call_a", "get_weather", '{"city":"Paris"}'),
        ToolCall("call_b", "get_weather", '{"city":"Oslo"}'),
    ]
    assert (message.id, message.text, message.finish_reason, message.usage) == ("the id", "", "tool_calls", Usage(0, 0))


def test_a_recorded_stream_with_reasoning_keeps_it_apart_from_the_text() -> None:
    message, deltas = assemble((SSE / "aimock-gemini-reasoning.sse").read_bytes())
    assert (message.text, message.reasoning) == ("42", [ReasoningPart("Six times seven.")])
    assert [(d.reasoning, d.text) for d in deltas] == [("Six times seven.", ""), ("", "42")]


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
    made = assembler()
    list(made.feed(body[: data.draw(st.integers(0, len(body) - 2))]))  # the last event ends with its blank line
    with pytest.raises(StreamCutError, match="model 'm' at host: the stream ended early"):
        made.finish()


def test_a_response_in_one_piece_is_the_same_message() -> None:
    body = (SSE / "aimock-gemini-tool-calls-two.sse").read_bytes()
    whole, _ = checked(assembler().whole(body.removeprefix(b"data: ")))
    assert whole == assemble(body)[0]


# -- calls


def test_calls_without_an_id_get_new_ones() -> None:
    message, _ = assemble(stream(chunk(call("f", {"a": 1})), chunk(call("f", {"a": 2}), finish="STOP")))
    assert message.tool_calls == [ToolCall("new_0", "f", '{"a":1}'), ToolCall("new_1", "f", '{"a":2}')]
    assert message.finish_reason == "tool_calls"


def test_an_id_that_a_server_gives_twice_is_made_unique() -> None:
    message, _ = assemble(stream(chunk(call("f", {}, id="c"), call("f", {}, id="c"), finish="STOP")))
    assert [c.id for c in message.tool_calls] == ["c", "c_2"]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    message, _ = assemble(stream(chunk(call("now"), finish="STOP")))
    assert message.tool_calls == [ToolCall("new_0", "now", "{}")]


@pytest.mark.case("D16")
def test_an_emoji_as_two_escapes_is_one_character_and_a_lone_half_is_replaced() -> None:
    message, _ = assemble(stream(chunk(call("f", {"a": "\ud83d\ude00"}), call("f", {"a": "\ud83d"}), finish="STOP")))
    assert [json.loads(c.arguments)["a"] for c in message.tool_calls] == ["\U0001f600", "\ufffd"]
    cut, _ = assemble(stream(chunk(text("a\ud83d")), chunk(text("\ude00b"), finish="STOP")))
    assert cut.text == "a\U0001f600b"


# -- what goes back


def test_signatures_are_kept_with_their_part_and_unsigned_text_in_one() -> None:
    message, _ = assemble(
        stream(
            chunk(text("Hm.", thought=True)),
            chunk(text("Let me ")),
            chunk(text("see.")),
            chunk(call("f", {}, thoughtSignature="S1"), call("g", {})),
            chunk(text("", thoughtSignature="S2"), finish="STOP"),
        )
    )
    assert (message.text, message.reasoning) == ("Let me see.", [ReasoningPart("Hm.")])
    assert message.metadata[GEMINI] == {
        "server": "host",
        "parts": [
            {"length": 11},
            {"call": 0, "thoughtSignature": "S1"},
            {"call": 1},
            {"length": 0, "thoughtSignature": "S2"},
        ],
    }


def test_parts_of_other_kinds_and_signed_thoughts_are_kept_as_they_came() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}}
    image = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}
    thought = text("Hm.", thought=True, thoughtSignature="S")
    message, _ = assemble(stream(chunk(thought, code, text("Two."), image, finish="STOP")))
    assert message.metadata[GEMINI]["parts"] == [thought, code, {"length": 4}, image]


def test_nothing_is_kept_of_an_answer_without_signatures_nor_a_signature_of_nothing() -> None:
    message, _ = assemble(stream(chunk(text("Hi"), {"thoughtSignature": "S"}, call("f"), finish="STOP")))
    assert message.metadata == {}


# -- odd chunks


def test_odd_fields_do_not_cost_the_answer() -> None:
    message, _ = assemble(
        stream(
            {"candidates": [{"index": 0}], "usageMetadata": "none"},
            {"candidates": []},
            {"candidates": [{"content": {"parts": None}}, {"content": {}}]},
            chunk(text("Hi"), {"text": None}, {"functionCall": 7}),
            {"candidates": [{"content": {"parts": ["?", 7]}, "finishReason": "FINISH_REASON_UNSPECIFIED"}]},
            chunk(finish="STOP"),
        )
    )
    assert (message.text, message.usage, message.finish_reason) == ("Hi", None, "stop")


def test_of_several_answers_the_first_is_the_message() -> None:
    other = chunk(text("two"), finish="MAX_TOKENS")["candidates"][0] | {"index": 1}
    body = stream(chunk(text("one")), {"candidates": [other]}, chunk(finish="STOP"))
    message, _ = assemble(body)
    assert (message.text, message.finish_reason) == ("one", "stop")


def test_the_message_names_the_servers_model_and_what_the_answer_stands_on() -> None:
    last = chunk(text("x"), finish="STOP", groundingMetadata={"webSearchQueries": ["q"]})
    message, _ = assemble(stream({**last, "modelVersion": "gemini-9", "responseId": "r1"}))
    grounding = {"webSearchQueries": ["q"]}
    assert message.metadata == {"model": "gemini-9", "response_id": "r1", "grounding": grounding}
    after = {**chunk(text("y")), "modelVersion": "gemini-9"}
    told, _ = assemble(stream({**last, "modelVersion": "gemini-9"}, after))
    assert told.metadata == {"model": "gemini-9", "grounding": grounding}


def test_a_chunk_after_the_finish_reason_does_not_take_it_back() -> None:
    assert assemble(stream(chunk(text("x"), finish="MAX_TOKENS"), chunk()))[0].finish_reason == "length"


def test_a_response_in_one_piece_is_whole_without_a_finish_reason() -> None:
    assert checked(assembler().whole(json.dumps(chunk(text("x"))).encode()))[0].finish_reason == "stop"


# -- usage


@pytest.mark.case("I13")
def test_usage_is_that_of_the_last_chunk_and_counts_thoughts_as_output() -> None:
    last = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 155,
    }
    first = {**chunk(text("x")), "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100}}
    message, _ = assemble(stream(first, {**chunk(finish="STOP"), "usageMetadata": last}))
    assert message.usage == Usage(105, 50, 40, 30)
    assert assemble(stream({**first, **chunk(text("x"), finish="STOP")}))[0].usage == Usage(100)


# -- the end, and errors


@pytest.mark.parametrize(
    ("word", "ours"),
    [("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("SPII", "content_filter"), ("X", "X")],
)
def test_a_finish_reason_is_translated(word: str, ours: str) -> None:
    assert assemble(stream(chunk(text("x"), finish=word)))[0].finish_reason == ours


@pytest.mark.parametrize("reason", ["SAFETY", "PROHIBITED_CONTENT", "RECITATION", "BLOCKLIST"])
def test_an_answer_of_which_the_filter_left_nothing_is_an_error(reason: str) -> None:
    with pytest.raises(ContentFilterError, match=rf"at host: the answer was blocked \({reason}\): Not so") as raised:
        assemble(stream(chunk(finish=reason, finishMessage="Not so.")))
    assert raised.value.code == reason


@pytest.mark.parametrize("streamed", [True, False])
def test_a_prompt_that_is_blocked_is_an_error(streamed: bool) -> None:
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "Not so."}
    body = {"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 7}}
    with pytest.raises(ContentFilterError, match=r"the prompt was blocked \(PROHIBITED_CONTENT\): Not so") as raised:
        list(assembler().feed(stream(body)) if streamed else assembler().whole(json.dumps(body).encode()))
    assert (raised.value.code, raised.value.body) == ("PROHIBITED_CONTENT", json.dumps(body))


def test_feedback_that_blocks_nothing_is_no_error() -> None:
    feedback: dict[str, Any] = {"promptFeedback": {"safetyRatings": []}}
    assert assemble(stream({**chunk(text("Hi"), finish="STOP"), **feedback}))[0].text == "Hi"


@pytest.mark.parametrize("before", [[], [text("I look it up.")]])
def test_a_call_that_could_not_be_read_is_an_error_and_no_answer(before: list[dict[str, Any]]) -> None:
    told = "Malformed function call: print(f("
    with pytest.raises(MalformedResponseError, match=r"a call that is none \(MALFORMED_FUNCTION_CALL\).*print"):
        assemble(stream(chunk(*before, finish="MALFORMED_FUNCTION_CALL", finishMessage=told)))


@pytest.mark.case("C9")
def test_an_error_inside_a_stream_comes_out_with_message_and_code() -> None:
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    made = assembler()
    with pytest.raises(OverloadedError, match="model 'm' at host: HTTP 503: The model is overloaded") as raised:
        list(made.feed(stream(chunk(text("Hel")), error)))
    assert (made.partial, raised.value.code) == ("Hel", "UNAVAILABLE")


@pytest.mark.parametrize("body", [b"{}", b'{"candidates": []}', b"[]", b'{"candidates": 7}', b"{malformed"])
def test_what_is_no_response_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedResponseError, match="model 'm' at host: "):
        assembler().whole(body)


def test_an_error_that_says_200_is_an_error() -> None:
    with pytest.raises(BadRequestError, match="no such model"):
        assembler().whole(b'{"error": {"code": 404, "message": "no such model", "status": "NOT_FOUND"}}')
