"""Every public error, and the one place where an error's text is made.

An error holds what it knows as attributes (node, step, path, found, expected) and renders them once.
A graph that is wrong, a run that failed and a provider that failed are different classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def nearest(name: object, known: Iterable[object]) -> str | None:
    """The known name most like `name`, or None where nothing is near."""
    found = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.6)
    return found[0] if found else None


_ENDS = {"__start__": "START", "__end__": "END"}


def quoted(name: object) -> str:
    """A name for a message: START and END as users write them."""
    return _ENDS.get(name, repr(name)) if isinstance(name, str) else repr(name)


def listed(names: Iterable[object], *, most: int = 12) -> str:
    """Names for a message: quoted, comma-separated, the first `most` of them."""
    shown = [quoted(n) for n in names]
    rest = len(shown) - most
    return (", ".join(shown[:most]) + (f" and {rest} more" if rest > 0 else "")) or "none"


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Say `unknown node 'serach'; did you mean 'search'? known: ...`."""
    known = list(known)
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else ";"
    told = repr(name)  # a model or a server may have written it, at any length
    return f"unknown {kind} {told if len(told) <= 100 else f'{told[:100]}...'}{hint} known: {listed(known)}"


class AgentGraphError(Exception):
    """Base of all errors that this library raises itself."""


class GraphError(AgentGraphError, ValueError):
    """The graph as built is wrong. Raised by `compile()`, with every fault at once.

    `faults` holds one sentence a fault.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        head = "the graph has 1 fault" if len(faults) == 1 else f"the graph has {len(faults)} faults"
        super().__init__(head + ":\n" + "\n".join(f"  - {f}" for f in faults))


class ConfigError(AgentGraphError, ValueError):
    """A setting has a value that cannot be meant (a timeout of 0, a limit of -1)."""


class InputError(AgentGraphError, ValueError):
    """What was given to `invoke` or `stream` cannot be this graph's input."""


class StrategyError(AgentGraphError, TypeError):
    """A strategy cannot merge this update into this value. The engine adds the node and the key."""


class UpdateError(AgentGraphError, ValueError):
    """A node returned something that is no update of this state.

    `node` is the node's name, `key` the state key in question (None where the whole return value is wrong).
    """

    def __init__(self, message: str, *, node: str, key: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.key = key


class ConflictError(UpdateError):
    """Two nodes of one step wrote the same `Replace` key. `nodes` names both."""

    def __init__(self, key: str, first: str, second: str) -> None:
        who = f"nodes {first!r} and {second!r}" if first != second else f"two calls of node {first!r}"
        super().__init__(
            f"{who} both wrote key {key!r} in one step, and its strategy Replace takes one value a step; "
            f"give the key a strategy that merges (Append, Merge, Reduce), use LastWrite to let the later "
            f"node win, or let the nodes run one after the other",
            node=second,
            key=key,
        )
        self.nodes: tuple[str, str] = (first, second)


class RoutingError(AgentGraphError, ValueError):
    """A router or a `Command(goto=...)` named something that is no target.

    `node` is the node whose way on was asked for, `value` what was given, `allowed` the names that would do.
    """

    def __init__(self, node: str, what: str, value: object, allowed: Sequence[str], *, remedy: str = "") -> None:
        near = nearest(value, allowed) if isinstance(value, str) and value else None
        hint = f"; did you mean {near!r}?" if near else ";"
        whose = "START" if node == "__start__" else f"node {node!r}"
        super().__init__(
            f"{what} of {whose} gave {value!r}, which is no target{hint} allowed: {listed(allowed)}"
            + ("" if value not in (None, "") else " (END ends this branch, and so does an empty list)")
            + (remedy and f"; {remedy}")
        )
        self.node = node
        self.value = value
        self.allowed: tuple[str, ...] = tuple(allowed)


class RecursionLimitError(AgentGraphError):
    """The run took more steps than `recursion_limit` allows.

    `limit` is that number of steps, `last` the node paths of the latest steps, `state` the state after the
    last step that ended.
    """

    def __init__(self, limit: int, last: Sequence[str], state: Any) -> None:
        super().__init__(
            f"the run reached its limit of {limit} steps and is not at its end; the last nodes were "
            f"{listed(last)}. If the loop is meant, raise it: RunConfig(recursion_limit={limit * 2}). "
            f"The state so far is in this error's `state`."
        )
        self.limit = limit
        self.last: tuple[str, ...] = tuple(last)
        self.state = state


class NodeTimeoutError(AgentGraphError, TimeoutError):
    """A node's attempt took longer than its `timeout`, or was silent for longer than its `idle_timeout`.

    `seconds` is the limit; `thread_runs` tells that a worker thread was left behind and still runs.
    """

    def __init__(self, node: str, kind: str, seconds: float, *, thread_runs: bool = False) -> None:
        left = "; its worker thread still runs, so no further attempt was started" if thread_runs else ""
        super().__init__(f"node {node!r} reached its {kind} of {seconds:g} s{left}")
        self.node = node
        self.kind = kind
        self.seconds = seconds
        self.thread_runs = thread_runs


class RunTimeoutError(AgentGraphError, TimeoutError):
    """The whole run took longer than `RunConfig(timeout=...)`. `nodes` were running at that moment."""

    def __init__(self, seconds: float, step: int, nodes: Sequence[str]) -> None:
        super().__init__(f"the run reached its timeout of {seconds:g} s in step {step}, in {listed(nodes)}")
        self.seconds = seconds
        self.step = step
        self.nodes: tuple[str, ...] = tuple(nodes)


class StrayCancelError(AgentGraphError):
    """A node raised `CancelledError`, and nobody had cancelled it."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node!r} raised CancelledError, and nothing had cancelled it; something that it awaits was cancelled"
        )
        self.node = node


class InPlaceChangeError(AgentGraphError):
    """Debug mode: a node changed a value of its snapshot in place. `nodes` could have done it."""

    def __init__(self, nodes: Sequence[str], key: str) -> None:
        who = f"node {nodes[0]!r}" if len(nodes) == 1 else f"one of the nodes {listed(nodes)}"
        super().__init__(
            f"{who} changed the value of key {key!r} in place; values are shared between nodes, "
            f"so make a new value and return it as an update"
        )
        self.nodes: tuple[str, ...] = tuple(nodes)
        self.key = key


class SyncInLoopError(AgentGraphError, RuntimeError):
    """The blocking form was called where an event loop runs already."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} blocks, and an event loop runs in this thread; write `{instead}` instead")


