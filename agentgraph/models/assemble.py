"""A response's bytes in, deltas and the whole message out: what all protocols share, and chat completions.

Whatever a server leaves out or says twice, the answer is read.

Rules of this file: no I/O, no clock, no randomness (ids for calls without one come from a function that is
passed in). Nothing of a call is told before its id and name are known; nothing is a message before the
stream's end was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from agentgraph.events import plain
from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, sound
from agentgraph.models.errors import MalformedResponseError, StreamCutError, provider_error
from agentgraph.models.protocol import Delta, ModelResponse
from agentgraph.models.sse import SseDecoder

__all__ = ["CallIds", "ChatAssembler", "Growing", "StreamAssembler", "count_in"]

T = TypeVar("T")

# What is read of a chunk. `Any` stands where servers differ: a field of the wrong type must not cost the answer.


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None  # text; some servers send the object itself


class _Piece(msgspec.Struct):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Content(msgspec.Struct):
    content: Any = None  # text; some servers send a list of parts
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[_Piece] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Content | None = None
    message: _Content | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    id: Any = None
    model: Any = None


_decoder = msgspec.json.Decoder(_Chunk)

_FINISH = {
    "eos": "stop", "end_turn": "stop", "function_call": "tool_calls", "tool_use": "tool_calls",
    "max_tokens": "length", "model_length": "length", "safety": "content_filter",
}  # fmt: skip


class Growing:
    """Text that comes in pieces. Between two of them a server may cut a surrogate pair: each half is a JSON escape."""

    __slots__ = ("_half", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._half = ""

    def add(self, text: str) -> str:
        """Take the next piece and return what of it is whole."""
        if self._half or not text.isascii():
            text = self._half + text
            self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
            text = sound(text.removesuffix(self._half))
        if text:
            self.pieces.append(text)
        return text

    def end(self) -> str:
        """No more is to come: return what then stands for half a pair."""
        text, self._half = sound(self._half), ""
        self.pieces.append(text)
        return text

    def __str__(self) -> str:
        return "".join(self.pieces)


class CallIds:
    """The ids of one answer's calls: each has its own, whatever the server gave."""

    __slots__ = ("_new", "_taken")

    def __init__(self, new: Callable[[], str]) -> None:
        self._new = new
        self._taken: set[str] = set()

    def unique(self, server_id: str) -> str:
        """The id of one more call: the server's, changed where another call has it; a new one where it gave none."""
        given = sound(server_id)
        id, n = given or self._new(), 1
        while id in self._taken:  # some servers give every call the same id
            n += 1
            id = f"{given}_{n}" if given else self._new()
        self._taken.add(id)
        return id


class _Call:
    """One call under way. `index` is its place, `server_id` the id that the server gave, `id` the one it has here."""

    __slots__ = ("arguments", "id", "index", "name", "server_id", "told")

    def __init__(self, index: int) -> None:
        self.index = index
        self.server_id = ""
        self.id = ""
        self.name = ""
        self.arguments = Growing()
        self.told = False

    def is_complete(self) -> bool:
        """Whether the arguments are whole JSON: what then comes under the same name must be another call."""
        try:
            msgspec.json.decode(str(self.arguments))
        except msgspec.DecodeError:
            return False
        return True


