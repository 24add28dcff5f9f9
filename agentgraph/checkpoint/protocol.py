"""What keeps runs: the contract between the engine and a store of threads.

A thread is a log of entries, numbered from 1 in the order in which they were written. Some are checkpoints: a state
from which a run can go on. The others are records: what nodes and calls of the step under way have done, found by
their keys. A store knows nothing of what is inside: it keeps bytes, in order, whole or not at all.

The rules, which `agentgraph.testing.checkpointer_suite` holds a store to:
- Who writes has claimed the thread, and each claim raises its epoch. What comes with an older epoch is refused, whoever
  it comes from: a writer that was thought dead and is not can change nothing.
- A claim lasts for its lease, and longer with each `append` and `renew`. After that anyone may claim the thread.
- An `append` happens as a whole or not at all, and later ones only after it.
- A fork is a new line: it has the entries of its parent up to one of them, and then its own. Numbers are the
  thread's, over all lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import msgspec

__all__ = ["Checkpointer", "Entry", "Line", "Span", "ThreadInfo", "spans"]


class Entry(msgspec.Struct, frozen=True):
    """One entry of a thread's log."""

    seq: int
    """Its number in the thread."""
    line: int
    """The line it was written on, 0 for the first."""
    kind: str
    """For a checkpoint "input", "step", "pause" or "update"; else "record"."""
    key: str
    """What a record is found by; "" for a checkpoint."""
    head: bytes
    """What is told of a checkpoint without its data; b"" for a record."""
    data: bytes
    """A record's value; of a checkpoint what has changed, or with `full` all there is."""
    full: bool = False
    """Whether this checkpoint needs nothing of what stands before it."""


class Line(msgspec.Struct, frozen=True):
    """Where a line begins: after entry `after` of line `parent`. The first line's parent is None."""

    line: int
    parent: int | None = None
    after: int = 0


class Span(msgspec.Struct, frozen=True):
    """The entries of one line with `after < seq <= upto`."""

    line: int
    after: int
    upto: int


class ThreadInfo(msgspec.Struct, frozen=True):
    """A thread as it stands."""

    thread_id: str
    graph: str
    """The name of the graph that began it."""
    epoch: int
    """Raised by each claim."""
    status: str
    """As the last writer said: "new", "running", "paused", "done", "failed", "cancelled", "set aside"."""
    claimed: bool
    """Whether somebody's lease on it lasts."""
    deaths: int
    """How often, since the last checkpoint, a claim was taken over whose lease had run out while it was "running"."""
    last: int
    """The highest number that an entry of it has had, 0 without any: none is given twice, also if it was dropped."""
    line: int
    """The line that the newest append's last entry is on, 0 without any."""
    checkpoint: int
    """The number of that line's newest checkpoint, 0 without any; that may be one of its parent's part of it."""
    lines: tuple[Line, ...]
    created: float
    """Seconds since 1970."""
    changed: float
    """Seconds since 1970."""


@runtime_checkable
class Checkpointer(Protocol):
    """A store of threads. Used by `async with`; safe to share between tasks, runs and graphs.

    All methods raise `StoreError` where the store fails (gone, full, locked for too long, damaged), and `append`,
    `renew` and `release` raise `FencedError` where the epoch is not the thread's newest. After cancellation what was
    under way is stored wholly or not at all.
    """

    async def __aenter__(self) -> Self:
        """Open the store; what an older version of this library has left is brought up to date."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        ...

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:
        """Become the one that writes to the thread, which is made if there is none; None where somebody else is.

        `owner` is a text that tells a person who that is; `lease` the seconds for which the claim lasts. Returned is
        the thread with its new epoch.
        """
        ...

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
        durable: bool = False,
    ) -> None:
        """Write entries, which come in the order of their numbers, after all that is there.

        One whose number is there already takes its place. In the same transaction, and before that, entries in `drop`
        are removed and `new_line` is added; `status` is set, and the lease begins anew, or with None the claim is given
        back as by `release`. With `durable` it has survived a power cut when this returns; without, at least the death
        of this process. `ValueError` where an entry's line is not there.
        """
        ...

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        """Let the claim last for `lease` more seconds."""
        ...

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        """Give the claim back, and set the status."""
        ...

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        """The thread; None where there is none by that name."""
        ...

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        """Threads by name, from the first after `after`: of one graph, and of one status, where that is said."""
        ...

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        """The entries in these spans, by number, from the newest checkpoint among them that is `full`, if any is."""
        ...

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        """The newest checkpoints in these spans, the newest first, without their data."""
        ...

    async def delete(self, thread_id: str) -> None:
        """Remove the thread with all its entries, and whatever claim there is on it.

        A later thread by the same name has higher epochs, so that a writer of this one stays fenced off.
        """
        ...


def spans(lines: Sequence[Line], line: int, upto: int) -> list[Span]:
    """What belongs to a line up to an entry, its parents' part included, the oldest first."""
    by_number = {one.line: one for one in lines}
    found: list[Span] = []
    while True:
        one = by_number[line]
        found.append(Span(line, one.after, upto))
        if one.parent is None:
            return found[::-1]
        line, upto = one.parent, one.after
