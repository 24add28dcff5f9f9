"""Random graphs whose runs fail, ask, are cancelled, drained or die with their process: they end as if undisturbed."""

import asyncio
from collections import Counter
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, CompiledGraph, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer, MemorySaver, spans
from agentgraph.errors import StoreError
from agentgraph.strategies import Append
from agentgraph.testing import run_with_clock
from tests.checkpoint.wrapped import Wrapped

Op = Literal["once", "ask", "fail", "turn"]


class NodePlan(msgspec.Struct, frozen=True):
    """What a node does, in order; `nested` in a graph of its own, with a second step."""

    ops: list[Op]
    nested: bool


class Disturbance(msgspec.Struct, frozen=True):
    """What happens to one process: after `at` writes the store is gone to it, or after `at` turns it is told to end."""

    kind: Literal["dies", "dies unheard", "cancelled", "drained"]
    at: int
    answers_all: bool


Graph = list[list[NodePlan]]

graphs = st.lists(
    st.lists(
        st.builds(
            NodePlan,
            ops=st.lists(st.sampled_from(["once", "once", "ask", "fail", "turn"]), max_size=4),
            nested=st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)
disturbances = st.lists(
    st.builds(
        Disturbance,
        kind=st.sampled_from(["dies", "dies unheard", "cancelled", "drained"]),
        at=st.integers(0, 14),
        answers_all=st.booleans(),
    ),
    max_size=8,
)


class Log(TypedDict):
    log: Annotated[list[str], Append()]


class World:
    """What lies outside of all processes."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.told: set[str] = set()
        """The effects that a node was told of."""
        self.failed: set[str] = set()

    def node(self, name: str, plan: NodePlan) -> Any:
        async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
            said = [name]
            for k, op in enumerate(plan.ops):
                what = f"{name}.{k}"
                if op == "once":
                    said.append(await run.once(what, lambda what=what: self.effect(what)))
                    self.told.add(what)
                elif op == "ask":
                    said.append(run.interrupt(what))
                elif op == "fail":
                    if what not in self.failed:
                        self.failed.add(what)
                        raise RuntimeError("planned")
                else:
                    await asyncio.sleep(0)
            return {"log": [" ".join(said)]}

        return node

    async def effect(self, what: str) -> str:
        await asyncio.sleep(0)
        self.effects[what] += 1
        return f"{what} done"

    def app(self, graph: Graph, saver: Checkpointer) -> CompiledGraph[Log]:
        """Layers of nodes: each waits for all of the one before."""
        made = StateGraph(Log)
        before: list[str] = [START]
        for depth, layer in enumerate(graph):
            names = [f"n{depth}{k}" for k in range(len(layer))]
            for name, plan in zip(names, layer, strict=True):
                made.add_node(name, self.nested(name, plan) if plan.nested else self.node(name, plan))
                made.add_edge(before if len(before) > 1 else before[0], name)
            before = names
        for name in before:
            made.add_edge(name, END)
        return made.compile(checkpointer=saver)

    def nested(self, name: str, plan: NodePlan) -> CompiledGraph[Log]:
        inner = StateGraph(Log)
        inner.add_node("one", self.node(name, plan))
        inner.add_node("two", self.node(f"{name}'", NodePlan(["once"], nested=False)))
        inner.add_edge(START, "one")
        inner.add_edge("one", "two")
        inner.add_edge("two", END)
        return inner.compile()


async def one_process(
    world: World, graph: Graph, store: MemorySaver, disturbance: Disturbance | None, config: RunConfig
) -> None:
    """Begin the thread, answer it or continue it, as it needs, until the process has ended."""
    saver = Wrapped(store)
    writes = 0

    async def die() -> None:
        nonlocal writes
        writes += 1
        if disturbance is not None and writes > disturbance.at:
            raise StoreError("this process is dead")

    kind = None if disturbance is None else disturbance.kind
    if kind == "dies":
        saver.hooks["write"] = die
    elif kind == "dies unheard":
        saver.hooks["appended"] = die
    app = world.app(graph, saver)
    found = await app.state(config)
    run: Any
    if found is None:
        run = app.invoke({"log": ["in"]}, config)
    elif found.interrupts and found.status != "running":
        asked = found.interrupts if disturbance is None or disturbance.answers_all else found.interrupts[:1]
        run = app.invoke(Command(resume={q.id: f"answer to {q.value}" for q in asked}), config)
    elif found.status == "running":
        run = app.resume_pending(msgspec.structs.replace(config, thread_id=None))
    else:
        run = app.invoke(None, config)
    task = asyncio.ensure_future(run)
    if disturbance is not None and kind in ("cancelled", "drained"):
        for _ in range(2 * disturbance.at):
            await asyncio.sleep(0)
        if kind == "cancelled":
            task.cancel()
        else:
            app.drain()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, StoreError) or str(error) == "planned", error


async def stored(store: MemorySaver, graph: Graph, app: CompiledGraph[Log], config: RunConfig) -> set[str]:
    """The effects that the store knows of."""
    info = await store.thread("t")
    if info is None:
        return set()
    entries = await store.read("t", spans(info.lines, info.line, info.last))
    found = {e.key.rpartition("=")[2] for e in entries if e.kind == "record" and "=" in e.key}
    ran = {name for c in await app.history(config, limit=1000) if c.kind == "step" for name in c.ran}
    for depth, layer in enumerate(graph):
        for k, plan in enumerate(layer):
            if f"n{depth}{k}" in ran:
                found |= {f"n{depth}{k}.{j}" for j, op in enumerate(plan.ops) if op == "once"}
    return found


async def survives(
    graph: Graph, disturbed: list[Disturbance], config: RunConfig
) -> tuple[list[str], Counter[str], dict[str, int]]:
    """What the thread comes to, how often each effect took place, and how often those did after they were stored."""
    store, world = MemorySaver(), World()
    repeated: Counter[str] = Counter()
    for k in range(200):
        known = await stored(store, graph, world.app(graph, store), config)
        if config.durability == "sync":
            known |= world.told
        before = world.effects.copy()
        await one_process(world, graph, store, disturbed[k] if k < len(disturbed) else None, config)
        repeated.update({what: n for what, n in (world.effects - before).items() if what in known})
        info = await store.thread("t")
        if info is None:
            continue
        if info.claimed:  # its process is dead, and its lease runs out
            await store.release("t", info.epoch)
        found = await world.app(graph, store).state(config)
        if found is not None and not found.next:
            return found.state["log"], world.effects, dict(repeated)
    raise AssertionError("the run does not come to its end")


@settings(max_examples=60, deadline=None)
@given(graph=graphs, disturbed=disturbances, durability=st.sampled_from(["sync", "async", "exit"]))
def test_whatever_happens_to_its_processes_a_run_ends_as_if_undisturbed(
    graph: Graph, disturbed: list[Disturbance], durability: Literal["sync", "async", "exit"]
) -> None:
    config = RunConfig(thread_id="t", durability=durability)
    expected, all_effects, _ = run_with_clock(survives(graph, [], config))
    log, effects, repeated = run_with_clock(survives(graph, disturbed, config))
    assert log == expected
    assert repeated == {}
    assert set(effects) == set(all_effects)
    if not any(d.kind.startswith("dies") for d in disturbed):
        assert effects == all_effects
        assert set(effects.values()) <= {1}
