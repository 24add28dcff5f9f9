"""The jumping clock: waiting takes no time, and work outside the loop is waited for."""

import asyncio
import socket
import threading
import time
from functools import partial

import anyio.to_thread
import httpx
import pytest

from agentgraph import END, START, NodeTimeoutError, StateGraph
from agentgraph.testing import JumpingLoop, TasksLeftError, run_with_clock, serve_transcript, with_clock

DAY = 86_400.0


def now() -> float:
    return asyncio.get_running_loop().time()


def pause(seconds: float = 0.02) -> None:
    """A thread's work: it really takes this long."""
    threading.Event().wait(seconds)


@with_clock
async def test_a_day_of_sleeping_takes_no_time() -> None:
    began = time.monotonic()
    await asyncio.sleep(DAY)
    assert now() == DAY
    assert time.monotonic() - began < 5


@with_clock
async def test_tasks_wake_in_the_order_of_their_times_and_at_them() -> None:
    woken: list[tuple[int, float]] = []

    async def sleeper(seconds: int) -> None:
        await asyncio.sleep(seconds)
        woken.append((seconds, now()))

    await asyncio.gather(*map(sleeper, (30, 10, 20)))
    assert woken == [(10, 10.0), (20, 20.0), (30, 30.0)]


@with_clock
async def test_time_stands_still_while_tasks_can_run() -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
    assert now() == 0


@with_clock
async def test_a_timeout_fires_at_its_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7):
            await asyncio.Event().wait()
    assert now() == 7


@with_clock
async def test_the_time_does_not_jump_while_a_node_works_in_a_thread() -> None:
    def work(state: object) -> None:
        pause()

    graph = StateGraph(strategies={})
    graph.add_node("work", work, timeout=60)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    await graph.compile().invoke({})
    assert now() < 60


@with_clock
async def test_a_thread_that_was_left_behind_holds_nothing_back() -> None:
    go = threading.Event()

    def stuck(state: object) -> None:
        go.wait(10)

    graph = StateGraph(strategies={})
    graph.add_node("stuck", stuck, timeout=0.02)
    graph.add_edge(START, "stuck")
    graph.add_edge("stuck", END)
    with pytest.raises(NodeTimeoutError):
        await graph.compile().invoke({})
    await asyncio.sleep(DAY)
    go.set()
    assert now() == pytest.approx(DAY, abs=1)


@with_clock
async def test_the_time_does_not_jump_while_an_executors_thread_works() -> None:
    async with asyncio.timeout(60):
        await asyncio.get_running_loop().run_in_executor(None, pause)
    assert now() < 60


@with_clock
async def test_the_time_does_not_jump_while_an_anyio_thread_works() -> None:
    for _ in range(2):  # a new thread, then an idle one
        async with asyncio.timeout(60):
            await anyio.to_thread.run_sync(pause)
    await asyncio.sleep(DAY)
    assert now() == pytest.approx(DAY, abs=60)


@with_clock
async def test_while_a_thread_works_time_passes_as_it_really_does() -> None:
    work = asyncio.get_running_loop().run_in_executor(None, partial(pause, 0.05))
    await asyncio.sleep(0.02)
    assert not work.done()
    await work
    assert 0.02 <= now() < 10


@with_clock
async def test_the_time_does_not_jump_while_a_socket_waits_for_somebody_outside() -> None:
    here, there = socket.socketpair()
    with there:
        reader, writer = await asyncio.open_connection(sock=here)
        helper = threading.Timer(0.02, there.sendall, [b"late"])
        helper.start()
        async with asyncio.timeout(60):
            assert await reader.readexactly(4) == b"late"
        writer.close()
        await writer.wait_closed()
        helper.join()
    assert now() < 60


@with_clock
async def test_a_connection_with_both_ends_in_the_loop_lets_the_time_jump() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(DAY)
        writer.write(await reader.readexactly(5))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        async with asyncio.timeout(DAY + 1):
            assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
    assert now() == DAY


@with_clock
async def test_an_idle_connection_of_a_pool_lets_the_time_jump() -> None:
    async with serve_transcript(b"{}") as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.base_url}/x")).status_code == 200
        began = time.monotonic()
        before = now()
        await asyncio.sleep(DAY)
        assert now() == before + DAY
        assert time.monotonic() - began < 5
        assert server.connections == 1


@with_clock
async def test_the_time_does_not_jump_while_it_is_held() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    done = asyncio.Event()
    helper = threading.Timer(0.02, loop.call_soon_threadsafe, [done.set])
    with loop.hold():
        helper.start()
        async with asyncio.timeout(60):
            await done.wait()
    helper.join()
    assert now() < 60


def test_the_result_is_that_of_the_coroutine() -> None:
    async def main() -> str:
        await asyncio.sleep(1)
        return "done"

    assert run_with_clock(main()) == "done"


def test_a_task_that_is_left_is_an_error_that_names_it_and_is_cancelled() -> None:
    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("linger")

    async def main() -> None:
        tasks.append(asyncio.create_task(linger(), name="the leak"))
        await asyncio.sleep(0)

    with pytest.raises(TasksLeftError, match="the leak"):
        run_with_clock(main())
    assert ended == ["linger"]


def test_each_run_starts_at_zero() -> None:
    async def main() -> float:
        await asyncio.sleep(5)
        return now()

    assert [run_with_clock(main()) for _ in range(3)] == [5, 5, 5]


def test_a_test_under_the_clock_takes_its_arguments() -> None:
    @with_clock
    async def case(value: int, *, times: int) -> int:
        await asyncio.sleep(value)
        return value * times

    assert case(2, times=3) == 6
    assert case.__name__ == "case"


@with_clock
async def test_its_repr_tells_the_time_and_how_it_got_there() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(2.5)
    assert repr(loop) == "<JumpingLoop at 2.5 s after 1 jumps>"
    assert isinstance(loop, JumpingLoop)
    with loop.hold():
        assert repr(loop).endswith(" held>")
