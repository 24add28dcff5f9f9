"""The store of threads that lives in this process: for tests, and for runs that need not outlive it."""

from __future__ import annotations

import bisect
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from agentgraph.checkpoint.protocol import Entry, Line, Span, ThreadInfo, spans
from agentgraph.errors import FencedError

__all__ = ["MemorySaver"]


@dataclasses.dataclass(slots=True)
class _Thread:
    graph: str
    epoch: int
    created: float
    changed: float
    status: str = "new"
    expires: float | None = None
    """When the lease runs out; None where the claim was given back."""
    deaths: int = 0
    last: int = 0
    line: int = 0
    lines: dict[int, Line] = dataclasses.field(default_factory=lambda: {0: Line(0)})
    entries: dict[int, Entry] = dataclasses.field(default_factory=dict[int, Entry])
    """By number, in the order of the numbers."""

    def newest_first(self, within: Sequence[Span]) -> Iterator[Entry]:
        """The entries in these spans."""
        for entry in reversed(self.entries.values()):
            if any(span.line == entry.line and span.after < entry.seq <= span.upto for span in within):
                yield entry


class MemorySaver:
    """Keeps threads in this process; they are gone with the object. Event loops and threads may share it.

    A use::

        async with MemorySaver() as saver:
            app = graph.compile(checkpointer=saver)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, _Thread] = {}
        self._names: list[str] = []
        self._epochs = 0
        """The highest epoch of all threads that were deleted."""

    def __repr__(self) -> str:
        return f"<MemorySaver of {len(self._names)} threads>"

    async def __aenter__(self) -> Self:
        """Nothing needs to be opened."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """What is kept stays until the object is gone."""

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:  # noqa: ARG002  # nothing tells it
        """See `Checkpointer.claim`."""
        now = time.time()
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                thread = self._threads[thread_id] = _Thread(graph, self._epochs, now, now)
                bisect.insort(self._names, thread_id)
            if thread.expires is not None:
                if thread.expires > now:
                    return None
                thread.deaths += thread.status == "running"
            thread.epoch += 1
            thread.expires = now + lease
            return _info(thread_id, thread, now)

    async def append(
        self,
        thread_id: str,
        epoch: int,
        entries: Sequence[Entry],
        *,
        lease: float | None,
        status: str | None = None,
        drop: Sequence[Span] = (),
        new_line: Line | None = None,
        durable: bool = False,  # noqa: ARG002  # nothing here outlives the process
    ) -> None:
        """See `Checkpointer.append`."""
        now = time.time()
        with self._lock:
            thread = self._claimed(thread_id, epoch)
            known = thread.lines if new_line is None else {*thread.lines, new_line.line}
            for entry in entries:
                if entry.line not in known:
                    raise ValueError(f"thread {thread_id!r} has no line {entry.line}")
            if drop:
                for entry in list(thread.newest_first(drop)):
                    del thread.entries[entry.seq]
            if new_line is not None:
                thread.lines[new_line.line] = new_line
            for entry in entries:
                thread.entries[entry.seq] = entry
                thread.line = entry.line
            if entries:
                if entries[0].seq <= thread.last:  # one that was dropped before may have come again
                    thread.entries = dict(sorted(thread.entries.items()))
                thread.last = max(thread.last, entries[-1].seq)
            if any(entry.kind != "record" for entry in entries):
                thread.deaths = 0
            if status is not None:
                thread.status = status
            thread.expires = None if lease is None else now + lease
            thread.changed = now

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        """See `Checkpointer.renew`."""
        with self._lock:
            self._claimed(thread_id, epoch).expires = time.time() + lease

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        """See `Checkpointer.release`."""
        with self._lock:
            thread = self._claimed(thread_id, epoch)
            thread.expires = None
            if status is not None:
                thread.status = status
                thread.changed = time.time()

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        """See `Checkpointer.thread`."""
        with self._lock:
            thread = self._threads.get(thread_id)
            return thread and _info(thread_id, thread, time.time())

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        """See `Checkpointer.threads`."""
        found: list[ThreadInfo] = []
        now = time.time()
        with self._lock:
            for at in range(bisect.bisect_right(self._names, after), len(self._names)):
                if len(found) >= limit:
                    break
                thread = self._threads[self._names[at]]
                if graph in (None, thread.graph) and status in (None, thread.status):
                    found.append(_info(self._names[at], thread, now))
        return found

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        """See `Checkpointer.read`."""
        found: list[Entry] = []
        with self._lock:
            thread = self._threads.get(thread_id)
            for entry in thread.newest_first(within) if thread else ():
                found.append(entry)
                if entry.full:
                    break
        return found[::-1]

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        """See `Checkpointer.heads`."""
        found: list[Entry] = []
        with self._lock:
            thread = self._threads.get(thread_id)
            for entry in thread.newest_first(within) if thread else ():
                if len(found) >= limit:
                    break
                if entry.kind != "record":
                    found.append(msgspec.structs.replace(entry, data=b""))
        return found

    async def delete(self, thread_id: str) -> None:
        """See `Checkpointer.delete`."""
        with self._lock:
            thread = self._threads.pop(thread_id, None)
            if thread is not None:
                self._epochs = max(self._epochs, thread.epoch)
                del self._names[bisect.bisect_left(self._names, thread_id)]

    def _claimed(self, thread_id: str, epoch: int) -> _Thread:
        thread = self._threads.get(thread_id)
        if thread is None or thread.epoch != epoch:
            raise FencedError(thread_id, epoch)
        return thread


def _info(thread_id: str, thread: _Thread, now: float) -> ThreadInfo:
    lines = tuple(thread.lines.values())
    own = spans(lines, thread.line, thread.last)
    return ThreadInfo(
        thread_id=thread_id,
        graph=thread.graph,
        epoch=thread.epoch,
        status=thread.status,
        claimed=thread.expires is not None and thread.expires > now,
        deaths=thread.deaths,
        last=thread.last,
        line=thread.line,
        checkpoint=next((e.seq for e in thread.newest_first(own) if e.kind != "record"), 0),
        lines=lines,
        created=thread.created,
        changed=thread.changed,
    )
