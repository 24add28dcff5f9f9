"""Between a run and its reader: a bounded buffer, and the stream that the reader holds.

The rules:
- An event gets its number when it enters the buffer, so that numbers have no gap, whoever was cancelled waiting.
- A full buffer holds the emitter, in a task or in a worker thread; they enter in the order in which they came.
- A closed buffer takes everything and keeps nothing: a run that is being ended must not wait for its reader. It
  still lets the loop turn, or a branch that emits without end would never hear of its cancellation.
- The stream owns the run's task: leaving the block cancels it, once, and waits for its end. Where nobody can wait
  (the stream was dropped) it is cancelled all the same, and ends by itself.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from agentgraph.context import READY, TURN
from agentgraph.events import Event
from agentgraph.tasks import all_ended

R = TypeVar("R")
T = TypeVar("T")

_force = msgspec.structs.force_setattr

_under_way: set[asyncio.Task[Any]] = set()
"""Runs under way: the loop itself holds a task that waits only weakly."""


class EventBuffer:
    """A first-in-first-out buffer of at most `limit` events, for one reader."""

    __slots__ = ("_closed", "_done", "_getter", "_items", "_limit", "_loop", "_run_id", "_seq", "_waiting")

    def __init__(self, run_id: str, limit: int) -> None:
        self._run_id = run_id
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._waiting: deque[tuple[Any, Callable[[], bool]]] = deque()
        self._getter: asyncio.Future[None] | None = None
        self._seq = 0
        self._closed = False
        self._done = False

    def put(self, event: Any, path: tuple[str, ...]) -> Awaitable[None]:
        """Take the event, at once or as soon as there is room: what is returned, awaited, waits for the room."""
        if self._closed:
            return TURN
        event = _stamp(event, self._run_id, path)
        if len(self._items) < self._limit and not self._waiting:
            self._enter(event)
            return READY
        room: asyncio.Future[None] = self._loop.create_future()

        def entered() -> bool:
            if room.done():  # whoever waited was cancelled: the event is not told
                return False
            room.set_result(None)
            return True

        self._waiting.append((event, entered))
        return room

    def put_then(self, event: Any, path: tuple[str, ...], done: Callable[[], None]) -> None:
        """Take the event, and call `done` as soon as there was room."""
        if self._closed:
            done()
            return
        event = _stamp(event, self._run_id, path)
        if len(self._items) < self._limit and not self._waiting:
            self._enter(event)
            done()
            return

        def entered() -> bool:
            done()
            return True

        self._waiting.append((event, entered))

    def _enter(self, event: Any) -> None:
        self._seq += 1
        _force(event, "seq", self._seq)
        self._items.append(event)
        if self._getter is not None and not self._getter.done():
            self._getter.set_result(None)

    async def get(self) -> Any:
        """The next event; None after the last. One reader at a time."""
        items = self._items
        while not items:
            if self._closed or self._done:
                return None
            if self._getter is not None:
                raise RuntimeError("this stream is being read by another task; a run has one reader")
            self._getter = self._loop.create_future()
            try:
                await self._getter
            finally:
                self._getter = None
        event = items.popleft()
        while self._waiting and len(items) < self._limit:
            waiting, entered = self._waiting.popleft()
            if entered():
                self._enter(waiting)
        return event

    def finish(self) -> None:
        """No more events come; what is there can be read."""
        self._done = True
        self._wake()

    def close(self) -> None:
        """Nobody reads any more."""
        self._closed = True
        self._items.clear()
        while self._waiting:
            self._waiting.popleft()[1]()
        self._wake()

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._closed

    def _wake(self) -> None:
        if self._getter is not None and not self._getter.done():
            self._getter.set_result(None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "done" if self._done else "open"
        return f"<EventBuffer {state} {len(self._items)}/{self._limit} waiting={len(self._waiting)} seq={self._seq}>"


def _stamp(event: Any, run_id: str, path: tuple[str, ...]) -> Any:
    event = event.__copy__()  # the caller may emit the same object again
    _force(event, "run_id", run_id)
    _force(event, "path", path)
    _force(event, "time", time.time())
    return event


class RunStream(Generic[R]):
    """A run's events, as they come.

        async with app.stream(...) as events:
            async for event in events: ...

    Leaving the block ends the run, and returns when nothing of it runs any more. After the last event, an error
    of the run is raised to the reader; `result` has what `invoke` would have returned.
    """

    def __init__(self, start: Callable[[EventBuffer], Coroutine[Any, Any, R]], run_id: str, limit: int) -> None:
        self._start = start
        self._run_id = run_id
        self._limit = limit
        self._buffer: EventBuffer | None = None
        self._task: asyncio.Task[R] | None = None
        self._told = False

    def within(self, around: Callable[[Callable[[], Coroutine[Any, Any, R]]], Coroutine[Any, Any, T]]) -> RunStream[T]:
        """The same run, not yet entered, in the middle of another coroutine: `around(run)` awaits `run()`.

        What `around` returns is the stream's `result`.
        """
        start = self._start
        return RunStream(lambda buffer: around(lambda: start(buffer)), self._run_id, self._limit)

    async def __aenter__(self) -> RunStream[R]:
        if self._task is not None:
            raise RuntimeError("this stream has been entered before; call stream() again for another run")
        buffer = self._buffer = EventBuffer(self._run_id, self._limit)
        self._task = asyncio.create_task(self._start(buffer), name=f"agentgraph run {self._run_id}")
        _under_way.add(self._task)
        self._task.add_done_callback(functools.partial(_ended, buffer))  # also where it was cancelled before it began
        return self

    def __aiter__(self) -> RunStream[R]:
        return self

    async def __anext__(self) -> Event:
        """The next event. After the last one: the run's error, once, or the end of the iteration."""
        if self._buffer is None or self._task is None:
            raise RuntimeError("enter the stream first: `async with app.stream(...) as events: ...`")
        event = await self._buffer.get()
        if event is not None:
            return event
        if not self._told and self._task.done() and not self._task.cancelled():
            self._told = True
            if (error := self._task.exception()) is not None:
                raise error
        raise StopAsyncIteration

    @property
    def result(self) -> R:
        """What `invoke` would have returned. Raises `RuntimeError` where the run has not come to its end."""
        if self._task is None or not self._task.done():
            raise RuntimeError("the run has not ended; read its events to the last first")
        if self._task.cancelled():
            raise RuntimeError("the run was cancelled before its end, and has no result")
        return self._task.result()

    async def aclose(self) -> None:
        """End the run, and return when nothing of it runs any more. May be called from another task, and twice."""
        task = self._abandon()
        if task is not None:
            await all_ended((task,))

    def _abandon(self) -> asyncio.Task[R] | None:
        if self._buffer is None or self._task is None:
            return None
        if not self._buffer.closed:  # once: a second cancel would break into the clean-up of nodes
            self._buffer.close()
            self._task.cancel()
        return self._task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit and not _in_async_generator(inspect.currentframe()):
            self._abandon()  # the reader's coroutine is being closed: it may not await any more
            return
        await self.aclose()

    def __del__(self) -> None:
        task = self._task
        if task is None or self._buffer is None or self._buffer.closed or task.done():
            return
        loop = task.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_drop, task, self._buffer)

    def __repr__(self) -> str:
        return f"<RunStream {self._run_id} {self._buffer!r}>"


def _drop(task: asyncio.Task[Any], buffer: EventBuffer) -> None:
    buffer.close()
    task.cancel()


def _ended(buffer: EventBuffer, task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    buffer.finish()
    if not task.cancelled():
        task.exception()  # asyncio tells of errors that nobody has looked at, and a reader may leave before this one


def _in_async_generator(frame: FrameType | None) -> bool:
    """Whether the block that is being left stands in an async generator, whose `aclose()` may await."""
    block = frame.f_back if frame is not None else None
    return block is not None and bool(block.f_code.co_flags & inspect.CO_ASYNC_GENERATOR)
