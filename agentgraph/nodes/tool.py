"""Tools: what a model may call, and what a call gets to know of the run."""

from __future__ import annotations

import copy
import dis
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from types import FrameType, MethodType
from typing import Any, cast, overload

from agentgraph.config import positive
from agentgraph.context import CancellationToken, RunContext
from agentgraph.errors import AgentGraphError, ConfigError, RunEndedError, listed, unknown
from agentgraph.events import Event, ToolProgress
from agentgraph.models.closed_schema import check_strict
from agentgraph.models.protocol import ToolSpec
from agentgraph.node import is_async
from agentgraph.nodes.arguments import ArgumentsError, decode, without_nulls
from agentgraph.nodes.collector import CallUpdates
from agentgraph.nodes.limiter import Limiter, limiter_of
from agentgraph.nodes.signature import (
    COMBINED,
    Signature,
    UnresolvedError,
    context_parameter,
    described,
    innermost,
    is_method,
    kept_back,
)

__all__ = [
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolTimeoutError",
    "as_tool",
    "as_tools",
    "names_of",
    "tool",
    "tools_of_run",
]


class ToolError(Exception):
    """Raised by a tool: the text is for the model. With `always_raise` the run fails instead."""

    def __init__(self, message: str, *, always_raise: bool = False) -> None:
        super().__init__(message)
        self.always_raise = always_raise


class ToolTimeoutError(AgentGraphError, TimeoutError):
    """A call took longer than it may, and was stopped. The model is told so; interceptors find it by `request.last`.

    `seconds` is the limit; `thread_runs` tells that a worker thread was left behind and still runs.
    """

    def __init__(self, name: str, seconds: float, *, thread_runs: bool = False) -> None:
        left = "left running, and its result is thrown away" if thread_runs else "stopped"
        super().__init__(f"tool {name!r} timed out after {seconds:g} s and was {left}")
        self.seconds = seconds
        self.thread_runs = thread_runs


class ToolUpdate(dict[str, Any]):
    """What one call wrote to the state. The engine tells `origin` where the update cannot be merged."""

    def __init__(self, keys: Mapping[str, Any], tool: str) -> None:
        super().__init__(keys)
        self.origin: str = f"tool {tool!r}"


class ToolContext:
    """What a call knows of its run: a parameter annotated with it is filled in, and hidden from the model.

    After the call has ended (a thread that was left behind, a task that it started) nothing of the run can be
    touched any more: `update`, `emit`, `progress` and `interrupt`, and the like of `run`, then raise `RunEndedError`.
    """

    __slots__ = ("_state", "_updates", "call_id", "extras", "name", "run")

    def __init__(
        self, run: RunContext[Any], state: Any, call_id: str, name: str, extras: Mapping[str, Any], updates: CallUpdates
    ) -> None:
        self.run: RunContext[Any] = run.part(call_id)
        """This call's part of the tool node's run: config, the caller's object, usage."""
        self.call_id: str = call_id
        self.name: str = name
        """The tool's name, as it was called."""
        self.extras: Mapping[str, Any] = extras
        """The tool node's `tool_context`."""
        self._state = state
        self._updates: CallUpdates | None = updates

    @property
    def state(self) -> Any:
        """A copy of the state before the calls; what it holds is shared and must not be changed in place."""
        return copy.copy(self._state)

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when this call has to stop: its timeout was reached, or the run ends."""
        return self.run.cancellation

    def update(self, /, **keys: Any) -> None:
        """Write to the state, when the call has ended well: updates merge in call order. May come from any thread."""
        updates = self._updates
        if updates is None or not updates.write(ToolUpdate(keys, self.name)):
            raise RunEndedError(f"tool {self.name!r} writes {listed(keys)}, but its call {self.call_id!r} has ended")

    def emit(self, event: Event | Any) -> Awaitable[None]:
        """Tell the run's reader, as `RunContext.emit` does: to be awaited in async code, blocking in a thread."""
        self._check_open("emits an event")
        return self.run.emit(event)

    def progress(
        self, progress: float | None = None, total: float | None = None, text: str = "", data: Any = None
    ) -> Awaitable[None]:
        """Tell the run's reader how far the call is; see `ToolProgress`. To be awaited as `emit`."""
        return self.emit(
            ToolProgress(call_id=self.call_id, name=self.name, progress=progress, total=total, text=text, data=data)
        )

    def interrupt(self, value: Any) -> Any:
        """Ask something from outside and end this call; the other calls of the message finish first."""
        self._check_open("asks something")
        return self.run.interrupt(value)

    def end(self, *, cancel: str | None = None) -> None:
        """The tool node's: the call has ended. With `cancel`, its token tells so, for that reason."""
        self._updates = None
        self.run.close(cancel or f"call {self.call_id!r} of tool {self.name!r} has ended", cancel=cancel is not None)

    def _check_open(self, does: str) -> None:
        if self._updates is None:
            raise RunEndedError(f"tool {self.name!r} {does}, but its call {self.call_id!r} has ended")

    def __repr__(self) -> str:
        return f"<ToolContext {self.name} {self.call_id}{' ended' if self._updates is None else ''}>"


