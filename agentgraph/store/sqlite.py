"""A store in one SQLite file, which several processes may share.

How the file is opened, shared and written to: `agentgraph.checkpoint.sqlite_file`. Filters are evaluated here and not
by SQLite, whose JSON functions take `true` for 1 and large numbers for others.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agentgraph.checkpoint.sqlite_file import SqliteFile, damaged
from agentgraph.store.protocol import Item, Namespace, Order, Put
from agentgraph.store.values import (
    Written,
    checked_key,
    checked_namespace,
    checked_page,
    checked_prefix,
    conditions,
    decoded,
    matches,
    written,
)

__all__ = ["SqliteStore"]

T = TypeVar("T")

_APPLICATION = 0x41475354
"""What marks a file as a store of items ("AGST")."""

_MIGRATIONS: list[tuple[str, ...]] = [
    (
        # a version is a row's number: each write makes a new row, and AUTOINCREMENT never gives a number twice
        """CREATE TABLE items (
            version INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
            created REAL NOT NULL, changed REAL NOT NULL, expires REAL
        )""",
        "CREATE UNIQUE INDEX names ON items (namespace, key)",
        "CREATE INDEX ends ON items (expires) WHERE expires IS NOT NULL",
    ),
]
"""What makes each version of the format out of the one before; the first makes it out of nothing."""

_GET = """
    SELECT namespace, key, value, created, changed, expires, version FROM items
    WHERE namespace = :namespace AND key = :key AND (expires IS NULL OR expires > :now)"""
_FIND = """
    SELECT version, created FROM items
    WHERE namespace = :namespace AND key = :key AND (expires IS NULL OR expires > :now)"""
_PUT = "INSERT OR REPLACE INTO items (namespace, key, value, created, changed, expires) VALUES (?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM items WHERE namespace = :namespace AND key = :key AND (expires IS NULL OR expires > :now)"
_CLEAR = "DELETE FROM items WHERE namespace >= :first AND namespace < :end AND (expires IS NULL OR expires > :now)"
_CLEAR_ENDED = "DELETE FROM items WHERE namespace >= :first AND namespace < :end"
_SEARCH = """
    SELECT namespace, key, value, created, changed, expires, version FROM items
    WHERE namespace >= :first AND namespace < :end AND (expires IS NULL OR expires > :now) ORDER BY """
_ORDERS: dict[Order, str] = {"key": "namespace, key", "newest": "version DESC", "oldest": "version"}
_PAGE = " LIMIT :limit OFFSET :offset"
_NAMESPACE = """
    SELECT namespace FROM items
    WHERE namespace >= :first AND namespace < :end AND (expires IS NULL OR expires > :now)
    ORDER BY namespace LIMIT 1"""
_SWEEP = "DELETE FROM items WHERE expires <= ?"
_SWEEP_SOME = (
    "DELETE FROM items WHERE version IN (SELECT version FROM items WHERE expires <= ? ORDER BY expires LIMIT 10)"
)

_Row = tuple[str, str, str, float, float, float | None, int]


class SqliteStore:
    """Keeps items in the SQLite file `path`, which is made if there is none. What the methods do: `Store`.

    `timeout` is the seconds to wait for another process that writes, `clock` gives the seconds since 1970. The file's
    folder must be there, on a local disk; two files stand beside it while it is open: `-wal` and `-shm`. Tasks, event
    loops and threads may share a store; processes share the file, each with a store of its own. A use::

        async with SqliteStore("memory.db") as store:
            await store.put(("users", "42"), "name", {"text": "Ada"})
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = SqliteFile(path, application=_APPLICATION, migrations=_MIGRATIONS, timeout=timeout)
        self._clock = clock

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    async def __aenter__(self) -> Self:
        await self._file.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._file.close()

    async def put(self, namespace: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None) -> Item:
        """See `Store.put`."""
        (one,) = written((Put(namespace, key, value, ttl),))
        return await self._write(lambda db, now: _put(db, now, one))

    async def put_if(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, version: int, ttl: float | None = None
    ) -> Item | None:
        """See `Store.put_if`."""
        (one,) = written((Put(namespace, key, value, ttl),))
        return await self._write(lambda db, now: _put_if(db, now, one, version))

    async def put_many(self, items: Iterable[Put]) -> None:
        """See `Store.put_many`."""
        good = written(items)

        def put_all(db: sqlite3.Connection, now: float) -> None:
            for one in good:
                _put(db, now, one)

        await self._write(put_all)

    async def get(self, namespace: Namespace, key: str) -> Item | None:
        """See `Store.get`."""
        at = _at(namespace, key)

        def find(db: sqlite3.Connection, now: float) -> Item | None:
            row = db.execute(_GET, {**at, "now": now}).fetchone()
            return None if row is None else _item(row)

        return await self._read(find)

    async def delete(self, namespace: Namespace, key: str) -> bool:
        """See `Store.delete`."""
        at = _at(namespace, key)
        return await self._write(lambda db, now: db.execute(_DELETE, {**at, "now": now}).rowcount > 0)

    async def clear(self, prefix: Namespace) -> int:
        """See `Store.clear`."""
        within = _range(checked_prefix(prefix))

        def remove(db: sqlite3.Connection, now: float) -> int:
            found = db.execute(_CLEAR, {**within, "now": now}).rowcount
            db.execute(_CLEAR_ENDED, within)
            return found

        return await self._write(remove)

    async def search(
        self,
        prefix: Namespace = (),
        *,
        filter: Mapping[str, Any] | None = None,
        order: Order = "key",
        limit: int = 100,
        offset: int = 0,
    ) -> list[Item]:
        """See `Store.search`."""
        within = _range(checked_prefix(prefix))
        checked_page(limit, offset, order)
        wanted = conditions(filter)

        def find(db: sqlite3.Connection, now: float) -> list[Item]:
            values = {**within, "now": now, "limit": limit, "offset": offset}
            if not wanted:
                return [_item(row) for row in db.execute(_SEARCH + _ORDERS[order] + _PAGE, values)]
            items = map(_item, db.execute(_SEARCH + _ORDERS[order], values))
            good = (item for item in items if matches(item.value, wanted))
            return list(itertools.islice(good, offset, offset + limit))

        return await self._read(find)

    async def namespaces(
        self, prefix: Namespace = (), *, depth: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[Namespace]:
        """See `Store.namespaces`."""
        within = _range(checked_prefix(prefix))
        checked_page(limit, offset, depth=depth)

        def find(db: sqlite3.Connection, now: float) -> list[Namespace]:
            # from each namespace straight to the next by the index, however many items it has
            found: list[Namespace] = []
            at = {**within, "now": now}
            while len(found) < offset + limit and (row := db.execute(_NAMESPACE, at).fetchone()):
                namespace = _parts(row[0])
                found.append(namespace[:depth])
                cut = depth is not None and len(namespace) >= depth
                at["first"] = _range(found[-1])["end"] if cut else row[0] + "\x01"
            return found[offset:]

        return await self._read(find)

    async def sweep(self) -> int:
        """See `Store.sweep`. Room that was freed is given back to the file system."""
        found = await self._write(lambda db, now: db.execute(_SWEEP, (now,)).rowcount)
        await self._file.shrink()
        return found

    async def _write(self, fn: Callable[[sqlite3.Connection, float], T]) -> T:
        def work(db: sqlite3.Connection) -> T:
            now = self._clock()
            result = fn(db, now)
            db.execute(_SWEEP_SOME, (now,))
            return result

        return await self._file.do(work, writes=True, durable=True)

    async def _read(self, fn: Callable[[sqlite3.Connection, float], T]) -> T:
        return await self._file.do(lambda db: fn(db, self._clock()))

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self.path)!r} {'open' if self._file.is_open else 'closed'}>"


