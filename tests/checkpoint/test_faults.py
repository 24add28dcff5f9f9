"""Stores that fail, are slow, or are not there; runs that are cancelled anywhere: what was acknowledged is there."""

import asyncio
import itertools
import logging
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from agentgraph import END, START, Command, CompiledGraph, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer, MemorySaver, SqliteSaver, StoredType
from agentgraph.errors import CodecError, FencedError, ResumeError, StoreError, ThreadBusyError
from agentgraph.strategies import Append
from agentgraph.testing import run_with_clock
from tests.checkpoint.wrapped import Wrapped

T = RunConfig(thread_id="t")
Durability = Literal["sync", "async", "exit"]
DURABILITIES: list[Durability] = ["sync", "async", "exit"]


class Log(TypedDict):
    log: Annotated[list[str], Append()]


class Work:
    """A short run: one node, three beside each other, one more; each makes a call that must be made once."""

    STATE = ("in", "first", "left", "right", "middle", "last")

    def __init__(self) -> None:
        self.calls: list[str] = []
        """The calls that came to their end."""
        self.told: list[str] = []
        """The calls of which the node was told."""

    def node(self, name: str) -> Any:
        async def call() -> str:
            await asyncio.sleep(0)
            self.calls.append(name)
            return name

        async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
            found = await run.once("call", call)
            self.told.append(name)
            await asyncio.sleep(0)
            return {"log": [found]}

        return node

    def app(self, saver: Checkpointer, **options: Any) -> CompiledGraph[Log]:
        graph = StateGraph(Log)
        for name in self.STATE[1:]:
            graph.add_node(name, self.node(name))
        graph.add_edge(START, "first")
        for name in ("left", "right", "middle"):
            graph.add_edge("first", name)
        graph.add_edge(["left", "right", "middle"], "last")
        graph.add_edge("last", END)
        return graph.compile(checkpointer=saver, **options)


async def go_on(app: CompiledGraph[Log], config: RunConfig = T) -> list[str]:
    """Continue the thread, or begin it where nothing of it is there."""
    try:
        return (await app.invoke(None, config)).state["log"]
    except ResumeError:
        found = await app.state(config)
        if found is not None:
            return found.state["log"]
        return (await app.invoke({"log": ["in"]}, config)).state["log"]


@pytest.fixture
async def local(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Checkpointer]:
    """A saver whose every operation a test may let fail."""
    async with MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "runs.db") as saver:
        yield saver


