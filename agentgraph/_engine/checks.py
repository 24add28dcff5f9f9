"""A description of a graph -> all that is wrong with it. Pure."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any, cast

from agentgraph._engine.plan import (
    Description,
    NodeSpec,
    RouterSpec,
    mask_of,
    named_targets,
    positional,
    predecessors,
    reaching,
    successors,
)
from agentgraph._engine.schema import USAGE_KEY, Schema
from agentgraph.config import Retry, positive
from agentgraph.errors import ConfigError, GraphError, listed, nearest, unknown
from agentgraph.node import END, START
from agentgraph.strategies import LastWrite


def check(said: Description, stops: Mapping[str, Iterable[Any]] = types.MappingProxyType({})) -> None:
    """Raise `GraphError` with every fault of the description; return where there is none.

    `stops` are lists of nodes by the option that names them.
    """
    faults = list(said.schema.faults)
    if said.schema.validates and not said.schema.faults:
        faults += said.schema.check_types()
    names = [n.name for n in said.nodes]
    faults += _names(names)
    for spec in said.nodes:
        faults += _node(spec, names, said.schema)
    for router in said.routers:
        faults += _router(router, names)
    faults += _edges(said, names)
    faults += [f"{option}: {unknown('node', n, names)}" for option, ns in stops.items() for n in ns if n not in names]
    if not names:
        faults.append("the graph has no nodes: add_node(name, function)")
    elif mended := _mended(said):
        faults += _reach(mended, [n.name for n in mended.nodes])
    if faults:
        raise GraphError(list(dict.fromkeys(faults)))


def _names(names: list[str]) -> list[str]:
    faults: list[str] = []
    for i, name in enumerate(names):
        if name in names[:i]:
            continue
        if not isinstance(name, str) or not name or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            faults.append(f"a node's name must be a printable text that is not empty; found {name!r}")
        elif name in (START, END):
            faults.append(f"node name {name!r} is reserved for the graph's {'start' if name == START else 'end'}")
        elif names.count(name) > 1:
            faults.append(f"{names.count(name)} nodes are named {name!r}; names must differ")
    return faults


def _node(spec: NodeSpec, names: list[str], schema: Schema) -> list[str]:
    where = f"node {spec.name!r}"
    faults: list[str] = []
    if not callable(spec.fn):
        faults.append(
            f"{where}: a node is a function, a compiled graph or an object with __call__(state, run); "
            f"found {spec.fn!r:.80}" + ("; call compile() on it first" if hasattr(spec.fn, "compile") else "")
        )
    elif inspect.isclass(spec.fn) and any("__call__" in vars(c) for c in spec.fn.__mro__):
        faults.append(f"{where}: {spec.fn.__name__} is a class; write {spec.fn.__name__}()")
    elif not spec.is_graph and positional(spec.fn) == -1:
        faults.append(f"{where}: its function must be callable as (state) or (state, run)")
    for name, value in (("timeout", spec.timeout), ("idle_timeout", spec.idle_timeout)):
        try:
            positive(f"{where}: {name}", value)
        except ConfigError as error:
            faults.append(str(error))
    if spec.on_error is not None and (not callable(spec.on_error) or handler_arity(spec.on_error) is None):
        faults.append(
            f"{where}: on_error must be a function of (state, error) or (state, error, run); "
            f"found {spec.on_error!r:.80}"
        )
    if spec.retry is not None and not isinstance(spec.retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        faults.append(f"{where}: retry must be a Retry, such as Retry(attempts=3); found {spec.retry!r:.80}")
    what = "ends has" if spec.ends is not None else "its return annotation names"
    faults += [
        f"{where}: {what} an {unknown('node', target, names)}"
        for target in named_targets(spec) or ()
        if target != END and target not in names
    ]
    if spec.is_graph:
        inner: Schema = cast("Any", spec.fn).plan.schema
        faults += _mapped(f"{where}: input", spec.input, schema, inner)
        faults += _mapped(f"{where}: output", spec.output, inner, schema)
        if spec.output is None:
            faults += _shared(where, schema, inner, mapped=spec.input is not None)
    elif spec.input is not None or spec.output is not None:
        faults.append(f"{where}: input= and output= are for graphs as nodes")
    return faults + _needs(where, spec, schema)


def _mapped(where: str, names: Any, of: Schema, to: Schema) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, dict):
        return [f"{where} must map state keys to state keys, such as {{'question': 'query'}}; found {names!r:.80}"]
    return [
        f"{where} has an {unknown('state key', key, schema.known())}"
        for pair in cast("dict[Any, Any]", names).items()
        for key, schema in zip(pair, (of, to), strict=True)
        if not isinstance(key, str) or schema.find(key) is None
    ]


def _shared(where: str, outer: Schema, inner: Schema, *, mapped: bool) -> list[str]:
    """Keys that go from a graph to the one it is a node of by being named alike: both must merge them alike.

    Of what one adds to and the other replaces, updates would be lost (only the newest goes back) or doubled (the
    whole value goes back, and is added).
    """
    if outer.faults:
        return []  # what it knows is not known
    keys = [k for k in dict.fromkeys((*inner.strategies, *outer.strategies)) if k != USAGE_KEY]
    both = [k for k in keys if inner.knows(k) and outer.knows(k)]
    if not both and not mapped and not (inner.open and outer.open):
        lacks = f"{where}: its graph has no state key in common with this one"
        return [f"{lacks}; name a key alike in both, or map them by input= and output="]
    return [
        f"{where}: state key {key!r} has {inner.find(key)!r} in its graph and {outer.find(key)!r} in this one, so that "
        f"what it writes would be lost or doubled; give the key the same strategy in both, or name by input= and "
        f"output= the keys that go in and come back"
        for key in both
        if isinstance(inner.find(key), LastWrite) != isinstance(outer.find(key), LastWrite)
    ]


def _needs(where: str, spec: NodeSpec, schema: Schema) -> list[str]:
    needs: Any = getattr(spec.fn, "needs", None)  # of whatever kind: a node's own attributes are its own
    faults: list[str] = []
    for key, purpose in cast("dict[Any, Any]", needs).items() if isinstance(needs, Mapping) else ():
        found = schema.find(key)
        if found is None or isinstance(found, LastWrite):
            lacks = f"the state has an {unknown('state key', key, schema.known())}"
            has = lacks if found is None else f"it has {found!r}"
            wanted = f"needs the state key {key!r} with a strategy that adds, such as Messages()"
            faults.append(f"{where} {wanted}; {has} (the key is for {purpose})")
    return faults


def handler_arity(fn: object) -> int | None:
    """2 or 3: how `on_error` is called; None where neither fits."""
    try:
        signature = inspect.signature(fn)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return 2
    for count in (3, 2):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    return None


def _router(router: RouterSpec, names: list[str]) -> list[str]:
    where = f"the router of {'START' if router.source == START else repr(router.source)}"
    faults: list[str] = []
    if not callable(router.fn):
        faults.append(f"{where} must be a function of (state) or (state, run); found {router.fn!r:.80}")
    elif positional(router.fn) == -1:
        faults.append(f"{where}: its function must be callable as (state) or (state, run)")
    if router.targets == ():
        faults.append(f"{where} has a mapping that names no node; leave it out where the router may go anywhere")
    faults += [
        f"{where} names an {unknown('node', target, [*names, END])}"
        for target in router.targets or ()
        if target != END and target not in names
    ]
    return faults


def _edges(said: Description, names: list[str]) -> list[str]:
    faults: list[str] = []

    def source(name: str) -> None:
        if name == END:
            faults.append("an edge starts at END; END is where branches end")
        elif name != START and name not in names:
            faults.append(f"an edge starts at an {unknown('node', name, names)}")

    def target(name: str) -> None:
        if name == START:
            faults.append("an edge leads to START; name the node to begin again with")
        elif name != END and name not in names:
            faults.append(f"an edge leads to an {unknown('node', name, names)}")

    for one, other in said.edges:
        source(one)
        target(other)
    for sources, other in said.joins:
        if not sources:
            faults.append(f"the join into {other!r} lists no nodes to wait for")
        for one in sources:
            source(one)
            if one == other:
                faults.append(f"a join can never be complete: {other!r} would wait for itself")
        target(other)
    for router in said.routers:
        source(router.source)
    return faults


def _mended(said: Description) -> Description | None:
    """The graph with each unknown name taken for the nearest known one, so that one fault does not hide another."""
    known = {n.name: n for n in said.nodes if isinstance(n.name, str) and n.name not in (START, END)}  # pyright: ignore[reportUnnecessaryIsInstance]
    if not known:
        return None

    def place(name: str, also: str) -> list[str]:
        found = name if name in (also, *known) else nearest(name, known)
        return [] if found is None else [found]

    mended = Description(said.schema)
    for spec in known.values():
        node = copy.copy(spec)
        if spec.ends is not None:
            node.ends = tuple(t for target in spec.ends for t in place(target, END))
        mended.nodes.append(node)
    mended.edges = [(s, t) for one, other in said.edges for s in place(one, START) for t in place(other, END)]
    mended.joins = [
        (tuple(s for one in sources for s in place(one, START)), t)
        for sources, other in said.joins
        for t in place(other, END)
    ]
    for router in said.routers:
        for source in place(router.source, START):
            like = copy.copy(router)
            like.source = source
            if router.targets is not None:
                like.targets = tuple(t for target in router.targets for t in place(target, END))
            mended.routers.append(like)
    return mended


def _reach(said: Description, names: list[str]) -> list[str]:
    after, anywhere = successors(said)
    if not after[START] and START not in anywhere:
        return [f"there is no way from START: add_edge(START, {names[0]!r})"]
    faults: list[str] = []
    reached = _closure(START, after, anywhere, names)
    lost = [n for n in names if n not in reached]
    if lost:
        faults.append(f"nothing leads to {_nodes(lost)}; add an edge to it, or take it out")
    before = predecessors(said)
    place = {n: i for i, n in enumerate(names)}
    ends = mask_of(place[n] for n in names if END in after[n] or n in anywhere)
    ending = reaching(before, ends)
    stuck = [n for n in names if not ending >> place[n] & 1 and n in reached]
    if stuck:
        faults.append(
            f"{_nodes(stuck)} cannot reach END; add_edge({stuck[-1]!r}, END) where the work is done, "
            f"or say by ends=[...] where their Commands go"
        )
    for sources, target in said.joins:
        if target == END:
            continue
        for one in sources:
            if one in (START, target) or one in lost:
                continue
            ways = reaching(before, 1 << place[one], without=place[target])
            if not ways >> len(names) & 1:
                faults.append(
                    f"the join of {listed(sources)} into {target!r} can never be complete: "
                    f"{one!r} can be reached through {target!r} only"
                )
    return faults


def _nodes(names: Iterable[str]) -> str:
    names = list(names)
    return f"node {names[0]!r}" if len(names) == 1 else f"nodes {listed(names)}"


def _closure(source: str, after: dict[str, set[str]], anywhere: set[str], names: list[str]) -> set[str]:
    found: set[str] = set()
    fresh = [source]
    while fresh:
        node = fresh.pop()
        for other in names if node in anywhere else after.get(node, ()):
            if other not in found and other != END:
                found.add(other)
                fresh.append(other)
    return found
