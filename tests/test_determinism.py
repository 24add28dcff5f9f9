"""Random graphs: the result does not depend on who was faster, and whatever ends a run leaves nothing of it."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, CompiledGraph, RecursionLimitError, RunConfig, RunContext, Send, StateGraph
from agentgraph.events import NodeFinished, RunFailed, RunFinished
from agentgraph.strategies import Append, LastWrite, Merge, Reduce

LIMIT = RunConfig(recursion_limit=40)

Work = Callable[[], Awaitable[None]]


def joined(current: str, update: str) -> str:
    """Who comes first stands first."""
    return current + update


class State(TypedDict, total=False):
    log: Annotated[list[str], Append()]
    text: Annotated[str, Reduce(joined, initial="")]
    seen: Annotated[dict[str, str], Merge()]
    last: Annotated[str, LastWrite()]


@dataclass(frozen=True)
class Way:
    """Where a node goes on one of its visits."""

    kind: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """A graph of up to 30 nodes; those in `inner` are graphs of two nodes, one of them a plain def."""

    names: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    targets: dict[str, tuple[str, ...]]
    ways: dict[str, tuple[Way, ...]]
    waits: frozenset[str]
    inner: frozenset[str]

    def compile(self, work: Work) -> CompiledGraph[State]:
        """The graph, for one run. Each async node awaits `work()` first."""
        visits = Counter[str]()

        def next_way(name: str) -> Way:
            return dict(enumerate(self.ways.get(name, ()))).get(visits[name], Way("edges", ()))

        def route(state: State, run: RunContext[None]) -> list[str | Send]:
            way = next_way(run.node)
            visits[run.node] += 1
            if way.kind == "send":
                return [Send(name, {"text": f"{run.node}.{k}"}) for k, name in enumerate(way.to)]
            return [*way.to]

        def update(state: State, run: RunContext[None]) -> State:
            told = f"{'/'.join(run.path)}@{run.step} saw {len(state.get('log', []))} {state.get('text', '')[-9:]}; "
            return {"log": [told], "text": told, "seen": {run.node: told}, "last": told}

        async def node(state: State, run: RunContext[None]) -> Any:
            await work()
            way = next_way(run.node)
            if way.kind == "goto" and "log" in state:  # not where it was sent something: its visits count once a step
                visits[run.node] += 1
                return Command(update=update(state, run), goto=way.to)
            return update(state, run)

        inside = StateGraph(State).add_node("async", node, ends=[]).add_node("def", update)
        for name in ("async", "def"):
            inside.add_edge(START, name).add_edge(name, END)
        graph = StateGraph(State)
        for name in self.names:
            call = inside.compile() if name in self.inner else node
            graph.add_node(name, call, wait=name in self.waits, ends=self.targets[name])
        for name in (START, *self.names):
            graph.add_conditional_edges(name, route, [*self.targets[name], END])
        for source, target in self.edges:
            graph.add_edge(source, target)
        for sources, target in self.joins:
            graph.add_edge(sources, target)
        return graph.compile()


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Each node can be reached by the router of an earlier one, whether that ever goes there or not."""
    names = [f"n{i}" for i in range(draw(st.integers(2, 30)))]
    some = st.lists(st.sampled_from(names), max_size=4).map(tuple)
    ways = st.lists(st.builds(Way, st.sampled_from(["route", "goto", "send"]), some), max_size=3).map(tuple)
    plan = {name: draw(ways) for name in (START, *names)}
    targets = {name: {to for way in plan[name] for to in way.to} for name in plan}
    edges = {(START, names[0])}
    joins: list[tuple[tuple[str, ...], str]] = []
    for i, name in enumerate(names[1:], 1):
        targets[draw(st.sampled_from([START, *names[:i]]))].add(name)
        if draw(st.booleans()):
            edges.add((names[draw(st.integers(0, i - 1))], name))
        if i > 1 and draw(st.integers(0, 3)) == 0:
            joins.append((tuple(sorted(draw(st.sets(st.sampled_from(names[:i]), min_size=2, max_size=4)))), name))
    return Shape(
        tuple(names),
        tuple(sorted(edges)),
        tuple(joins),
        {name: tuple(sorted(to)) for name, to in targets.items()},
        plan,
        frozenset(draw(st.lists(st.sampled_from(names), max_size=3))),
        frozenset(draw(st.lists(st.sampled_from(names), max_size=3))),
    )


