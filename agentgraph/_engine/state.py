"""What nodes return -> the next state. Pure.

`read` takes a node's return value apart, `merge` applies its updates. The caller owns the dict that is merged
into: a fresh copy for each step, so that a step is merged as a whole or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, cast

import msgspec

from agentgraph._engine.schema import Schema
from agentgraph.errors import ConflictError, InputError, StrategyError, UpdateError
from agentgraph.node import END, Command, Send, Updates
from agentgraph.strategies import UNSET, Messages, Replace
from agentgraph.strategies.messages import MessageList
from agentgraph.strategies.replace import MAY_HOLD_MARKERS


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a node's return value says: its updates in order, and where to go (None: along its edges)."""

    updates: tuple[Mapping[str, Any], ...]
    goto: tuple[str | Send, ...] | None


NOTHING = Outcome((), None)


def read(result: Any, node: str) -> Outcome:
    """Take a node's return value apart. Raises `UpdateError` for what is no update."""
    if type(result) is dict:  # the usual, before the checks that cost
        return Outcome((result,), None)  # pyright: ignore[reportUnknownArgumentType]  # a cast is a call
    if result is None:
        return NOTHING
    if isinstance(result, Mapping):
        return Outcome((cast("Mapping[str, Any]", result),), None)
    if isinstance(result, Updates):
        return Outcome(tuple(result), None)
    if isinstance(result, Command):
        update, goto = result.update, result.goto
        if update is not None and not isinstance(update, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UpdateError(
                f"node {node!r} returned a Command whose update is {type(update).__name__}; it must be a dict",
                node=node,
            )
        updates = () if update is None else (update,)
        if goto is None:
            return Outcome(updates, None)
        return Outcome(updates, (goto,) if isinstance(goto, (str, Send)) else several(goto))
    if isinstance(result, Outcome):
        return result
    raise UpdateError(
        f"node {node!r} returned {type(result).__name__}: {result!r:.80}; "
        f"a node returns a dict of state keys to change, a Command, or None",
        node=node,
    )


def several(answer: Any) -> tuple[Any, ...]:
    """The names and Sends that a router or a goto gave, in a fixed order: one that is neither list nor set is one."""
    if isinstance(answer, (list, tuple)):
        return tuple(cast("Sequence[Any]", answer))
    if isinstance(answer, (set, frozenset)):
        return tuple(sorted(cast("set[Any]", answer), key=str))  # a set has no order of its own
    return (answer,)


def begin(schema: Schema, given: Any, before: dict[str, Any] | None = None, *, owned: bool = False) -> dict[str, Any]:
    """A run's first state: its input as it is where it is a whole state, else merged onto the state `before`.

    Without one before, it is merged onto the defaults. With `owned` nobody else has what is in the state before.
    Raises `InputError` for what is neither.
    """
    try:
        state = schema.whole(given)
        if state is None:
            state = schema.initial() if before is None else before.copy()
            merge(schema, state, (schema.input_update(given),), "the input", owned=owned)
        else:
            # its owner may have changed a conversation of an earlier result: what that knows of itself is not trusted
            state = {k: list(cast("list[Any]", v)) if type(v) is MessageList else v for k, v in state.items()}
            if schema.validates:
                state = {key: schema.validate(key, value, "the input") for key, value in state.items()}
    except UpdateError as error:
        raise InputError(f"the input's key {error.key!r} does not fit: {error.__cause__ or error}") from error
    schema.check_complete(state)
    return state


def merge(
    schema: Schema,
    state: dict[str, Any],
    updates: tuple[Mapping[str, Any], ...],
    node: str,
    writers: dict[str, tuple[int, str]] | None = None,
    task: int = 0,
    *,
    owned: bool = False,
) -> None:
    """Merge one node's updates into `state`, in order.

    `writers` remembers, over the tasks of one step, who wrote each `Replace` key. With `owned` nobody else has the
    state's values: a conversation need not be copied. Raises `UpdateError` for an unknown key, a wrong value or a
    strategy that cannot merge, `ConflictError` for a second writer.
    """
    strategies = schema.strategies
    update: Mapping[str, Any] = {}
    try:
        for update in updates:
            for key, value in update.items():
                strategy = strategies.get(key) or schema.find(key) or schema.refuse(key, node)
                replaced = type(strategy) is Replace
                if replaced and writers is not None:
                    first = writers.setdefault(key, (task, node))
                    if first[0] != task:
                        raise ConflictError(key, first[1], node)
                if replaced and type(value) not in MAY_HOLD_MARKERS:  # the usual, without a call
                    state[key] = value
                else:
                    try:
                        add = strategy.grow if owned and type(strategy) is Messages else strategy.merge
                        state[key] = add(state.get(key, UNSET), value)
                    except StrategyError as error:
                        raise UpdateError(f"node {node!r}, key {key!r}: {error}", node=node, key=key) from error
                    except Exception as error:
                        error.add_note(f"while {strategy!r} merged the update of node {node!r} into key {key!r}")
                        raise
                if schema.validates:
                    state[key] = schema.validate(key, state[key], node)
    except UpdateError as error:
        if origin := getattr(update, "origin", None):  # a node that does the work of several says whose it was
            error.add_note(f"written by {origin}")
        raise


def targets_of(
    index: Mapping[str, int], values: Any, names: Mapping[Any, str] | None, allowed: Any
) -> tuple[int, tuple[Send, ...], tuple[Any, ...]]:
    """What a router or a goto names: the nodes as bits, the Sends, and the values that are no target.

    `names` translates a router's answers; `allowed` are the only names that will do, None for any node.
    """
    hit = 0
    sends: list[Send] = []
    bad: list[Any] = []
    for value in values:
        if isinstance(value, Send):
            if value.node in index and (allowed is None or value.node in allowed):
                sends.append(value)
            else:
                bad.append(value.node)
            continue
        try:
            name = value if names is None else names.get(value, value if value == END else None)
        except TypeError:  # cannot be a key: no name either
            name = None
        if name == END:
            continue
        place = index.get(name) if isinstance(name, str) else None
        if place is None or (allowed is not None and name not in allowed):
            bad.append(value)
        else:
            hit |= 1 << place
    return hit, tuple(sends), tuple(bad)


class Footprint:
    """Debug mode: tells whether a value was changed in place, by what its containers held before."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._held: dict[str, list[tuple[Any, list[Any]]]] = {}
        for key, value in state.items():
            found: list[tuple[Any, list[Any]]] = []
            seen: set[int] = set()
            open_: list[Any] = [value]
            while open_:
                item = open_.pop()
                inside = _inside(item)
                if inside is None or id(item) in seen:
                    continue
                seen.add(id(item))
                found.append((item, inside))
                open_.extend(inside)
            self._held[key] = found

    def changed(self) -> list[str]:
        """The keys whose values hold something else than before."""
        return [key for key, held in self._held.items() if any(_differs(item, before) for item, before in held)]


_EMPTY = object()
"""Stands for what a slot holds that nothing was ever put into."""


def _differs(item: Any, before: list[Any]) -> bool:
    after = _inside(item)
    if after is None or len(after) != len(before):
        return True
    # a slot that is filled later is a cache: a Path's text
    return any(a is not b and b is not _EMPTY for a, b in zip(after, before, strict=True))


def _inside(item: Any) -> list[Any] | None:
    """What a container holds, in a fixed order; None for what is no container."""
    if isinstance(item, (str, bytes, int, float, bool, type(None))):
        return None
    if isinstance(item, dict):
        return [x for pair in cast("dict[Any, Any]", item).items() for x in pair]
    if isinstance(item, (list, tuple, set, frozenset, deque, bytearray)):
        return list(cast("list[Any]", item))
    fields: tuple[str, ...] | None = getattr(item, "__struct_fields__", None)
    if fields is not None:
        return [getattr(item, f, None) for f in fields]
    if callable(item):
        return None
    held = getattr(item, "__dict__", None)
    values = list(cast("dict[str, Any]", held).values()) if isinstance(held, dict) else []
    members = [m for c in type(item).__mro__ if "__slots__" in vars(c) for m in vars(c).values()]
    slots = [_in_slot(m, item) for m in members if isinstance(m, MemberDescriptorType)]
    return slots + values if slots or isinstance(held, dict) else None


def _in_slot(slot: MemberDescriptorType, item: Any) -> Any:
    try:
        return slot.__get__(item)
    except AttributeError:
        return _EMPTY


class Writes:
    """What a child graph has written, under its parent's names: of a replaced key the newest value, else each update.

    `output` (own key -> parent's key) says what the parent, whose schema is `outer`, takes; None: the keys that it
    knows. Where the child adds and the parent replaces, the parent gets all that was added as one value.
    """

    def __init__(self, own: Schema, outer: Schema, output: Mapping[str, str] | None) -> None:
        self._own = own
        self._outer = outer
        self._output = output
        self._each: list[Mapping[str, Any]] = []
        self._whole: dict[str, Any] = {}

    def add(self, updates: Iterable[Mapping[str, Any]]) -> None:
        """Remember what a step of the child has written."""
        for update in updates:
            kept: dict[str, Any] = {}
            for key, value in update.items():
                name = self._parents_name(key)
                if name is None:
                    continue
                if self._own.replaces(key):
                    self._whole.pop(key, None)  # to the end: in the order in which they were written last
                    self._whole[key] = value
                elif self._outer.replaces(name):
                    self._whole[key] = self._own.strategies[key].merge(self._whole.pop(key, UNSET), value)
                else:
                    kept[name] = value
            if kept:
                self._each.append(kept)

    def _parents_name(self, key: str) -> str | None:
        if self._output is not None:
            return self._output.get(key)
        return key if self._outer.knows(key) else None

    def updates(self) -> Updates:
        """All of it, to be merged by the parent one after the other."""
        whole = [{str(self._parents_name(key)): value} for key, value in self._whole.items()]
        return Updates([*self._each, *whole])
