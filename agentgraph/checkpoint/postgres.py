"""The store of threads in a Postgres database. An extra: `pip install "agentgraph-engine[postgres]"`.

The rules:
- Each method is one statement: one round trip, done as a whole or not at all. What an append does is a function in the
  database, which locks the thread's row first: writers of one thread come one after the other.
- Leases go by the database's clock. A thread's first epoch is a number of a sequence, from which each claim takes one:
  so no epoch comes back after a deletion.
- How connections are made and errors told: `postgres_pool.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from agentgraph.checkpoint.postgres_pool import Pool, PostgresPool
from agentgraph.checkpoint.protocol import Entry, Line, Span, ThreadInfo
from agentgraph.errors import FencedError

__all__ = ["PostgresSaver"]

_MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE SEQUENCE {s}agentgraph_epochs",
        """CREATE TABLE {s}agentgraph_threads (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
            graph text NOT NULL, owner text NOT NULL, epoch bigint NOT NULL, status text NOT NULL, expires float8,
            deaths integer NOT NULL DEFAULT 0, last bigint NOT NULL DEFAULT 0, line integer NOT NULL DEFAULT 0,
            created float8 NOT NULL, changed float8 NOT NULL
        )""",
        # what begins after a crash looks for these, however many threads there are
        "CREATE INDEX ON {s}agentgraph_threads (name) WHERE status = 'running'",
        """CREATE TABLE {s}agentgraph_lines (
            thread bigint NOT NULL REFERENCES {s}agentgraph_threads ON DELETE CASCADE,
            line integer NOT NULL, parent integer, after bigint NOT NULL, PRIMARY KEY (thread, line)
        )""",
        """CREATE TABLE {s}agentgraph_entries (
            thread bigint NOT NULL REFERENCES {s}agentgraph_threads ON DELETE CASCADE,
            seq bigint NOT NULL, line integer NOT NULL, kind text NOT NULL, key text NOT NULL, "full" boolean NOT NULL,
            head bytea NOT NULL, data bytea NOT NULL, PRIMARY KEY (thread, seq)
        )""",
        """CREATE INDEX ON {s}agentgraph_entries (thread, line, seq) WHERE kind <> 'record'""",
        """CREATE INDEX ON {s}agentgraph_entries (thread, line, seq) WHERE "full" """,
        """CREATE FUNCTION {s}agentgraph_now() RETURNS float8 LANGUAGE sql VOLATILE AS
            'SELECT extract(epoch FROM clock_timestamp())::float8'""",
        # the answer is '' where all went well, 'fenced', or the number of a line that is not there
        """CREATE FUNCTION {s}agentgraph_append(
            the_name text, the_epoch bigint, lease float8, new_status text, is_durable boolean,
            drop_lines integer[], drop_afters bigint[], drop_uptos bigint[],
            new_line integer, new_parent integer, new_after bigint,
            seqs bigint[], in_lines integer[], kinds text[], keys text[], fulls boolean[], heads bytea[], datas bytea[]
        ) RETURNS text LANGUAGE plpgsql AS $body$
        DECLARE
            t {s}agentgraph_threads;
            missing integer;
        BEGIN
            IF NOT is_durable THEN
                SET LOCAL synchronous_commit = off;
            END IF;
            SELECT * INTO t FROM {s}agentgraph_threads WHERE name = the_name AND epoch = the_epoch FOR UPDATE;
            IF NOT FOUND THEN
                RETURN 'fenced';
            END IF;
            SELECT l INTO missing FROM unnest(in_lines) AS _(l)
            WHERE l <> 0 AND l <> t.line AND l IS DISTINCT FROM new_line
            AND NOT EXISTS (SELECT FROM {s}agentgraph_lines WHERE thread = t.id AND line = l) LIMIT 1;
            IF FOUND THEN
                RETURN missing;
            END IF;
            IF cardinality(drop_lines) > 0 THEN
                DELETE FROM {s}agentgraph_entries AS e USING unnest(drop_lines, drop_afters, drop_uptos) AS d(l, a, u)
                WHERE e.thread = t.id AND e.line = d.l AND e.seq > d.a AND e.seq <= d.u;
            END IF;
            IF new_line IS NOT NULL THEN
                INSERT INTO {s}agentgraph_lines VALUES (t.id, new_line, new_parent, new_after)
                ON CONFLICT (thread, line) DO UPDATE SET parent = excluded.parent, after = excluded.after;
            END IF;
            INSERT INTO {s}agentgraph_entries
            SELECT t.id, * FROM unnest(seqs, in_lines, kinds, keys, fulls, heads, datas)
            ON CONFLICT (thread, seq) DO UPDATE SET line = excluded.line, kind = excluded.kind, key = excluded.key,
                "full" = excluded."full", head = excluded.head, data = excluded.data;
            UPDATE {s}agentgraph_threads SET
                last = greatest(last, (SELECT max(s) FROM unnest(seqs) AS _(s))),
                line = coalesce(in_lines[cardinality(in_lines)], line),
                expires = {s}agentgraph_now() + lease,
                changed = {s}agentgraph_now(),
                status = coalesce(new_status, status),
                deaths = CASE WHEN EXISTS (SELECT FROM unnest(kinds) AS _(k) WHERE k <> 'record') THEN 0
                    ELSE deaths END
            WHERE id = t.id;
            RETURN '';
        END $body$""",
    ),
]
"""What makes each version of the format out of the one before; the first makes it out of nothing."""

# the newest checkpoint is looked for on the line that was written to last, and then on what comes before it
_INFO = """
    name, graph, epoch, status, expires IS NOT NULL AND expires > {s}agentgraph_now(), deaths, last, t.line,
    (
        WITH RECURSIVE part(line, upto, after, parent) AS (
            SELECT t.line, t.last, coalesce(l.after, 0), l.parent
            FROM (SELECT) AS _ LEFT JOIN {s}agentgraph_lines AS l ON l.thread = t.id AND l.line = t.line
            UNION ALL
            SELECT p.parent, p.after, coalesce(l.after, 0), l.parent
            FROM part AS p LEFT JOIN {s}agentgraph_lines AS l ON l.thread = t.id AND l.line = p.parent
            WHERE p.parent IS NOT NULL
        )
        SELECT coalesce(max(newest), 0) FROM part AS p, LATERAL (
            SELECT e.seq AS newest FROM {s}agentgraph_entries AS e
            WHERE e.thread = t.id AND e.line = p.line AND e.seq > p.after AND e.seq <= p.upto AND e.kind <> 'record'
            ORDER BY e.seq DESC LIMIT 1
        ) AS _
    ),
    ARRAY(SELECT ARRAY[l.line, l.parent, l.after] FROM {s}agentgraph_lines AS l WHERE l.thread = t.id ORDER BY l.line),
    created, changed"""
_CLAIM = (
    """
    INSERT INTO {s}agentgraph_threads AS t (name, graph, owner, epoch, status, expires, created, changed)
    SELECT %(name)s, %(graph)s, %(owner)s, nextval('{s}agentgraph_epochs'), 'new', now + %(lease)s::float8, now, now
    FROM {s}agentgraph_now() AS now
    ON CONFLICT (name) DO UPDATE SET epoch = t.epoch + 1, owner = excluded.owner, expires = excluded.expires,
        deaths = t.deaths + CASE WHEN t.expires IS NOT NULL AND t.status = 'running' THEN 1 ELSE 0 END
    WHERE t.expires IS NULL OR t.expires <= excluded.changed
    RETURNING """  # noqa: S608  # no value in it
    + _INFO
)
_APPEND = """
    SELECT {s}agentgraph_append(
        %(name)s, %(epoch)s, %(lease)s::float8, %(status)s, %(durable)s,
        %(drop_lines)s::integer[], %(drop_afters)s::bigint[], %(drop_uptos)s::bigint[],
        %(line)s, %(parent)s, %(after)s,
        %(seqs)s::bigint[], %(lines)s::integer[], %(kinds)s::text[], %(keys)s::text[], %(fulls)s::boolean[],
        %(heads)s::bytea[], %(datas)s::bytea[]
    )"""
_RENEW = """
    UPDATE {s}agentgraph_threads SET expires = {s}agentgraph_now() + %(lease)s
    WHERE name = %(name)s AND epoch = %(epoch)s RETURNING id"""
_RELEASE = """
    UPDATE {s}agentgraph_threads SET expires = NULL, status = coalesce(%(status)s::text, status),
        changed = CASE WHEN %(status)s::text IS NULL THEN changed ELSE {s}agentgraph_now() END
    WHERE name = %(name)s AND epoch = %(epoch)s RETURNING id"""
_THREAD = f"SELECT {_INFO} FROM {{s}}agentgraph_threads AS t WHERE name = %(name)s"  # noqa: S608  # no value in it
_THREADS = f"SELECT {_INFO} FROM {{s}}agentgraph_threads AS t WHERE name > %(after)s"  # noqa: S608  # no value in it
_WITHIN = """
    {s}agentgraph_threads AS t
    JOIN unnest(%(lines)s::integer[], %(afters)s::bigint[], %(uptos)s::bigint[]) AS w(line, after, upto)
        ON t.name = %(name)s
    CROSS JOIN LATERAL (
        SELECT * FROM {s}agentgraph_entries AS e
        WHERE e.thread = t.id AND e.line = w.line AND e.seq > w.after AND e.seq <= w.upto AND"""
# of each span as much as is asked for, by an index, however long the thread is
_READ = f"""
    SELECT DISTINCT ON (seq) seq, e.line, kind, key, head, data, "full"
    FROM {_WITHIN} e.seq >= coalesce(
        (SELECT max(e.seq) FROM {_WITHIN} e."full" ORDER BY e.seq DESC LIMIT 1) AS e), 0)) AS e
    ORDER BY seq"""  # noqa: S608  # no value in it
_HEADS = f"""
    SELECT DISTINCT ON (seq) seq, e.line, kind, key, head, ''::bytea, "full"
    FROM {_WITHIN} e.kind <> 'record' ORDER BY e.seq DESC LIMIT %(limit)s) AS e
    ORDER BY seq DESC LIMIT %(limit)s"""  # noqa: S608  # no value in it
_DELETE = "DELETE FROM {s}agentgraph_threads WHERE name = %(name)s"
_MOST = (1 << 62) - 1


class PostgresSaver:
    """Keeps threads in a Postgres database, for several machines.

    `dsn` says where ("postgresql://user:password@host/database"), or is the caller's own open `AsyncConnectionPool`.
    The tables are made in `schema`, or in the first schema of the connection's search path. The pool has `min_size` to
    `max_size` connections; an operation may take `timeout` seconds, waiting included. A saver belongs to the event loop
    that it was opened in. A use::

        async with PostgresSaver("postgresql://localhost/app") as saver:
            app = graph.compile(checkpointer=saver)
    """

    def __init__(
        self,
        dsn: str | Pool,
        *,
        schema: str | None = None,
        min_size: int = 1,
        max_size: int = 10,
        timeout: float = 30.0,
    ) -> None:
        self._pool = PostgresPool(
            dsn,
            part="threads",
            migrations=_MIGRATIONS,
            schema=schema,
            min_size=min_size,
            max_size=max_size,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"<PostgresSaver {self._pool.where!r} {'open' if self._pool.is_open else 'closed'}>"

    async def __aenter__(self) -> Self:
        """Connect; make the tables, or bring them up to date. It may be entered several times."""
        await self._pool.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections, unless they are the caller's."""
        await self._pool.close()

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:
        """See `Checkpointer.claim`."""
        rows = await self._do(_CLAIM, name=_put(thread_id), graph=_put(graph), owner=_put(owner), lease=lease)
        return _info(rows[0]) if rows else None

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
        entries = list({entry.seq: entry for entry in entries}.values())
        ((answer,),) = await self._do(
            _APPEND,
            name=_put(thread_id),
            epoch=epoch,
            lease=None if lease is None else float(lease),
            status=None if status is None else _put(status),
            durable=durable,
            drop_lines=[span.line for span in drop],
            drop_afters=[max(span.after, 0) for span in drop],
            drop_uptos=[min(span.upto, _MOST) for span in drop],
            line=None if new_line is None else new_line.line,
            parent=None if new_line is None else new_line.parent,
            after=None if new_line is None else new_line.after,
            seqs=[entry.seq for entry in entries],
            lines=[entry.line for entry in entries],
            kinds=[_put(entry.kind) for entry in entries],
            keys=[_put(entry.key) for entry in entries],
            fulls=[entry.full for entry in entries],
            heads=[entry.head for entry in entries],
            datas=[entry.data for entry in entries],
        )
        if answer == "fenced":
            raise FencedError(thread_id, epoch)
        if answer:
            raise ValueError(f"thread {thread_id!r} has no line {answer}")

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        """See `Checkpointer.renew`."""
        if not await self._do(_RENEW, name=_put(thread_id), epoch=epoch, lease=lease):
            raise FencedError(thread_id, epoch)

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        """See `Checkpointer.release`."""
        said = None if status is None else _put(status)
        if not await self._do(_RELEASE, name=_put(thread_id), epoch=epoch, status=said):
            raise FencedError(thread_id, epoch)

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        """See `Checkpointer.thread`."""
        rows = await self._do(_THREAD, name=_put(thread_id))
        return _info(rows[0]) if rows else None

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        """See `Checkpointer.threads`."""
        statement, values = _THREADS, dict[str, Any](after=_put(after), limit=max(limit, 0))
        if graph is not None:
            statement += " AND graph = %(graph)s"
            values["graph"] = _put(graph)
        if status is not None:
            statement += " AND status = %(status)s"
            values["status"] = _put(status)
        return [_info(row) for row in await self._do(statement + " ORDER BY name LIMIT %(limit)s", **values)]

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        """See `Checkpointer.read`."""
        return [_entry(row) for row in await self._do(_READ, name=_put(thread_id), **_spans(within))]

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        """See `Checkpointer.heads`."""
        values = _spans(within) | {"limit": max(limit, 0)}
        return [_entry(row) for row in await self._do(_HEADS, name=_put(thread_id), **values)]

    async def delete(self, thread_id: str) -> None:
        """See `Checkpointer.delete`."""
        await self._do(_DELETE, name=_put(thread_id))

    async def _do(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        rows, _ = await self._pool.run(statement, values, binary=True)  # as text, bytes take twice the room
        return rows


def _put(text: str) -> str:
    # Postgres takes no NUL in a text; what stands for it here keeps the order of texts
    return text.replace("\1", "\1\2").replace("\0", "\1\1") if "\0" in text or "\1" in text else text


def _got(text: str) -> str:
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def _spans(within: Sequence[Span]) -> dict[str, Any]:
    return {
        "lines": [span.line for span in within],
        "afters": [max(span.after, 0) for span in within],
        "uptos": [min(span.upto, _MOST) for span in within],
    }


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, line, kind, key, head, data, full = row
    return Entry(seq, line, _got(kind), _got(key), bytes(head), bytes(data), full)


def _info(row: tuple[Any, ...]) -> ThreadInfo:
    name, graph, epoch, status, claimed, deaths, last, line, checkpoint, lines, created, changed = row
    return ThreadInfo(
        thread_id=_got(name),
        graph=_got(graph),
        epoch=epoch,
        status=_got(status),
        claimed=claimed,
        deaths=deaths,
        last=last,
        line=line,
        checkpoint=checkpoint,
        lines=(Line(0), *(Line(*one) for one in lines)),
        created=created,
        changed=changed,
    )
