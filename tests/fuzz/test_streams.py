"""Whatever a server streams: a whole answer or an error of ours, at once, and the same wherever the bytes were cut.

Recorded streams are broken in all ways that a few changes of an event's JSON, of the order of events or of bytes can.
`make fuzz` does it for FUZZ_SECONDS, with new examples each time; one that fails is kept in .hypothesis, and tried
first the next time.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph import messages
from agentgraph.messages import AssistantMessage, ToolCall
from agentgraph.models import Delta, ModelError
from agentgraph.models.assemble import ChatAssembler
from agentgraph.models.assemble_anthropic import AnthropicAssembler
from agentgraph.models.assemble_gemini import GeminiAssembler
from agentgraph.models.assemble_responses import ResponsesAssembler
from agentgraph.models.http import Assembler
from agentgraph.models.json_mode import JsonModeAssembler
from agentgraph.models.sse import SseDecoder

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
"""How long to go on, all tests together; 0: a few examples each, as an ordinary test."""
HANGS_AFTER = 5.0

SSE = Path(__file__).parent.parent / "sse"
RECORDED = {path.name: path.read_bytes() for path in sorted(SSE.glob("*.sse"))}


def said(text: str) -> bytes:
    """A chat-completions stream of that text."""
    chunks: list[Any] = [{"choices": [{"delta": {"content": text[i : i + 7]}}]} for i in range(0, len(text), 7)]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)


REPLIES = [
    said('{"answer": "Hello \\ud83d\\ude00, \\"world\\"."}'),
    said('{"tool_calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": "{\\"a\\": 2}"}]}'),
    said('{"name": "add", "arguments": {"a": 1}}'),
]
"""What models say in JSON mode."""


def streams_of(protocol: str) -> list[bytes]:
    named = {p: [body for name, body in RECORDED.items() if p in name] for p in ("anthropic", "gemini", "responses")}
    others = [body for bodies in named.values() for body in bodies]
    chat = [body for body in RECORDED.values() if body not in others]
    return {"chat": chat, "json mode": REPLIES, **named}[protocol]


ANSWERS: dict[str, Any] = {
    "chat": json.loads((SSE / "llamacpp-tool-calls-two.json").read_bytes()),
    "json mode": {"choices": [{"message": {"content": '{"answer": "Hello"}'}, "finish_reason": "stop"}]},
    "anthropic": {
        "id": "msg_1",
        "model": "claude",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 1, "output_tokens": 2},
    },
    "responses": {
        "id": "resp_1",
        "model": "gpt",
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hello", "annotations": [{}]}]},
            {"type": "function_call", "id": "f", "call_id": "a", "name": "add", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 1}},
    },
    "gemini": {
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"text": "Hm.", "thought": True},
                        {"text": "Hello", "thoughtSignature": "c2ln"},
                        {"functionCall": {"id": "a", "name": "add", "args": {"a": 1}}},
                    ]
                },
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "thoughtsTokenCount": 1},
    },
}
"""Whole answers."""


def new_id() -> Callable[[], str]:
    ids = (f"new_{n}" for n in itertools.count())
    return lambda: next(ids)


def in_json_mode() -> Assembler:
    new = new_id()
    return JsonModeAssembler(ChatAssembler("model", new, "the id"), new)


PROTOCOLS: dict[str, Callable[[], Assembler]] = {
    "chat": lambda: ChatAssembler("model", new_id(), "the id"),
    "anthropic": lambda: AnthropicAssembler("model", new_id(), "the id", server="s"),
    "gemini": lambda: GeminiAssembler("model", new_id(), "the id", server="s"),
    "responses": lambda: ResponsesAssembler("model", new_id(), "the id", server="s"),
    "json mode": in_json_mode,
}


# -- what must hold


class Hangs(BaseException):
    """Nothing may catch it by chance."""


@contextmanager
def at_once() -> Generator[None]:
    def alarm(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no end after {HANGS_AFTER:g} s")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(assembler: Assembler, pieces: Sequence[bytes]) -> str:
    """What came of it, as text (a NaN does not equal itself). Any exception but ours passes through."""
    told: list[Delta] = []
    try:
        for piece in pieces:
            for delta in assembler.feed(piece):
                told.append(delta)  # noqa: PERF402  # what was told before an error counts
            if assembler.done:
                break
        told += assembler.finish()
    except ModelError as error:
        assert all(delta.response is None for delta in told)
        return f"{told} {type(error).__name__} {error} {assembler.partial!r}"
    check_answer(told)
    return repr(told)


def check_answer(deltas: list[Delta]) -> None:
    """The last delta has the message, no other one has, and together they are what it says."""
    assert [delta.response is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    message = cast("Any", deltas[-1].response).message
    assert isinstance(message, AssistantMessage)
    assert "".join(delta.text for delta in deltas) == message.text
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if delta.index is not None:
            begun = calls.get(delta.index) or ToolCall(delta.call_id or "", delta.name or "", "")
            calls[delta.index] = ToolCall(begun.id, begun.name, begun.arguments + delta.arguments)
    assert [calls[index] for index in sorted(calls)] == message.tool_calls
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    assert messages.decode(messages.encode([message])) is not None


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    at = sorted(place % (len(body) + 1) for place in places)
    return [body[start:end] for start, end in itertools.pairwise([0, *at, len(body)])]


# -- how a stream is broken

TOKENS = [
    b"\n\n", b"\n", b"\r", b"\r\n", b"data: ", b"data: [DONE]\n\n", b"event: error\n", b"event: message_stop\n", b":",
    b"\xef\xbb\xbf", b"\xff", b"\xe2\x80", b"\xf0\x9f\x98\x80", b"\\ud83d", b"\\ude00", b"\\u0000", b"\\", b'"', b"{",
    b"}", b"[" * 3_000, b'{"a":' * 3_000, b"9" * 5_000, b"-1", b"null", b"NaN", b"1e999", b'data: {"error":"x"}\n\n',
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**64, 10**30, 1.5, float("nan"), "", "a", "\ud83d", "\ude00", "\ud83d\ude00",
    "error", "stop", "length", "tool_calls", "text", "thinking", "message", "function_call", [], {}, [None], [[]], [{}],
    {"": None}, {"type": "text", "text": "t"}, {"error": "x"}, {"message": "x", "code": 429}, {"name": "f"}, "\x00",
    "[" * 3_000, "{", "HUGE", "DEEP",
]  # fmt: skip
RAW = {'"HUGE"': "9" * 5_000, '"DEEP"': "[" * 3_000 + "]" * 3_000}
"""What stands for these in JSON: Python writes no such values."""


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Each place in a JSON value: a container and the key of one of its values."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in cast("dict[str, Any]", value)]
    elif isinstance(value, list):
        found += [(value, place) for place in range(len(cast("list[Any]", value)))]
    return found + [place for container, key in found for place in places_in(container[key])]


def change_value(draw: st.DrawFn, data: bytes) -> bytes:
    """One value in the JSON is another one, of any type, or gone."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = places_in(value)
    if not places:
        return data
    container, key = draw(st.sampled_from(places))
    what = draw(st.sampled_from(["odd", "another", "gone"]))
    if what == "gone":
        del container[key]
    else:
        container[key] = draw(st.sampled_from(ODD if what == "odd" else [c[k] for c, k in places_in(json.loads(data))]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    for name, raw in RAW.items():
        text = text.replace(name, raw)
    return text.encode("utf-8", "surrogatepass")


def change_events(draw: st.DrawFn, events: list[bytes]) -> None:
    place = draw(st.integers(0, len(events) - 1))
    other = draw(st.integers(0, len(events) - 1))
    what = draw(st.sampled_from(["value", "value", "value", "drop", "again", "swap"]))
    if what == "value":
        head, mark, data = events[place].partition(b"data: ")
        events[place] = head + mark + change_value(draw, data)
    elif what == "drop" and len(events) > 1:
        del events[place]
    elif what == "again":
        events.insert(other, events[place])
    elif what == "swap":
        events[place], events[other] = events[other], events[place]


def change_bytes(draw: st.DrawFn, body: bytes) -> bytes:
    start = draw(st.integers(0, len(body)))
    end = min(len(body), start + draw(st.sampled_from([0, 0, 1, 2, 10, 100])))
    return body[:start] + draw(st.sampled_from([b"", *TOKENS])) + body[end:]


@st.composite
def broken(draw: st.DrawFn, protocol: str) -> bytes:
    body = draw(st.sampled_from(streams_of(protocol)) | st.sampled_from(list(RECORDED.values())))
    events = body.split(b"\n\n")
    for _ in range(draw(st.integers(0, 4))):
        change_events(draw, events)
    body = b"\n\n".join(events).replace(b"\n", draw(st.sampled_from([b"\n", b"\r\n", b"\r"])))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 3]))):
        body = change_bytes(draw, body)
    return body