class RunEndedError(AgentGraphError, RuntimeError):
    """Something outlived its run (a worker thread that was left behind) and tried to touch it."""


class CheckpointError(AgentGraphError):
    """Something about keeping runs went wrong. Its subclasses say what."""


class StoreError(CheckpointError):
    """The store failed: it is gone, full, locked, damaged, or of a version that this library does not know."""


class FencedError(CheckpointError):
    """Somebody else has claimed the thread since: what this writer wanted to write was refused.

    `thread_id` is the thread's, `epoch` the writer's own.
    """

    def __init__(self, thread_id: str, epoch: int) -> None:
        super().__init__(
            f"thread {thread_id!r} has been claimed by somebody else since this run (epoch {epoch}) claimed it, and "
            f"what this run wrote was refused; its lease had run out, as happens to a process that stood still"
        )
        self.thread_id = thread_id
        self.epoch = epoch


class ThreadBusyError(CheckpointError):
    """Another run is on this thread, and this one was told not to wait for it. `thread_id` is the thread's."""

    def __init__(self, thread_id: str, why: str = "") -> None:
        super().__init__(
            why
            or f"thread {thread_id!r} has a run under way; wait for it by RunConfig(if_busy='wait'), or try again later"
        )
        self.thread_id = thread_id


class CodecError(CheckpointError, TypeError):
    """A value cannot be stored, or what was stored cannot be read. `path` says where it stands (`notes[2].when`)."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class ResumeError(CheckpointError, InputError):
    """A thread cannot go on as it was told to: an unknown question, checkpoint or node, or nothing to go on with."""


class RunNote(str):
    """The note on an exception that left a node: readable as text, and by code through its fields.

    `path` is the node's path from the outermost graph inwards, `step` its graph's step (from 1), `thread_id`
    the run's thread or None, `run_id` the run.
    """

    __slots__ = ("path", "run_id", "step", "thread_id")
    path: tuple[str, ...]
    step: int
    thread_id: str | None
    run_id: str

    @classmethod
    def at(cls, path: tuple[str, ...], step: int, thread_id: str | None, run_id: str) -> RunNote:
        """The note for a node's path and step."""
        thread = f", thread {thread_id!r}" if thread_id is not None else ""
        note = cls(f"in node {'/'.join(_ENDS.get(p, p) for p in path)!r}, step {step}{thread}")
        note.path, note.step, note.thread_id, note.run_id = path, step, thread_id, run_id
        return note


def note_once(error: BaseException, note: RunNote) -> None:
    """Add `note` unless a node further inside the same run has left its own."""
    notes: list[str] = getattr(error, "__notes__", [])
    if not any(isinstance(n, RunNote) and n.run_id == note.run_id for n in notes):
        error.add_note(note)