class Tool:
    """A function that a model may call.

    `name`, `description` and the arguments' JSON schema are read from the function and its docstring (Google,
    NumPy or Sphinx style), unless they are given. An `async def` runs on the event loop, a plain `def` in a worker
    thread. A parameter annotated `ToolContext` gets this call's. It returns a text, any value with a JSON form, an
    image or a file, or an `Answer`; what it raises is answered to the model (see `ToolError`). In a class, `@tool`
    makes a tool of a method: `instance.method` is the tool, with `self` filled in.

    `timeout`: seconds a call may take; None: as the tool node says. `return_direct`: after a message all of whose
    calls are of such tools, the agent stops. `max_parallel`: most calls of it at work at once in the whole process (of
    a method: on all instances together), or a `Limiter` that it shares with others. With `parameters` (a JSON schema of
    type object) the function gets the model's arguments by keyword as they are; it is only checked that the required
    ones are there, and none that the function names and the schema does not. `strict`: ask the provider to hold the
    model to the schema (see `ToolSpec`).

    Raises `ConfigError` naming tool and parameter where the signature has no schema, or one that cannot be strict. A
    type that the module defines further down is looked for at the first use.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        return_direct: bool = False,
        max_parallel: int | Limiter | None = None,
        strict: bool = False,
    ) -> None:
        if isinstance(fn, classmethod) or is_method(fn, "cls"):
            raise ConfigError(f"{fn.__qualname__} is a class method: make the tool below the class, of Class.method")
        if isinstance(fn, Tool):
            raise ConfigError(f"{fn!r} is a tool already; one with other options is made of its function, Tool(it.fn)")
        if not callable(fn):
            raise ConfigError(f"a tool is made of a function, found {fn!r:.80}")
        inner = innermost(fn)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise ConfigError(f"a tool returns its result; {fn!r:.80} is a generator: use ToolContext.progress")
        for option, text in (("name", name), ("description", description)):
            if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"tool {name or _name(fn)!r}: {option} must be a text, found {text!r:.80}")
        self.fn = fn
        self.name: str = name or _name(fn)
        self.description: str = described(fn) if description is None else description
        positive(f"tool {self.name!r}: timeout", timeout)
        self.timeout = timeout
        self.return_direct = return_direct
        self.limiter: Limiter | None = limiter_of(f"tool {self.name!r}: max_parallel", max_parallel)
        """How many calls of it may be at work at once, in all runs together."""
        self.strict = strict
        self.is_async: bool = is_async(fn)
        self.is_method: bool = is_method(fn)
        """Whether this is a tool of a class, which becomes callable as one of an instance."""
        self._given = None if parameters is None else _schema_of(parameters, self.name)
        if self._given is not None:
            self.context_name = context_parameter(fn, self.name, ToolContext, _names_around(inner))
            self._kept_back = kept_back(fn, self.name, self._given, self.context_name)
            if strict:
                check_strict(self.name, self._given)
            return
        try:
            self._signature = Signature(fn, self.name, ToolContext, _names_around(inner), strict=strict)
        except UnresolvedError as error:
            if not _comes_later(inner, error.missing):
                raise

    @cached_property
    def _signature(self) -> Signature:
        return Signature(self.fn, self.name, ToolContext, {}, strict=self.strict)

    @cached_property
    def context_name(self) -> str | None:
        """The parameter that gets the `ToolContext`."""
        return self._signature.context

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as a model is told of it."""
        return ToolSpec(self.name, self.description, self.parameters, self.strict)

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self._signature.schema if self._given is None else self._given

    def arguments(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """A call's JSON text as positional and keyword arguments.

        Raises `ArgumentsError`, whose text is for the model.
        """
        if self._given is None:
            return self._signature.reader.read(text)
        given = decode(text, self.name)
        forged = next((k for k in given if k in self._kept_back), None)
        if forged is not None:
            told = unknown("argument", forged, self._given.get("properties", ()))
            raise ArgumentsError(f"invalid arguments for tool {self.name!r}: {told}")
        if self.strict:  # what was optional had to be given
            given = without_nulls(given, self._given)
        missing = [k for k in self._given.get("required", ()) if k not in given]
        if missing:
            raise ArgumentsError(f"invalid arguments for tool {self.name!r}: {listed(missing)} missing")
        return [], given

    def __get__(self, instance: Any, owner: Any = None) -> Tool:
        """The method's tool, for one instance; a tool that is no method stays what it is."""
        if instance is None or not self.is_method:
            return self
        bound = copy.copy(self)
        bound.fn = MethodType(self.fn, instance)
        bound.is_method = False
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were no tool."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    return_direct: bool = False,
    max_parallel: int | Limiter | None = None,
    strict: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    return_direct: bool = False,
    max_parallel: int | Limiter | None = None,
    strict: bool = False,
) -> Any:
    """Make a function a `Tool`, whose options these are: `@tool`, or `@tool(timeout=10)`."""

    def make(fn: Callable[..., Any]) -> Tool:
        return Tool(
            fn,
            name=name,
            description=description,
            parameters=parameters,
            timeout=timeout,
            return_direct=return_direct,
            max_parallel=max_parallel,
            strict=strict,
        )

    return make if fn is None else make(fn)


