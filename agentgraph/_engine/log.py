"""What a thread's entries say: a run's position, and back. Pure; `checkpoint.codec` makes the bytes.

The rules:
- A checkpoint holds what a step has changed: its nodes' updates in the order in which they merged, and where the run
  stands after it. With `full` it holds the whole state instead.
- A pause changes nothing: it adds the questions that are open. A record belongs to the step that comes after it, and
  is of no use once that step is there.
- Names, never numbers, stand for nodes: a graph may have changed since.
- What the state's class does not know any more is kept aside, and comes back where it knows it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentgraph._engine.schema import Schema, fitted
from agentgraph.checkpoint.protocol import Entry
from agentgraph.context import Interrupt
from agentgraph.errors import CodecError, ResumeError, UpdateError
from agentgraph.node import Send
from agentgraph.strategies import UNSET, Append, Messages, Strategy

if TYPE_CHECKING:
    from agentgraph.checkpoint.codec import Codec


class Head(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What is told of a checkpoint in a history."""

    at: float
    """Seconds since 1970."""
    parent: int
    """The checkpoint before it, 0 for none."""
    parent_line: int
    step: int
    ran: tuple[str, ...]
    next: tuple[str, ...]
    run_id: str
    asked: tuple[str, ...] = ()
    """The ids of its open questions."""


class Position(msgspec.Struct, frozen=True):
    """Where a run stands between two steps. What has its default takes no room."""

    step: int = 0
    ran: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    sends: tuple[Send, ...] = ()
    joins: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    """Of each join that waits: its target, its sources, and those that have come."""
    waiting: tuple[str, ...] = ()
    iterations: Mapping[str, int] = {}

    def names(self) -> tuple[str, ...]:
        """The nodes that run next."""
        return self.next + tuple(s.node for s in self.sends)


_SHORT = {"step": "t", "ran": "r", "next": "n", "sends": "s", "joins": "j", "waiting": "w", "iterations": "i"}
_START = Position()


def change(
    position: Position, updates: Sequence[Mapping[str, Any]], *, keeps: bool = False, types: str = ""
) -> dict[str, Any]:
    """A checkpoint's content: what changed. With `keeps` the records before it still count.

    `types` tells which types the state's keys have from here on, where they have changed.
    """
    said: dict[str, Any] = {"u": [dict(u) for u in updates]} if updates else {}
    if types:
        said["T"] = types
    if keeps:
        said["k"] = True
    for name, short in _SHORT.items():
        value = getattr(position, name)
        if value != getattr(_START, name):
            said[short] = dict(value) if name == "iterations" else value
    return said


def whole(
    position: Position, state: Mapping[str, Any], aside: Mapping[str, Sequence[Any]], types: str
) -> dict[str, Any]:
    """A checkpoint's content: all there is."""
    said = change(position, (), types=types)
    said["S"] = dict(state)
    if aside:
        said["A"] = dict(aside)
    return said


def position_in(said: Mapping[str, Any]) -> Position:
    """The position in a checkpoint's content."""
    return Position(**{name: said[short] for name, short in _SHORT.items() if short in said})


class Replayed(msgspec.Struct):
    """What a thread's entries come to."""

    state: dict[str, Any]
    aside: dict[str, list[Any]]
    position: Position
    records: dict[str, Entry]
    """What the step under way has done so far."""
    asked: tuple[Interrupt, ...]
    """The open questions, whether answered since or not."""
    base: int
    """The number of the checkpoint that made the state."""
    last: int
    """The number of the newest checkpoint, which may be a pause."""
    origin: tuple[int, int] | None
    """The line and the checkpoint that the open questions' ids are made of; None where none were asked."""
    changed: int
    """Bytes of changes since the last full checkpoint."""
    held: int
    """Bytes of that one, 0 without any."""
    types: str = ""
    """`Schema.digest` of the graph that wrote the newest checkpoint."""


