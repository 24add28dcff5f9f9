"""What a hook is: the contract between an agent and what is hung into it.

A hook is any object with some of the members below; none of them is needed. A plain function is one by its name
(`async def before_model(state, run)`) or by a decorator of this module. An agent binds a hook to itself when it is made
(`bind`), so that one hook may serve several agents.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, overload, runtime_checkable

import msgspec

from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.models.protocol import ChatModel
from agentgraph.nodes.tool import Tool
from agentgraph.strategies import Strategy

log: logging.Logger = logging.getLogger("agentgraph")

__all__ = [
    "POSITIONS",
    "AfterAgent",
    "AfterModel",
    "AgentParts",
    "BeforeAgent",
    "BeforeModel",
    "Binds",
    "BringsInterceptors",
    "BringsState",
    "BringsTools",
    "FunctionHook",
    "Hook",
    "Jump",
    "WrapsModel",
    "WrapsTool",
    "after_agent",
    "after_model",
    "before_agent",
    "before_model",
]

Position = Literal["before_agent", "before_model", "after_model", "after_agent"]

POSITIONS: Final[tuple[Position, ...]] = ("before_agent", "before_model", "after_model", "after_agent")
"""Where a hook may stand: once at a turn's begin, before each model call, after each, and once at the turn's end."""


class Jump(msgspec.Struct, frozen=True):
    """What a hook returns to go elsewhere: an update, and where to.

    "model": to the model call (from a `before_model` at once, from elsewhere through the `before_model` hooks).
    "tools": to the tools. "end": to the `after_agent` hooks, and the turn's end. It holds for this once.
    """

    to: Literal["model", "tools", "end"]
    update: Mapping[str, Any] | None = None


HookFunction = Callable[..., Any]
"""`(state)` or `(state, run)`, async, or sync in a worker thread; returns an update, a `Jump`, or None."""


@runtime_checkable
class BeforeAgent(Protocol):
    """Runs once, at the beginning of a turn; as all of these, it returns an update of the state, a `Jump`, or None."""

    @property
    def before_agent(self) -> HookFunction:
        """A method of `(state)` or `(state, run)`."""
        ...


@runtime_checkable
class BeforeModel(Protocol):
    """Runs before each call of the model."""

    @property
    def before_model(self) -> HookFunction:
        """A method of `(state)` or `(state, run)`."""
        ...


@runtime_checkable
class AfterModel(Protocol):
    """Runs after each call of the model, before its tools."""

    @property
    def after_model(self) -> HookFunction:
        """A method of `(state)` or `(state, run)`."""
        ...


@runtime_checkable
class AfterAgent(Protocol):
    """Runs once, at the end of a turn."""

    @property
    def after_agent(self) -> HookFunction:
        """A method of `(state)` or `(state, run)`."""
        ...


@runtime_checkable
class WrapsModel(Protocol):
    """Is round each call of the model, as an interceptor."""

    @property
    def wrap_model(self) -> Callable[..., Awaitable[Any]]:
        """A method as `ModelInterceptor`: `async (request, call) -> response`."""
        ...


@runtime_checkable
class WrapsTool(Protocol):
    """Is round each call of a tool, as an interceptor."""

    @property
    def wrap_tool(self) -> Callable[..., Awaitable[Any]]:
        """A method as `ToolInterceptor`: `async (request, call) -> response`."""
        ...


@runtime_checkable
class BringsTools(Protocol):
    """Gives the agent tools."""

    @property
    def tools(self) -> Iterable[Tool | Callable[..., Any]]:
        """Tools or functions."""
        ...


@runtime_checkable
class BringsInterceptors(Protocol):
    """Gives the agent interceptors."""

    @property
    def interceptors(self) -> Iterable[Any]:
        """Functions of (request, call) round the model, or objects with `wrap_model` or `wrap_tool`."""
        ...


@runtime_checkable
class BringsState(Protocol):
    """Gives the agent's state keys of its own.

    Classes that these, or answers to its questions, are made of stand in its `types`, as in `StateGraph.compile`.
    """

    @property
    def strategies(self) -> Mapping[str, Strategy]:
        """The keys, and how their updates merge."""
        ...


class AgentParts(msgspec.Struct, frozen=True):
    """What a hook gets to know of the agent that it is bound to."""

    name: str
    model: ChatModel
    tools: Sequence[Tool]
    """All of the agent's: those of its hooks and interceptors, and its own."""

    def tool(self, wanted: str | type) -> Tool:
        """The tool of that name, or the one that is of that type or made of a function object of it.

        Raises `ConfigError` where there is none, or more than one by the type.
        """
        if isinstance(wanted, str):
            found = [t for t in self.tools if t.name == wanted]
        else:
            found = [t for t in self.tools if isinstance(t, wanted) or isinstance(t.fn, wanted)]
        if len(found) == 1:
            return found[0]
        names = [t.name for t in self.tools]
        if found:
            raise ConfigError(f"agent {self.name!r}: several tools are a {wanted!r}: {listed(t.name for t in found)}")
        told = unknown("tool", wanted, names) if isinstance(wanted, str) else f"none is a {wanted!r}: {listed(names)}"
        raise ConfigError(f"agent {self.name!r}: a hook asks for a tool: {told}")

    def tell_unknown(self, owner: str, names: Iterable[str]) -> None:
        """Warn in the log of names that no tool has yet: one may come while the agent runs, or it is a slip."""
        known = [t.name for t in self.tools]
        for name in names:
            if name not in known:
                log.warning(
                    "agent %r: %s names a tool that is not there yet: %s",
                    self.name,
                    owner,
                    unknown("tool", name, known),
                )