def _put_if(db: sqlite3.Connection, now: float, one: Written, version: int) -> Item | None:
    row = db.execute(_FIND, {**_at(one.namespace, one.key), "now": now}).fetchone()
    return _put(db, now, one) if version == (0 if row is None else row[0]) else None


def _put(db: sqlite3.Connection, now: float, one: Written) -> Item:
    at = _at(one.namespace, one.key)
    row = db.execute(_FIND, {**at, "now": now}).fetchone()
    created = now if row is None else row[1]
    expires = None if one.ttl is None else now + one.ttl
    values = (at["namespace"], one.key, one.value.decode(), created, now, expires)
    number = db.execute(_PUT, values).lastrowid
    return Item(one.namespace, one.key, decoded(one.value), created, now, expires, number or 0)


def _item(row: _Row) -> Item:
    namespace, key, value, created, changed, expires, version = row
    try:
        found = decoded(value)
    except (msgspec.MsgspecError, TypeError) as error:
        raise damaged(f"the value of {key!r} in {_parts(namespace)!r} is no JSON object") from error
    return Item(_parts(namespace), key, found, created, changed, expires, version)


def _at(namespace: Namespace, key: str) -> dict[str, Any]:
    return {"namespace": _text(checked_namespace(namespace)), "key": checked_key(key)}


def _text(namespace: Namespace) -> str:
    # sorts as the tuple does: what ends each part is lower than any character in one
    return "".join(f"{part}\x1f" for part in namespace)


def _parts(text: str) -> Namespace:
    return tuple(text.split("\x1f")[:-1])


def _range(prefix: Namespace) -> dict[str, Any]:
    """What the texts of all namespaces below a prefix lie between."""
    first = _text(prefix)
    return {"first": first, "end": first[:-1] + " " if first else b""}  # to SQLite any bytes are greater than any text
