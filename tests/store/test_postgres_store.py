"""What is special about a store in Postgres: its clock, its connections, and a server that goes away."""

import asyncio
import importlib
import sys
import textwrap
import time

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from agentgraph.errors import ConfigError, StoreError
from agentgraph.store import PostgresStore
from tests.services.postgres import PASSWORD, Postgres, postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


async def test_time_is_the_databases(postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn) as store:
        put = await store.put(("a",), "b", {}, ttl=60)
    assert put.created == pytest.approx(time.time(), abs=30)
    assert put.expires == pytest.approx(put.created + 60)


async def test_the_tables_are_made_in_the_schema_that_is_named(postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn, schema="my_memory") as store, PostgresStore(postgres_dsn) as other:
        await store.put(("a",), "b", {})
        assert await other.search() == []
    with psycopg.connect(postgres_dsn) as db:
        assert db.execute("SELECT key FROM my_memory.agentgraph_items").fetchall() == [("b",)]
        db.execute("DROP SCHEMA my_memory CASCADE")


async def test_several_processes_that_open_and_count_at_once_lose_nothing(postgres_dsn: str) -> None:
    code = textwrap.dedent("""
        import asyncio, sys
        from agentgraph.store import PostgresStore

        async def count():
            async with PostgresStore(sys.argv[1]) as store:
                for _ in range(25):
                    while True:
                        old = await store.get(("a",), "count")
                        n, version = (old.value["n"], old.version) if old else (0, 0)
                        if await store.put_if(("a",), "count", {"n": n + 1}, version=version):
                            break

        asyncio.run(count())
    """)
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, postgres_dsn) for _ in range(3)]
    assert [await process.wait() for process in started] == [0, 0, 0]
    async with PostgresStore(postgres_dsn) as store:
        found = await store.get(("a",), "count")
    assert found is not None
    assert found.value == {"n": 75}


async def test_a_callers_own_pool_is_used_and_left_open(postgres_dsn: str) -> None:
    pool = AsyncConnectionPool(postgres_dsn, min_size=1, open=False)
    with pytest.raises(StoreError, match="that was given is not open"):
        async with PostgresStore(pool):
            pass
    async with pool:
        async with PostgresStore(pool) as store:
            put = await store.put(("a",), "b", {})
        async with PostgresStore(pool) as store:
            assert await store.get(("a",), "b") == put
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")


async def test_after_the_server_was_killed_the_store_works_again(postgres_dsn: str, postgres: Postgres) -> None:
    async with PostgresStore(postgres_dsn, timeout=5) as store:
        await asyncio.gather(*(store.put(("a",), str(n), {}) for n in range(8)))
        other = await psycopg.AsyncConnection.connect(postgres_dsn)
        await other.execute("LOCK TABLE agentgraph_items")
        under_way = asyncio.ensure_future(store.put(("a",), "during", {}))
        while not await (await other.execute("SELECT 1 FROM pg_locks WHERE NOT granted")).fetchall():
            pass
        await asyncio.to_thread(postgres.kill)
        try:
            with pytest.raises(StoreError, match=r"Postgres user=postgres host=127\.0\.0\.1 .* failed: "):
                await under_way
        finally:
            await other.close()
            await asyncio.to_thread(postgres.start)
        await asyncio.gather(*(store.put(("a",), f"after {n}", {}) for n in range(8)))
        assert len(await store.search(("a",))) == 16


async def test_while_the_server_is_gone_an_operation_fails_in_its_time(postgres_dsn: str, postgres: Postgres) -> None:
    async with PostgresStore(postgres_dsn, timeout=0.3) as store:
        await asyncio.to_thread(postgres.kill)
        try:
            with pytest.raises(StoreError, match=r"no free connection within 0\.3 s|took longer than 0\.3 s"):
                await store.get(("a",), "b")
        finally:
            await asyncio.to_thread(postgres.start)
        assert await store.get(("a",), "b") is None


async def test_another_event_loop_is_told_that_the_store_is_not_its_own(postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn) as store:

        def elsewhere() -> None:
            asyncio.run(store.search())

        with pytest.raises(StoreError, match="opened in another event loop"):
            await asyncio.to_thread(elsewhere)


async def test_a_newer_format_is_refused(postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn):
        pass
    with psycopg.connect(postgres_dsn) as db:
        db.execute("UPDATE agentgraph_formats SET format = 9 WHERE part = 'items'")
    with pytest.raises(StoreError, match="has format 9, and this agentgraph knows formats up to 1"):
        async with PostgresStore(postgres_dsn):
            pass


async def test_no_error_and_no_repr_holds_the_password(postgres: Postgres) -> None:
    wrong = [
        postgres.dsn.replace("/postgres", "/nowhere"),
        postgres.dsn.replace("postgres:", "nobody:"),
        postgres.dsn.replace(str(postgres.port), "1"),
    ]
    for dsn in wrong:
        store = PostgresStore(dsn)
        assert PASSWORD not in repr(store)
        with pytest.raises(StoreError) as caught:
            await store.__aenter__()
        error: BaseException | None = caught.value
        while error is not None:
            assert PASSWORD not in str(error)
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize("dsn", ["host", "postgres://u:secret@h/?x=1", "password = 'secret", "password=x secret"])
def test_a_dsn_that_is_none_is_told_without_being_shown(dsn: str) -> None:
    with pytest.raises(ConfigError, match="dsn is no connection string") as caught:
        PostgresStore(dsn)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agentgraph.") and "postgres" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r'pip install "agentgraph-engine\[postgres\]"'):
        importlib.import_module("agentgraph.store.postgres")
