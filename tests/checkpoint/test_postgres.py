"""Threads in Postgres: the public suite, and a server, other processes and an address that go wrong."""

import asyncio
import sys
import textwrap

import psycopg
import pytest

from agentgraph.checkpoint import Checkpointer, Entry, Span
from agentgraph.checkpoint.postgres import PostgresSaver
from agentgraph.errors import StoreError
from agentgraph.testing.checkpointer_suite import CheckpointerSuite
from tests.services.postgres import PASSWORD, Postgres, postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


class TestPostgresSaver(CheckpointerSuite):
    @pytest.fixture(autouse=True)
    def place(self, postgres_dsn: str) -> None:
        self.dsn = postgres_dsn

    def saver(self) -> Checkpointer:
        return PostgresSaver(self.dsn)


async def test_a_killed_server_fails_what_is_under_way_and_what_was_acknowledged_is_there(
    postgres_dsn: str, postgres: Postgres
) -> None:
    written: list[int] = []
    async with PostgresSaver(postgres_dsn, timeout=5) as saver:
        info = await saver.claim("t", "graph", "me", 3600)
        assert info is not None
        started = asyncio.Event()

        async def write() -> None:
            for seq in range(1, 100_000):
                await saver.append("t", info.epoch, [Entry(seq, 0, "step", "", b"", b"x")], lease=3600, durable=True)
                written.append(seq)
                if seq == 5:
                    started.set()

        writer = asyncio.ensure_future(write())
        await started.wait()
        await asyncio.to_thread(postgres.kill)
        try:
            with pytest.raises(StoreError, match=r"Postgres user=postgres host=127\.0\.0\.1"):
                await writer
        finally:
            await asyncio.to_thread(postgres.start)
        found = [entry.seq for entry in await saver.read("t", [Span(0, 0, 100_000)])]
        assert found[: len(written)] == written
        assert len(found) <= len(written) + 1
        await saver.append("t", info.epoch, [Entry(found[-1] + 1, 0, "step", "", b"", b"x")], lease=3600)


async def test_of_several_processes_one_at_a_time_has_a_thread(postgres_dsn: str) -> None:
    code = textwrap.dedent("""
        import asyncio, sys
        from agentgraph.checkpoint.postgres import PostgresSaver
        from agentgraph.checkpoint import Entry

        async def turns():
            async with PostgresSaver(sys.argv[1]) as saver:
                for _ in range(20):
                    while (info := await saver.claim("t", "graph", "me", 60)) is None:
                        pass
                    await saver.append("t", info.epoch, [Entry(info.last + 1, 0, "step", "", b"", b"x")], lease=60)
                    await saver.release("t", info.epoch)

        asyncio.run(turns())
    """)
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, postgres_dsn) for _ in range(2)]
    assert [await process.wait() for process in started] == [0, 0]
    async with PostgresSaver(postgres_dsn) as saver:
        info = await saver.thread("t")
    assert info is not None
    assert (info.last, info.claimed) == (40, False)


async def test_the_tables_are_made_in_the_schema_that_is_named(postgres_dsn: str) -> None:
    async with PostgresSaver(postgres_dsn, schema="my_runs") as saver:
        info = await saver.claim("t", "graph", "me", 60)
        assert info is not None
        await saver.append("t", info.epoch, [Entry(1, 0, "step", "", b"", b"x")], lease=60)
    with psycopg.connect(postgres_dsn) as db:
        assert db.execute("SELECT seq FROM my_runs.agentgraph_entries").fetchall() == [(1,)]
        db.execute("DROP SCHEMA my_runs CASCADE")


async def test_a_durable_append_waits_for_the_disk_and_another_does_not(postgres_dsn: str) -> None:
    unflushed = "SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()"
    async with PostgresSaver(postgres_dsn) as saver:
        info = await saver.claim("t", "graph", "me", 60)
        assert info is not None
        with psycopg.connect(postgres_dsn, autocommit=True) as db:
            seen: dict[bool, list[object]] = {True: [], False: []}
            for seq in range(1, 21):
                durable = seq % 2 == 0
                entry = Entry(seq, 0, "step", "", b"", b"x")
                await saver.append("t", info.epoch, [entry], lease=60, durable=durable)
                seen[durable].append(db.execute(unflushed).fetchone())
    assert (True,) in seen[False]
    assert (False,) in seen[True]


async def test_a_newer_format_is_refused(postgres_dsn: str) -> None:
    async with PostgresSaver(postgres_dsn):
        pass
    with psycopg.connect(postgres_dsn) as db:
        db.execute("UPDATE agentgraph_formats SET format = 9 WHERE part = 'threads'")
    with pytest.raises(StoreError, match="has format 9, and this agentgraph knows formats up to 1"):
        async with PostgresSaver(postgres_dsn):
            pass


async def test_no_error_and_no_repr_holds_the_password(postgres: Postgres) -> None:
    saver = PostgresSaver(postgres.dsn.replace("postgres:", "nobody:"))
    with pytest.raises(StoreError) as caught:
        await saver.__aenter__()
    assert PASSWORD not in f"{saver!r} {caught.value} {caught.value.__cause__}"


async def test_another_event_loop_is_told_that_the_saver_is_not_its_own(postgres_dsn: str) -> None:
    async with PostgresSaver(postgres_dsn) as saver:

        def elsewhere() -> None:
            asyncio.run(saver.threads())

        with pytest.raises(StoreError, match="opened in another event loop"):
            await asyncio.to_thread(elsewhere)