class StreamAssembler:
    """Assembles one answer: `feed` and `finish` one that is streamed, `whole` one that came in one piece.

    `where` names model and host in errors; `new_call_id` makes an id for a call that came without one. A subclass
    knows the protocol: it reads events into `_text` and what it has of its own, and sets `_finish`.
    """

    def __init__(self, where: str, new_call_id: Callable[[], str], message_id: str | None = None) -> None:
        self.where = where
        self.done = False
        """The end mark was seen."""
        self._ids = CallIds(new_call_id)
        self._message_id = message_id
        self._sse = SseDecoder()
        self._text = Growing()
        self._finish: str | None = None
        self._meta: dict[str, Any] = {}

    @property
    def partial(self) -> str:
        """The text so far."""
        return str(self._text)

    @property
    def finished(self) -> bool:
        """Whether the answer is whole, though the stream may go on (usage, the end mark)."""
        return self.done or self._finish is not None

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Take the stream's next bytes and give the pieces that they complete.

        Raises `ProviderError` for an error inside the stream, `MalformedResponseError` for what is no event of it.
        """
        for event in self._sse.feed(chunk):
            data = event.data
            if data == "[DONE]":
                self.done: bool = True
            elif event.event == "error":
                raise provider_error(self.where, data)
            elif data.strip():
                deltas: list[Delta] = []
                self._event(data, deltas)
                yield from deltas
            if self.done:
                break

    def finish(self) -> list[Delta]:
        """The stream is over: pieces that were held back, and last the one with the whole answer.

        Raises `StreamCutError` where neither a finish reason nor the end mark was seen.
        """
        if not self.finished:
            raise StreamCutError(f"{self.where}: the stream ended early, without a finish reason")
        return self._rest()

    def whole(self, body: bytes) -> list[Delta]:
        """The answer that came in one piece, as deltas. Raises as `feed` does, or where it has no message in it."""
        text = body.decode("utf-8", "replace")
        deltas: list[Delta] = []
        self._whole(text, deltas)
        return deltas + self._rest(raw=_raw(text))

    def _rest(self, raw: Any = None) -> list[Delta]:
        deltas = self._held_back()
        if text := self._text.end():
            deltas.append(Delta(text))
        message = _with_json_form(self._message())
        if self._message_id is not None:
            message = msgspec.structs.replace(message, id=self._message_id)
        deltas.append(Delta(usage=message.usage, response=ModelResponse(message=message, raw=raw)))
        return deltas

    def _event(self, data: str, deltas: list[Delta]) -> None:
        """Read one event's data, and add what it completes to `deltas`."""
        raise NotImplementedError

    def _whole(self, text: str, deltas: list[Delta]) -> None:
        """Read a whole response. Its message is then as if it had been streamed."""
        raise NotImplementedError

    def _held_back(self) -> list[Delta]:
        """At the end: pieces that had waited for more."""
        return []

    def _message(self) -> AssistantMessage:
        """The whole message."""
        raise NotImplementedError

    def _read(self, decoder: msgspec.json.Decoder[T], data: str) -> T:
        """The data as the decoder's type. An error of any shape is raised as `ProviderError`."""
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError):
            pass
        # half a surrogate pair, which msgspec refuses, is legal; and an error may be of any shape
        try:
            value: Any = json.loads(data)
            if isinstance(value, str) or (isinstance(value, dict) and cast("dict[str, Any]", value).get("error")):
                raise provider_error(self.where, data)
            return cast("T", msgspec.convert(value, decoder.type))
        except (ValueError, RecursionError) as error:
            self._malformed(f"this is no answer of the protocol ({error})", data)

    def _malformed(self, what: str, text: str) -> NoReturn:
        raise MalformedResponseError(f"{self.where}: {what}: {text[:200]!r}", body=text)


