"""Blocking functions in worker threads that can be left behind.

What must live here: nothing else may start a thread. A thread that blocks cannot be stopped in Python, so it
must be possible to leave it: it is a daemon (an executor's or anyio's threads are joined when the interpreter
exits, and would hold it), and whoever waits for it may stop waiting at any time.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from agentgraph.errors import RunEndedError

T = TypeVar("T")

_IDLE_SECONDS = 10.0


class _Worker:
    """One daemon thread and its mailbox."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="agentgraph worker", daemon=True).start()

    def _work(self) -> None:
        _in_worker.is_one = True
        while True:
            try:
                job = self.jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # taken for a job just now: it will arrive
                return
            job()
            del job  # else this thread holds the last result until its next job
            _idle.append(self)


_idle: list[_Worker] = []


_awaited: set[asyncio.Future[Any]] = set()
"""What tasks wait for while a thread works for them."""

if hasattr(os, "register_at_fork"):  # a forked process has the list, and none of the threads
    os.register_at_fork(after_in_child=_idle.clear)


def awaited_calls(loop: asyncio.AbstractEventLoop) -> int:
    """How many calls in worker threads this loop's tasks wait for; threads left behind do not count."""
    return sum(future.get_loop() is loop for future in tuple(_awaited))


def idle_workers() -> int:
    """How many worker threads wait for a job."""
    return len(_idle)


MOST_AT_ONCE = 256
"""Calls at work at once in the whole process; further ones wait their turn. Threads left behind do not count."""

_in_worker = threading.local()


class _Turns:
    """Who may work now, of all event loops: first come, first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        with self._lock:
            if self._busy < MOST_AT_ONCE:
                self._busy += 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with self._lock:
                has_come = turn not in self._waiting
                if not has_come:
                    self._waiting.remove(turn)
            if has_come:  # and nobody is there to use it
                self.give_back()
            raise

    def give_back(self) -> None:
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                try:
                    turn.get_loop().call_soon_threadsafe(_come, turn)
                except RuntimeError:
                    continue  # that loop is closed
                return
            self._busy -= 1


def _come(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


_turns = _Turns()


class ThreadCall:
    """A blocking call under way. `running` tells whether its thread is still in it.

    Without `in_turn` it does not wait for others to end: for one that has been let in by a limit of another kind.
    """

    __slots__ = ("_in_turn", "running")

    def __init__(self, *, in_turn: bool = True) -> None:
        self._in_turn = in_turn
        self.running = False

    async def run(self, fn: Callable[..., T], /, *args: Any, **keywords: Any) -> T:
        """Call the function in a worker thread, with the caller's contextvars, and return what it returns.

        After cancellation the thread is left behind and its result thrown away: look at `running`.
        """
        # a call from inside a worker (a node that runs a graph by itself) must not wait for those that wait for it
        if not self._in_turn or getattr(_in_worker, "is_one", False):
            return await self._run(fn, args, keywords)
        await _turns.take()
        try:
            return await self._run(fn, args, keywords)
        finally:
            _turns.give_back()

    async def _run(self, fn: Callable[..., T], args: tuple[Any, ...], keywords: dict[str, Any]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        outcome: list[tuple[Any, BaseException | None]] = []
        context = contextvars.copy_context()

        def settle() -> None:
            if done.done():  # whoever waited has left
                outcome.clear()
            else:
                done.set_result(None)

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(fn, *args, **keywords)
            except StopIteration as stop:  # a future cannot carry one
                error = RuntimeError(f"{getattr(fn, '__name__', fn)!r} raised StopIteration")
                error.__cause__ = stop
            except BaseException as caught:  # carried over to the waiting task, which raises it
                error = caught
            self.running = False
            outcome.append((result, error))
            result = error = None  # else this frame and the error hold each other, for a moment beyond the run's end
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                outcome.clear()  # the loop is closed: nobody waits any more

        self.running: bool = True
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
        _awaited.add(done)
        worker.jobs.put(job)
        try:
            await done
            result, error = outcome.pop()
        finally:
            _awaited.discard(done)
            outcome.clear()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # else it and this frame hold each other


def in_loop_thread(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether the calling code runs in this loop's own thread."""
    return asyncio._get_running_loop() is loop  # the public form raises, and this is asked for every event


def call_in_loop(loop: asyncio.AbstractEventLoop, fn: Callable[[Callable[[], None]], None]) -> None:
    """From a worker thread: run `fn(done)` in the loop's thread, and block until `done()` was called.

    Raises `RunEndedError` where the loop is closed already.
    """
    done = threading.Event()
    try:
        loop.call_soon_threadsafe(fn, done.set)
    except RuntimeError:
        raise RunEndedError("the run that this thread worked for is over, and its event loop is closed") from None
    while not done.wait(_IDLE_SECONDS):
        if loop.is_closed():
            raise RunEndedError("the run that this thread worked for is over, and its event loop is closed")
