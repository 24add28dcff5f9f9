"""Several processes on one store: who has a thread, who takes it over, and what a signal does to a run."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from agentgraph import END, START, RunConfig, StateGraph
from agentgraph.checkpoint import Checkpointer, SqliteSaver
from agentgraph.events import encode
from agentgraph.strategies import Append
from tests.checkpoint import process_worker
from tests.checkpoint.killed_worker import store

pytestmark = pytest.mark.may_block  # processes are started

T = RunConfig(thread_id="t")


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that processes can share, as the workers are told of it."""
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")


class Worker:
    """A process, and what it says."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def says(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    async def rest(self) -> list[str]:
        assert self.process.stdout is not None
        rest = (await self.process.stdout.read()).decode().splitlines()
        await self.process.wait()
        return rest


@asynccontextmanager
async def worker(where: str, what: str, mark: str = "", thread: str = "t") -> AsyncGenerator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        process_worker.__file__,
        where,
        what,
        thread,
        mark,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    try:
        async with asyncio.timeout(60):
            yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def log_of(saver: Checkpointer) -> list[str]:
    found = await process_worker.two_marks(saver, "").state(T)
    assert found is not None
    return found.state["log"]


@pytest.mark.case("F14")
@pytest.mark.case("F3")
async def test_two_processes_on_one_thread_take_turns(where: str) -> None:
    async with worker(where, "wait", "a") as one, worker(where, "wait", "b") as other:
        for each in (one, other):
            assert await each.says() == "ready"
        for each in (one, other):
            each.tell()
        assert [await one.rest(), await other.rest()] == [["done"], ["done"]]
    async with store(where) as saver:
        assert await log_of(saver) in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
        history = await process_worker.two_marks(saver, "").history(T)
    assert [c.kind for c in history] == ["step", "step", "input"] * 2
    assert [c.parent_id for c in history] == [*(c.checkpoint_id for c in history[1:]), None]


@pytest.mark.case("F14")
async def test_a_second_process_is_refused_and_has_written_nothing(where: str) -> None:
    async with worker(where, "hold", "a") as one, worker(where, "refuse", "b") as other:
        assert [await one.says(), await other.says()] == ["holding", "ready"]
        other.tell()
        assert (await other.rest())[0].startswith("refused thread 't' has a run under way")
        one.tell()
        assert await one.rest() == ["done"]
    async with store(where) as saver:
        assert await log_of(saver) == ["a first", "a second", "a first"]


@pytest.mark.case("F14")
async def test_a_holder_that_is_killed_does_not_lock_the_thread_for_good(where: str) -> None:
    async with worker(where, "hold", "a") as one, worker(where, "wait", "b") as other:
        assert [await one.says(), await other.says()] == ["holding", "ready"]
        one.process.send_signal(signal.SIGKILL)
        other.tell()
        assert await other.rest() == ["done"]
    async with store(where) as saver:
        assert await log_of(saver) == ["a first", "b", "b"]


async def test_a_process_that_stood_still_beyond_its_lease_is_fenced_off_and_changes_nothing(where: str) -> None:
    async with worker(where, "hold", "a") as one, worker(where, "wait", "b") as other:
        assert [await one.says(), await other.says()] == ["holding", "ready"]
        one.process.send_signal(signal.SIGSTOP)
        other.tell()
        assert await other.rest() == ["done"]
        async with store(where) as saver:
            before = await process_worker.two_marks(saver, "").history(T)
            one.process.send_signal(signal.SIGCONT)
            one.tell()
            assert await one.rest() == ["fenced off"]
            assert await process_worker.two_marks(saver, "").history(T) == before
            info = await saver.thread("t")
            assert info is not None
            assert (await log_of(saver), info.status) == (["a first", "b", "b"], "done")


async def test_at_sigterm_a_run_stops_between_steps_and_another_process_goes_on_with_nothing_done_twice(
    where: str,
) -> None:
    async with worker(where, "drain", "a") as one, worker(where, "resume", "b") as other:
        assert [await one.says(), await other.says()] == ["step 1", "ready"]
        one.tell()
        assert await one.says() == "step 2"
        one.process.send_signal(signal.SIGTERM)
        assert await one.says() == "draining"
        one.tell()
        assert await one.rest() == ["drained a 1 a 2"]
        assert one.process.returncode == 0
        other.tell()
        for n in (3, 4, 5):
            assert await other.says() == f"step {n}"
            other.tell()
        assert await other.rest() == ["resumed t ['a 1', 'a 2', 'b 3', 'b 4', 'b 5']", "ended"]


async def test_of_two_workers_that_continue_what_is_left_each_run_is_one_workers(where: str) -> None:
    names = [f"t{k}" for k in range(6)]
    async with AsyncExitStack() as stack:
        for name in names:
            one = await stack.enter_async_context(worker(where, "drain", "dead", name))
            assert await one.says() == "step 1"
            one.process.send_signal(signal.SIGKILL)
            await one.process.wait()
    async with store(where) as saver:
        while any(info.claimed for info in await saver.threads()):  # noqa: ASYNC110  # leases run out by time alone
            await asyncio.sleep(0.02)
    async with worker(where, "resume", "a") as one, worker(where, "resume", "b") as other:
        for each in (one, other):
            assert await each.says() == "ready"
        for each in (one, other):
            each.tell()
            for _ in range(100):
                each.tell()
        said = [*await one.rest(), *await other.rest()]
    resumed = sorted(line for line in said if line.startswith("resumed"))
    assert [line.split()[1] for line in resumed] == names
    assert all(line.endswith(("'a 5']", "'b 5']")) for line in resumed)
    assert len([line for line in said if line.startswith("step")]) == 5 * len(names)


async def test_a_run_that_kills_its_process_three_times_is_set_aside(where: str) -> None:
    said: list[list[str]] = []
    for _ in range(5):
        async with worker(where, "die") as one:
            said.append(await one.rest())
    assert said == [["killing"], ["killing"], ["killing"], ["[]"], ["[]"]]
    async with store(where) as saver:
        info = await saver.thread("t")
        assert info is not None
        assert info.status == "set aside"
        result = await process_worker.chain(saver, {"node": _fine}, lease=0.2).invoke(None, T)
        assert (result.status, result.state["log"]) == ("done", ["fine"])


async def _fine(state: Any, run: Any) -> dict[str, Any]:
    return {"log": ["fine"]}


# --- behind a web server ---


class Log(TypedDict):
    log: Annotated[list[str], Append()]


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[int]:
    """The run's events as a response in pieces, behind a middleware that hides the client's going; gives the port."""

    async def run(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            async with app.stream({"log": ["in"]}, T) as events:
                async for event in events:
                    yield encode(event) + b"\n"

        return StreamingResponse(pieces())

    async def passes(request: Request, call: Any) -> Any:
        return await call(request)

    web = Starlette(routes=[Route("/", run)], middleware=[Middleware(BaseHTTPMiddleware, dispatch=passes)])
    server = uvicorn.Server(uvicorn.Config(web, log_level="error", lifespan="off", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@pytest.mark.case("B5")
async def test_a_client_that_leaves_in_step_three_of_five_loses_nothing_of_the_first_two(tmp_path: Path) -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    def step(n: int) -> Any:
        async def node(state: Log) -> dict[str, Any]:
            ran.append(str(n))
            if n == 3 and not stopped.is_set():
                reached.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()
            return {"log": [str(n)]}

        return node

    async with SqliteSaver(tmp_path / "runs.db") as saver:
        graph = StateGraph(Log)
        before = START
        for n in range(1, 6):
            graph.add_node(str(n), step(n))
            graph.add_edge(before, str(n))
            before = str(n)
        graph.add_edge(before, END)
        app = graph.compile(checkpointer=saver)
        async with served(app) as port, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b'"path":["3"]')
            await reached.wait()
            writer.close()
            await stopped.wait()
        found = await app.state(T)
        assert found is not None
        assert (found.state["log"], found.next, found.status) == (["in", "1", "2"], ("3",), "cancelled")
        result = await app.invoke(None, T)
        assert (result.state["log"], ran) == (["in", "1", "2", "3", "4", "5"], ["1", "2", "3", "3", "4", "5"])
