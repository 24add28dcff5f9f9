"""Coroutines beside each other: tasks with one owner, who waits for all of them whatever happens.

What `asyncio.TaskGroup` promises, for a number of tasks that is known beforehand, at two thirds of its cost: no
callback a task, no set of them, and no exception group around a single error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

__all__ = ["NotAllWellError", "all_ended", "run_all"]

T = TypeVar("T")


class NotAllWellError(Exception):
    """Of several tasks one has failed, or ended as cancelled. `tasks` are all of them, ended; nobody else sees this."""

    def __init__(self, tasks: list[asyncio.Task[Any]]) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[Any]] = tasks


async def run_all(count: int, start: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
    """Run `start(0)` to `start(count - 1)` as tasks, and return their results in that order.

    The first that fails, or ends as cancelled, cancels the others, which are waited for; then `NotAllWellError`.
    After cancellation all of them have ended.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()  # all have ended well, or one has not
    results: list[Any] = [None] * count
    left = count

    async def one(index: int) -> None:
        nonlocal left
        try:
            results[index] = await start(index)
        except BaseException:
            if not over.done():
                over.set_result(None)
            raise
        left -= 1
        if not left and not over.done():
            over.set_result(None)

    tasks = [loop.create_task(one(index)) for index in range(count)]
    if not tasks:
        return results
    try:
        await over
    finally:
        if left:
            for task in tasks:
                task.cancel()
            await all_ended(tasks)
    if left:
        raise NotAllWellError(tasks)
    return results


async def all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Return once all tasks have ended, however often the waiting is cancelled; raise that afterwards."""
    cancelled: asyncio.CancelledError | None = None
    # a cancelled scope of anyio cancels again at every turn of the loop, and would keep it spinning
    anyio = sys.modules.get("anyio")
    with nullcontext() if anyio is None else anyio.CancelScope(shield=True):
        while running := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:
                cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # whether the caller looks at it or not: asyncio tells of errors that nobody has seen
    if cancelled is not None:
        raise cancelled
