"""When calls have to end."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgraph.nodes.tool import ToolContext

__all__ = ["Deadline", "Deadlines"]


class Deadline:
    """When a call has to end: first its token is cancelled, then its task.

    `asyncio.timeout` does not do: the tool must find its token cancelled when it sees its `CancelledError`.
    """

    __slots__ = ("_context", "_limit", "_task", "expired", "when")

    def __init__(self, limit: float, when: float, task: asyncio.Task[Any], context: ToolContext | None) -> None:
        self._limit = limit
        self._task = task
        self._context = context
        self.when: float = when
        self.expired = False

    def expire(self) -> None:
        """Tell the token, then cancel the task."""
        self.expired: bool = True
        if self._context is not None:
            self._context.end(cancel=f"it timed out after {self._limit:g} s")
        self._task.cancel()


class Deadlines:
    """The deadlines of a message's calls, all on one timer: a timer each costs more than the rest of a call."""

    __slots__ = ("_due", "_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, limit: float, task: asyncio.Task[Any], context: ToolContext | None) -> Deadline:
        """Give a call `limit` seconds from now, in this task."""
        made = Deadline(limit, self._loop.time() + limit, task, context)
        self._due.add(made)
        if self._timer is None or made.when < self._timer.when():
            self._set(made.when)
        return made

    def stop(self, deadline: Deadline) -> None:
        """The call has ended: whether its deadline had come is in `expired`."""
        self._due.discard(deadline)

    def close(self) -> None:
        """All calls have ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for deadline in [d for d in self._due if d.when <= now]:
            self._due.discard(deadline)
            deadline.expire()
        if self._due:
            self._set(min(d.when for d in self._due))
