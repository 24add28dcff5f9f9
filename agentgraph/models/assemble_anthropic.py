"""Anthropic's message events in, deltas and the whole message out.

Rules of this file: those of `assemble`. Blocks are told apart by their index only: a server may stop one after the
next has begun, or not at all. Thinking is kept with its place among text and calls, because a server that signs it
takes it back nowhere else. Blocks and events of unknown types are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import msgspec

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, sound
from agentgraph.models.assemble import Growing, StreamAssembler, count_in
from agentgraph.models.errors import provider_error
from agentgraph.models.protocol import Delta

__all__ = ["REDACTED", "THINKING", "AnthropicAssembler"]

THINKING = "thinking"
REDACTED = "redacted_thinking"

# What is read. `Any` stands where servers differ: a field of the wrong type must not cost the answer.


class _Block(msgspec.Struct):
    type: Any = None
    id: Any = None
    name: Any = None
    input: Any = None  # missing, empty while it is streamed, or whole
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None


class _Change(msgspec.Struct):
    type: Any = None
    text: Any = None
    partial_json: Any = None
    thinking: Any = None
    signature: Any = None
    stop_reason: Any = None
    stop_sequence: Any = None
    stop_details: Any = None


class _Message(msgspec.Struct):
    type: Any = None
    id: Any = None
    model: Any = None
    content: list[_Block] | None = None
    stop_reason: Any = None
    stop_sequence: Any = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: Any = None
    index: int | None = None
    content_block: _Block | None = None
    delta: _Change | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_event_decoder = msgspec.json.Decoder(_Event)
_message_decoder = msgspec.json.Decoder(_Message)

_FINISH = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
    "model_context_window_exceeded": "length", "refusal": "content_filter",
}  # fmt: skip


class _Call:
    """A call under way: its place among the calls, and the arguments that came with its beginning, if any."""

    __slots__ = ("arguments", "given", "id", "index", "name")

    def __init__(self, index: int, id: str, name: str, given: str) -> None:
        self.index = index
        self.id = id
        self.name = name
        self.given = given
        self.arguments = Growing()


class _Thought:
    """A block of thinking, and what stood before it: so much text, so many calls."""

    __slots__ = ("after_calls", "after_text", "data", "signature", "text")

    def __init__(self, after_text: int, after_calls: int, data: dict[str, Any]) -> None:
        self.after_text = after_text
        self.after_calls = after_calls
        self.data = data
        self.signature = ""
        self.text = Growing()

    def part(self) -> ReasoningPart:
        data = self.data
        if self.after_text or self.after_calls:
            data = {**data, "after": [self.after_text, self.after_calls]}
        self.text.end()
        return ReasoningPart(str(self.text), self.signature or None, data)


class AnthropicAssembler(StreamAssembler):
    """Assembles an answer of Anthropic's messages. `server` is told with its thinking: no other takes it back."""

    def __init__(
        self, where: str, new_call_id: Callable[[], str], message_id: str | None = None, *, server: str = ""
    ) -> None:
        super().__init__(where, new_call_id, message_id)
        self._server = server
        self._blocks: dict[int, _Call | _Thought | None] = {}  # None: its text, or what is left out
        self._last = -1
        self._calls: list[_Call] = []
        self._thoughts: list[_Thought] = []
        self._told = 0
        self._usage: dict[str, Any] = {}

    def _event(self, data: str, deltas: list[Delta]) -> None:
        event = self._read(_event_decoder, data)
        if event.error is not None or event.type == "error":
            raise provider_error(self.where, data)
        if event.type == "content_block_delta":
            if event.delta is not None:
                self._change(self._last if event.index is None else event.index, event.delta, deltas)
        elif event.type == "content_block_start":
            self._last = self._last + 1 if event.index is None else event.index
            self._blocks[self._last] = self._begin(event.content_block or _Block(), deltas)
        elif event.type == "message_start":
            if event.message is not None:
                self._head(event.message, deltas)
        elif event.type == "message_delta":
            if event.delta is not None:
                self._end(event.delta)
            self._count(event.usage)
        elif event.type == "message_stop":
            self.done = True

    def _whole(self, text: str, deltas: list[Delta]) -> None:
        message = self._read(_message_decoder, text)
        if message.error is not None or message.type == "error":
            raise provider_error(self.where, text)
        if message.content is None:
            self._malformed("the response has no message in it", text)
        self._head(message, deltas)

    def _head(self, message: _Message, deltas: list[Delta]) -> None:
        self._meta = {"model": message.model, "response_id": message.id}
        self._count(message.usage)
        for block in message.content or ():
            self._begin(block, deltas)
        self._end(message)

    def _end(self, end: _Change | _Message) -> None:
        if isinstance(end.stop_reason, str) and end.stop_reason:
            self._finish = _FINISH.get(end.stop_reason, end.stop_reason)
        for name in ("stop_sequence", "stop_details"):
            if value := getattr(end, name):
                self._meta[name] = value

    def _count(self, usage: Any) -> None:
        # cumulative: of each number the last one holds; at the end some are not said again
        if isinstance(usage, dict):
            self._usage |= {k: v for k, v in cast("dict[str, Any]", usage).items() if v is not None}

    def _begin(self, block: _Block, deltas: list[Delta]) -> _Call | _Thought | None:
        if block.type == "tool_use":
            return self._call(block, deltas)
        if block.type == THINKING:
            thought = self._thought({"type": THINKING})
            self._think(thought, block.thinking, block.signature, deltas)
            return thought
        if block.type == REDACTED:
            return self._thought({"type": REDACTED, "data": block.data})
        if block.type == "text":
            self._say(block.text, deltas)
        return None

    def _change(self, index: int, change: _Change, deltas: list[Delta]) -> None:
        block = self._blocks.get(index)
        if change.type == "text_delta":
            self._say(change.text, deltas)
        elif change.type == "input_json_delta":
            if isinstance(block, _Call) and isinstance(change.partial_json, str):
                piece = block.arguments.add(change.partial_json)
                if piece:
                    deltas.append(Delta(index=block.index, arguments=piece))
        elif change.type in ("thinking_delta", "signature_delta"):
            if not isinstance(block, _Thought):
                self._blocks[index] = block = self._thought({"type": THINKING})
            self._think(block, change.thinking, change.signature, deltas)

    def _say(self, text: Any, deltas: list[Delta]) -> None:
        if isinstance(text, str) and (text := self._text.add(text)):
            self._told += len(text)
            deltas.append(Delta(text))

    def _thought(self, data: dict[str, Any]) -> _Thought:
        if self._server:
            data["server"] = self._server
        thought = _Thought(self._told, len(self._calls), data)
        self._thoughts.append(thought)
        return thought

    def _think(self, thought: _Thought, text: Any, signature: Any, deltas: list[Delta]) -> None:
        if isinstance(text, str) and (text := thought.text.add(text)):
            deltas.append(Delta(reasoning=text))
        if isinstance(signature, str):
            thought.signature += signature

    def _call(self, block: _Block, deltas: list[Delta]) -> _Call:
        id = self._ids.unique(block.id if isinstance(block.id, str) else "")
        given = sound(json.dumps(block.input, ensure_ascii=False)) if block.input else ""
        call = _Call(len(self._calls), id, sound(block.name) if isinstance(block.name, str) else "", given)
        self._calls.append(call)
        deltas.append(Delta(index=call.index, call_id=call.id, name=call.name))
        return call

    def _held_back(self) -> list[Delta]:
        given = [call for call in self._calls if call.given and not call.arguments.pieces]
        return [Delta(index=call.index, arguments=call.arguments.add(call.given)) for call in given]

    def _message(self) -> AssistantMessage:
        finish = self._finish
        if self._calls and finish in (None, "stop"):
            finish = "tool_calls"
        if written := count_in(self._usage, "cache_creation_input_tokens"):
            self._meta["cache_creation_input_tokens"] = written
        return AssistantMessage(
            text=str(self._text),
            tool_calls=[ToolCall(c.id, c.name, str(c.arguments)) for c in self._calls],
            reasoning=[thought.part() for thought in self._thoughts],
            finish_reason=finish,
            usage=_usage(self._usage),
            metadata={k: v for k, v in self._meta.items() if v},
        )


def _usage(usage: dict[str, Any]) -> Usage | None:
    if not usage:
        return None
    fresh, cached = count_in(usage, "input_tokens"), count_in(usage, "cache_read_input_tokens")
    parts = [n for n in (fresh, cached, count_in(usage, "cache_creation_input_tokens")) if n is not None]
    thought = count_in(usage, "output_tokens_details", "thinking_tokens")
    # here `input_tokens` leaves out what the cache served or took; ours is all of it
    return Usage(sum(parts) if parts else None, count_in(usage, "output_tokens"), cached, thought)
