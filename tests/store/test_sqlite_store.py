"""What is special about a store in a file: other processes, and what may happen to the file."""

import asyncio
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest

from agentgraph.checkpoint import sqlite as saver_format
from agentgraph.errors import StoreError
from agentgraph.store import SqliteStore


async def test_items_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "memory.db") as store:
        put = await store.put(("users", "42"), "name", {"text": "Ada"})
    async with SqliteStore(tmp_path / "memory.db") as store:
        assert await store.get(("users", "42"), "name") == put
        again = await store.put(("users", "42"), "name", {"text": "Ada"})
    assert again.version > put.version


async def test_several_processes_that_count_on_one_file_lose_nothing(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import asyncio, sys
        from agentgraph.store import SqliteStore

        async def count():
            async with SqliteStore(sys.argv[1]) as store:
                for _ in range(25):
                    while True:
                        old = await store.get(("a",), "count")
                        n, version = (old.value["n"], old.version) if old else (0, 0)
                        if await store.put_if(("a",), "count", {"n": n + 1}, version=version):
                            break

        asyncio.run(count())
    """)
    path = tmp_path / "memory.db"
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, path) for _ in range(3)]
    assert [await process.wait() for process in started] == [0, 0, 0]
    async with SqliteStore(path) as store:
        found = await store.get(("a",), "count")
    assert found is not None
    assert found.value == {"n": 75}


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "memory.db")
    assert repr(store) == f"<SqliteStore '{tmp_path}/memory.db' closed>"
    with pytest.raises(StoreError, match="not open; use it inside `async with`"):
        await store.get(("a",), "b")


async def test_a_file_with_threads_is_no_store_of_items(tmp_path: Path) -> None:
    async with saver_format.SqliteSaver(tmp_path / "runs.db"):
        pass
    with pytest.raises(StoreError, match="an SQLite file of another kind"):
        async with SqliteStore(tmp_path / "runs.db"):
            pass


async def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "memory.db"):
        pass
    with sqlite3.connect(tmp_path / "memory.db") as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="has format 9, and this agentgraph knows formats up to 1"):
        async with SqliteStore(tmp_path / "memory.db"):
            pass


async def test_a_damaged_value_is_told_with_its_key_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with SqliteStore(path) as store:
        await store.put(("a",), "bad", {})
        await store.put(("a",), "good", {"n": 1})
    with sqlite3.connect(path) as db:
        db.execute("UPDATE items SET value = '{\"n\": ' WHERE key = 'bad'")
    db.close()
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match=r"memory\.db.* is damaged.*the value of 'bad' in \('a',\)"):
            await store.get(("a",), "bad")
        assert await store.get(("a",), "good") is not None
        await store.put(("a",), "bad", {"n": 2})
        assert [item.value for item in await store.search()] == [{"n": 2}, {"n": 1}]
