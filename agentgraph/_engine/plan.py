"""The compiled form of a graph: integers, tuples and bit sets. Pure.

A node is a number, in the order in which nodes were added; START is the number after the last. A set of nodes
is an int with a bit for each. Names appear at the edges only: in routers' answers and in messages.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from agentgraph._engine.schema import Schema
from agentgraph.config import Retry
from agentgraph.node import END, START, Command, is_async

UNDECLARED = frozenset({END})
"""Where a `Command` may go that nothing spoke of, in a graph whose waits were decided without it."""


class NodeSpec:
    """A node as it was said, and what could be read off it."""

    def __init__(
        self,
        name: str,
        fn: Any,
        *,
        wait: bool = False,
        ends: Any = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        retry: Retry | None = None,
        on_error: Any = None,
        input: Any = None,
        output: Any = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.wait = wait
        self.ends = None if ends is None else names_in(ends)
        self.timeout = timeout
        self.idle_timeout = idle_timeout
        self.retry = retry
        self.on_error = on_error
        self.input: Any = dict(cast("Mapping[str, str]", input)) if isinstance(input, Mapping) else input
        self.output: Any = dict(cast("Mapping[str, str]", output)) if isinstance(output, Mapping) else output
        self.is_graph = isinstance(getattr(fn, "plan", None), Plan)
        mapped = self.is_graph and (input is not None or output is not None)
        self.call: Any = functools.partial(fn, input=self.input, output=self.output) if mapped else fn
        self.is_async = self.is_graph or is_async(fn)
        self.wants_run = self.is_graph or (callable(fn) and positional(fn) != 1)
        self.plain = self.is_async and not (timeout or idle_timeout or retry or on_error or self.is_graph)
        """Nothing to do but to await it: no policy, no thread."""
        self.short: bool = self.plain and not self.wants_run
        """And it can neither ask nor be told of."""


class RouterSpec:
    """A conditional edge as it was said. `targets` are the names it may give, None where nobody knows."""

    def __init__(self, source: str, fn: Any, mapping: Any) -> None:
        self.source = source
        self.fn = fn
        self.mapping: Mapping[Any, Any] | None = None
        self.is_async = is_async(fn)
        self.wants_run = callable(fn) and positional(fn) != 1
        self.targets: tuple[Any, ...] | None
        if mapping is None:
            self.targets = literal_targets(fn)
        elif isinstance(mapping, Mapping):
            self.mapping = dict(cast("Mapping[Any, Any]", mapping))
            self.targets = tuple(self.mapping.values())
        else:
            self.targets = names_in(mapping)
            self.mapping = {n: n for n in self.targets if isinstance(n, str)}
        self.label: dict[str, str] = {
            v: str(k) for k, v in (self.mapping or {}).items() if isinstance(v, str) and str(k) != v
        }


class JoinSpec:
    """`add_edge([a, b], c)`: `sources` as bits; `reach[s]` the nodes from which source s can still come."""

    __slots__ = ("reach", "sources", "target")

    def __init__(self, sources: int, target: int, reach: dict[int, int]) -> None:
        self.sources = sources
        self.target = target
        self.reach = reach


class Description:
    """What the user said, in the order in which it was said."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.nodes: list[NodeSpec] = []
        self.edges: list[tuple[str, str]] = []
        self.joins: list[tuple[tuple[str, ...], str]] = []
        self.routers: list[RouterSpec] = []


