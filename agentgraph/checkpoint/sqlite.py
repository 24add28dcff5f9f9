"""The store of threads in one SQLite file, which several processes may share.

An entry is found by one integer, made of its thread's number and its own: there is no index but the table itself, and a
thread's entries stand side by side. How the file is opened, shared and written to: `sqlite_file.py`.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from agentgraph.checkpoint.protocol import Entry, Line, Span, ThreadInfo, spans
from agentgraph.checkpoint.sqlite_file import SqliteFile, damaged
from agentgraph.errors import FencedError

__all__ = ["SqliteSaver"]

_APPLICATION = 0x41475448
"""What marks a file as ours ("AGTH")."""

_MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE threads (
            name TEXT PRIMARY KEY, id INTEGER NOT NULL, graph TEXT NOT NULL, owner TEXT NOT NULL,
            epoch INTEGER NOT NULL, status TEXT NOT NULL, expires REAL, deaths INTEGER NOT NULL,
            last INTEGER NOT NULL, line INTEGER NOT NULL, created REAL NOT NULL, changed REAL NOT NULL
        ) WITHOUT ROWID""",
        # what begins after a crash looks for these, however many threads there are
        "CREATE INDEX running ON threads (name) WHERE status = 'running'",
        # id: thread << 32 | line; start: a number below all of the line's own
        """CREATE TABLE lines (
            id INTEGER PRIMARY KEY, parent INTEGER, after INTEGER NOT NULL, start INTEGER NOT NULL
        )""",
        # id: thread << 32 | number; the data come last, so that what stands before them is read without them
        """CREATE TABLE entries (
            id INTEGER PRIMARY KEY, line INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
            "full" INTEGER NOT NULL, head BLOB NOT NULL, sum INTEGER NOT NULL, data BLOB NOT NULL
        )""",
        # the next thread's id, and the highest epoch of all threads that were deleted
        "CREATE TABLE counters (next INTEGER NOT NULL, epochs INTEGER NOT NULL)",
        "INSERT INTO counters VALUES (1, 0)",
    ),
]
"""What makes each version of the format out of the one before; the first makes it out of nothing."""

_THREAD = "name, id, graph, epoch, status, expires, deaths, last, line, created, changed"
_ENTRY = 'id, line, kind, key, head, "full", sum, data'
_MASK = (1 << 32) - 1


