"""A streamed run and its reader: nothing is lost, a slow reader holds the run back, one that leaves ends it."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, ConfigError, RunConfig, RunContext, RunStream, RunTimeoutError, StateGraph
from agentgraph.events import (
    Custom,
    NodeFinished,
    NodeStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    StateUpdate,
    StepStarted,
)
from agentgraph.strategies import Append
from agentgraph.testing import with_clock


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


@pytest.fixture
async def unheard() -> AsyncIterator[list[dict[str, Any]]]:
    """What reaches the loop's exception handler, which is where errors go that nobody looks at."""
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    yield told
    loop.set_exception_handler(None)


def line(*names: str) -> StateGraph[Log]:
    """A graph whose nodes, added by the test, run one after the other."""
    graph = StateGraph(Log)
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def fan(**nodes: Any) -> StateGraph[Log]:
    """A graph whose nodes run beside each other."""
    graph = StateGraph(Log)
    for name, node in nodes.items():
        graph.add_node(name, node).add_edge(START, name).add_edge(name, END)
    return graph


def now() -> float:
    return asyncio.get_running_loop().time()


class Emitter:
    """A node that emits numbers, and tells how many it has emitted and whether it has ended."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.emitted = 0
        self.ended = asyncio.Event()

    async def __call__(self, _state: Any, run: RunContext[Any], /) -> None:
        try:
            for number in range(self.count):
                await run.emit(number)
                self.emitted += 1
        finally:
            await asyncio.sleep(0)
            self.ended.set()


async def silent(state: Log) -> None:
    await asyncio.Event().wait()


async def turns(count: int = 50) -> None:
    """Let everything happen that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def read_into(told: list[Any], stream: RunStream[Any]) -> None:
    """Read a run to its end; `told` has what came before an error too."""
    async with stream as events:
        async for event in events:
            told.append(event)  # noqa: PERF401  # a list made at once would be lost with the error


def numbers(events: list[Any]) -> list[Any]:
    return [e.data for e in events if isinstance(e, Custom)]


# what a reader gets


async def test_a_run_tells_what_happens_in_the_order_in_which_it_does() -> None:
    async def first(state: Log, run: RunContext[None]) -> dict[str, Any]:
        await run.emit("hello")
        return {"log": "first"}

    async def second(state: Log) -> None: ...

    app = line("first", "second").add_node("first", first).add_node("second", second).compile()
    async with app.stream({}) as events:
        told = [event async for event in events]
    kinds = [RunStarted]
    kinds += [StepStarted, NodeStarted, Custom, NodeFinished, StateUpdate]
    kinds += [StepStarted, NodeStarted, NodeFinished, RunFinished]
    assert [type(e) for e in told] == kinds
    assert events.result.state["log"] == ["first"]


async def test_a_streamed_run_and_an_invoked_one_come_to_the_same() -> None:
    async def work(state: Log, run: RunContext[None]) -> dict[str, Any]:
        return {"log": [run.node, run.step, len(state["log"])]}

    app = line("a", "b", "c").add_node("a", work).add_node("b", work).add_node("c", work).compile()
    async with app.stream({}, RunConfig(run_id="r")) as events:
        async for _ in events:
            pass
    assert events.result == await app.invoke({}, RunConfig(run_id="r"))


async def test_an_event_arrives_while_its_node_still_runs() -> None:
    seen = asyncio.Event()

    async def work(state: Log, run: RunContext[None]) -> None:
        await run.emit("now")
        await seen.wait()

    async with line("work").add_node("work", work).compile().stream({}) as events:
        async for event in events:
            if isinstance(event, Custom):
                seen.set()
    assert seen.is_set()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 8), st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