class Plan:
    """A graph, ready to run."""

    __slots__ = (
        "debug",
        "edge_mask",
        "ending",
        "gotos",
        "index",
        "joins",
        "joins_of",
        "name",
        "names",
        "nodes",
        "routers",
        "schema",
        "simple",
        "start",
        "stop_after",
        "stop_before",
        "tables",
        "wait_mask",
        "wait_reach",
    )

    def __init__(
        self,
        said: Description,
        *,
        name: str,
        debug: bool,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
    ) -> None:
        self.name: str = name
        self.debug: bool = debug
        self.schema: Schema = said.schema
        self.nodes: tuple[NodeSpec, ...] = tuple(said.nodes)
        self.names: tuple[str, ...] = tuple(n.name for n in said.nodes)
        self.index: dict[str, int] = {n: i for i, n in enumerate(self.names)}
        self.start: int = len(self.names)
        place = {**self.index, START: self.start}
        self.stop_before: int = mask_of(self.index[n] for n in interrupt_before)
        self.stop_after: int = mask_of(self.index[n] for n in interrupt_after)
        edge_mask = [0] * (self.start + 1)
        for source, target in said.edges:
            if target != END:
                edge_mask[place[source]] |= 1 << self.index[target]
        self.edge_mask: tuple[int, ...] = tuple(edge_mask)
        ends = {source for source, target in said.edges if target == END}
        ends.update(source for sources, target in said.joins if target == END for source in sources)
        self.ending: tuple[bool, ...] = tuple(n in ends for n in (*self.names, START))
        """Whether a plain edge or a join leads to END: nothing runs for it."""
        self.routers: tuple[tuple[RouterSpec, ...], ...] = tuple(
            tuple(r for r in said.routers if place[r.source] == i) for i in range(self.start + 1)
        )
        self.tables: dict[RouterSpec, dict[Any, int]] = {r: self._table(r) for r in said.routers}
        """For each router the answers that are names: to the node's bit, END to none."""
        before = predecessors(said)
        self.joins: tuple[JoinSpec, ...] = tuple(
            JoinSpec(
                mask_of(place[s] for s in sources),
                self.index[target],
                {place[s]: reaching(before, 1 << place[s], without=self.index[target]) for s in sources},
            )
            for sources, target in said.joins
            if target != END
        )
        self.joins_of: tuple[tuple[int, ...], ...] = tuple(
            tuple(j for j, join in enumerate(self.joins) if join.sources >> i & 1) for i in range(self.start + 1)
        )
        self.wait_mask: int = mask_of(i for i, n in enumerate(said.nodes) if n.wait)
        self.wait_reach: dict[int, int] = {
            i: reaching(before, 1 << i, without=i) & ~(1 << i) for i, n in enumerate(said.nodes) if n.wait
        }
        self.simple: bool = not self.joins and not self.wait_mask
        """No node ever waits for another: what is hit runs next."""
        self.gotos: tuple[frozenset[str] | None, ...] = tuple(self._goto(n) for n in said.nodes)
        """The names that a node's `Command` may give, None for any."""

    def _goto(self, spec: NodeSpec) -> frozenset[str] | None:
        targets = declared_targets(spec)
        if targets == () and spec.ends is None:
            return None if self.simple else UNDECLARED
        return None if targets is None else frozenset(targets) | {END}

    def _table(self, router: RouterSpec) -> dict[Any, int]:
        names = router.mapping
        if names is None:
            names = {n: n for n in (self.names if router.targets is None else router.targets)}
        return {END: 0} | {a: 0 if n == END else 1 << self.index[n] for a, n in names.items()}


def names_in(said: Any) -> tuple[Any, ...]:
    """Names that were given as one or as several, each once; what is neither counts as one."""
    names = (said,) if isinstance(said, str) or not isinstance(said, Iterable) else tuple(cast("Iterable[Any]", said))
    return tuple(n for i, n in enumerate(names) if n not in names[:i])


def mask_of(numbers: Any) -> int:
    """The bit set of some numbers."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def bits(mask: int) -> Iterator[int]:
    """The numbers in a bit set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def named_targets(spec: NodeSpec) -> tuple[str, ...] | None:
    """Where a node's `Command` may go as its `ends` or return annotations say; None where they do not."""
    if spec.ends is not None:
        return tuple(spec.ends)
    named: list[str] = []
    for fn in (spec.fn, spec.on_error):
        if fn is not None and speaks_of_command(fn):
            names = literal_targets(fn, of=Command)
            if names is None:
                return None
            named += names
    return tuple(named) or None


