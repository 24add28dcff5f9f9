"""The one way by which a run writes to its thread: in order, and behind the run's back where that is allowed.

The rules:
- Entries reach the store in the order of `write`, and nothing overtakes them: no step is stored without what it was
  made of.
- A record that is dropped before it was stored is never stored.
- What waits to be written is bounded: a store that is behind holds the run back.
- The first failure ends it all: nothing is written after it, whoever waits is told, and so is the run.
- The task belongs to the writer, and `close` waits for it, also where the waiting is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from agentgraph.checkpoint.protocol import Checkpointer, Entry, Line, Span
from agentgraph.tasks import all_ended

__all__ = ["Durability", "Writer"]

Durability = Literal["sync", "async", "exit"]

_MOST_WAITING = 1 << 20
"""Bytes that may wait to be written before the run is held back."""
_OVERHEAD = 256
"""Bytes that an entry counts besides its data."""


class Writer:
    """Writes to one claimed thread, and keeps the claim alive. Made, and closed, by the run that has the claim."""

    def __init__(
        self,
        store: Checkpointer,
        thread_id: str,
        epoch: int,
        *,
        lease: float,
        durability: Durability,
        failed: Callable[[Exception], None],
    ) -> None:
        self.failure: Exception | None = None
        self._store = store
        self._thread_id = thread_id
        self._epoch = epoch
        self._lease = lease
        self._durability = durability
        self._failed = failed
        self._entries: dict[int, Entry] = {}
        self._drop: list[Span] = []
        self._new_line: Line | None = None
        self._status: str | None = None
        self._under_way: tuple[list[Entry], list[Span], Line | None, str | None] | None = None
        self._waiting = 0
        self._closing = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.get_running_loop().create_task(self._work(), name=f"agentgraph writer of {thread_id}")

    def write(
        self,
        entries: Sequence[Entry] = (),
        *,
        drop: Sequence[tuple[int, int]] = (),
        new_line: Line | None = None,
        status: str | None = None,
    ) -> None:
        """Write these entries, and drop others, given as line and number. Raises what the store has failed with."""
        if self.failure is not None:
            raise self.failure
        for line, seq in sorted(drop):
            gone = self._entries.pop(seq, None)
            if gone is None:
                last = self._drop[-1] if self._drop else None
                if last is not None and (last.line, last.upto) == (line, seq - 1):  # a fan-out leaves thousands
                    self._drop[-1] = Span(line, last.after, seq)
                else:
                    self._drop.append(Span(line, seq - 1, seq))
            else:
                self._waiting -= len(gone.data) + _OVERHEAD
        for entry in entries:
            self._entries[entry.seq] = entry
            self._waiting += len(entry.data) + _OVERHEAD
        self._new_line = new_line or self._new_line
        self._status = status or self._status
        self._idle.clear()
        if self._durability != "exit":
            self._wake.set()

    async def settle(self) -> None:
        """Wait as long as the run must: with "sync" until all is stored, else until not too much waits."""
        if self._durability == "sync" or (self._durability == "async" and self._waiting > _MOST_WAITING):
            await self._idle.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self, status: str) -> None:
        """Write what is left, and give the claim back. After cancellation that has been done all the same.

        `failure` says whether the store took it.
        """
        self._status = status
        self._closing = True
        self._wake.set()
        try:
            await all_ended((self._task,))
        finally:
            # these hold the writer in turn: all of a run would stay until the garbage collector comes by
            del self._task, self._failed

    async def _work(self) -> None:
        try:
            while True:
                try:
                    await self._write_all()
                    break
                except asyncio.CancelledError:
                    pass  # an event loop that ends cancels all tasks: the run too, which closes this when it has ended
        except Exception as error:
            self.failure = error
            self._failed(error)
        finally:
            self._idle.set()

    async def _write_all(self) -> None:
        while await self._something_to_do():
            await self._flush()
        if self._under_way is not None:  # it was cancelled, and may be stored or not: to write it again does no harm
            await self._flush()
        if self._pending():
            await self._flush(last=True)
        else:
            await self._store.release(self._thread_id, self._epoch, self._status)

    async def _something_to_do(self) -> bool:
        """Wait for something to write, and keep the claim alive meanwhile; False when the writer is closed."""
        loop = asyncio.get_running_loop()
        while not self._closing:
            if self._durability != "exit" and self._pending():
                return True
            if not self._pending():
                self._idle.set()
            self._wake.clear()
            timer = loop.call_later(self._lease / 3, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            if loop.time() >= timer.when() and not self._closing:
                await self._store.renew(self._thread_id, self._epoch, self._lease)
        return False

    def _pending(self) -> bool:
        # a status alone too: that a run has begun must be known when its process dies; the last one goes with the claim
        told = self._status is not None and not self._closing
        return bool(self._under_way or self._entries or self._drop or self._new_line or told)

    async def _flush(self, *, last: bool = False) -> None:
        if self._under_way is None:
            self._under_way = list(self._entries.values()), self._drop, self._new_line, self._status
            self._entries, self._drop, self._new_line = {}, [], None
            self._status = self._status if self._closing else None
            self._waiting = 0
        entries, drop, new_line, status = self._under_way
        await self._store.append(
            self._thread_id,
            self._epoch,
            entries,
            lease=None if last else self._lease,
            status=status,
            drop=drop,
            new_line=new_line,
            durable=self._durability != "async",
        )
        self._under_way = None

    def __repr__(self) -> str:
        state = "failed" if self.failure is not None else "closing" if self._closing else "open"
        return f"<Writer {self._thread_id!r} epoch {self._epoch} {state} waiting={len(self._entries)}>"
