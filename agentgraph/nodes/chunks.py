"""Interceptors of an answer's pieces, and the message that what they let through becomes.

Rules of this file: what comes out of the interceptors is all that anybody gets, readers and the conversation alike.
Where they change nothing, the message is the model's own. However the stream is left, all generators are closed by
then, the model's last.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import msgspec

from agentgraph.errors import ConfigError
from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, new_id
from agentgraph.models.protocol import ChatModel, Delta, ModelError, ModelRequest, ModelResponse
from agentgraph.nodes.chain import callables

__all__ = ["ChunkInterceptor", "generators", "intercepted", "no_delta", "no_response", "whole"]

ChunkInterceptor = Callable[[AsyncIterator[Delta], ModelRequest], AsyncIterator[Delta]]
"""`async def (deltas, request)` with `yield`: gets the pieces of an answer, and yields those that shall go on.

Each piece has text, reasoning, or a part of a tool call. One may be changed (`msgspec.structs.replace`), held back,
dropped or added, also after the last; returning early stops the model's stream. Where its first piece is dropped, a
call is dropped whole.
"""


def generators(given: Any, owner: str) -> tuple[ChunkInterceptor, ...]:
    """The chunk interceptors that `owner` was given. Raises `ConfigError` for what is none."""
    made = callables(given, owner, "chunk interceptor", "an async generator function of (deltas, request)")
    for one in made:
        if inspect.iscoroutinefunction(one):
            raise ConfigError(
                f"{owner}: a chunk interceptor is an async generator function, and {one!r:.80} has no `yield`; write "
                f"`async for delta in deltas: yield delta`"
            )
    return made


async def whole(model: ChatModel, request: ModelRequest) -> AsyncGenerator[Delta, None]:
    """The model's answer in one piece, as a stream of it."""
    response = await model.generate(request)
    yield Delta(response=no_response(model.name, response))


async def intercepted(
    deltas: AsyncGenerator[Delta, None],
    interceptors: Sequence[ChunkInterceptor],
    request: ModelRequest,
    model: str,
    alive: Callable[[], None],
) -> AsyncGenerator[Delta, None]:
    """The model's stream as it comes out of the interceptors, the first outermost; the last delta has the message.

    `alive` is called for each of the model's own deltas.
    """
    source = _Source(deltas, model, alive)
    told = _Said()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(aclosing(deltas))
        pieces: AsyncIterator[Delta] = await stack.enter_async_context(aclosing(source.pieces()))
        for interceptor in reversed(interceptors):
            pieces = _layer(interceptor, pieces, request)
            if hasattr(pieces, "aclose"):
                await stack.enter_async_context(aclosing(cast("AsyncGenerator[Delta, None]", pieces)))
        async for piece in pieces:
            if not isinstance(piece, Delta):  # pyright: ignore[reportUnnecessaryIsInstance]  # an interceptor's
                raise TypeError(f"a chunk interceptor must yield Deltas, found {piece!r:.80}")
            if (counted := told.take(piece)) is not None:
                yield counted
    yield Delta(response=source.answered(told, request.message_id or new_id()))