async def test_nothing_is_lost_or_reordered_and_the_numbers_have_no_gap(
    counts: list[int], buffer: int, threads: bool, data: st.DataObject
) -> None:
    def emitter(count: int) -> Any:
        async def emit(state: Log, run: RunContext[None]) -> None:
            for number in range(count):
                await run.emit([run.node, number])

        def emit_from_thread(state: Log, run: RunContext[None]) -> None:
            for number in range(count):
                run.emit([run.node, number])

        return emit_from_thread if threads else emit

    app = fan(**{f"n{i}": emitter(count) for i, count in enumerate(counts)}).compile()
    pauses = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    told: list[Any] = []
    async with app.stream({}, buffer=buffer) as events:
        async for event in events:
            told.append(event)
            await turns(pauses[len(told) % len(pauses)])
    assert [e.seq for e in told] == list(range(1, len(told) + 1))
    for i, count in enumerate(counts):
        mine = [e for e in told if e.path == (f"n{i}",) and not isinstance(e, StateUpdate)]
        assert isinstance(mine[0], NodeStarted)
        assert numbers(mine) == [[f"n{i}", number] for number in range(count)]
        assert isinstance(mine[-1], NodeFinished)


async def test_where_nobody_reads_no_event_is_built() -> None:
    seen: list[bool] = []

    async def work(state: Log, run: RunContext[None]) -> None:
        seen.append(run.has_reader)
        await run.emit(object())  # which no event could carry

    await line("work").add_node("work", work).compile().invoke({})
    assert seen == [False]


# a failing run


@pytest.mark.case("G7")
async def test_a_failing_run_tells_what_was_before_then_that_it_failed_and_then_raises() -> None:
    ran: list[str] = []

    async def work(state: Log, run: RunContext[None]) -> None:
        ran.append(run.node)
        await run.emit(run.node)
        if run.node == "n3":
            raise ValueError("no")

    names = ["n1", "n2", "n3", "n4", "n5"]
    graph = line(*names)
    for name in names:
        graph.add_node(name, work)
    told: list[Any] = []
    with pytest.raises(ValueError, match="no"):
        await read_into(told, graph.compile().stream({}))
    assert numbers(told) == ran == ["n1", "n2", "n3"]
    assert isinstance(told[-2], NodeFinished)
    assert isinstance(told[-1], RunFailed)
    assert (told[-2].error, told[-1].error_type, told[-1].message) == ("ValueError: no", "ValueError", "no")


async def test_the_error_is_raised_once_and_then_the_iteration_is_over() -> None:
    async def fail(state: Log) -> None:
        raise ValueError("no")

    async with line("fail").add_node("fail", fail).compile().stream({}) as events:
        with pytest.raises(ValueError, match="no"):
            async for _ in events:
                pass
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    with pytest.raises(ValueError, match="no"):
        _ = events.result


@with_clock
async def test_a_run_that_times_out_tells_so_last() -> None:
    told: list[Any] = []
    app = line("silent").add_node("silent", silent).compile()
    with pytest.raises(RunTimeoutError):
        await read_into(told, app.stream({}, RunConfig(timeout=5)))
    assert (type(told[-1]), told[-1].error_type, now()) == (RunFailed, "RunTimeoutError", 5)


async def test_an_error_that_nobody_read_up_to_is_nobodys(unheard: list[Any]) -> None:
    async def fail(state: Log) -> None:
        raise ValueError("no")

    async def leave_early() -> None:
        async with line("fail").add_node("fail", fail).compile().stream({}) as events:
            await anext(events)
            await turns()

    async def drop() -> None:
        events = line("fail").add_node("fail", fail).compile().stream({})
        await events.__aenter__()
        await turns()

    await leave_early()
    await drop()
    gc.collect()
    await turns()
    assert unheard == []


# a slow reader


@pytest.mark.case("G13")
@pytest.mark.parametrize("buffer", [1, 10, 256])
async def test_a_reader_that_stops_reading_holds_the_run_at_the_buffers_bound(buffer: int) -> None:
    emitter = Emitter(10_000)
    async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=buffer) as events:
        while not isinstance(await anext(events), Custom):
            pass
        await turns(500)
        assert emitter.emitted <= buffer + 1
        assert "waiting=1" in repr(events)
    assert emitter.ended.is_set()