class ChatAssembler(StreamAssembler):
    """Assembles an answer of chat completions."""

    def __init__(self, where: str, new_call_id: Callable[[], str], message_id: str | None = None) -> None:
        super().__init__(where, new_call_id, message_id)
        self._reasoning = Growing()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._usage: Any = None

    def _event(self, data: str, deltas: list[Delta]) -> None:
        self._chunk(data, deltas)

    def _whole(self, text: str, deltas: list[Delta]) -> None:
        chunk = self._chunk(text, deltas)
        if not chunk.choices or not (chunk.choices[0].message or chunk.choices[0].delta):
            self._malformed("the response has no message in it", text)

    def _held_back(self) -> list[Delta]:
        return [self._tell(call) for call in self._calls if not call.told]

    def _chunk(self, data: str, deltas: list[Delta]) -> _Chunk:
        chunk = self._read(_decoder, data)
        if chunk.error is not None or chunk.object == "error":
            raise provider_error(self.where, data)
        if not self._meta:
            self._meta = {"model": chunk.model, "response_id": chunk.id}
        if chunk.usage is not None:
            self._usage = chunk.usage  # cumulative: the last one holds
        for choice in chunk.choices or ():
            if choice.index:
                continue  # only the first of several answers (`n`) is this message
            content = choice.delta or choice.message
            if content is not None:
                self._content(content, deltas)
            if choice.finish_reason:
                self._finish = _FINISH.get(choice.finish_reason, choice.finish_reason)
        return chunk

    def _content(self, content: _Content, deltas: list[Delta]) -> None:
        text = content.content or ""
        thought = content.reasoning_content or content.reasoning
        if not isinstance(text, str):
            text, inner = _of_parts(text)
            thought = thought or inner
        if thought and isinstance(thought, str) and (thought := self._reasoning.add(thought)):
            deltas.append(Delta(reasoning=thought))
        if content.refusal and isinstance(content.refusal, str):
            text += content.refusal
            self._meta["refusal"] = True
        if text and (text := self._text.add(text)):
            deltas.append(Delta(text))
        if content.tool_calls:
            before = len(self._calls)
            for piece in content.tool_calls:
                self._piece(piece, before, deltas)

    def _piece(self, piece: _Piece, before: int, deltas: list[Delta]) -> None:
        function = piece.function or _Function()
        id = "" if piece.id is None else str(piece.id)
        name = sound(function.name or "")
        arguments = function.arguments or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        call = self._known(piece.index, id)
        if call is None or _is_another(call, piece.index, id, name, arguments, is_new=call in self._calls[before:]):
            call = self._open(piece.index)
        if id and not call.id:
            call.server_id = id
            call.id = self._ids.unique(id)
        call.name = call.name or name  # never appended: servers repeat the name in every piece
        arguments = call.arguments.add(arguments)
        if call.told:
            if arguments:
                deltas.append(Delta(index=call.index, arguments=arguments))
        elif call.id and call.name:
            deltas.append(self._tell(call))

    def _known(self, index: int | None, id: str) -> _Call | None:
        """The call that a piece goes on with, as far as index and id tell."""
        if index is not None:
            return self._by_index.get(index)
        if id:
            for call in reversed(self._calls):
                if call.server_id == id:
                    return call
        return self._calls[-1] if self._calls else None

    def _open(self, server_index: int | None) -> _Call:
        index = server_index
        if index is None or any(c.index == index for c in self._calls):
            index = max((c.index for c in self._calls), default=-1) + 1
        call = _Call(index)
        self._calls.append(call)
        self._by_index[index if server_index is None else server_index] = call
        return call

    def _tell(self, call: _Call) -> Delta:
        call.id = call.id or self._ids.unique("")
        call.told = True
        return Delta(index=call.index, call_id=call.id, name=call.name, arguments=str(call.arguments))

    def _message(self) -> AssistantMessage:
        calls = [ToolCall(c.id, c.name, str(c.arguments)) for c in sorted(self._calls, key=lambda c: c.index)]
        finish = self._finish
        if calls and finish in (None, "stop"):  # several servers say "stop" after calls
            finish = "tool_calls"
        return AssistantMessage(
            text=str(self._text),
            tool_calls=calls,
            reasoning=[ReasoningPart(str(self._reasoning))] if self._reasoning.pieces else [],
            finish_reason=finish,
            usage=_usage(self._usage),
            metadata={k: v for k, v in self._meta.items() if v},
        )


def _is_another(call: _Call, index: int | None, id: str, name: str, arguments: str, *, is_new: bool) -> bool:
    """Whether a piece opens a further call, though index or id, or the lack of both, point to `call`."""
    if id and call.server_id:
        if id != call.server_id:
            return True  # a server that numbers every call 0
        if index is not None:
            return False
    if not name or not call.name:
        return False
    # the same name again is a repetition, unless the call was whole, or both stand in one chunk
    return name != call.name or is_new or (bool(arguments) and call.is_complete())


def _raw(text: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # a number without end, or too deep, where nobody looks: an answer all the same
        return None


def _with_json_form(message: AssistantMessage) -> AssistantMessage:
    """The message, with what it has from the server besides its text as JSON can have it, or it could not be stored."""
    return msgspec.structs.replace(
        message,
        metadata=plain(message.metadata),
        finish_reason=plain(message.finish_reason),
        reasoning=[ReasoningPart(p.text, plain(p.signature), plain(p.data)) for p in message.reasoning],
    )


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        count_in(usage, "prompt_tokens"),
        count_in(usage, "completion_tokens"),
        count_in(usage, "prompt_tokens_details", "cached_tokens"),
        count_in(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def count_in(usage: Any, *path: str) -> int | None:
    """The number at that path of what a server says of usage; None where there is none."""
    for name in path:
        usage = cast("dict[str, Any]", usage).get(name) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) and not isinstance(usage, bool) else None


def _of_parts(parts: Any) -> tuple[str, str]:
    """Text and reasoning of a content that is a list of parts (Mistral)."""
    text = thought = ""
    for part in cast("list[Any]", parts) if isinstance(parts, list) else []:
        if not isinstance(part, dict):
            continue
        part = cast("dict[str, Any]", part)
        inner = part.get("text") or part.get("thinking") or ""
        said = inner if isinstance(inner, str) else _of_parts(inner)[0]
        if part.get("type") in ("thinking", "reasoning"):
            thought += said
        else:
            text += said
    return text, thought