class SqliteSaver:
    """Keeps threads in one SQLite file (and, while it is open, two beside it: `-wal` and `-shm`).

    `timeout` is the seconds to wait for another process that writes. The file's folder must be there, on a local disk.
    Tasks, event loops and threads may share a saver; processes share the file, each with a saver of its own. A use::

        async with SqliteSaver("runs.db") as saver:
            app = graph.compile(checkpointer=saver)
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 30.0) -> None:
        self._file = SqliteFile(path, application=_APPLICATION, migrations=_MIGRATIONS, timeout=timeout)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    def __repr__(self) -> str:
        return f"<SqliteSaver {str(self.path)!r} {'open' if self._file.is_open else 'closed'}>"

    async def __aenter__(self) -> Self:
        """Open the file, which is made if there is none; a format of an older version is brought up to date.

        It may be entered several times, and is closed when it was left as often. Raises `StoreError` where the file
        cannot be opened and written to, is another program's, or of a newer version. After cancellation it is closed
        again.
        """
        await self._file.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the file, when what is under way has been done."""
        await self._file.close()

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:
        """See `Checkpointer.claim`."""

        def work(db: sqlite3.Connection) -> ThreadInfo | None:
            now = time.time()
            row = _row(db, thread_id)
            if row is None:
                number, epochs = db.execute("SELECT next, epochs FROM counters").fetchone()
                db.execute("UPDATE counters SET next = next + 1")
                db.execute(
                    "INSERT INTO threads VALUES (?, ?, ?, ?, ?, 'new', ?, 0, 0, 0, ?, ?)",
                    (thread_id, number, graph, owner, epochs + 1, now + lease, now, now),
                )
            else:
                expires, died = row[5], False
                if expires is not None:
                    if expires > now:
                        return None
                    died = row[4] == "running"
                db.execute(
                    "UPDATE threads SET epoch = epoch + 1, deaths = deaths + ?, owner = ?, expires = ? WHERE name = ?",
                    (died, owner, now + lease, thread_id),
                )
            return _info(db, _row(db, thread_id), now)

        return await self._file.do(work, writes=True)

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
        """See `Checkpointer.append`."""

        def work(db: sqlite3.Connection) -> None:
            row = _claimed(db, thread_id, epoch)
            base, last, line = row[1] << 32, row[7], row[8]
            now = time.time()
            for span in drop:
                db.execute(
                    "DELETE FROM entries WHERE id > ? AND id <= ? AND line = ?",
                    (*_range(base, span), span.line),
                )
            if new_line is not None:
                db.execute(
                    "INSERT INTO lines VALUES (?, ?, ?, ?) ON CONFLICT (id) "
                    "DO UPDATE SET parent = excluded.parent, after = excluded.after",
                    (base | new_line.line, new_line.parent, new_line.after, last),
                )
            checkpoint = False
            for number in {e.line for e in entries} - {0, line}:
                if not db.execute("SELECT 1 FROM lines WHERE id = ?", (base | number,)).fetchone():
                    raise ValueError(f"thread {thread_id!r} has no line {number}")
            for e in entries:
                if e.line and e.seq <= row[7]:  # it takes the place of one that was there before its line
                    db.execute("UPDATE lines SET start = min(start, ?) WHERE id = ?", (e.seq - 1, base | e.line))
                db.execute(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (base | e.seq, e.line, e.kind, e.key, e.full, e.head, _sum(e.head, e.data), e.data),
                )
                last, line = max(last, e.seq), e.line
                checkpoint = checkpoint or e.kind != "record"
            db.execute(
                "UPDATE threads SET last = ?, line = ?, expires = ?, changed = ?, status = coalesce(?, status), "
                "deaths = CASE WHEN ? THEN 0 ELSE deaths END WHERE name = ?",
                (last, line, lease if lease is None else now + lease, now, status, checkpoint, thread_id),
            )

        await self._file.do(work, writes=True, durable=durable)

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        """See `Checkpointer.renew`."""

        def work(db: sqlite3.Connection) -> None:
            _claimed(db, thread_id, epoch)
            db.execute("UPDATE threads SET expires = ? WHERE name = ?", (time.time() + lease, thread_id))

        await self._file.do(work, writes=True)

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        """See `Checkpointer.release`."""

        def work(db: sqlite3.Connection) -> None:
            row = _claimed(db, thread_id, epoch)
            changed = row[10] if status is None else time.time()
            db.execute(
                "UPDATE threads SET expires = NULL, status = coalesce(?, status), changed = ? WHERE name = ?",
                (status, changed, thread_id),
            )

        await self._file.do(work, writes=True)

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        """See `Checkpointer.thread`."""

        def work(db: sqlite3.Connection) -> ThreadInfo | None:
            row = _row(db, thread_id)
            return None if row is None else _info(db, row, time.time())

        return await self._file.do(work)

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        """See `Checkpointer.threads`."""
        where, values = ["name > ?"], [after]
        if graph is not None:
            where.append("graph = ?")
            values.append(graph)
        if status == "running":
            where.append("status = 'running'")  # spelt out: else its index is not used
        elif status is not None:
            where.append("status = ?")
            values.append(status)
        query = f"SELECT {_THREAD} FROM threads WHERE {' AND '.join(where)} ORDER BY name LIMIT ?"  # noqa: S608  # no value in it

        def work(db: sqlite3.Connection) -> list[ThreadInfo]:
            now = time.time()
            return [_info(db, row, now) for row in db.execute(query, (*values, max(limit, 0))).fetchall()]

        return await self._file.do(work)

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        """See `Checkpointer.read`."""

        def work(db: sqlite3.Connection) -> list[Entry]:
            row = _row(db, thread_id)
            found: dict[int, Entry] = {}
            newest = 0
            for span in within if row else ():
                for entry in _newest_first(db, row[1], span):
                    if entry.seq < newest:
                        break
                    found[entry.seq] = entry
                    if entry.full:
                        newest = entry.seq
                        break
            return [found[seq] for seq in sorted(found) if seq >= newest]

        return await self._file.do(work)

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        """See `Checkpointer.heads`."""

        def work(db: sqlite3.Connection) -> list[Entry]:
            row = _row(db, thread_id)
            found: dict[int, Entry] = {}
            for span in within if row else ():
                rows = db.execute(
                    'SELECT id, line, kind, key, head, "full" FROM entries '
                    "WHERE id > ? AND id <= ? AND line = ? AND kind <> 'record' ORDER BY id DESC LIMIT ?",
                    (*_own_range(db, row[1], span), span.line, max(limit, 0)),
                )
                for number, line, kind, key, head, full in rows:
                    seq = number & _MASK
                    found[seq] = Entry(seq, line, kind, key, head, b"", bool(full))
            return [found[seq] for seq in sorted(found, reverse=True)[: max(limit, 0)]]

        return await self._file.do(work)

    async def delete(self, thread_id: str) -> None:
        """See `Checkpointer.delete`. The file keeps its size, and uses the room again; `vacuum` makes it smaller."""

        def work(db: sqlite3.Connection) -> None:
            row = _row(db, thread_id)
            if row is None:
                return
            low, high = row[1] << 32, row[1] + 1 << 32
            db.execute("DELETE FROM entries WHERE id >= ? AND id < ?", (low, high))
            db.execute("DELETE FROM lines WHERE id >= ? AND id < ?", (low, high))
            db.execute("DELETE FROM threads WHERE name = ?", (thread_id,))
            db.execute("UPDATE counters SET epochs = max(epochs, ?)", (row[3],))

        await self._file.do(work, writes=True)

    async def vacuum(self) -> None:
        """Give the room that was freed back to the file system.

        Others may read meanwhile, and write again afterwards. Raises `StoreError`.
        """
        await self._file.shrink()