@runtime_checkable
class Binds(Protocol):
    """Wants to know its agent."""

    def bind(self, agent: AgentParts, /) -> Any:
        """Return the hook for this agent: itself, or another one. Called once for each agent, when it is made."""
        ...


Hook = (
    BeforeAgent
    | BeforeModel
    | AfterModel
    | AfterAgent
    | WrapsModel
    | WrapsTool
    | BringsTools
    | BringsInterceptors
    | BringsState
    | Binds
    | HookFunction
)
"""Any of these, several in one, or a function by its name. It may have a `name` (else its class's), which must differ
from other hooks', and `jumps`, where it may go, for drawings."""


class FunctionHook:
    """A function at one position: what the decorators make."""

    def __init__(self, fn: HookFunction, position: Position, name: str | None, jumps: Sequence[str]) -> None:
        self.fn = fn
        self.name: str = name or getattr(fn, "__name__", position)
        self.jumps: tuple[str, ...] = tuple(jumps)
        setattr(self, position, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<FunctionHook {self.name}>"


Decorated = Callable[[HookFunction], FunctionHook]


@overload
def before_agent(fn: HookFunction, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> FunctionHook: ...
@overload
def before_agent(*, name: str | None = None, jumps: Sequence[str] = ()) -> Decorated: ...
def before_agent(fn: HookFunction | None = None, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> Any:
    """Make a function a hook at the beginning of a turn."""
    return _decorated("before_agent", fn, name, jumps)


@overload
def before_model(fn: HookFunction, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> FunctionHook: ...
@overload
def before_model(*, name: str | None = None, jumps: Sequence[str] = ()) -> Decorated: ...
def before_model(fn: HookFunction | None = None, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> Any:
    """Make a function a hook before each call of the model."""
    return _decorated("before_model", fn, name, jumps)


@overload
def after_model(fn: HookFunction, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> FunctionHook: ...
@overload
def after_model(*, name: str | None = None, jumps: Sequence[str] = ()) -> Decorated: ...
def after_model(fn: HookFunction | None = None, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> Any:
    """Make a function a hook after each call of the model."""
    return _decorated("after_model", fn, name, jumps)


@overload
def after_agent(fn: HookFunction, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> FunctionHook: ...
@overload
def after_agent(*, name: str | None = None, jumps: Sequence[str] = ()) -> Decorated: ...
def after_agent(fn: HookFunction | None = None, /, *, name: str | None = None, jumps: Sequence[str] = ()) -> Any:
    """Make a function a hook at the end of a turn."""
    return _decorated("after_agent", fn, name, jumps)


def _decorated(position: Position, fn: HookFunction | None, name: str | None, jumps: Sequence[str]) -> Any:
    def make(fn: HookFunction) -> FunctionHook:
        return FunctionHook(fn, position, name, jumps)

    return make if fn is None else make(fn)


def name_of(hook: Any) -> str:
    """What a hook or an interceptor is called: by its `name`, or as its function or class is."""
    name = getattr(hook, "name", None) or getattr(hook, "__name__", None) or type(hook).__name__
    return str(name)


def as_hook(given: Any, agent: str) -> Any:
    """The hook itself, or what a function of a position's name is. Raises `ConfigError` for what is no hook."""
    if inspect.isclass(given):
        raise ConfigError(f"agent {agent!r}: hook {given.__name__} is a class; write {given.__name__}()")
    if inspect.isroutine(given):
        name = getattr(given, "__name__", "")
        if name not in POSITIONS:
            raise ConfigError(
                f"agent {agent!r}: function {name!r} is no hook by its name; name it one of {listed(POSITIONS)}, or "
                f"decorate it: @before_model"
            )
        return FunctionHook(given, name, None, ())
    members = ("tools", "interceptors", "strategies", "bind", "wrap_model", "wrap_tool")
    if not any(hasattr(given, member) for member in (*POSITIONS, *members)):
        raise ConfigError(
            f"agent {agent!r}: {given!r:.80} is no hook: it has none of {listed((*POSITIONS, *members), most=20)}"
        )
    return given
