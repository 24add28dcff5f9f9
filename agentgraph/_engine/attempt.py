"""One node, run once: permit, timeouts, retries, worker thread, `on_error`, debug mode.

The rules:
- A permit of `max_concurrency` is held while the node works, never while it waits: for its next attempt, or for
  a graph that it runs (`Permit.lend`).
- A timeout counts from when the node starts. What the node gives back after its timeout is thrown away, also
  where it swallowed the cancellation.
- The next attempt starts only when the one before has ended. A worker thread that was left behind has not ended.
- When an attempt has ended its `RunContext` is closed: what outlives it can touch nothing of the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import sys
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from agentgraph import events
from agentgraph._engine.checks import handler_arity
from agentgraph._engine.plan import NodeSpec
from agentgraph._engine.state import Footprint
from agentgraph.config import Retry
from agentgraph.context import GraphRun, Interrupt, Interrupted, RunContext
from agentgraph.errors import AgentGraphError, InPlaceChangeError, NodeTimeoutError, StrayCancelError
from agentgraph.node import as_mapping, is_async
from agentgraph.threads import ThreadCall

T = TypeVar("T")

log = logging.getLogger("agentgraph")

BLOCKED_SECONDS = 0.1
"""Debug mode tells of a node that keeps the event loop from turning for longer than this."""


class Permit:
    """A node's share of `max_concurrency`. Children may come and go in parallel; the last one to go takes it back."""

    __slots__ = ("_children", "_held", "_semaphore")

    def __init__(self, semaphore: asyncio.Semaphore) -> None:
        self._semaphore = semaphore
        self._held = False
        self._children = 0

    async def acquire(self) -> None:
        await self._semaphore.acquire()
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._semaphore.release()

    async def lend(self) -> None:
        self._children += 1
        self.release()

    async def reclaim(self) -> None:
        self._children -= 1
        task = asyncio.current_task()
        if self._children or (task is not None and task.cancelling()):  # what is to end needs no permit to do so
            return
        await self.acquire()
        if self._children:  # another child has come while we waited
            self.release()