def _sum(head: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(head))


def _range(base: int, span: Span) -> tuple[int, int]:
    return base | max(span.after, 0), base | min(max(span.upto, 0), _MASK)


def _own_range(db: sqlite3.Connection, thread: int, span: Span) -> tuple[int, int]:
    """The range of a span's ids, without what was there before its line began: that is all of other lines."""
    low, high = _range(thread << 32, span)
    start = db.execute("SELECT start FROM lines WHERE id = ?", (thread << 32 | span.line,)).fetchone()
    return (max(low, thread << 32 | start[0]) if start else low), high


def _newest_first(db: sqlite3.Connection, thread: int, span: Span) -> Iterable[Entry]:
    rows = db.execute(
        f"SELECT {_ENTRY} FROM entries WHERE id > ? AND id <= ? AND line = ? ORDER BY id DESC",  # noqa: S608  # no value in it
        (*_own_range(db, thread, span), span.line),
    )
    for number, line, kind, key, head, full, sum_, data in rows:
        if not (isinstance(head, bytes) and isinstance(data, bytes)) or _sum(head, data) != sum_:
            raise damaged(f"entry {number & _MASK} is not what was written")
        yield Entry(number & _MASK, line, kind, key, head, data, bool(full))


def _row(db: sqlite3.Connection, thread_id: str) -> Any:
    return db.execute(f"SELECT {_THREAD} FROM threads WHERE name = ?", (thread_id,)).fetchone()  # noqa: S608  # no value in it


def _claimed(db: sqlite3.Connection, thread_id: str, epoch: int) -> Any:
    row = _row(db, thread_id)
    if row is None or row[3] != epoch:
        raise FencedError(thread_id, epoch)
    return row


def _info(db: sqlite3.Connection, row: Any, now: float) -> ThreadInfo:
    name, thread, graph, epoch, status, expires, deaths, last, line, created, changed = row
    base = thread << 32
    rows = db.execute("SELECT id, parent, after FROM lines WHERE id > ? AND id < ? ORDER BY id", (base, base | _MASK))
    lines = (Line(0), *(Line(number & _MASK, parent, after) for number, parent, after in rows))
    checkpoint = 0
    for span in reversed(spans(lines, line, last)):
        found = db.execute(
            "SELECT id FROM entries WHERE id > ? AND id <= ? AND line = ? AND kind <> 'record' "
            "ORDER BY id DESC LIMIT 1",
            (*_own_range(db, thread, span), span.line),
        ).fetchone()
        if found:
            checkpoint = found[0] & _MASK
            break
    return ThreadInfo(
        thread_id=name,
        graph=graph,
        epoch=epoch,
        status=status,
        claimed=expires is not None and expires > now,
        deaths=deaths,
        last=last,
        line=line,
        checkpoint=checkpoint,
        lines=lines,
        created=created,
        changed=changed,
    )
