"""What a node is, and what it may return."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from agentgraph.context import RunContext
from agentgraph.errors import InputError
from agentgraph.strategies import UNSET

__all__ = ["END", "START", "Command", "Node", "Send", "Updates", "as_mapping", "is_async"]

START: Final = "__start__"
"""Where a run begins: the source of its first edges."""
END: Final = "__end__"
"""Where a branch ends."""


@runtime_checkable
class Node(Protocol):
    """A node as an object. Functions `(state)` or `(state, run)`, sync or async, do as well.

    Gets its own shallow copy of the state and this attempt's `RunContext`; returns a partial update, a
    `Command`, or None. An exception ends the run (see `add_node`'s `retry` and `on_error`). After
    cancellation nothing that it started may still run.
    """

    def __call__(self, state: Any, run: RunContext[Any], /) -> Awaitable[Any]:
        """Run the node once."""
        ...


class Send(msgspec.Struct, frozen=True, gc=False):
    """One more run of `node` in the next step, with `state` as all that it gets to see.

    Returned by a router or given as `Command(goto=...)`; several to one node run beside each other.
    """

    node: str
    state: Any


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # noqa: TC004  # with a default, plain `Command` is a whole type

    G = TypeVar("G", bound=str, default=str)
else:
    G = TypeVar("G", bound=str)


class Command(msgspec.Struct, Generic[G], frozen=True):
    """A node's update together with where to go: `goto` takes the place of the node's edges.

    As a return annotation, `Command[Literal["a", "b"]]` declares where that may be. As the input of a run,
    `Command(resume=...)` answers what the thread's last run has asked.
    """

    update: Mapping[str, Any] | None = None
    goto: str | Send | Sequence[str | Send] | None = None
    """A name, END, a `Send`, or a sequence of these (empty: this branch ends). None: the node's edges hold."""
    resume: Any = UNSET
    """The answers by their questions' ids, all or some; or one bare answer (no dict) where one question is open."""


class Updates(list[Mapping[str, Any]]):
    """Several updates of one node, merged one after the other: what a compiled graph returns when called as a node."""


def as_mapping(state: Any) -> Mapping[str, Any]:
    """A state as a node sees it, as a mapping again."""
    if isinstance(state, Mapping):
        return cast("Mapping[str, Any]", state)
    if isinstance(state, msgspec.Struct):
        return {f: getattr(state, f) for f in state.__struct_fields__}
    if dataclasses.is_dataclass(state):
        return {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if hasattr(state, f.name)}
    raise InputError(f"a graph takes a dict of state keys, found {type(state).__name__}: {state!r:.80}")


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine, as far as can be seen without calling it."""
    while isinstance(fn, functools.partial):
        fn = cast("Any", fn.func)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004  # the method itself is wanted