def as_tool(given: Tool | Callable[..., Any]) -> Tool:
    """The tool itself, or a function made one, ready to use. Raises `ConfigError` for anything else."""
    if not callable(given):
        raise ConfigError(f"tools are functions or Tool objects; found {given!r:.80}")
    made = given if isinstance(given, Tool) else Tool(given)
    if made.is_method:
        raise ConfigError(f"tool {made.name!r} is a method and has no instance: give the tool of an instance")
    _ = made.parameters  # types that were to come must be there now
    return made


def as_tools(given: Any, owner: str) -> tuple[Tool, ...]:
    """The tools that `owner` was given. Raises `ConfigError` where they are no list of functions and Tools."""
    if not isinstance(given, Iterable):
        raise ConfigError(f"{owner}: tools come in a list, found {given!r:.80}")
    return tuple(map(as_tool, cast("Iterable[Any]", given)))


def names_of(given: Any, owner: str) -> tuple[str, ...]:
    """The names of the tools that `owner` was given, as names, functions or Tools. Raises `ConfigError` for others."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{owner}: tools come in a list, by their names or as they are; found {given!r:.80}")
    return tuple(t if isinstance(t, str) else as_tool(t).name for t in cast("Iterable[Any]", given))


def tools_of_run(run: RunContext[Any]) -> dict[str, Tool]:
    """The run's own tools, by the names under which they were put into `run.scratch["tools"]`. Raises `ConfigError`."""
    given: Any = run.scratch.get("tools", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f'run.scratch["tools"] holds tools by name, found {given!r:.80}')
    return {name: as_tool(one) for name, one in cast("Mapping[str, Any]", given).items()}


def _schema_of(parameters: Any, name: str) -> dict[str, Any]:
    given = dict(cast("Mapping[str, Any]", parameters)) if isinstance(parameters, Mapping) else None
    if given is None or ("object" if given.keys() & COMBINED else given.get("type")) != "object":
        raise ConfigError(
            f"tool {name!r}: parameters must be a JSON schema of type object, such as "
            f'{{"type": "object", "properties": {{"a": {{"type": "integer"}}}}}}; found {parameters!r:.80}'
        )
    return given


def _name(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = cast("Any", fn.func)
    name = str(getattr(fn, "__name__", type(fn).__name__))
    if name == "<lambda>":
        raise ConfigError("a lambda has no name to call it by: tool(name=...)")
    return name


def _frames(fn: Any) -> Iterator[FrameType]:
    """The frames further out that run code of the function's module, the nearest first."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # inspect's form reads source files
    globals_ = getattr(fn, "__globals__", None)
    while frame is not None:
        if frame.f_globals is globals_:
            yield frame
        frame = frame.f_back


def _names_around(fn: Any) -> dict[str, Any]:
    """What the functions and classes round a function's definition hold: annotations may name their types."""
    names: dict[str, Any] = {}
    place = getattr(fn, "__qualname__", "")
    if "." in place:
        for frame in _frames(fn):
            if place.startswith(f"{frame.f_code.co_qualname}."):
                names = {**frame.f_locals, **names}
    return names


def _comes_later(fn: Any, name: str) -> bool:
    """Whether the function's module is still being run, and assigns this name further down."""
    for frame in _frames(fn):
        if frame.f_code.co_name == "<module>":
            steps = dis.get_instructions(frame.f_code)
            return any(s.opname == "STORE_NAME" and s.argval == name and s.offset > frame.f_lasti for s in steps)
    return False