@pytest.mark.case("G1")
@with_clock
async def test_a_slow_reader_gets_all_of_it_in_order_from_a_bounded_buffer() -> None:
    count = 100_000
    emitter = Emitter(count)
    behind, got = 0, 0
    async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=64) as events:
        async for event in events:
            if isinstance(event, Custom):
                assert event.data == got
                got += 1
                behind = max(behind, emitter.emitted - got)
            await asyncio.sleep(0.001)
    assert got == count
    assert behind <= 65
    assert now() > count / 1000


async def test_a_slow_reader_holds_back_a_thread_too() -> None:
    emitted: list[int] = []
    held = threading.Event()

    def emit(state: Log, run: RunContext[None]) -> None:
        for number in range(20):
            if number == 8:
                held.set()
            run.emit(number)
            emitted.append(number)

    async with line("emit").add_node("emit", emit).compile().stream({}, buffer=5) as events:
        await anext(events)
        assert not await asyncio.to_thread(held.wait, 0.05)
        assert len(emitted) <= 5
        told = [event async for event in events]
    assert numbers(told) == list(range(20))


async def test_branches_that_wait_for_room_get_it_in_the_order_in_which_they_came() -> None:
    async def emit(state: Log, run: RunContext[None]) -> None:
        await turns()  # else the first would emit before the last has started
        await run.emit(run.node)

    async with fan(a=emit, b=emit, c=emit).compile().stream({}, buffer=5) as events:
        await turns(100)
        assert "5/5 waiting=3" in repr(events)
        told = [event async for event in events]
    assert numbers(told) == ["a", "b", "c"]


@with_clock
async def test_an_event_that_a_cancelled_node_waited_to_tell_is_not_told_and_leaves_no_gap() -> None:
    async def waiting(state: Log, run: RunContext[None]) -> None:
        await run.emit("first")
        await run.emit("never")

    async def mend(state: Log, error: Exception) -> None: ...

    app = line("waiting").add_node("waiting", waiting, timeout=5, on_error=mend).compile()
    async with app.stream({}, buffer=4) as events:
        await asyncio.sleep(6)
        told = [event async for event in events]
    assert numbers(told) == ["first"]
    assert [e.seq for e in told] == list(range(1, len(told) + 1))
    assert isinstance(told[-1], RunFinished)


@pytest.mark.parametrize("buffer", [0, -1, 1.5, "many", True])
async def test_a_buffer_that_cannot_be_meant_is_refused(buffer: Any) -> None:
    with pytest.raises(ConfigError, match=r"stream\(buffer=...\) must be a positive whole number"):
        line("silent").add_node("silent", silent).compile().stream({}, buffer=buffer)


# a reader that leaves


@pytest.mark.case("B3")
@pytest.mark.case("G13")
@pytest.mark.parametrize("beside", [True, False])
async def test_leaving_the_block_ends_the_run_and_returns_when_its_nodes_have_ended(beside: bool) -> None:
    emitter, after = Emitter(10_000), list[str]()

    async def never(state: Log) -> None:
        after.append("after")

    graph = fan(emit=emitter, other=silent) if beside else fan(emit=emitter)
    graph.add_node("after", never).add_edge("emit", "after").add_edge("after", END)
    async with graph.compile().stream({}, buffer=8) as events:
        while not isinstance(await anext(events), Custom):
            pass
    assert emitter.ended.is_set()
    await turns()
    assert (emitter.emitted <= 10, after) == (True, [])


async def test_a_branch_that_emits_without_end_hears_that_the_reader_has_left() -> None:
    ended: list[str] = []

    async def endless(state: Log, run: RunContext[None]) -> None:
        try:
            while True:
                await run.emit("more")
        finally:
            ended.append(run.node)

    async with fan(a=endless, b=endless, c=endless).compile().stream({}, buffer=2) as events:
        for _ in range(10):
            await anext(events)
    assert sorted(ended) == ["a", "b", "c"]


async def test_a_thread_that_waits_for_room_goes_on_when_the_reader_leaves() -> None:
    ended, full = threading.Event(), threading.Event()

    def emit(state: Log, run: RunContext[None]) -> None:
        run.emit("fills the buffer")
        full.set()
        try:
            run.emit("waits for room")
        finally:
            ended.set()

    async with line("emit").add_node("emit", emit).compile().stream({}, buffer=4) as events:
        assert await asyncio.to_thread(full.wait, 5)
        assert not await asyncio.to_thread(ended.wait, 0.02)
        assert "waiting=1" in repr(events)
    assert await asyncio.to_thread(ended.wait, 5)