@st.composite
def broken_answer(draw: st.DrawFn, protocol: str) -> bytes:
    body = json.dumps(ANSWERS[protocol]).encode()
    for _ in range(draw(st.integers(0, 4))):
        body = change_value(draw, body)
    return change_bytes(draw, body) if draw(st.sampled_from([False, False, True])) else body


# -- the tests

limits = settings(
    max_examples=500 if FUZZ_SECONDS else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
cuts = st.lists(st.integers(0, 20_000), max_size=20)
SHARE = FUZZ_SECONDS / (2 * len(PROTOCOLS) + 1)


def fuzz(holds: Callable[[], None]) -> None:
    """Try it once, or again and again for this test's share of FUZZ_SECONDS."""
    end = time.monotonic() + SHARE
    tried = limits(holds)
    tried()
    while time.monotonic() < end:
        tried()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broken_stream_gives_an_answer_or_an_error_of_ours_wherever_it_is_cut(protocol: str) -> None:
    make = PROTOCOLS[protocol]

    @given(broken(protocol), cuts)
    def holds(body: bytes, places: list[int]) -> None:
        with at_once():
            whole = outcome(make(), [body])
            assert outcome(make(), cut(body, places)) == whole
            assert outcome(make(), [body[i : i + 1] for i in range(len(body))]) == whole

    fuzz(holds)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broken_answer_in_one_piece_gives_an_answer_or_an_error_of_ours(protocol: str) -> None:
    make = PROTOCOLS[protocol]

    @given(broken_answer(protocol))
    def holds(body: bytes) -> None:
        with at_once():
            try:
                check_answer(make().whole(body))
            except ModelError:
                pass

    fuzz(holds)


def test_any_bytes_give_the_same_events_wherever_they_are_cut() -> None:
    def decoded(pieces: Sequence[bytes]) -> str:
        decoder = SseDecoder()
        return repr([event for piece in pieces for event in decoder.feed(piece)])

    @given(st.lists(st.sampled_from(TOKENS) | st.binary(max_size=10)).map(b"".join) | broken("chat"), cuts)
    def holds(body: bytes, places: list[int]) -> None:
        with at_once():
            whole = decoded([body])
            assert decoded(cut(body, places)) == whole
            assert decoded([body[i : i + 1] for i in range(len(body))]) == whole

    fuzz(holds)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_gives_the_same_with_one_cut_anywhere(name: str) -> None:
    body = RECORDED[name][:1_500]
    make = next((PROTOCOLS[p] for p in ("anthropic", "gemini", "responses") if p in name), PROTOCOLS["chat"])
    whole = outcome(make(), [body])
    for place in range(len(body)):
        assert outcome(make(), cut(body, [place])) == whole, f"cut after {body[:place]!r}"
