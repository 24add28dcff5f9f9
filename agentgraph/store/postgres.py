"""A store in a Postgres database. An extra: `pip install "agentgraph-engine[postgres]"`.

Each method is one statement: one round trip, done as a whole or not at all. Values are of type `json`, which keeps them
as they are written; filters compare them as `jsonb`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import msgspec

from agentgraph.checkpoint.postgres_pool import Pool, PostgresPool
from agentgraph.errors import StoreError
from agentgraph.store.protocol import Item, Namespace, Order, Put
from agentgraph.store.values import (
    Condition,
    Written,
    checked_key,
    checked_namespace,
    checked_page,
    checked_prefix,
    conditions,
    decoded,
    encoded,
    written,
)

__all__ = ["PostgresStore"]

_MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE SEQUENCE {s}agentgraph_versions",
        """CREATE TABLE {s}agentgraph_items (
            namespace text[] COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, value json NOT NULL,
            created float8 NOT NULL, changed float8 NOT NULL, expires float8, version bigint NOT NULL,
            PRIMARY KEY (namespace, key)
        )""",
        "CREATE INDEX ON {s}agentgraph_items (expires) WHERE expires IS NOT NULL",
    ),
]
"""What makes each version of the format out of the one before; the first makes it out of nothing."""

_NOW = """
    WITH now AS MATERIALIZED (
        SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS t
    )"""
_COLUMNS = "namespace, key, value::text, created, changed, expires, version"

# What has ended is removed on the way, a few items at a time, but for those that are written: a statement must not
# touch a row twice. Locked rows are passed over, so that nobody waits for anybody here.
_SWEEP_SOME = """,
    new AS MATERIALIZED (
        SELECT string_to_array(n, E'\\x1f') AS namespace, k AS key, v AS value, ttl
        FROM unnest(%(namespaces)s::text[], %(keys)s::text[], %(values)s::text[], %(ttls)s::float8[]) AS _(n, k, v, ttl)
    ),
    swept AS (
        DELETE FROM {s}agentgraph_items WHERE (namespace, key) IN (
            SELECT namespace, key FROM {s}agentgraph_items, now
            WHERE expires <= t AND (namespace, key) NOT IN (SELECT namespace, key FROM new)
            ORDER BY expires LIMIT 10 FOR UPDATE OF agentgraph_items SKIP LOCKED
        )
    )"""
_PUT = (
    _NOW  # noqa: S608  # no value in it
    + _SWEEP_SOME
    + """
    INSERT INTO {s}agentgraph_items AS old (namespace, key, value, created, changed, expires, version)
    SELECT namespace, key, value::json, t, t, t + ttl, nextval('{s}agentgraph_versions') FROM now, new
    ON CONFLICT (namespace, key) DO UPDATE SET
        created = CASE WHEN old.expires <= excluded.changed THEN excluded.created ELSE old.created END,
        value = excluded.value, changed = excluded.changed, expires = excluded.expires, version = excluded.version"""
)
_PUT_IF_ENDED = " WHERE old.expires <= excluded.changed"
_PUT_IF_VERSION = (
    _NOW
    + _SWEEP_SOME
    + """
    UPDATE {s}agentgraph_items AS old SET
        value = new.value::json, changed = t, expires = t + ttl, version = nextval('{s}agentgraph_versions')
    FROM now, new
    WHERE old.namespace = new.namespace AND old.key = new.key AND version = %(version)s
    AND (expires IS NULL OR expires > t)"""
)
_RETURNING = " RETURNING old.created, old.changed, old.expires, old.version"
_LIVE = "FROM {s}agentgraph_items, now WHERE (expires IS NULL OR expires > t)"
_AT = " AND namespace = %(namespace)s::text[] AND key = %(key)s"
_BELOW = " AND namespace >= %(first)s::text[] AND namespace < %(end)s::text[]"
_GET = f"{_NOW} SELECT {_COLUMNS} {_LIVE}{_AT}"
_DELETE = f"{_NOW} DELETE FROM {{s}}agentgraph_items USING now WHERE (expires IS NULL OR expires > t){_AT}"  # noqa: S608  # no value in it
_CLEAR = f"""{_NOW}, gone AS (DELETE FROM {{s}}agentgraph_items WHERE true{{below}} RETURNING expires)
    SELECT count(*) FROM gone, now WHERE expires IS NULL OR expires > t"""  # noqa: S608  # no value in it
_NAMESPACES = f"""{_NOW}
    SELECT DISTINCT namespace[1:%(depth)s] {_LIVE}{{below}} ORDER BY 1 LIMIT %(limit)s OFFSET %(offset)s"""
_SWEEP = f"{_NOW} DELETE FROM {{s}}agentgraph_items USING now WHERE expires <= t"  # noqa: S608  # no value in it
_ORDERS: dict[Order, str] = {"key": "namespace, key", "newest": "version DESC", "oldest": "version"}
_SIGNS = {"$eq": "=", "$ne": "<>", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_MOST_PARTS = 32


class PostgresStore:
    """Keeps items in a Postgres database. What the methods do: `Store`.

    `dsn` says where ("postgresql://user:password@host/database"), or is the caller's own open `AsyncConnectionPool`.
    The tables are made in `schema`, or in the first schema of the connection's search path. The pool has `min_size` to
    `max_size` connections; an operation may take `timeout` seconds, waiting included. Time is the database's, unless
    `clock` gives the seconds since 1970. A store belongs to the event loop that it was opened in. A use::

        async with PostgresStore("postgresql://localhost/app") as store:
            await store.put(("users", "42"), "name", {"text": "Ada"})
    """

    def __init__(
        self,
        dsn: str | Pool,
        *,
        schema: str | None = None,
        min_size: int = 1,
        max_size: int = 10,
        timeout: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._pool = PostgresPool(
            dsn,
            part="items",
            migrations=_MIGRATIONS,
            schema=schema,
            min_size=min_size,
            max_size=max_size,
            timeout=timeout,
        )
        self._clock = clock

    async def __aenter__(self) -> Self:
        """Connect; make the tables, or bring them up to date. It may be entered several times."""
        await self._pool.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections, unless they are the caller's."""
        await self._pool.close()

    async def put(self, namespace: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None) -> Item:
        """See `Store.put`."""
        good = written((Put(namespace, key, value, ttl),))
        ((row,), _) = await self._do(_PUT + _RETURNING, **_columns(good))
        return _put(good[0], row)

    async def put_if(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, version: int, ttl: float | None = None
    ) -> Item | None:
        """See `Store.put_if`."""
        good = written((Put(namespace, key, value, ttl),))
        statement = _PUT_IF_VERSION if version else _PUT + _PUT_IF_ENDED
        rows, _ = await self._do(statement + _RETURNING, **_columns(good), version=version)
        return _put(good[0], rows[0]) if rows else None

    async def put_many(self, items: Iterable[Put]) -> None:
        """See `Store.put_many`."""
        good = written(items)
        if good:
            await self._do(_PUT, **_columns(good))

    async def get(self, namespace: Namespace, key: str) -> Item | None:
        """See `Store.get`."""
        rows, _ = await self._do(_GET, namespace=list(checked_namespace(namespace)), key=checked_key(key))
        return self._item(rows[0]) if rows else None

    async def delete(self, namespace: Namespace, key: str) -> bool:
        """See `Store.delete`."""
        _, count = await self._do(_DELETE, namespace=list(checked_namespace(namespace)), key=checked_key(key))
        return count > 0

    async def clear(self, prefix: Namespace) -> int:
        """See `Store.clear`."""
        below, values = _below(checked_prefix(prefix))
        ((row,), _) = await self._do(_CLEAR.replace("{below}", below), **values)
        return row[0]

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
        below, values = _below(checked_prefix(prefix))
        checked_page(limit, offset, order)
        values |= {"limit": limit, "offset": offset}
        statement = f"{_NOW} SELECT {_COLUMNS} {_LIVE}{below}"
        for number, condition in enumerate(conditions(filter)):
            clause, operand = _clause(condition, f"%(f{number})s::text", f"%(v{number})s")
            statement += f" AND {clause}"
            values |= {f"f{number}": condition.field, f"v{number}": operand}
        rows, _ = await self._do(f"{statement} ORDER BY {_ORDERS[order]} LIMIT %(limit)s OFFSET %(offset)s", **values)
        return [self._item(row) for row in rows]

    async def namespaces(
        self, prefix: Namespace = (), *, depth: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[Namespace]:
        """See `Store.namespaces`."""
        below, values = _below(checked_prefix(prefix))
        checked_page(limit, offset, depth=depth)
        values |= {"depth": min(depth or _MOST_PARTS, _MOST_PARTS), "limit": limit, "offset": offset}
        rows, _ = await self._do(_NAMESPACES.replace("{below}", below), **values)
        return [tuple(row[0]) for row in rows]

    async def sweep(self) -> int:
        """See `Store.sweep`."""
        _, count = await self._do(_SWEEP)
        return count

    async def _do(self, statement: str, **values: Any) -> tuple[list[tuple[Any, ...]], int]:
        return await self._pool.run(statement, values | {"now": None if self._clock is None else self._clock()})

    def _item(self, row: tuple[Any, ...]) -> Item:
        namespace, key, value, created, changed, expires, version = row
        try:
            found = decoded(value)
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"the store in {self._pool.where} is damaged: the value of {key!r} in {tuple(namespace)!r} "
                f"is no JSON object"
            ) from error
        return Item(tuple(namespace), key, found, created, changed, expires, version)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._pool.where!r} {'open' if self._pool.is_open else 'closed'}>"