def _layer(interceptor: ChunkInterceptor, deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    layer = interceptor(deltas, request)
    if not hasattr(layer, "__aiter__"):
        if inspect.iscoroutine(layer):
            layer.close()
        raise TypeError(f"a chunk interceptor must be an async generator function, found {interceptor!r:.80}")
    return layer


class _Source:
    """The model's stream as interceptors see it, and what it said by itself."""

    def __init__(self, deltas: AsyncGenerator[Delta, None], model: str, alive: Callable[[], None]) -> None:
        self._deltas = deltas
        self._model = model
        self._alive = alive
        self._said = _Said()
        self._response: ModelResponse | None = None
        self._usage: Usage | None = None
        self._ended = False

    async def pieces(self) -> AsyncGenerator[Delta, None]:
        """What the model says, piece by piece; what it says only at the end, in its whole answer, is one too."""
        async for delta in self._deltas:
            if not isinstance(delta, Delta):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's model
                raise no_delta(self._model, delta)
            self._alive()
            self._usage = delta.usage or self._usage
            if delta.response is not None:
                self._response = no_response(self._model, delta.response)
                self._usage = self._response.message.usage
            if (piece := self._said.take(delta)) is not None:
                yield piece
        if self._response is None:
            raise ModelError(f"model {self._model!r} ended its stream without an answer")
        for delta in self._said.left_of(self._response.message):
            if (piece := self._said.take(delta)) is not None:
                yield piece
        self._ended = True

    def answered(self, told: _Said, id: str) -> ModelResponse:
        """The answer with what was told in the place of what was said. One that was stopped is only what was told."""
        if self._response is None or not self._ended:
            # of a call that was under way nobody knows whether it was whole
            calls = [call for call in told.calls() if _is_object(call.arguments)]
            message = AssistantMessage(
                told.text,
                calls,
                told.thoughts(),
                finish_reason="tool_calls" if calls else "stop",
                usage=self._usage,
                id=id,
            )
            return ModelResponse(message=message)
        message, changes = self._response.message, cast("dict[str, Any]", {})
        if told.text != message.text:
            changes["text"] = told.text
        if told.reasoning != self._said.reasoning:
            # the provider would no longer take it for its own; what it did not tell in words stays as it is
            changes["reasoning"] = [*told.thoughts(), *(part for part in message.reasoning if not part.text)]
        if (calls := told.calls()) != message.tool_calls:
            changes["tool_calls"] = calls
            if message.finish_reason in ("stop", "tool_calls"):
                changes["finish_reason"] = "tool_calls" if calls else "stop"
        if not changes:
            return self._response
        return msgspec.structs.replace(self._response, message=msgspec.structs.replace(message, **changes))


class _Said:
    """What pieces amount to: text, reasoning and calls."""

    __slots__ = ("_calls", "_reasoning", "_text")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}

    def take(self, piece: Delta) -> Delta | None:
        """Take one more, and return what of it counts: no part of a call that never began."""
        if piece.index is not None:
            call = self._calls.get(piece.index)
            if call is not None:
                call[2].append(piece.arguments)
                if piece.call_id not in (None, "", call[0]):
                    raise ValueError(
                        f"two tool calls of one answer have the index {piece.index}: {call[1]!r} and {piece.name!r}; "
                        f"one that a chunk interceptor adds needs an index of its own"
                    )
            elif piece.name:
                id = piece.call_id or f"call_{new_id()}"
                self._calls[piece.index] = (id, piece.name, [piece.arguments])
                piece = piece if id == piece.call_id else msgspec.structs.replace(piece, call_id=id)
            else:
                piece = Delta(piece.text, piece.reasoning)
        if piece.text:
            self._text.append(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        return _piece_of(piece)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def thoughts(self) -> list[ReasoningPart]:
        return [ReasoningPart(self.reasoning)] if self._reasoning else []

    def calls(self) -> list[ToolCall]:
        calls = (self._calls[index] for index in sorted(self._calls))
        return [ToolCall(id, name, "".join(arguments)) for id, name, arguments in calls]

    def left_of(self, message: AssistantMessage) -> list[Delta]:
        """Pieces for what the message has and nothing was told of."""
        pieces: list[Delta] = []
        if not self._reasoning:
            pieces += [Delta(reasoning=part.text) for part in message.reasoning if part.text]
        if not self._text and message.text:
            pieces.append(Delta(message.text))
        if not self._calls:
            calls = enumerate(message.tool_calls)
            pieces += [Delta(index=i, call_id=c.id, name=c.name, arguments=c.arguments) for i, c in calls]
        return pieces


def _piece_of(delta: Delta) -> Delta | None:
    """The delta without what belongs to the stream's end; None where nothing is left."""
    if not (delta.text or delta.reasoning or delta.index is not None):
        return None
    if delta.usage is None and delta.response is None:
        return delta
    return msgspec.structs.replace(delta, usage=None, response=None)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def no_delta(model: str, found: Any) -> ModelError:
    """The error for what a model streamed and is no delta."""
    return ModelError(f"model {model!r} must stream Deltas, found {found!r:.80}")


def no_response(model: str, found: Any) -> ModelResponse:
    """What a model answered, if it is an answer. Raises `ModelError` otherwise."""
    if not isinstance(found, ModelResponse):
        raise ModelError(f"model {model!r} must answer by a ModelResponse, found {found!r:.80}")
    return found
