"""A thousand runs at once, each of three nodes that wait: the time of a run, and the memory of one under way."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import TypedDict

from agentgraph import END, START, StateGraph
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare

RUNS = 1_000
Wait = Callable[[], Awaitable[object]]


class Count(TypedDict):
    """The state."""

    n: int


def ours(wait: Wait) -> Case:
    async def node(state: Count) -> dict[str, int]:
        await wait()
        return {"n": state["n"] + 1}

    graph = StateGraph(Count)
    for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    graph.add_edge("c", END)
    app = graph.compile()

    async def case() -> None:
        assert (await app.invoke({"n": 0})).state["n"] == 3

    return case


def plain(wait: Wait) -> Case:
    async def case() -> None:
        state: Count = {"n": 0}
        for _ in range(3):
            await wait()
            state = {"n": state["n"] + 1}
        assert state["n"] == 3

    return case


MAKERS: dict[Side, Callable[[Wait], Case]] = {"agentgraph": ours, "LangGraph": peer.run, "asyncio": plain}


def all_at_once(case: Case) -> Case:
    async def started() -> None:
        await case()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(RUNS):
                group.create_task(started())

    return run


async def memory(make: Callable[[Wait], Case]) -> float:
    """Bytes of one run that waits in its first node, of `RUNS` that do."""
    gate = asyncio.Event()
    full = asyncio.Event()
    waiting = 0

    async def wait() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == RUNS:
            full.set()
        await gate.wait()

    case = make(wait)
    gate.set()
    await case()  # whatever is made once, is made now
    gate.clear()
    waiting = 0
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        runs = asyncio.ensure_future(all_at_once(case)())
        await full.wait()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gate.set()
    await runs
    return taken / RUNS


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    cases: dict[Side, Case] = {side: all_at_once(make(lambda: asyncio.sleep(0))) for side, make in MAKERS.items()}
    times = await compare(f"a run of 3 nodes, {RUNS:,} at once", cases, units=RUNS, repeats=repeats)
    sizes: dict[Side, float] = {side: await memory(make) for side, make in MAKERS.items()}
    return [times, Row(what="memory of such a run", values=sizes, unit="bytes")]