class Pulse:
    """Measures a node's silence, and ends it when it lasts too long."""

    __slots__ = ("_last", "_limit", "_loop", "_scope", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        self._loop = loop
        self._limit = limit
        self._last = loop.time()
        self._scope: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        self._last = self._loop.time()

    def start(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self.beat()
        self._timer = self._loop.call_later(self._limit, self._look)

    def _look(self) -> None:
        left = self._last + self._limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._scope is not None:
            self._scope.reschedule(self._loop.time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def attempt(
    graph: GraphRun,
    spec: NodeSpec,
    path: tuple[str, ...],
    step: int,
    task: int,
    snapshot: Callable[[], Any],
    debug: Debug | None,
) -> Any:
    """Run a node as its policies say, and return what it or its `on_error` returned.

    `snapshot` makes the state that an attempt gets. After cancellation nothing runs any more but a worker thread
    that was left behind.
    """
    shared = graph.shared
    retry = spec.retry
    host = cast("asyncio.Task[Any]", asyncio.current_task())
    cancelling = host.cancelling()
    number = 1
    while True:
        pulse = Pulse(shared.loop, spec.idle_timeout) if spec.idle_timeout is not None else None
        permit = Permit(shared.permits) if shared.permits is not None and not spec.is_graph else None
        run: RunContext[Any] = RunContext(graph, path, step, task, number, pulse, permit)
        state = snapshot()
        if permit is not None:
            await permit.acquire()
        failure: Exception | None = None
        result: Any = None
        try:
            if shared.sink is not None:
                await shared.sink.put(events.NodeStarted(step=step, attempt=number), path)
            if debug is not None:
                result = await debug.watch(spec, state, _once(spec, state, run, pulse))
            else:
                result = await _once(spec, state, run, pulse)
        except Exception as error:  # retried, handled, or raised below
            failure = error
        except BaseException as error:
            run.close("the run was cancelled" if isinstance(error, asyncio.CancelledError) else "it ended", cancel=True)
            if shared.sink is not None and isinstance(error, Interrupted):
                await shared.sink.put(events.NodeFinished(step=step), path)
            raise
        finally:
            if permit is not None:
                permit.release()
        run.close("it ended")
        if shared.sink is not None:
            told = None if failure is None else f"{type(failure).__name__}: {events.shown(failure, str)}"
            await shared.sink.put(events.NodeFinished(step=step, error=told), path)
        if failure is None:
            return result
        if host.cancelling() > cancelling:
            raise failure  # what the node made of its cancellation: nothing is tried again, nobody is asked
        left_behind = isinstance(failure, NodeTimeoutError) and failure.thread_runs
        if retry is not None and number < retry.attempts and not left_behind and _wanted(retry, failure):
            await asyncio.sleep(retry.wait(number, random.random()))  # noqa: S311  # spreads retries, keeps no secret
            number += 1
            continue
        if number > 1:
            failure.add_note(f"attempt {number} of {retry.attempts if retry else 1}")
        if spec.on_error is None:
            raise failure
        permit = Permit(shared.permits) if shared.permits is not None else None
        # what it asks and records is its own
        run = RunContext[Any](graph, path, step, task, number, None, permit).part("on_error")
        return await _handle(spec, snapshot(), failure, run, permit)


def _wanted(retry: Retry, failure: Exception) -> bool:
    try:
        return retry.wants(failure)
    except Exception as wrong:
        wrong.add_note("raised by Retry(on=...), which was asked about the error above")
        raise wrong from failure


async def _handle(spec: NodeSpec, state: Any, failure: Exception, run: RunContext[Any], permit: Permit | None) -> Any:
    arguments = (state, failure, run)[: handler_arity(spec.on_error)]
    if permit is not None:
        await permit.acquire()
    try:
        if is_async(spec.on_error):
            return await spec.on_error(*arguments)
        result = await ThreadCall().run(spec.on_error, *arguments)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        if error is not failure and error.__context__ is None:
            error.__context__ = failure  # what it was about
        raise
    except BaseException:
        run.close("the run was cancelled", cancel=True)
        raise
    finally:
        if permit is not None:
            permit.release()
        run.close("it ended")


async def _once(spec: NodeSpec, state: Any, run: RunContext[Any], pulse: Pulse | None) -> Any:
    thread = None if spec.is_async else ThreadCall()
    if spec.timeout is None and pulse is None:
        return await _call(spec, state, run, thread)
    hard = asyncio.timeout(spec.timeout)
    idle = asyncio.timeout(None)
    result: Any = None
    failure: BaseException | None = None
    try:
        async with hard, idle:
            if pulse is not None:
                pulse.start(idle)
            try:
                result = await _call(spec, state, run, thread)
            finally:
                if pulse is not None:
                    pulse.stop()
    except Exception as error:  # raised below, unless it came of a timeout
        failure = error
    for scope, kind, seconds in ((hard, "timeout", spec.timeout), (idle, "idle_timeout", spec.idle_timeout)):
        # asked, and not taken from the error: the node may have swallowed its cancellation, or raised a
        # TimeoutError of its own with our limit not reached
        if scope.expired() and seconds is not None:
            run.close(f"it reached its {kind}", cancel=True)
            running = thread is not None and thread.running
            raise NodeTimeoutError("/".join(run.path), kind, seconds, thread_runs=running) from failure
    if failure is not None:
        raise failure
    return result


async def _call(spec: NodeSpec, state: Any, run: RunContext[Any], thread: ThreadCall | None) -> Any:
    arguments = (state, run) if spec.wants_run else (state,)
    try:
        if thread is None:
            return await spec.call(*arguments)
        result = await thread.run(spec.call, *arguments)
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as error:
        check_stray(error, "/".join(run.path))
        raise
    except BaseExceptionGroup as group:
        raise sorted_out(group) from None


def sorted_out(error: BaseException) -> BaseException:
    """The questions in a group as one, or the group without them where something has failed beside them."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    asked, rest = group.split(Interrupted)
    if asked is None:
        return group
    if rest is not None:
        return rest
    questions: list[Interrupt] = []
    groups: list[BaseExceptionGroup[Any]] = [asked]
    for inner in groups:
        for leaf in inner.exceptions:
            if isinstance(leaf, BaseExceptionGroup):
                groups.append(cast("BaseExceptionGroup[Any]", leaf))
            else:
                questions.extend(cast("Interrupted", leaf).interrupts)
    return Interrupted(tuple(questions))


def check_stray(error: asyncio.CancelledError, node: str) -> None:
    """Raise `StrayCancelError` where nobody cancelled the task in which `error` came up."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() == 0:
        raise StrayCancelError(node) from error


if sys.version_info >= (3, 13):

    def truthful(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Await `work`. From Python 3.13 `Task.cancelling()` is true by itself."""
        return work

else:

    @types.coroutine
    def truthful(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`, and keep `Task.cancelling()` true meanwhile.

        A TaskGroup whose child fails while the group waits for its end cancels its parent task and takes that back
        only from Python 3.13 on: a node that handles the group's error would look like one that swallowed the
        run's cancellation.
        """
        resume: Callable[[Any], Any] = work.send
        sent: Any = None
        while True:
            try:
                waits = resume(sent)
            except StopIteration as stop:
                return stop.value
            finally:
                sent = None  # else an error and this frame hold each other
            try:
                sent = yield waits
                resume = work.send
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    _take_back(work)
                resume, sent = work.throw, error

    _EXIT = asyncio.TaskGroup.__aexit__.__code__
    _taken_back: weakref.WeakSet[asyncio.TaskGroup] = weakref.WeakSet()

    def _take_back(work: Any) -> None:
        """Uncancel the current task for each TaskGroup that has cancelled it and will not take that back itself."""
        task = asyncio.current_task()
        while work is not None and task is not None:
            frame = getattr(work, "cr_frame", None)
            if frame is not None and frame.f_code is _EXIT:
                known = frame.f_locals
                group: Any = known["self"]
                # with an error in its body the group has cancelled nobody, or taken it back when its exit began
                if group._parent_cancel_requested and known["et"] is None and group not in _taken_back:
                    _taken_back.add(group)
                    task.uncancel()
            work = (
                getattr(work, "cr_await", None)
                or getattr(work, "gi_yieldfrom", None)
                or getattr(work, "ag_await", None)
            )


class Debug:
    """What debug mode looks at: changes of shared values in place, and nodes that keep the loop from turning."""

    def __init__(self) -> None:
        self._running: list[list[str]] = []
        """For each node at work: its name, and the names of all that have worked beside it."""

    async def watch(self, spec: NodeSpec, state: Any, work: Awaitable[Any]) -> Any:
        """Await `work` and return its result. Raises `InPlaceChangeError`; tells of blocking in the log."""
        try:
            before = Footprint(as_mapping(state))
        except AgentGraphError:
            before = None  # a Send's own value
        suspects = [spec.name, *(beside[0] for beside in self._running)]
        for beside in self._running:
            beside.append(spec.name)
        self._running.append(suspects)
        try:
            result = await (work if spec.is_graph or not spec.is_async else _Timed(work, spec.name))
        except Exception as error:
            if (change := _change(before, suspects)) is not None:
                error.add_note(str(change))
            raise
        finally:
            self._running = [beside for beside in self._running if beside is not suspects]
        if (change := _change(before, suspects)) is not None:
            raise change
        return result


def _change(before: Footprint | None, suspects: list[str]) -> InPlaceChangeError | None:
    keys = before.changed() if before is not None else []
    return InPlaceChangeError(list(dict.fromkeys(suspects)), keys[0]) if keys else None


class _Timed:
    """Awaits something, and tells of each stretch between two awaits that took too long."""

    def __init__(self, work: Awaitable[Any], node: str) -> None:
        self._work = work
        self._node = node

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        value: Any = None
        raised: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                if raised is not None:
                    waits = steps.throw(raised)
                else:
                    waits = steps.send(value)
            except StopIteration as stop:
                return stop.value
            finally:
                took = time.perf_counter() - began
                if took > BLOCKED_SECONDS:
                    log.warning(
                        "node %r kept the event loop from turning for %.3f s; await what takes time, "
                        "or make it a plain def, which runs in a worker thread",
                        self._node,
                        took,
                    )
            try:
                value, raised = (yield waits), None
            except BaseException as error:  # handed on to what is awaited
                value, raised = None, error
