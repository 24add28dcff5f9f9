"""Chunks of Gemini's generateContent in, deltas and the whole message out.

Rules of this file: those of `assemble`. A chunk is a response of its own: its parts go on where those of the chunk
before ended, and a call comes whole. There is no end mark: a stream without a finish reason was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, sound
from agentgraph.models.assemble import Growing, StreamAssembler, count_in
from agentgraph.models.content import encoded
from agentgraph.models.errors import ContentFilterError, provider_error
from agentgraph.models.protocol import Delta

__all__ = ["GEMINI", "SIGNATURE", "GeminiAssembler"]

GEMINI = "gemini"
"""The key of a message's metadata with its `parts`, in order: what must go back with them, and where.

Of a text that is its `length`, of a call its place as `call`, of both their `thoughtSignature`; any other part (a
provider's own tool, an image) is there as it came. There only where a part is signed, or is such another. `server`
is the only one that takes the signatures back: others refuse them.
"""

SIGNATURE = "thoughtSignature"

# What is read. `Any` stands where servers differ: a field of the wrong type must not cost the answer.


class _Content(msgspec.Struct):
    parts: Any = None


class _Candidate(msgspec.Struct):
    content: _Content | None = None
    finishReason: Any = None  # noqa: N815  # the protocol's names
    finishMessage: Any = None  # noqa: N815
    index: Any = None
    groundingMetadata: Any = None  # noqa: N815
    citationMetadata: Any = None  # noqa: N815


class _Chunk(msgspec.Struct):
    candidates: list[_Candidate] | None = None
    promptFeedback: Any = None  # noqa: N815
    usageMetadata: Any = None  # noqa: N815
    modelVersion: Any = None  # noqa: N815
    responseId: Any = None  # noqa: N815
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)

_FILTERED = (
    "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "LANGUAGE", "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
)  # fmt: skip
_FINISH = {
    "STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length", "FUNCTION_CALL": "tool_calls",
    **dict.fromkeys(_FILTERED, "content_filter"),
}  # fmt: skip


class GeminiAssembler(StreamAssembler):
    """Assembles an answer of Gemini's generateContent. `server` is told in what is to go back to it."""

    def __init__(
        self, where: str, new_call_id: Callable[[], str], message_id: str | None = None, *, server: str = ""
    ) -> None:
        super().__init__(where, new_call_id, message_id)
        self._server = server
        self._reasoning = Growing()
        self._calls: list[ToolCall] = []
        self._parts: list[dict[str, Any]] = []
        self._usage: Any = None
        self._reason = ""

    def _event(self, data: str, deltas: list[Delta]) -> None:
        self._chunk(data, deltas)

    def _whole(self, text: str, deltas: list[Delta]) -> None:
        chunk = self._chunk(text, deltas)
        if not chunk.candidates:
            self._malformed("the response has no message in it", text)
        self._finish = self._finish or "stop"

    def _chunk(self, data: str, deltas: list[Delta]) -> _Chunk:
        chunk = self._read(_decoder, data)
        if chunk.error is not None:
            raise provider_error(self.where, data)
        if chunk.modelVersion or chunk.responseId:
            self._meta |= {"model": chunk.modelVersion, "response_id": chunk.responseId}
        if chunk.usageMetadata is not None:
            self._usage = chunk.usageMetadata  # cumulative: the last one holds
        self._check_prompt(chunk.promptFeedback, data)
        for candidate in chunk.candidates or ():
            if candidate.index:
                continue  # only the first of several answers is this message
            parts: Any = candidate.content.parts if candidate.content is not None else None
            for part in cast("list[Any]", parts) if isinstance(parts, list) else []:
                if isinstance(part, dict):
                    self._part(cast("dict[str, Any]", part), deltas)
            self._end(candidate)
        return chunk

    def _check_prompt(self, feedback: Any, data: str) -> None:
        fields = cast("dict[str, Any]", feedback) if isinstance(feedback, dict) else {}
        if reason := fields.get("blockReason"):
            told = fields.get("blockReasonMessage") or "the provider gives no more than this"
            raise ContentFilterError(
                f"{self.where}: the prompt was blocked ({reason}): {told}", code=str(reason), body=data
            )

    def _end(self, candidate: _Candidate) -> None:
        reason = candidate.finishReason
        if isinstance(reason, str) and reason not in ("", "FINISH_REASON_UNSPECIFIED"):
            self._reason = reason
            self._finish = _FINISH.get(reason, reason)
        for name, value in (
            ("finish_message", candidate.finishMessage),
            ("grounding", candidate.groundingMetadata),
            ("citations", candidate.citationMetadata),
        ):
            if value:
                self._meta[name] = value

    def _part(self, part: dict[str, Any], deltas: list[Delta]) -> None:
        signed = {SIGNATURE: part[SIGNATURE]} if part.get(SIGNATURE) else {}
        call, text = part.get("functionCall"), part.get("text")
        if isinstance(call, dict):
            self._parts.append({"call": len(self._calls), **signed})
            deltas.append(self._call(cast("dict[str, Any]", call)))
        elif isinstance(text, str) and part.get("thought"):
            if text := self._reasoning.add(text):
                deltas.append(Delta(reasoning=text))
            if signed:
                self._parts.append(part)
        elif isinstance(text, str):
            if text := self._text.add(text):
                deltas.append(Delta(text))
            last = self._parts[-1] if self._parts else {}
            if signed or "length" not in last or SIGNATURE in last:
                self._parts.append({"length": len(text), **signed})
            else:
                last["length"] += len(text)
        elif part.keys() - {SIGNATURE, "thought"}:  # a signature of nothing would be refused
            self._parts.append(part)

    def _call(self, given: dict[str, Any]) -> Delta:
        id, name, arguments = given.get("id"), given.get("name"), given.get("args")
        call = ToolCall(
            self._ids.unique(id if isinstance(id, str) else ""),
            sound(name) if isinstance(name, str) else "",
            encoded(arguments or {}).decode(),
        )
        self._calls.append(call)
        return Delta(index=len(self._calls) - 1, call_id=call.id, name=call.name, arguments=call.arguments)

    def _message(self) -> AssistantMessage:
        text, finish = str(self._text), self._finish
        if not self._calls:
            self._check_answer(text)
        if self._calls and finish in (None, "stop"):
            finish = "tool_calls"
        if any(SIGNATURE in p or not p.keys() & {"length", "call"} for p in self._parts):
            self._meta[GEMINI] = {"server": self._server, "parts": self._parts}
        return AssistantMessage(
            text=text,
            tool_calls=self._calls,
            reasoning=[ReasoningPart(str(self._reasoning))] if self._reasoning.pieces else [],
            finish_reason=finish,
            usage=_usage(self._usage),
            metadata={k: v for k, v in self._meta.items() if v},
        )

    def _check_answer(self, text: str) -> None:
        """Raise where there is a reason why this is no answer."""
        told = self._meta.get("finish_message") or "the provider gives no more than this"
        if self._finish == "content_filter" and not text:
            raise ContentFilterError(
                f"{self.where}: the answer was blocked ({self._reason}): {told}", code=self._reason
            )
        if "CALL" in self._reason:
            self._malformed(f"the model made a call that is none ({self._reason})", str(told))


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    thoughts = count_in(usage, "thoughtsTokenCount")
    # ours is all of it: here the tokens of thoughts and of the provider's own tools are told apart
    return Usage(
        _sum(count_in(usage, "promptTokenCount"), count_in(usage, "toolUsePromptTokenCount")),
        _sum(count_in(usage, "candidatesTokenCount"), thoughts),
        count_in(usage, "cachedContentTokenCount"),
        thoughts,
    )


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b
