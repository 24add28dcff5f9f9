"""Models for tests: one that says what a list tells it to, one that a function answers for."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, Union

import msgspec

from agentgraph.errors import AgentGraphError
from agentgraph.messages import AssistantMessage, ToolCall, new_id
from agentgraph.models.protocol import Delta, ModelRequest, ModelResponse

__all__ = ["Answer", "FunctionModel", "ScriptError", "ScriptedModel", "Step", "deltas_of"]

Answer = Union[AssistantMessage, str, Sequence[ToolCall], ModelResponse]
"""What a model of a test may answer: a message, its text, its tool calls, or a whole response."""

Step = Union[Answer, BaseException, type[BaseException]]
"""One step of a script: an answer, or what is raised in its place."""


class ScriptError(AgentGraphError, AssertionError):
    """A script and what was asked of it do not fit: asked once too often, or steps are left over."""


class ScriptedModel:
    """Answers with the steps of a script, in turn; `requests` holds what it was asked.

    Steps left over are an error: leave an `async with` block, or call `done()`. Asked more often than there
    are steps: an error that shows the last request. A call takes its step when it begins, so calls made at
    once get them in the order in which they were made. A use::

        async with ScriptedModel([[ToolCall("c1", "add", '{"a": 1, "b": 2}')], "It is 3."]) as model:
            ...
    """

    def __init__(self, steps: Iterable[Step], *, name: str = "scripted") -> None:
        self._steps = list(steps)
        self._name = name
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def left(self) -> int:
        """How many steps have not been asked for."""
        return max(0, len(self._steps) - len(self.requests))

    def __repr__(self) -> str:
        return f"<ScriptedModel {self._name!r} asked {len(self.requests)} of {len(self._steps)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else the script's rest is a consequence, and would hide the cause
            self.done()

    def done(self) -> None:
        """Raise `ScriptError` unless each step was asked for."""
        if self.left:
            raise ScriptError(
                f"model {self._name!r} was asked {len(self.requests)} times, and {self.left} of its "
                f"{len(self._steps)} steps are left over; the next is {self._steps[len(self.requests)]!r}"
            )

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """The next step's answer. Raises the step's exception, or `ScriptError` where no step is left."""
        return _response(self._next(request), request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """The next step's answer in several pieces. Raises as `generate` does."""
        for delta in deltas_of(_response(self._next(request), request)):
            yield delta

    def _next(self, request: ModelRequest) -> Answer:
        self.requests.append(request)
        number = len(self.requests)
        if number > len(self._steps):
            last = request.messages[-1] if request.messages else None
            raise ScriptError(
                f"model {self._name!r} was asked a {number}th time, but its script has {len(self._steps)} steps; "
                f"the last message of that request is {last!r}"
            )
        step = self._steps[number - 1]
        if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise step
        return step


class FunctionModel:
    """Answers with what `fn(request)` returns or raises; `fn` may be sync or async.

    `requests` holds what it was asked.
    """

    def __init__(self, fn: Callable[[ModelRequest], Answer | Awaitable[Answer]], *, name: str = "function") -> None:
        self._fn = fn
        self._name = name
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def __repr__(self) -> str:
        return f"<FunctionModel {self._name!r} asked {len(self.requests)}>"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """What the function answers. Raises what it raises."""
        self.requests.append(request)
        answer = self._fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return _response(answer, request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """What the function answers, in several pieces. Raises what it raises."""
        for delta in deltas_of(await self.generate(request)):
            yield delta


def _response(answer: Answer, request: ModelRequest) -> ModelResponse:
    if isinstance(answer, ModelResponse):
        return answer
    if isinstance(answer, AssistantMessage):
        message = answer
    elif isinstance(answer, str):
        message = AssistantMessage(id=request.message_id or new_id(), text=answer, finish_reason="stop")
    else:
        calls = list(answer)
        if not all(isinstance(c, ToolCall) for c in calls):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScriptError(f"a step must be a message, a text, a list of ToolCall or an exception; found {answer!r}")
        message = AssistantMessage(id=request.message_id or new_id(), tool_calls=calls, finish_reason="tool_calls")
    if request.message_id is not None and message.id != request.message_id:
        message = msgspec.structs.replace(message, id=request.message_id)
    return ModelResponse(message=message)


def deltas_of(response: ModelResponse) -> list[Delta]:
    """The response as a stream would bring it: text by words, arguments in two pieces, the whole at the end."""
    message = response.message
    deltas = [Delta(reasoning=part.text) for part in message.reasoning if part.text]
    words = message.text.split(" ")
    deltas.extend(Delta(piece) for i, word in enumerate(words) if (piece := word if i == 0 else " " + word))
    for index, call in enumerate(message.tool_calls):
        half = len(call.arguments) // 2
        deltas.append(Delta(index=index, call_id=call.id, name=call.name, arguments=call.arguments[:half]))
        if call.arguments[half:]:
            deltas.append(Delta(index=index, arguments=call.arguments[half:]))
    deltas.append(Delta(usage=message.usage, response=response))
    return deltas
