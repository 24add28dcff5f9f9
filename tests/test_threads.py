"""Blocking nodes in worker threads: how many work at once, and what a thread that was left behind still holds."""

import asyncio
import threading
from typing import Any

import pytest

from agentgraph import END, START, CompiledGraph, Send, StateGraph, threads
from agentgraph.strategies import Append


def fan(node: Any, count: int) -> CompiledGraph[dict[str, Any]]:
    graph = StateGraph(strategies={"seen": Append()})
    graph.add_node("work", node).add_edge("work", END)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(count)], ["work"])
    return graph.compile()


def seen(item: int) -> dict[str, Any]:
    return {"seen": item}


class Gauge:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


async def test_no_more_threads_work_at_once_than_the_bound_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 3)
    gauge = Gauge()

    def work(item: int) -> dict[str, Any]:
        with gauge:
            threading.Event().wait(0.001)
            return {"seen": item}

    result = await fan(work, 40).invoke({})
    assert result.state["seen"] == list(range(40))
    assert gauge.most <= 3


async def test_the_bound_holds_over_all_event_loops_and_each_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 2)
    gauge = Gauge()

    def work(item: int) -> dict[str, Any]:
        with gauge:
            threading.Event().wait(0.001)
            return {"seen": item}

    app = fan(work, 10)
    loops = [asyncio.to_thread(app.invoke_sync, {}) for _ in range(3)]
    assert [r.state["seen"] for r in await asyncio.gather(*loops)] == [list(range(10))] * 3
    assert gauge.most <= 2


async def test_a_thread_that_was_left_behind_takes_nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 1)
    release = threading.Event()
    entered = threading.Event()

    def stuck(state: dict[str, Any]) -> None:
        entered.set()
        release.wait(10)

    graph = StateGraph()
    graph.add_node("stuck", stuck).add_edge(START, "stuck").add_edge("stuck", END)
    run = asyncio.create_task(graph.compile().invoke({}))
    assert await asyncio.to_thread(entered.wait, 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await fan(seen, 2).invoke({})).state["seen"] == [0, 1]
    release.set()


async def test_a_run_that_is_cancelled_while_its_node_waits_for_a_turn_leaves_the_turn_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 1)
    release = threading.Event()
    entered = threading.Event()

    def hold(item: int) -> dict[str, Any]:
        entered.set()
        release.wait(10)
        return {"seen": item}

    holding = asyncio.create_task(fan(hold, 1).invoke({}))
    assert await asyncio.to_thread(entered.wait, 10)
    waiting = asyncio.create_task(fan(hold, 2).invoke({}))
    for _ in range(20):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    assert (await holding).state["seen"] == [0]
    assert (await fan(hold, 3).invoke({})).state["seen"] == [0, 1, 2]


async def test_a_blocking_node_that_runs_a_graph_of_blocking_nodes_cannot_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 1)
    inner = fan(seen, 3)

    def outer(item: int) -> dict[str, Any]:
        return {"seen": inner.invoke_sync({}).state["seen"]}

    assert (await fan(outer, 2).invoke({})).state["seen"] == [0, 1, 2, 0, 1, 2]