async def test_an_error_in_the_block_comes_out_and_ends_the_run() -> None:
    emitter = Emitter(10_000)

    async def read() -> None:
        async with line("emit").add_node("emit", emitter).compile().stream({}) as events:
            await anext(events)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await read()
    assert emitter.ended.is_set()


async def test_a_reader_that_is_cancelled_while_it_waits_for_the_first_event_ends_the_run() -> None:
    ended = asyncio.Event()
    waiting = asyncio.Event()

    async def work(state: Log) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def read() -> None:
        async with line("work").add_node("work", work).compile().stream({}) as events:
            async for event in events:
                if isinstance(event, NodeStarted):
                    waiting.set()

    reader = asyncio.create_task(read())
    await waiting.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert reader.cancelled()
    assert ended.is_set()


async def test_a_reader_cancelled_again_while_it_leaves_still_waits_for_the_run() -> None:
    ended, leaving = list[str](), asyncio.Event()

    async def slow_to_end(state: Log) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await turns(30)
            ended.append("node")

    async def read() -> None:
        async with line("n").add_node("n", slow_to_end).compile().stream({}) as events:
            await anext(events)
            await turns(10)

    reader = asyncio.create_task(read())
    await leaving.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert ended == ["node"]


@pytest.mark.case("G13")
async def test_a_stream_may_be_closed_from_another_task() -> None:
    emitter = Emitter(10_000)
    reading = asyncio.Event()
    got: list[Any] = []

    async def read(events: RunStream[Any]) -> str:
        async for event in events:
            got.append(event)
            reading.set()
            if len(got) == 3:
                await asyncio.Event().wait()
        return "over"

    async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=4) as events:
        reader = asyncio.create_task(read(events))
        await reading.wait()
        await events.aclose()
        assert emitter.ended.is_set()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    assert emitter.emitted < 10


async def test_closing_from_several_sides_cancels_the_run_once() -> None:
    cancels, cleaning, ended = list[str](), asyncio.Event(), list[str]()

    async def node(state: Log) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            for _ in range(20):
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    cancels.append("again")
            ended.append("node")

    async with line("node").add_node("node", node).compile().stream({}) as events:
        await anext(events)
        await turns()
        first = asyncio.create_task(events.aclose())
        await cleaning.wait()
    await first
    assert (cancels, ended) == ([], ["node"])


async def test_a_reader_that_waits_when_its_stream_is_closed_comes_to_the_end_and_finds_no_result() -> None:
    async with line("silent").add_node("silent", silent).compile().stream({}) as events:

        async def read() -> int:
            return len([event async for event in events])

        reader = asyncio.create_task(read())
        await turns()
        await events.aclose()
        assert await reader == 3
    with pytest.raises(RuntimeError, match="the run was cancelled before its end"):
        _ = events.result


async def test_closing_twice_or_after_the_end_does_nothing() -> None:
    async def work(state: Log) -> dict[str, Any]:
        return {"log": "done"}

    async with line("work").add_node("work", work).compile().stream({}) as events:
        async for _ in events:
            pass
        await events.aclose()
        await events.aclose()
    assert events.result.state["log"] == ["done"]


@pytest.mark.case("G13")
async def test_a_stream_that_is_dropped_ends_its_run_and_nobody_hears_of_it(unheard: list[Any]) -> None:
    emitter = Emitter(10_000)

    async def drop() -> None:
        events = line("emit").add_node("emit", emitter).compile().stream({}, buffer=4)
        await events.__aenter__()
        await anext(events)

    await drop()
    gc.collect()
    await asyncio.wait_for(emitter.ended.wait(), 5)
    await turns()
    gc.collect()
    assert (unheard, emitter.emitted < 10) == ([], True)