def declared_targets(spec: NodeSpec) -> tuple[str, ...] | None:
    """Where a node's `Command` may go: () for nowhere, None for anywhere.

    A node that speaks of `Command` and does not say where it goes must be expected to go anywhere.
    """
    named = named_targets(spec)
    if named is None and not any(speaks_of_command(fn) for fn in (spec.fn, spec.on_error)):
        return ()
    return named


def successors(said: Description) -> tuple[dict[str, set[str]], set[str]]:
    """Where each node (START too) can lead, and those nodes that may lead anywhere."""
    after: dict[str, set[str]] = {START: set(), **{n.name: set() for n in said.nodes}}
    anywhere: set[str] = set()
    for source, target in said.edges:
        after[source].add(target)
    for sources, target in said.joins:
        for source in sources:
            after[source].add(target)
    for router in said.routers:
        if router.targets is None:
            anywhere.add(router.source)
        else:
            after[router.source].update(router.targets)
    for spec in said.nodes:
        targets = declared_targets(spec)
        if targets is None:
            anywhere.add(spec.name)
        else:
            after[spec.name].update(targets)
    return after, anywhere


def predecessors(said: Description) -> list[int]:
    """For each node the set of those that can lead to it in one step (START's bit is the last)."""
    names = [n.name for n in said.nodes]
    place = {n: i for i, n in enumerate(names)}
    place[START] = len(names)
    after, anywhere = successors(said)
    before = [0] * len(names)
    for source, targets in after.items():
        bit = 1 << place[source]
        for i, name in enumerate(names):
            if source in anywhere or name in targets:
                before[i] |= bit
    return before


def reaching(before: list[int], targets: int, *, without: int | None = None) -> int:
    """The nodes from which one of `targets` can be reached, these included, by ways not through `without`."""
    found = targets
    fresh = targets
    shut = ~(1 << without) if without is not None else -1
    while fresh:
        more = 0
        for node in bits(fresh):
            if node < len(before):
                more |= before[node]
        fresh = more & ~found & shut
        found |= fresh
    return found


def positional(fn: Any) -> int:
    """How many positional arguments `fn` takes of (state, run): 1 or 2; -1 where it can be called with neither."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return 1  # a builtin that does not say
    parameters = signature.parameters.values()
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return -1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in places)
    if not places or needed > 2:
        return -1
    return 2 if needed == 2 or (len(places) >= 2 and places[1].name == "run") else 1


def literal_targets(fn: Any, of: Any = None) -> tuple[str, ...] | None:
    """The names that a `Literal` in the return annotation gives; None where there is none.

    With `of`, only where the Literal is that generic's argument, as in `Command[Literal["a"]]`.
    """
    call = _function(fn)
    said = types.SimpleNamespace(__annotations__={"return": getattr(call, "__annotations__", {}).get("return")})
    try:  # the return alone: what the parameters are need not be known here
        annotation = typing.get_type_hints(said, globalns=getattr(call, "__globals__", {}))["return"]
    except Exception:  # an annotation that cannot be resolved declares nothing
        return None
    names = tuple(_literals(annotation)) if of is None or typing.get_origin(annotation) is of else ()
    return names or None


def _literals(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        for value in typing.get_args(annotation):
            if isinstance(value, str):
                yield value
        return
    for argument in typing.get_args(annotation):
        yield from _literals(argument)


def speaks_of_command(fn: Any) -> bool:
    """Whether a function's code or return annotation names `Command`: then it may go anywhere unless it says where."""
    call = _function(fn)
    if re.search(r"\bCommand\b", str(getattr(call, "__annotations__", {}).get("return"))):
        return True
    code = getattr(call, "__code__", None)
    known = getattr(call, "__globals__", {})
    return code is not None and any(n == "Command" or known.get(n) is Command for n in _names(code))


def _function(fn: Any) -> Any:
    """The function that is called in the end: of a partial, a method, an object with `__call__`, a decorated one."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    if not inspect.isroutine(fn):
        fn = getattr(cast("type[Any]", type(fn)), "__call__", fn)  # noqa: B004  # the method itself is wanted
    return inspect.unwrap(getattr(fn, "__func__", fn))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
