"""A pool of connections to a Postgres database that has tables of ours. The only file that opens one.

The rules:
- The pool belongs to the event loop in which it was opened; another one is told so.
- An operation has one connection, is over within `timeout`, and fails at once where its connection breaks. The next
  one gets a connection that was not broken a moment ago: after an outage nobody has to open anything anew.
- No error and no `repr` holds a password.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import tuple_row
    from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
except ImportError as _absent:
    raise ImportError('Postgres needs psycopg: pip install "agentgraph-engine[postgres]"') from _absent

from agentgraph.config import positive
from agentgraph.errors import ConfigError, StoreError
from agentgraph.tasks import all_ended

__all__ = ["Pool", "PostgresPool"]

T = TypeVar("T")

_Connection: TypeAlias = psycopg.AsyncConnection[Any]
Pool: TypeAlias = AsyncConnectionPool[Any]

_LOCK = 0x41475448
"""Held while tables are made ("AGTH")."""
_FORMATS = "CREATE TABLE IF NOT EXISTS {s}agentgraph_formats (part text PRIMARY KEY, format integer NOT NULL)"
_SHOWN = ("user", "host", "hostaddr", "port", "dbname", "service")


class PostgresPool:
    """Connections to the database at `dsn`, or the caller's own pool, which stays open when this is closed.

    `part` is the name under which the format of our tables is kept, `migrations` the statements that make each version
    of it out of the one before (the first out of nothing), with `{s}` before each name; `schema` is where the tables
    are, or None for the first on the connection's search path; `timeout` the seconds that an operation may take.
    """

    def __init__(
        self,
        dsn: str | Pool,
        *,
        part: str,
        migrations: Sequence[Sequence[str]],
        schema: str | None,
        min_size: int,
        max_size: int,
        timeout: float,
    ) -> None:
        positive("timeout", timeout, needed=True)
        positive("max_size", max_size, whole=True, needed=True)
        if isinstance(min_size, bool) or not isinstance(min_size, int) or not 0 <= min_size <= max_size:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"min_size must be a whole number from 0 to max_size ({max_size}); found {min_size!r}")
        if schema is not None and not re.fullmatch("[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigError(f"schema must be a name of small letters, digits and underscores; found {schema!r}")
        self._own = isinstance(dsn, str)
        self._dsn = dsn if isinstance(dsn, str) else ""
        self._where = _where(dsn) if isinstance(dsn, str) else f"pool {dsn.name!r}"
        self._given = None if isinstance(dsn, str) else dsn
        self._part = part
        self._migrations = migrations
        self._schema = schema
        self._sizes = (min_size, max_size)
        self._timeout = timeout
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._pool: Pool | None = None

    @property
    def where(self) -> str:
        """What tells a person which database this is."""
        return self._where

    @property
    def is_open(self) -> bool:
        """Whether somebody has opened it."""
        return self._pool is not None

    async def open(self) -> None:
        """Connect, and make the tables or bring them up to date, unless that was done.

        Raises `StoreError` where the database cannot be reached, or its format is newer. After cancellation it is
        closed again, unless others use it.
        """
        loop = asyncio.get_running_loop()
        if not self._users:
            self._loop, self._opening = loop, asyncio.Lock()
        self._check_loop()
        self._users += 1
        try:
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close it, when nobody else uses it. After cancellation that is done all the same."""
        self._users -= 1
        if self._users:
            return
        pool, self._pool = self._pool, None
        if pool is not None and self._own:
            closing = asyncio.ensure_future(pool.close())
            await all_ended((closing,))

    async def run(
        self, statement: str, values: Mapping[str, Any], *, binary: bool = False
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Do one statement: the rows that it gives, in `binary` form on the way, and how many it was about.

        After cancellation it has been done wholly or not at all.
        """
        pool = self._pool
        if pool is None:
            raise StoreError(f"the store in {self._where} is not open; use it inside `async with`")
        self._check_loop()
        query = self._sql(statement)

        async def run() -> tuple[list[tuple[Any, ...]], int]:
            async with (
                pool.connection(self._timeout) as connection,
                connection.cursor(row_factory=tuple_row, binary=binary) as cursor,
            ):
                await cursor.execute(query, values)
                return await cursor.fetchall() if cursor.description else [], cursor.rowcount

        return await self._told(run())

    def _sql(self, statement: str) -> bytes:
        return statement.replace("{s}", "" if self._schema is None else f"{self._schema}.").encode()

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise StoreError(
                f"the store in {self._where} was opened in another event loop, to which its connections belong; "
                f"open one in each loop"
            )

    async def _connected(self) -> Pool:
        if self._given is not None:
            given = self._given
            if given.closed:
                raise StoreError(f"the {self._where} that was given is not open; open it first, and close it last")

            async def migrate_given() -> None:
                async with given.connection(self._timeout) as connection:
                    await self._migrate(connection)

            await self._told(migrate_given())
            return given

        async def migrate() -> None:
            # not by the pool, which does not tell why it gets no connection
            connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
            try:
                await self._migrate(connection)
            finally:
                await connection.close()

        await self._told(migrate())
        pool: Pool
        pool = AsyncConnectionPool(
            self._dsn,
            kwargs={"autocommit": True},
            min_size=self._sizes[0],
            max_size=self._sizes[1],
            timeout=self._timeout,
            reconnect_timeout=self._timeout,
            check=lambda connection: _check(pool, connection),
            open=False,
        )
        await pool.open()
        return pool

    async def _migrate(self, db: _Connection) -> None:
        newest = len(self._migrations)
        async with db.transaction():
            cursor = db.cursor(row_factory=tuple_row)  # whatever a given pool's connections have
            await cursor.execute("SELECT to_regclass(%s)", (self._sql("{s}agentgraph_formats").decode(),))
            there = await cursor.fetchone()
            if there is not None and there[0] is not None and await self._format(cursor) == newest:
                return
            await cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if self._schema is not None:
                await cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}".encode())
            await cursor.execute(self._sql(_FORMATS))
            found = await self._format(cursor)
            if found > newest:
                raise StoreError(
                    f"the store in {self._where} has format {found}, and this agentgraph knows formats up to {newest}; "
                    f"use a newer one (nothing was written to the database)"
                )
            for statements in self._migrations[found:]:
                for statement in statements:
                    await cursor.execute(self._sql(statement))
            await cursor.execute(
                self._sql(
                    "INSERT INTO {s}agentgraph_formats VALUES (%s, %s)"
                    " ON CONFLICT (part) DO UPDATE SET format = excluded.format"
                ),
                (self._part, newest),
            )

    async def _format(self, cursor: psycopg.AsyncCursor[Any]) -> int:
        await cursor.execute(self._sql("SELECT format FROM {s}agentgraph_formats WHERE part = %s"), (self._part,))
        row = await cursor.fetchone()
        return 0 if row is None else row[0]

    async def _told(self, work: Awaitable[T]) -> T:
        """Raise what goes wrong in `work` as an error of ours."""
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StoreError(
                f"the store in {self._where} took longer than {self._timeout:g} s (timeout=...)"
            ) from error
        except PoolTimeout as error:
            raise StoreError(
                f"the store in {self._where} had no free connection within {self._timeout:g} s: the database is gone, "
                f"or all connections are in use (max_size=...)"
            ) from error
        except PoolClosed as error:
            raise StoreError(f"the store in {self._where} was closed meanwhile") from error
        except psycopg.Error as error:
            raise StoreError(
                f"the store in {self._where} failed: {str(error).strip() or type(error).__name__}"
            ) from error


async def _check(pool: Pool, connection: _Connection) -> None:
    """Raise unless a connection that lay in the pool is alive, without asking the server."""
    try:
        connection.pgconn.consume_input()  # a server's last words may stand before the end,
        connection.pgconn.consume_input()  # which only the next read finds
    except psycopg.OperationalError:
        await pool.drain()  # what has broken one has broken the others
        raise


def _where(dsn: str) -> str:
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        parts = None
    if parts is None:  # outside of the block: the error that libpq gives quotes the text, password and all
        raise ConfigError(
            "dsn is no connection string of Postgres; expected 'postgresql://user:password@host:5432/database' "
            "or 'host=... dbname=...' (it is not shown here, for it may hold a password)"
        )
    return "Postgres" + "".join(f" {name}={parts[name]}" for name in _SHOWN if parts.get(name))