@pytest.mark.case("G13")
async def test_a_generator_round_a_stream_that_is_dropped_ends_the_run(unheard: list[Any]) -> None:
    emitter = Emitter(10_000)

    async def body() -> AsyncGenerator[Any]:
        async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=4) as events:
            async for event in events:
                yield event

    generator = body()
    await anext(generator)
    del generator
    gc.collect()
    await asyncio.wait_for(emitter.ended.wait(), 5)
    await turns()
    assert (unheard, emitter.emitted < 10) == ([], True)


async def test_a_generator_round_a_stream_is_closed_when_the_run_has_ended(unheard: list[Any]) -> None:
    emitter = Emitter(10_000)

    async def body() -> AsyncGenerator[Any]:
        async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=4) as events:
            async for event in events:
                yield event

    generator = body()
    await anext(generator)
    await generator.aclose()
    assert emitter.ended.is_set()
    assert unheard == []


async def test_a_coroutine_that_is_closed_while_it_reads_ends_the_run(unheard: list[Any]) -> None:
    emitter = Emitter(10_000)

    async def read() -> None:
        async with line("emit").add_node("emit", emitter).compile().stream({}, buffer=4) as events:
            async for _ in events:
                pass

    reader = read()
    reader.send(None)  # up to where it waits for the first event
    await turns()
    reader.close()
    await asyncio.wait_for(emitter.ended.wait(), 5)
    await turns()
    assert unheard == []


async def test_a_stream_that_is_never_entered_starts_nothing() -> None:
    emitter = Emitter(3)
    events = line("emit").add_node("emit", emitter).compile().stream({})
    await turns()
    await events.aclose()
    del events
    gc.collect()
    assert emitter.emitted == 0


# how it must not be used


async def test_reading_a_stream_that_was_not_entered_is_an_error_that_says_how() -> None:
    events = line("silent").add_node("silent", silent).compile().stream({})
    with pytest.raises(RuntimeError, match="enter the stream first: `async with"):
        await anext(events)


async def test_a_stream_is_entered_once() -> None:
    app = line("silent").add_node("silent", silent).compile()
    async with app.stream({}) as events:
        with pytest.raises(RuntimeError, match="has been entered before; call stream"):
            await events.__aenter__()


async def test_a_run_has_one_reader() -> None:
    app = line("silent").add_node("silent", silent).compile()
    async with app.stream({}) as events:
        for _ in range(3):
            await anext(events)
        first = asyncio.ensure_future(anext(events))
        await turns()
        with pytest.raises(RuntimeError, match="is being read by another task"):
            await anext(events)
    with pytest.raises(StopAsyncIteration):
        await first


async def test_there_is_no_result_before_the_run_has_ended() -> None:
    app = line("silent").add_node("silent", silent).compile()
    async with app.stream({}) as events:
        with pytest.raises(RuntimeError, match="the run has not ended"):
            _ = events.result
        await anext(events)
        with pytest.raises(RuntimeError, match="the run has not ended"):
            _ = events.result


async def test_an_input_that_is_none_is_raised_to_the_reader() -> None:
    app = line("silent").add_node("silent", silent).compile()
    with pytest.raises(ValueError, match="unknown state key 'lgo'; did you mean 'log'"):
        await read_into([], app.stream({"lgo": 1}))


# an early end of waiting is not the end of the stream


async def test_a_reader_that_gives_up_waiting_for_one_event_gets_it_the_next_time() -> None:
    go = asyncio.Event()

    async def work(state: Log, run: RunContext[None]) -> None:
        await go.wait()
        await run.emit("late")

    async with line("work").add_node("work", work).compile().stream({}) as events:
        for _ in range(3):
            await anext(events)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(events)
        go.set()
        assert numbers([event async for event in events]) == ["late"]


async def test_its_repr_tells_how_far_it_is() -> None:
    app = line("silent").add_node("silent", silent).compile()
    async with app.stream({}, RunConfig(run_id="r1"), buffer=9) as events:
        await turns()
        assert repr(events) == "<RunStream r1 <EventBuffer open 3/9 waiting=0 seq=3>>"
    assert "closed 0/9" in repr(events)