@pytest.mark.parametrize("local", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_whatever_write_fails_ends_the_run_and_after_mending_it_goes_on_with_what_was_acknowledged(
    local: Checkpointer, durability: Durability
) -> None:
    fail_at = 0
    while True:
        fail_at += 1
        saver = Wrapped(local)
        thread = RunConfig(thread_id=f"t{fail_at}", durability=durability)
        left = fail_at

        async def fail() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise StoreError("the disk is on fire")

        saver.hooks["write"] = fail
        work = Work()
        app = work.app(saver, lease=3600)
        async with asyncio.timeout(30):
            (ended,) = await asyncio.gather(app.invoke({"log": ["in"]}, thread), return_exceptions=True)
            if not isinstance(ended, BaseException):
                break
            assert (type(ended), str(ended)) == (StoreError, "the disk is on fire")
            acknowledged = list(work.told) if durability == "sync" else []
            del saver.hooks["write"]
            before = len(work.calls)
            # the thread is free, though its lease lasts for an hour
            assert await go_on(app, thread) == list(work.STATE)
        again = work.calls[before:]
        assert not set(again) & set(acknowledged)
    assert fail_at > (1 if durability == "exit" else 2)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_store_that_fails_for_good_lets_nothing_hang(durability: Durability) -> None:
    saver = Wrapped(MemorySaver())

    async def fail() -> None:
        raise StoreError("gone")

    for name in ("append", "renew", "release"):
        saver.hooks[name] = fail
    app = Work().app(saver)
    async with asyncio.timeout(10):
        for given in ({"log": ["in"]}, {"log": ["in"]}, None):
            with pytest.raises(StoreError, match="gone"):
                await app.invoke(given, RunConfig(thread_id="t", durability=durability))


async def test_a_store_that_is_down_at_the_start_is_told_and_no_node_runs() -> None:
    saver = Wrapped(MemorySaver())
    down = True

    async def fail() -> None:
        if down:
            raise StoreError("down")

    for name in ("claim", "read"):
        saver.hooks.clear()
        saver.hooks[name] = fail
        work = Work()
        with pytest.raises(StoreError, match="down"):
            await work.app(saver).invoke({"log": ["in"]}, T)
        assert work.calls == []
    down = False
    assert (await Work().app(saver).invoke({"log": ["in"]}, T)).state["log"] == list(Work.STATE)


async def test_a_run_that_the_store_ends_is_one_that_its_nodes_see_cancelled() -> None:
    saver = Wrapped(MemorySaver())
    seen: list[bool] = []
    failing = asyncio.Event()

    async def fail() -> None:
        await failing.wait()
        raise StoreError("gone")

    async def node(state: Log, run: RunContext[Any]) -> None:
        saver.hooks["append"] = fail
        token = run.cancellation
        failing.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(token.cancelled)

    async def first(state: Log) -> None:
        saver.hooks["append"] = fail

    graph = StateGraph(Log)
    graph.add_node("first", first)
    graph.add_node("node", node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "node")
    graph.add_edge("node", END)
    task = asyncio.create_task(graph.compile(checkpointer=saver).invoke({}, T))
    with pytest.raises(StoreError, match="gone"):
        await task
    assert (len(seen), task.cancelling()) == (1, 0)


async def test_a_cancellation_from_outside_stays_one_where_the_store_fails_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saver = Wrapped(MemorySaver())
    reached = asyncio.Event()

    async def fail() -> None:
        raise StoreError("gone")

    async def node(state: Log) -> None:
        saver.hooks["write"] = fail
        reached.set()
        await asyncio.Event().wait()

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    run = asyncio.create_task(graph.compile(checkpointer=saver).invoke({}, T))
    await reached.wait()
    run.cancel()
    with caplog.at_level(logging.ERROR, "agentgraph"), pytest.raises(asyncio.CancelledError):
        await run
    assert [r.getMessage() for r in caplog.records] == ["thread 't': what was left to be written is not stored"]


async def test_the_stores_failure_comes_out_before_a_nodes_own_that_it_caused() -> None:
    saver = Wrapped(MemorySaver())

    async def fail() -> None:
        raise StoreError("gone")

    async def node(state: Log) -> None:
        saver.hooks["write"] = fail
        raise RuntimeError("the node's")

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    with pytest.raises(StoreError, match="gone") as caught:
        await graph.compile(checkpointer=saver).invoke({}, T)
    assert isinstance(caught.value.__cause__, RuntimeError)


# --- slow stores ---


async def test_a_slow_store_holds_the_run_back_and_what_waits_is_bounded() -> None:
    saver = Wrapped(MemorySaver())
    gate = asyncio.Event()
    saver.hooks["append"] = lambda: _wait(gate)
    steps = 0

    async def node(state: Log) -> dict[str, Any]:
        nonlocal steps
        steps += 1
        return {"log": ["x" * 40_000]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda s: END if len(s["log"]) == 200 else "node", ["node", END])
    app = graph.compile(checkpointer=saver)
    run = asyncio.create_task(app.invoke({}, RunConfig(thread_id="t", recursion_limit=1000)))
    for _ in range(3000):
        await asyncio.sleep(0)
    # a megabyte is under way, and another waits
    assert 25 < steps < 60
    gate.set()
    assert len((await run).state["log"]) == 200
    assert max(sum(len(e.data) for e in entries) for entries in saver.appended) < 3_000_000


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_entries_come_in_their_order_and_no_step_before_what_it_was_made_of(durability: Durability) -> None:
    saver = Wrapped(MemorySaver())
    turns = itertools.cycle([0, 3, 1, 0, 7])

    async def dawdle() -> None:
        for _ in range(next(turns)):
            await asyncio.sleep(0)

    saver.hooks = {"append": dawdle, "appended": dawdle}
    await Work().app(saver).invoke({"log": ["in"]}, RunConfig(thread_id="t", durability=durability))
    seqs = [e.seq for entries in saver.appended for e in entries]
    assert seqs == sorted(seqs)
    assert len(seqs) == len(set(seqs))
    kinds = [e.kind for entries in saver.appended for e in entries]
    assert (kinds[0], kinds.count("step")) == ("input", 3)
    if durability == "exit":  # a record that a step has taken the place of is never stored
        assert kinds == ["input", "step", "step", "step"]
    found = await Work().app(saver).state(T)
    assert found is not None
    assert found.state["log"] == list(Work.STATE)


async def test_with_sync_nothing_of_the_next_step_begins_before_the_last_is_stored() -> None:
    saver = Wrapped(MemorySaver())
    stored = 0
    seen: list[tuple[str, int]] = []

    async def slow() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def count() -> None:
        nonlocal stored
        stored += sum(e.kind == "step" for e in saver.appended[-1])

    saver.hooks = {"append": slow, "appended": count}

    def node(name: str) -> Any:
        async def fn(state: Log) -> None:
            seen.append((name, stored))

        return fn

    graph = StateGraph(Log)
    for name, before in (("a", START), ("b", "a"), ("c", "b")):
        graph.add_node(name, node(name))
        graph.add_edge(before, name)
    graph.add_edge("c", END)
    await graph.compile(checkpointer=saver).invoke({}, RunConfig(thread_id="t", durability="sync"))
    assert seen == [("a", 0), ("b", 1), ("c", 2)]


# --- cancellation ---


async def _cancel_after(app: CompiledGraph[Log], turns: int, config: RunConfig) -> bool:
    """Cancel a run after so many turns of the loop; whether it was still running then."""
    run = asyncio.create_task(app.invoke({"log": ["in"]}, config))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = run.cancel()
    await asyncio.wait([run])
    return was_running


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_run_that_is_cancelled_at_any_point_goes_on_with_no_call_lost_or_made_twice(
    durability: Durability,
) -> None:
    turns = 0
    while True:
        turns += 1
        saver = Wrapped(MemorySaver())
        for name in ("claim", "claimed", "append", "appended", "read", "release"):  # each takes its time, too
            saver.hooks[name] = lambda: asyncio.sleep(0)
        work = Work()
        config = RunConfig(thread_id="t", durability=durability, if_busy="refuse")
        if not await _cancel_after(work.app(saver), turns, config):
            break
        info = await saver.thread("t")
        assert info is None or not info.claimed, turns
        assert await go_on(work.app(saver), config) == list(work.STATE), turns
        assert sorted(work.calls) == sorted(work.STATE[1:]), turns
    assert turns > 15


@pytest.mark.parametrize("local", ["sqlite"], indirect=True)
async def test_a_run_on_sqlite_that_is_cancelled_at_any_point_goes_on(local: Checkpointer) -> None:
    for turns in range(0, 120, 4):
        work = Work()
        config = RunConfig(thread_id=f"t{turns}", if_busy="refuse")
        await _cancel_after(work.app(local), turns, config)
        assert await go_on(work.app(local), config) == list(work.STATE), turns
        assert sorted(work.calls) == sorted(work.STATE[1:]), turns


async def test_a_run_that_is_cancelled_again_and_again_still_gives_its_thread_back() -> None:
    saver = Wrapped(MemorySaver())
    saver.hooks["write"] = lambda: asyncio.sleep(0)
    app = Work().app(saver)
    run = asyncio.create_task(app.invoke({"log": ["in"]}, T))
    for _ in range(6):
        await asyncio.sleep(0)
    while not run.done():
        run.cancel()
        await asyncio.sleep(0)
    info = await saver.thread("t")
    assert info is not None
    assert (info.status, info.claimed) == ("cancelled", False)


async def test_what_a_node_has_done_is_kept_where_its_router_is_cancelled(saver: Checkpointer) -> None:
    ran: list[str] = []
    reached = asyncio.Event()

    async def node(state: Log) -> dict[str, Any]:
        ran.append("node")
        return {"log": ["node"]}

    async def route(state: Log) -> str:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return END

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", route, [END])
    app = graph.compile(checkpointer=saver)
    run = asyncio.create_task(app.invoke({}, T))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ((await app.invoke(None, T)).state["log"], ran) == (["node"], ["node"])


@pytest.mark.parametrize("why", ["cancelled", "failed"])
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_however_a_run_ends_what_it_had_done_is_stored(
    saver: Checkpointer, durability: Durability, why: str
) -> None:
    work = Work()
    reached = asyncio.Event()

    async def end(state: Log) -> None:
        reached.set()
        if why == "failed":
            raise RuntimeError("no")
        await asyncio.Event().wait()

    graph = StateGraph(Log)
    graph.add_node("first", work.node("first"))
    graph.add_node("end", end)
    graph.add_edge(START, "first")
    graph.add_edge("first", "end")
    graph.add_edge("end", END)
    app = graph.compile(checkpointer=saver)
    run = asyncio.create_task(app.invoke({"log": ["in"]}, RunConfig(thread_id="t", durability=durability)))
    await reached.wait()
    if why == "cancelled":
        run.cancel()
    await asyncio.wait([run])
    _ = run.cancelled() or run.exception()
    found = await graph.compile(checkpointer=saver).state(T)
    assert found is not None
    assert (found.status, found.next, found.state["log"]) == (why, ("end",), ["in", "first"])


def test_a_run_that_an_ending_event_loop_cancels_is_stored_and_its_thread_is_free() -> None:
    saver = MemorySaver()
    work = Work()

    async def wait(state: Log) -> None:
        reached.set()
        await asyncio.Event().wait()

    graph = StateGraph(Log)
    graph.add_node("first", work.node("first"))
    graph.add_node("wait", wait)
    graph.add_edge(START, "first")
    graph.add_edge("first", "wait")
    graph.add_edge("wait", END)
    app = graph.compile(checkpointer=saver)
    runs: list[asyncio.Task[Any]] = []

    async def main() -> None:
        runs.append(asyncio.create_task(app.invoke({"log": ["in"]}, T)))
        await reached.wait()

    reached = asyncio.Event()
    asyncio.run(main())
    info = asyncio.run(saver.thread("t"))
    found = asyncio.run(app.state(T))
    assert info is not None
    assert found is not None
    assert (info.claimed, info.status, found.state["log"]) == (False, "cancelled", ["in", "first"])


# --- whose a run is ---


async def test_a_claim_that_came_through_after_its_caller_was_cancelled_is_given_back() -> None:
    saver = Wrapped(MemorySaver())
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await gate.wait()

    saver.hooks["claimed"] = hold
    app = Work().app(saver, lease=3600)
    run = asyncio.create_task(app.invoke({"log": ["in"]}, T))
    await reached.wait()
    run.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await app.invoke({"log": ["in"]}, RunConfig(thread_id="t", if_busy="refuse"))
    assert result.status == "done"


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_failed_run_that_goes_on_is_known_to_run_so_that_its_process_may_die(
    saver: Checkpointer, durability: Durability
) -> None:
    again = False

    async def node(state: Log) -> dict[str, Any]:
        if not again:
            raise RuntimeError("no")
        while (info := await saver.thread("t")) is not None and info.status != "running":  # noqa: ASYNC110  # it is in the store
            await asyncio.sleep(0)
        return {"log": ["ran"]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="no"):
        await app.invoke({}, T)
    again = True
    async with asyncio.timeout(10):
        result = await app.invoke(None, RunConfig(thread_id="t", durability=durability))
    assert result.state["log"] == ["ran"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_nobody_passes_the_stop_of_a_run_whose_process_died_when_it_had_come_to_it(
    durability: Durability,
) -> None:
    store = MemorySaver()
    saver = Wrapped(store)
    ran: list[str] = []

    async def die() -> None:
        if any(e.kind == "pause" for entries in saver.appended for e in entries):
            raise StoreError("dead")

    async def act(state: Log) -> dict[str, Any]:
        ran.append("act")
        return {"log": ["acted"]}

    def app(saver: Checkpointer) -> CompiledGraph[Log]:
        graph = StateGraph(Log)
        graph.add_node("act", act)
        graph.add_edge(START, "act")
        graph.add_edge("act", END)
        return graph.compile(checkpointer=saver, interrupt_before=["act"])

    saver.hooks = {"write": die, "appended": die}
    with pytest.raises(StoreError, match="dead"):
        await app(saver).invoke({}, RunConfig(thread_id="t", durability=durability))
    info = await store.thread("t")
    assert info is not None
    await store.release("t", info.epoch)
    resumed = await app(store).resume_pending()
    assert ([r.result and r.result.status for r in resumed], ran) in (([], []), (["interrupted"], []))
    assert (await app(store).invoke(None, T)).state["log"] == ["acted"]


async def test_who_has_lost_its_thread_is_told_and_changes_nothing(saver: Checkpointer) -> None:
    lost = asyncio.Event()

    async def node(state: Log) -> dict[str, Any]:
        info = await saver.thread("t")
        assert info is not None
        if not lost.is_set():
            await saver.release("t", info.epoch)
            assert (await another.invoke({"log": ["another's"]}, T)).state["log"][-1] == "another's"
            lost.set()
        return {"log": ["late"]}

    async def nothing(state: Log) -> None: ...

    def build(fn: Any) -> CompiledGraph[Log]:
        graph = StateGraph(Log)
        graph.add_node("node", fn)
        graph.add_edge(START, "node")
        graph.add_edge("node", END)
        return graph.compile(checkpointer=saver)

    other_store = Wrapped(saver)  # as another process has it
    graph = StateGraph(Log)
    graph.add_node("node", nothing)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    another = graph.compile(checkpointer=other_store)
    with pytest.raises(FencedError, match="thread 't' has been claimed by somebody else"):
        await build(node).invoke({"log": ["mine"]}, RunConfig(thread_id="t", durability="sync"))
    found = await another.state(T)
    assert found is not None
    assert (found.state["log"], found.status) == (["mine", "another's"], "done")


def test_a_lease_is_renewed_for_as_long_as_a_node_takes() -> None:
    saver = Wrapped(MemorySaver())

    async def slow(state: Log) -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        graph = StateGraph(Log)
        graph.add_node("slow", slow)
        graph.add_edge(START, "slow")
        graph.add_edge("slow", END)
        await graph.compile(checkpointer=saver, lease=30).invoke({}, T)

    run_with_clock(main())
    assert 355 <= len(saver.renewals) <= 360
    assert set(saver.renewals) == {30}


def test_a_run_that_cannot_renew_its_lease_ends() -> None:
    saver = Wrapped(MemorySaver())
    ended: list[float] = []

    async def fail() -> None:
        raise StoreError("gone")

    async def slow(state: Log) -> None:
        saver.hooks["renew"] = fail
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        graph = StateGraph(Log)
        graph.add_node("slow", slow)
        graph.add_edge(START, "slow")
        graph.add_edge("slow", END)
        with pytest.raises(StoreError, match="gone"):
            await graph.compile(checkpointer=saver, lease=30).invoke({}, T)

    run_with_clock(main())
    assert ended == [10]


# --- what cannot be stored, and what is large ---


class Odd:
    pass


def _asks_odd(run: RunContext[Any]) -> Any:
    return run.interrupt(Odd())


def _odd_once(run: RunContext[Any]) -> Any:
    return run.once("key", Odd)


@pytest.mark.parametrize(
    ("does", "told"),
    [(_asks_odd, "what 'node' asks"), (_odd_once, r"the result of once\('key'\) in node 'node'")],
)
async def test_what_cannot_be_stored_is_told_and_the_thread_goes_on(
    saver: Checkpointer, does: Callable[[RunContext[Any]], Any], told: str
) -> None:
    broken = True

    async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        if broken:
            await does(run)
        return {"log": ["fine"]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=saver)
    with pytest.raises(CodecError, match=f"{told}.*Odd"):
        await app.invoke({}, T)
    broken = False
    assert (await app.invoke(None, T)).state["log"] == ["fine"]


async def test_an_answer_or_an_input_that_cannot_be_stored_consumes_nothing(saver: Checkpointer) -> None:
    async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [run.interrupt("sure?")]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=saver)
    (question,) = (await app.invoke({}, T)).interrupts
    with pytest.raises(CodecError, match="the answer to"):
        await app.invoke(Command(resume={question.id: Odd()}), T)
    with pytest.raises(CodecError, match=r"what the input wrote: state\['log'\]"):
        await app.invoke({"log": [Odd()]}, T)
    found = await app.state(T)
    assert found is not None
    assert found.interrupts == (question,)
    assert (await app.invoke(Command(resume={question.id: "yes"}), T)).state["log"] == ["yes"]


class Seen(msgspec.Struct):
    text: str


async def test_large_values_are_encoded_off_the_loop_and_keep_their_order(saver: Checkpointer) -> None:
    threads: list[bool] = []

    def encode(seen: Seen) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return seen.text

    stored = StoredType(Seen, "seen", encode=encode, decode=lambda text: Seen(str(text)))

    def node(name: str, size: int) -> Any:
        async def fn(state: Any, run: RunContext[Any]) -> dict[str, Any]:
            text = await run.once("text", lambda: Seen(name * size))
            return {"log": [text]}

        return fn

    class Kept(TypedDict):
        log: Annotated[list[Any], Append()]

    graph = StateGraph(Kept)
    for name, size in (("a", 200_000), ("b", 1), ("c", 60_000)):
        graph.add_node(name, node(name, size))
        graph.add_edge(START, name)
        graph.add_edge(name, END)

    async def fat(state: Any) -> dict[str, Any]:
        return {"log": ["y" * 200_000, Seen("after")]}

    graph.add_node("fat", fat)
    graph.add_edge(["a", "b", "c"], "fat")
    graph.add_edge("fat", END)
    await graph.compile(checkpointer=saver, types=[stored]).invoke({}, T)
    found = await graph.compile(checkpointer=saver, types=[stored]).state(T)
    assert found is not None
    kept: list[Any] = found.state["log"]
    texts = [str(getattr(value, "text", value)) for value in kept]
    assert [(len(text), text[0]) for text in texts] == [
        (200_000, "a"), (1, "b"), (60_000, "c"), (200_000, "y"), (5, "a")
    ]  # fmt: skip
    assert False in threads


async def test_a_large_result_is_recorded_also_where_its_run_is_cancelled_meanwhile() -> None:
    saver = MemorySaver()
    calls: list[str] = []
    encoding = threading.Event()
    go_on = threading.Event()

    def encode(seen: Seen) -> str:
        encoding.set()
        assert go_on.wait(10)
        return seen.text

    async def node(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        found = await run.once("call", lambda: calls.append("call") or ["x" * 200_000, Seen("large")])
        return {"n": len(str(found[0]))}

    graph: StateGraph[Any] = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(
        checkpointer=saver, types=[StoredType(Seen, "seen", encode=encode, decode=lambda text: Seen(str(text)))]
    )
    run = asyncio.create_task(app.invoke({}, T))
    await asyncio.to_thread(encoding.wait, 10)
    run.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ((await app.invoke(None, T)).state["n"], calls) == (200_000, ["call"])


# --- a real file ---


def counting(saver: Checkpointer) -> CompiledGraph[Log]:
    """Writes 9 KB a step, a hundred times."""

    async def node(state: Log) -> dict[str, Any]:
        return {"log": ["x" * 9000]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda s: END if len(s["log"]) >= 300 else "node", ["node", END])
    return graph.compile(checkpointer=saver)


@pytest.mark.may_block
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_run_that_a_full_disk_has_ended_goes_on_when_there_is_room(
    tmp_path: Path, durability: Durability
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", disk], check=False, capture_output=True)  # noqa: S607, ASYNC221
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        (disk / "filler").write_bytes(bytes(7_000_000))
        async with SqliteSaver(disk / "runs.db") as saver:
            app = counting(saver)
            config = RunConfig(thread_id="t", durability=durability, recursion_limit=1000)
            with pytest.raises(StoreError, match="the disk is full"):
                await app.invoke({}, config)
            found = await app.state(T)
            assert found is not None
            assert len(found.state["log"]) > 20
            (disk / "filler").unlink()
            result = await app.invoke(None, config)
            assert (len(result.state["log"]), result.steps + len(found.state["log"])) == (300, 300)
    finally:
        subprocess.run(["umount", disk], check=True)  # noqa: S607, ASYNC221


@pytest.mark.may_block
async def test_a_run_whose_file_is_gone_ends_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    path, away = tmp_path / "runs.db", tmp_path / "away.db"

    async def node(state: Log) -> dict[str, Any]:
        if len(state["log"]) == 2 and not away.exists() and not back:
            path.rename(away)
        return {"log": ["step"]}

    back = False
    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda s: END if len(s["log"]) == 5 else "node", ["node", END])
    async with SqliteSaver(path) as saver:
        app = graph.compile(checkpointer=saver)
        with pytest.raises(StoreError, match="is gone"):
            await app.invoke({}, RunConfig(thread_id="t", durability="sync"))
        with pytest.raises(StoreError, match="is gone"):
            await app.invoke(None, T)
        away.rename(path)
        back = True
        result = await app.invoke(None, T)
    assert (len(result.state["log"]), result.steps) == (5, 3)


@pytest.mark.may_block
async def test_a_file_that_is_locked_for_a_while_holds_the_run_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    locked = asyncio.Event()
    others: list[sqlite3.Connection] = []

    async def node(state: Log) -> dict[str, Any]:
        if not others:
            other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            others.append(other)
            locked.set()
        return {"log": ["step"]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda s: END if len(s["log"]) == 3 else "node", ["node", END])
    async with SqliteSaver(path) as saver:
        app = graph.compile(checkpointer=saver)
        run = asyncio.create_task(app.invoke({}, RunConfig(thread_id="t", durability="sync")))
        await locked.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not run.done()
        others[0].close()
        assert (await run).state["log"] == ["step"] * 3


async def test_a_thread_that_somebody_else_has_is_refused_and_nothing_is_written(saver: Checkpointer) -> None:
    app = Work().app(saver)
    info = await saver.claim("t", "graph", "somebody else", 60)
    assert info is not None
    with pytest.raises(ThreadBusyError, match="thread 't' has a run under way"):
        await app.invoke({"log": ["in"]}, RunConfig(thread_id="t", if_busy="refuse"))
    found = await saver.thread("t")
    assert found is not None
    assert (found.last, found.epoch) == (0, info.epoch)


async def test_a_task_that_outlives_the_run_that_began_it_may_use_the_runs_thread(saver: Checkpointer) -> None:
    begun: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def later() -> str:
        await go.wait()
        return (await app.invoke({"log": ["later"]}, T)).status

    async def node(state: Log) -> None:
        if not begun:
            begun.append(asyncio.create_task(later()))

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=saver)
    await app.invoke({"log": ["first"]}, T)
    go.set()
    assert await begun[0] == "done"