class Delays:
    """What nodes wait for: some turns of the event loop, and one more to clean up. Knows what is under way."""

    def __init__(self, seed: int, most: int = 5, fail_at: int | None = None) -> None:
        self._draw = random.Random(seed)
        self._most = most
        self._fail_at = fail_at
        self.begun = 0
        self.under_way = 0

    async def __call__(self) -> None:
        self.begun += 1
        number = self.begun
        self.under_way += 1
        try:
            for _ in range(self._draw.randint(0, self._most)):
                await asyncio.sleep(0)
            if number == self._fail_at:
                raise KeyError(number)
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.under_way -= 1


async def outcome(shape: Shape, work: Work, *, short: bool = True) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentgraph._engine.run.SHORT_WAY", short)
        try:
            result = await shape.compile(work).invoke({}, LIMIT)
        except RecursionLimitError as error:
            return error.state, error.last
        return result.state, result.steps


def left() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@settings(max_examples=40, deadline=None)
@given(shapes(), st.lists(st.integers(0, 1000), min_size=2, max_size=2))
async def test_the_result_does_not_depend_on_who_was_faster(shape: Shape, seeds: list[int]) -> None:
    at_once = await outcome(shape, Delays(0, most=0))
    for seed in seeds:
        assert await outcome(shape, Delays(seed)) == at_once


@settings(max_examples=40, deadline=None)
@given(shapes(), st.integers(0, 1000))
async def test_the_short_way_through_the_loop_changes_nothing(shape: Shape, seed: int) -> None:
    assert await outcome(shape, Delays(seed), short=False) == await outcome(shape, Delays(seed))


@settings(max_examples=30, deadline=None)
@given(shapes(), st.integers(0, 1000))
async def test_a_reader_changes_nothing(shape: Shape, seed: int) -> None:
    async with shape.compile(Delays(seed)).stream({}, LIMIT, buffer=1) as events:
        try:
            told = [event async for event in events]
        except RecursionLimitError as error:
            read = error.state, error.last
        else:
            read = events.result.state, events.result.steps
            assert isinstance(told[-1], RunFinished)
            assert sum(isinstance(e, NodeFinished) for e in told) >= len(events.result.state.get("seen", {}))
    assert read == await outcome(shape, Delays(seed))


@settings(max_examples=30, deadline=None)
@given(shapes(), st.integers(0, 1000))
async def test_a_run_that_ends_leaves_no_task(shape: Shape, seed: int) -> None:
    work = Delays(seed)
    await outcome(shape, work)
    assert (work.under_way, left()) == (0, set())


@settings(max_examples=40, deadline=None)
@given(shapes(), st.integers(0, 1000), st.integers(1, 12), st.booleans())
async def test_a_node_that_fails_ends_all_others_first(shape: Shape, seed: int, fail_at: int, short: bool) -> None:
    work = Delays(seed, fail_at=fail_at)
    run = asyncio.create_task(outcome(shape, work, short=short))
    await asyncio.wait([run])
    error = run.exception()
    assert (error is None) == (work.begun < fail_at)
    assert error is None or error.args == (fail_at,)
    assert (work.under_way, left()) == (0, set())


@settings(max_examples=60, deadline=None)
@given(shapes(), st.integers(0, 1000), st.integers(0, 60), st.booleans())
async def test_a_cancel_at_any_await_ends_everything_first(shape: Shape, seed: int, turns: int, short: bool) -> None:
    work = Delays(seed)
    run = asyncio.create_task(outcome(shape, work, short=short))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_done = run.done()
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled() != was_done
    assert (work.under_way, left()) == (0, set())


@settings(max_examples=40, deadline=None)
@given(shapes(), st.integers(0, 1000), st.integers(0, 20), st.integers(1, 4))
async def test_a_reader_that_leaves_ends_everything_first(shape: Shape, seed: int, most: int, buffer: int) -> None:
    work = Delays(seed)
    read = 0
    async with shape.compile(work).stream({}, LIMIT, buffer=buffer) as events:
        while read < most:
            event = await anext(events)
            read += 1
            if isinstance(event, (RunFinished, RunFailed)):
                break
    assert (work.under_way, left()) == (0, set())
    begun = work.begun
    await asyncio.sleep(0)
    assert work.begun == begun
