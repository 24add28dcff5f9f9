"""A jumping clock: an event loop in which waiting takes no time.

The rules:
- Where nothing is left to do but to wait for a timer, the loop's time jumps to that timer.
- It never jumps while something outside the loop is at work that a task waits for: a worker thread (agentgraph's,
  an executor's, anyio's), a pipe, a socket whose other end is not in this loop. Then time passes as it really does.
- `loop.time()` is all that jumps: what asks `time.monotonic()` sees the real time.
- What nobody can see from here, such as a thread of the caller's own, is told by `hold()`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from agentgraph.errors import AgentGraphError
from agentgraph.threads import awaited_calls

__all__ = ["JumpingLoop", "TasksLeftError", "run_with_clock", "with_clock"]

P = ParamSpec("P")
T = TypeVar("T")

_DELIVERY_SECONDS = 0.001
"""How long bytes between two sockets of this loop may take on their way through the kernel."""


class TasksLeftError(AgentGraphError, AssertionError):
    """A coroutine has ended, and tasks that it started have not. `tasks` says which."""

    def __init__(self, tasks: set[asyncio.Task[Any]]) -> None:
        self.tasks: list[str] = sorted(repr(t) for t in tasks)
        super().__init__("tasks are left:\n" + "\n".join(f"  {t}" for t in self.tasks))


def run_with_clock(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in a `JumpingLoop`: time starts at 0, and sleeps take none.

    Raises `TasksLeftError` where `main` has returned and tasks of it still run; they are cancelled first.
    """
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(_alone(main))


def with_clock(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a plain test of an async one, that runs in a `JumpingLoop`.

    @with_clock
    async def test_a_day_passes_at_once():
        await asyncio.sleep(86_400)
        assert asyncio.get_running_loop().time() == 86_400
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_with_clock(test(*args, **kwargs))

    return run


async def _alone(main: Coroutine[Any, Any, T]) -> T:
    result = await main
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        error = TasksLeftError(left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        raise error
    return result


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer where there is nothing to do but to wait for it.

    As a loop of its own: `asyncio.Runner(loop_factory=JumpingLoop)`, or in pytest-asyncio's hook
    `pytest_asyncio_loop_factories`. `time()` starts at 0.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._holds = 0
        self._executing: set[asyncio.Future[Any]] = set()
        self._jumps = 0
        selector = _JumpingSelector(self)
        super().__init__(selector)
        selector.own = frozenset(key.fd for key in selector.get_map().values())

    def time(self) -> float:
        """Seconds since the loop was made, jumps included."""
        return self._now

    @contextmanager
    def hold(self) -> Generator[None]:
        """Inside the block time does not jump: for work that the loop cannot see."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    @property
    def held(self) -> bool:
        """Whether something outside the loop is at work, so that time may not jump now."""
        return bool(self._holds or self._executing or awaited_calls(self) or _anyio_threads_at_work(self))

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """As any loop's; time does not jump until it is done or given up."""
        future = super().run_in_executor(executor, func, *args)
        self._executing.add(future)
        future.add_done_callback(self._executing.discard)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As any loop's; time does not jump meanwhile, else it would jump to the shutdown's own time limit."""
        with self.hold():
            await super().shutdown_default_executor(*args, **kwargs)

    def pass_time(self, seconds: float, *, jumped: bool = False) -> None:
        """The selector's: so much time has passed."""
        self._now += seconds
        self._jumps += jumped

    def __repr__(self) -> str:
        return f"<JumpingLoop at {self._now:g} s after {self._jumps} jumps{' held' if self.held else ''}>"


class _JumpingSelector(selectors.DefaultSelector):
    """Tells the loop that time has passed in place of letting it pass."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop
        self.own: frozenset[int] = frozenset()
        """The loop's own file descriptors: they wake it up, and bring nothing."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:  # nothing to wait for, or for as long as it takes
            return super().select(timeout)
        patience, outside = self._watched()
        if not outside and not self._loop.held:
            if ready := super().select(patience):
                return ready
            self._loop.pass_time(timeout, jumped=True)
            return []
        began = time.monotonic()
        ready = super().select(timeout)
        self._loop.pass_time(min(timeout, time.monotonic() - began) if ready else timeout)
        return ready

    def _watched(self) -> tuple[float, bool]:
        """How long to look for what is under way inside the loop, and whether anything is watched outside of it."""
        ends: list[tuple[Any, Any]] = []
        for key in self.get_map().values():
            if key.fd in self.own:
                continue
            try:
                with socket.socket(fileno=os.dup(key.fd)) as watched:
                    if watched.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        continue  # listening is waiting, not work
                    ends.append((watched.getsockname(), watched.getpeername()))
            except OSError:  # a pipe, or a socket that is connecting
                return 0, True
        # one end may be in the loop and not watched: whoever reads it has paused (an idle connection in a pool)
        here = cast("Mapping[int, asyncio.BaseTransport]", getattr(self._loop, "_transports", {}))
        inside = [(t.get_extra_info("sockname"), t.get_extra_info("peername")) for t in list(here.values())]
        pairs = {*ends, *inside}
        outside = any(not here or here == there or (there, here) not in pairs for here, there in ends)
        return (_DELIVERY_SECONDS if ends else 0), outside


def _anyio_threads_at_work(loop: asyncio.AbstractEventLoop) -> bool:
    # each anyio thread knows its loop and the list of those that idle; a limiter could be asked as well, but
    # only for the threads that go by it
    for thread in threading.enumerate():
        idle = getattr(thread, "idle_workers", None)
        if idle is not None and getattr(thread, "loop", None) is loop and thread not in idle:
            return True
    return False
