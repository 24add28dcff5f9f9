"""One SQLite file, used from event loops: in worker threads, by many tasks at once, and by several processes.

The rules:
- SQL runs in worker threads, never in the event loop. `_lock` is held by the one that uses the connection, `_gate` for
  moments only and never around SQL, so that the event loop may take it.
- Operations are combined: who has the connection does all that are waiting in one transaction. Of the callers one at a
  time brings a thread that waits for the connection; the others wait for its result. So there are at most two threads,
  and neither needs a turn among the process's worker threads: those who hold the turns may be waiting for this file.
- An operation checks before it writes. One that fails in SQL undoes the whole transaction, and then each is done alone.
- Nothing is acknowledged that is not in the file at the path.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentgraph.errors import ConfigError, FencedError, StoreError
from agentgraph.threads import ThreadCall

__all__ = ["SqliteFile", "damaged"]

T = TypeVar("T")


class _Operation(Generic[T]):
    """What one caller wants done, and what came of it."""

    __slots__ = ("durable", "error", "future", "result", "work", "writes")

    def __init__(self, work: Callable[[sqlite3.Connection], T], *, writes: bool, durable: bool) -> None:
        self.work = work
        self.writes = writes
        self.durable = durable
        self.result: T
        self.error: Exception | None = None
        self.future: asyncio.Future[None] | None = None
        """What the caller waits for, unless it brought the thread."""

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result


class SqliteFile:
    """A file with tables of ours, and its one connection.

    `application` is the number that marks the file, `migrations` the statements that make each version of the format
    out of the one before (the first out of nothing), `timeout` the seconds to wait for another process that writes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        application: int,
        migrations: Sequence[Sequence[str]],
        timeout: float,
    ) -> None:
        if os.fspath(path) in ("", ":memory:") or os.fspath(path).startswith("file:"):
            raise ConfigError(f"path must be that of a file; found {os.fspath(path)!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"timeout must be a number of seconds; found {timeout!r}")
        self.path: Path = Path(path)
        self._application = application
        self._migrations = migrations
        self._timeout = timeout
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._pending: list[_Operation[Any]] = []
        self._thread_waits = False
        self._users = 0
        self._connection: sqlite3.Connection | None = None
        self._durable: bool | None = None
        self._place = self.path
        """The same, wherever the process goes."""
        self._inode: tuple[int, int] | None = None
        self._process = 0

    @property
    def is_open(self) -> bool:
        """Whether somebody has opened it."""
        return self._connection is not None

    # --- in the event loop ---

    async def open(self) -> None:
        """Open the file unless it is open. After cancellation it is closed again, unless others use it.

        Raises `StoreError` where the file cannot be written to, is another program's, or of a newer version.
        """
        self._check_process()
        with self._gate:
            self._users += 1
        try:
            await _in_thread(self._open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the file, when what is under way has been done and nobody else uses it."""
        if self._process not in (0, os.getpid()):
            return
        with self._gate:
            self._users -= 1
        await _in_thread(self._close)

    async def do(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False, durable: bool = False) -> T:
        """Have this done in a transaction, in a worker thread; after cancellation it is done all the same.

        `work` may be called more than once; the transactions of all its calls but the last are undone.
        """
        if not self._process:
            raise StoreError(f"the store {str(self.path)!r} is not open; use it inside `async with`")
        self._check_process()
        operation = _Operation(work, writes=writes, durable=durable)
        with self._gate:
            self._pending.append(operation)
            if self._thread_waits:
                operation.future = asyncio.get_running_loop().create_future()
            self._thread_waits = True
        if operation.future is not None:
            await operation.future
            return operation.outcome()
        try:
            await _in_thread(self._work)
        except Exception as error:  # there is no thread to be had
            with self._gate:
                self._thread_waits = False
                operations, self._pending = self._pending, []
            for one in operations:
                one.error = error
            _tell(operations)
            raise
        return operation.outcome()

    async def shrink(self) -> None:
        """Give the room that was freed back to the file system, a few MB at a time, between others' operations.

        Raises `StoreError`.
        """
        before = 0
        while (left := await self.do(lambda db: db.execute("PRAGMA freelist_count").fetchone()[0])) not in (0, before):
            before = left
            # not `execute`: that frees one page
            await _in_thread(lambda: self._maintain("PRAGMA incremental_vacuum(2000)"))
        await _in_thread(lambda: self._maintain("PRAGMA wal_checkpoint(TRUNCATE)"))

    def _check_process(self) -> None:
        if self._process not in (0, os.getpid()):  # the locks may be those of threads that this process has not
            raise StoreError(f"the store {str(self.path)!r} was opened by the parent process; open another one here")

    # --- in worker threads ---

    def _work(self) -> None:
        """Do all that is pending."""
        with self._lock:
            with self._gate:
                self._thread_waits = False
                operations, self._pending = self._pending, []
            self._run([o for o in operations if not o.writes])
            self._run([o for o in operations if o.writes])
        _tell(operations)

    def _run(self, operations: list[_Operation[Any]]) -> None:
        """Do these in one transaction, or where that fails each in its own."""
        if not operations:
            return
        try:
            self._transact(operations)
        except Exception as error:
            if len(operations) > 1 and not _is_busy(error):
                for operation in operations:
                    self._run([operation])
                return
            for operation in operations:
                operation.error = error
                if isinstance(error, sqlite3.Error):
                    operation.error = self._told(error)
                    operation.error.__cause__ = error

    def _transact(self, operations: list[_Operation[Any]]) -> None:
        db = self._connection
        if db is None:
            raise StoreError(f"the store {str(self.path)!r} was closed meanwhile")
        writes = operations[0].writes
        if writes:
            self._check_file()
            self._set_durable(db, any(o.durable for o in operations))
        db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            for operation in operations:
                try:
                    operation.result = operation.work(db)
                    operation.error = None
                except FencedError as error:
                    operation.error = error
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # some errors have ended it already
                db.execute("ROLLBACK")
            raise
        if writes:
            self._check_file()

    def _check_file(self) -> None:
        """Raise unless the open file is the one at the path: SQLite would go on to write to one that was removed."""
        try:
            found = self._place.stat()
        except OSError as error:
            raise StoreError(
                f"the store {str(self.path)!r} is gone ({error.strerror}); put it back, and work goes on"
            ) from None
        if self._inode != (found.st_dev, found.st_ino):
            raise StoreError(
                f"the store {str(self.path)!r} was replaced by another file while it was open; "
                f"close it everywhere and open it anew"
            )

    def _set_durable(self, db: sqlite3.Connection, durable: bool) -> None:
        if self._durable != durable:
            # not `execute`, which keeps what it has compiled: SQLite may do this when it compiles it
            db.executescript(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable

    def _open(self) -> None:
        with self._lock:
            if self._connection is None and self._users:  # else it was cancelled, and closed before this came
                try:
                    self._connection = self._connect()
                except sqlite3.Error as error:
                    raise self._told(error) from error
                self._process = os.getpid()

    def _connect(self) -> sqlite3.Connection:
        self._place = self.path.absolute()
        db = sqlite3.connect(self._place, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            db.execute("BEGIN")  # else another process may make the tables between two of the questions
            is_new = self._version(db) == 0
            db.execute("COMMIT")
            if is_new:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect once there are tables
            self._use_wal(db)
            self._durable = None
            self._set_durable(db, durable=True)
            db.execute("BEGIN IMMEDIATE")  # always: a file that cannot be written to is told now
            version = self._version(db)
            for number, statements in enumerate(self._migrations[version:], version + 1):
                for statement in statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")
                db.execute(f"PRAGMA application_id = {self._application}")
            db.execute("COMMIT")
            found = self._place.stat()
            self._inode = (found.st_dev, found.st_ino)
        except BaseException:
            db.close()
            raise
        return db

    def _version(self, db: sqlite3.Connection) -> int:
        """The format's version in the file, 0 for a new one."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != self._application and (application or version or tables):
            raise StoreError(f"{str(self.path)!r} is an SQLite file of another kind; nothing was written to it")
        if version > len(self._migrations):
            raise StoreError(
                f"the store {str(self.path)!r} has format {version}, and this agentgraph knows formats up to "
                f"{len(self._migrations)}; use a newer one (nothing was written to the file)"
            )
        return version

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Switch to a write-ahead log; SQLite does not wait by itself where two processes do this at once."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise StoreError(f"{str(self.path)!r} is on a disk where SQLite can have no write-ahead log")
            return

    def _close(self) -> None:
        with self._lock:
            if not self._users and self._connection is not None:
                db, self._connection, self._process = self._connection, None, 0
                db.close()

    def _maintain(self, script: str) -> None:
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.executescript(script)
                except sqlite3.Error as error:
                    raise self._told(error) from error

    def _told(self, error: sqlite3.Error) -> StoreError:
        """What SQLite said, with the path, the cause, and what to do."""
        code = _code(error)
        where = f"the store {str(self.path)!r}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            told = (
                f"{where} is locked: another process has been writing to it for more than {self._timeout:g} s; "
                f"look for one that stands still, or wait longer (timeout=...)"
            )
        elif code == sqlite3.SQLITE_FULL:
            told = f"{where} cannot grow, the disk is full; make room, and work goes on"
        elif code == sqlite3.SQLITE_READONLY:
            told = f"{where} is read-only; this process needs the right to write the file and its folder"
        elif code == sqlite3.SQLITE_CANTOPEN:
            told = f"{where} cannot be opened; its folder must be there, and this process may write to both"
        elif code == sqlite3.SQLITE_NOTADB:
            told = f"{str(self.path)!r} is no SQLite file; nothing was written to it"
        elif code == sqlite3.SQLITE_CORRUPT:
            told = f"{where} is damaged; put a backup in its place, or save what can be read by sqlite3's .recover"
        else:
            told = f"{where} failed"
        return StoreError(f"{told} ({error})")


def damaged(what: str) -> sqlite3.DatabaseError:
    """The error for an operation that finds in the file what was not written to it."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


async def _in_thread(fn: Callable[[], None]) -> None:
    # out of turn: those that have the turns may wait for the store
    await ThreadCall(in_turn=False).run(fn)


def _tell(operations: Sequence[_Operation[Any]]) -> None:
    """Wake those that wait for these, in their event loops."""
    waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for operation in operations:
        if operation.future is not None:
            waiting.setdefault(operation.future.get_loop(), []).append(operation.future)
    for loop, futures in waiting.items():
        try:
            loop.call_soon_threadsafe(_settle, futures)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _settle(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # else whoever waited has left
            future.set_result(None)


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_busy(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