def _columns(items: list[Written]) -> dict[str, Any]:
    return {
        "namespaces": ["\x1f".join(one.namespace) for one in items],
        "keys": [one.key for one in items],
        "values": [one.value.decode() for one in items],
        "ttls": [one.ttl for one in items],
    }


def _put(one: Written, row: tuple[Any, ...]) -> Item:
    created, changed, expires, version = row
    return Item(one.namespace, one.key, decoded(one.value), created, changed, expires, version)


def _below(prefix: Namespace) -> tuple[str, dict[str, Any]]:
    """The clause for a namespace's beginning, as a range that an index serves."""
    if not prefix:
        return "", {}
    return _BELOW, {"first": list(prefix), "end": [*prefix[:-1], prefix[-1] + "\x01"]}


def _clause(condition: Condition, field: str, value: str) -> tuple[str, Any]:
    """A condition as SQL, and the value that goes with it. What must hold: `values.matches`."""
    found = f"coalesce((value -> {field})::jsonb, 'null')"
    if condition.operator == "$in":
        return f"{found} = ANY ({value}::text[]::jsonb[])", [encoded(one).decode() for one in condition.operand]
    sign = _SIGNS[condition.operator]
    if sign in ("=", "<>"):
        return f"{found} {sign} {value}::jsonb", encoded(condition.operand).decode()
    if isinstance(condition.operand, str):
        clause = f'(value ->> {field}) COLLATE "C" {sign} {value}::text'
        return f"(jsonb_typeof({found}) = 'string' AND {clause})", condition.operand
    clause = f"{found} {sign} {value}::jsonb"
    return f"(jsonb_typeof({found}) = 'number' AND {clause})", encoded(condition.operand).decode()