def replay(entries: Iterable[Entry], schema: Schema, codec: Codec, thread_id: str) -> Replayed:
    """Go through a thread's entries, from a full one or from the first. Raises `CodecError`."""
    out = Replayed(schema.initial(), {}, _START, {}, (), 0, 0, None, 0, 0)
    waiting: dict[str, list[Any]] = {}
    """Updates of lists, which may be merged at once: one by one a long conversation takes a square of its length."""
    for entry in entries:
        if entry.kind == "record":
            out.records[entry.key] = entry
            continue
        where = f"thread {thread_id!r}, checkpoint {entry.line}.{entry.seq}"
        said = cast("dict[str, Any]", codec.decode(entry.data, where))
        out.last = entry.seq
        out.types = said.get("T", out.types)
        if entry.kind == "pause":
            out.asked, out.origin = tuple(said["asked"]), (said["origin"][0], said["origin"][1])
            continue
        if entry.full:
            out.state, out.aside, waiting = schema.initial(), said.get("A", {}), {}
            out.held, out.changed = len(entry.data), 0
            for key, value in said["S"].items():
                if schema.knows(key):
                    out.state[key] = value
                else:
                    out.aside.setdefault(key, []).append(value)
        else:
            out.changed += len(entry.data)
            for update in said.get("u", ()):
                _merge(schema, out, waiting, update, where)
        for key in [k for k in out.aside if schema.knows(k)]:
            for value in out.aside.pop(key):
                _merge(schema, out, waiting, {key: value}, where)
        if not said.get("k"):
            out.records.clear()
            out.asked, out.origin = (), None
        out.position, out.base = position_in(said), entry.seq
    for key, items in waiting.items():
        _add(schema, out, key, items, f"thread {thread_id!r}")
    return out


def _merge(schema: Schema, out: Replayed, waiting: dict[str, list[Any]], update: Mapping[str, Any], where: str) -> None:
    for key, value in update.items():
        strategy = schema.find(key)
        if strategy is None:
            out.aside.setdefault(key, []).append(value)
        elif type(strategy) in (Append, Messages):
            items = waiting.setdefault(key, [])
            if isinstance(value, list):
                items.extend(cast("list[Any]", value))
            else:
                items.append(value)
        else:
            _add(schema, out, key, value, where)


def _add(schema: Schema, out: Replayed, key: str, value: Any, where: str) -> None:
    strategy = cast("Strategy", schema.find(key))
    try:
        out.state[key] = strategy.merge(out.state.get(key, UNSET), value)
    except Exception as error:
        error.add_note(f"while {where} was read, and {strategy!r} merged what it has for key {key!r}")
        raise
    if schema.validates:
        try:
            out.state[key] = schema.validate(key, out.state[key], where)  # what was written may be its JSON form
        except UpdateError:
            pass  # its type has changed: `check_types` tells of it


def check_types(schema: Schema, state: Mapping[str, Any], thread_id: str) -> None:
    """Raise `CodecError` where a stored value does not fit its key's type any more."""
    for key, kind in schema.types.items():
        if key not in state:
            continue
        try:
            fitted(state[key], kind)
        except msgspec.ValidationError as error:
            path = f"state[{key!r}]"
            raise CodecError(
                f"thread {thread_id!r}: what is stored for {path} does not fit its type any more: {error}; give the "
                f"key its old type back, or write another value by update_state()",
                path=path,
            ) from error
        except (TypeError, ValueError, NameError):
            pass  # a type that msgspec does not know: nothing can be said of it


def check_names(position: Position, known: Sequence[str], thread_id: str) -> None:
    """Raise `ResumeError` where a node that is to run next, or that is waited for, is not there any more."""
    names = set(position.names()) | set(position.waiting)
    names |= {n for target, sources, _ in position.joins for n in (target, *sources)}
    missing = sorted(names.difference(known))
    if missing:
        raise ResumeError(
            f"thread {thread_id!r} goes on in {', '.join(map(repr, missing))}, and this graph has no such node; "
            f"it has {', '.join(map(repr, known))}. Give the node its old name back, or say where to go on by "
            f"update_state(..., as_node=...)"
        )
