"""The SQLite store among other processes, and with a disk, a file or a neighbour that fails."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentgraph import threads
from agentgraph.checkpoint import Entry, Line, Span, SqliteSaver, ThreadInfo
from agentgraph.checkpoint import sqlite as module
from agentgraph.errors import ConfigError, FencedError, StoreError
from agentgraph.testing import run_with_clock
from agentgraph.threads import ThreadCall

ALL = [Span(0, 0, 1 << 31)]


def step(seq: int, data: bytes = b"data") -> Entry:
    return Entry(seq, 0, "step", "", b"head", data)


async def claim(saver: SqliteSaver, name: str = "thread", lease: float = 60) -> ThreadInfo:
    info = await saver.claim(name, "graph", "test", lease)
    assert info is not None
    return info


async def numbers(path: Path, name: str = "thread") -> list[int]:
    async with SqliteSaver(path) as saver:
        return [entry.seq for entry in await saver.read(name, ALL)]


def python(code: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


# --- space ---


@pytest.mark.case("F1")
async def test_two_thousand_turns_of_400_bytes_take_less_than_4_mb(path: Path) -> None:
    async with SqliteSaver(path) as saver:
        info = await claim(saver)
        await asyncio.gather(
            *(saver.append("thread", info.epoch, [step(n, os.urandom(400))], lease=60) for n in range(1, 2001))
        )
    assert (await asyncio.to_thread(os.stat, path)).st_size < 1_200_000
    assert len(await numbers(path)) == 2000


async def test_a_deleted_threads_room_is_used_again_and_given_back_by_vacuum(path: Path) -> None:
    async def fill(saver: SqliteSaver, name: str) -> int:
        info = await claim(saver, name)
        await saver.append(name, info.epoch, [step(n, bytes(3000)) for n in range(1, 301)], lease=60)
        await saver.delete(name)
        return (await asyncio.to_thread(os.stat, path)).st_size

    async with SqliteSaver(path) as saver:
        await fill(saver, "warm up")
        await saver.vacuum()
        empty = (await asyncio.to_thread(os.stat, path)).st_size
        for name in "abcd":
            await fill(saver, name)
        assert empty < 100_000
    assert (await asyncio.to_thread(os.stat, path)).st_size < 1_500_000
    async with SqliteSaver(path) as saver:
        await saver.vacuum()
        assert (await asyncio.to_thread(os.stat, path)).st_size <= empty


@pytest.mark.case("F13")
def test_a_deleted_thread_leaves_no_row(path: Path) -> None:
    async def write_and_delete() -> None:
        async with SqliteSaver(path) as saver:
            info = await claim(saver)
            entries = [step(1), Entry(2, 1, "record", "key", b"", b"value")]
            await saver.append("thread", info.epoch, entries, lease=60, status="running", new_line=Line(1, 0, 1))
            await saver.delete("thread")

    asyncio.run(write_and_delete())
    with closing(sqlite3.connect(path)) as db:
        rows = [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("threads", "lines", "entries")]  # noqa: S608
    assert rows == [[], [], []]


# --- other processes ---

TURNS = """
import asyncio, sys
from agentgraph.checkpoint import Entry, SqliteSaver

async def main(path, mark):
    async with SqliteSaver(path) as saver:
        for _ in range(40):
            while (info := await saver.claim("thread", "graph", mark, 3600)) is None:
                pass
            for seq in (info.last + 1, info.last + 2):
                await saver.append("thread", info.epoch, [Entry(seq, 0, "step", "", b"", mark.encode())], lease=3600)
            await saver.release("thread", info.epoch)

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_take_turns_on_a_thread_lose_nothing_and_never_mix(path: Path) -> None:
    for process in [python(TURNS, path, mark) for mark in "abc"]:
        said(process)

    async def entries() -> list[Entry]:
        async with SqliteSaver(path) as saver:
            return await saver.read("thread", ALL)

    found = asyncio.run(entries())
    assert [entry.seq for entry in found] == list(range(1, 241))
    assert all(one.data == two.data for one, two in zip(found[::2], found[1::2], strict=True))


APPENDS = """
import asyncio, os, sys
from agentgraph.checkpoint import Entry, SqliteSaver

async def main(path):
    async with SqliteSaver(path) as saver:
        info = await saver.claim("thread", "graph", "me", 0)
        seq = info.last
        while True:
            seq += 1
            entry = Entry(seq, 0, "step", "", b"head", b"%d " % seq * 100)
            await saver.append("thread", info.epoch, [entry], lease=0, status="running", durable=seq % 10 == 0)
            os.write(1, b"%d\\n" % seq)

asyncio.run(main(sys.argv[1]))
"""


def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(path: Path) -> None:
    acknowledged = 0
    for after in (0, 1, 2, 7, 40, 300):
        process = python(APPENDS, path)
        with process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(after)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        whole = [int(line) for line in lines if line.endswith("\n")]
        acknowledged = max([acknowledged, *whole])
        found = asyncio.run(numbers(path))
        assert found == list(range(1, len(found) + 1))
        assert acknowledged <= len(found) <= acknowledged + 1
    assert acknowledged >= 350


def test_a_process_that_was_forked_off_is_told_to_open_its_own(path: Path) -> None:
    code = """
import asyncio, os, sys
from agentgraph.checkpoint import SqliteSaver
from agentgraph.errors import StoreError

async def use(saver):
    async with SqliteSaver(sys.argv[1]) as own:
        print((await own.thread("thread")).status)
    for call in (saver.thread("thread"), saver.__aenter__()):
        try:
            await call
        except StoreError as error:
            print(error, flush=True)
    await saver.__aexit__()

async def main():
    async with SqliteSaver(sys.argv[1]) as saver:
        await saver.claim("thread", "graph", "parent", 60)
        if not (child := os.fork()):
            try:
                asyncio.run(use(saver))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        print((await saver.thread("thread")).status)

asyncio.run(main())
"""
    first, *errors, last = said(python(code, path)).splitlines()
    assert (first, last) == ("new", "new")
    assert len(errors) == 2
    assert all("was opened by the parent process; open another one here" in error for error in errors)


async def test_many_savers_may_make_the_same_file_at_once(path: Path) -> None:
    async def first(name: str) -> str:
        async with SqliteSaver(path) as saver:
            return (await claim(saver, name)).status

    assert await asyncio.gather(*(first(f"thread {i}") for i in range(12))) == ["new"] * 12


# --- many at once ---


async def test_each_of_many_operations_at_once_has_its_own_outcome(path: Path) -> None:
    async with SqliteSaver(path) as saver:
        infos = [await claim(saver, f"thread {i}") for i in range(30)]
        calls: list[Any] = []
        for i, info in enumerate(infos):
            epoch = info.epoch + (i % 3 == 1)
            entries = [step(1), Entry(2, 9 * (i % 3 == 2), "record", "key", b"", b"")]
            calls.append(saver.append(info.thread_id, epoch, entries, lease=60, durable=i % 2 == 0))
        calls.append(saver.claim("\ud800", "graph", "me", 60))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        kinds = [type(None), FencedError, ValueError] * 10 + [UnicodeEncodeError]
        assert [type(outcome) for outcome in outcomes] == kinds
        stored = [len(await saver.read(info.thread_id, ALL)) for info in infos]
        assert stored == [2, 0, 0] * 10


async def test_it_works_where_all_turns_of_worker_threads_are_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 1)
    stored = threading.Event()
    holding = asyncio.create_task(ThreadCall().run(stored.wait, 20))
    async with SqliteSaver(path) as saver:
        await asyncio.sleep(0)
        info = await claim(saver)
        await saver.append("thread", info.epoch, [step(1)], lease=60)
    stored.set()
    assert await holding


async def test_it_needs_two_threads_however_many_operations_wait(path: Path) -> None:
    started: list[object] = []

    class Counted(ThreadCall):
        async def run(self, fn: Any, /, *args: Any, **keywords: Any) -> Any:
            started.append(fn)
            return await super().run(fn, *args, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        async with SqliteSaver(path) as saver:
            patch.setattr("agentgraph.checkpoint.sqlite_file.ThreadCall", Counted)
            await asyncio.gather(*(claim(saver, f"thread {i}") for i in range(200)))
            assert len(started) <= 2


def test_a_jumping_clock_stands_still_while_the_file_is_at_work(path: Path) -> None:
    async def work() -> float:
        async with SqliteSaver(path) as saver, asyncio.timeout(3600):
            await asyncio.gather(*(claim(saver, f"thread {i}") for i in range(50)))
        return asyncio.get_running_loop().time()

    assert run_with_clock(work()) < 60


async def test_a_cancelled_caller_leaves_the_file_usable(path: Path) -> None:
    async with SqliteSaver(path, timeout=20) as saver:
        info = await claim(saver)
        other = await asyncio.to_thread(writing, path)
        first = asyncio.create_task(saver.append("thread", info.epoch, [step(1)], lease=60))
        second = asyncio.create_task(saver.append("thread", info.epoch, [step(2)], lease=60))
        for _ in range(3):
            await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()
        await asyncio.to_thread(other.close)
        await saver.append("thread", info.epoch, [step(3)], lease=60)
        assert [entry.seq for entry in await saver.read("thread", ALL)] == [1, 2, 3]


# --- opening and closing ---


def test_who_keeps_runs_elsewhere_does_not_load_sqlite() -> None:
    code = "import sys, agentgraph.checkpoint as c; print('sqlite3' in sys.modules, c.SqliteSaver.__name__)"
    assert said(python(code)) == "False SqliteSaver"


async def test_a_saver_may_be_entered_several_times(path: Path) -> None:
    saver = SqliteSaver(path)
    async with saver:
        async with saver:
            await claim(saver)
        assert repr(saver) == f"<SqliteSaver {str(path)!r} open>"
        assert await saver.thread("thread") is not None
    assert repr(saver) == f"<SqliteSaver {str(path)!r} closed>"
    assert await asyncio.to_thread(os.listdir, path.parent) == ["runs.db"]
    async with saver:
        assert await saver.thread("thread") is not None


async def test_a_saver_that_is_not_open_says_so(path: Path) -> None:
    saver = SqliteSaver(path)
    with pytest.raises(StoreError, match="is not open; use it inside `async with`"):
        await saver.thread("thread")
    async with saver:
        pass
    with pytest.raises(StoreError, match="is not open"):
        await saver.thread("thread")


async def test_a_saver_that_was_cancelled_while_it_opened_is_closed_again(path: Path) -> None:
    saver = SqliteSaver(path)
    for turns in range(4):
        opening = asyncio.create_task(saver.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        assert "closed" in repr(saver)
    async with saver:
        await claim(saver)


@pytest.mark.parametrize("wrong", ["", ":memory:", "file:runs.db?mode=memory"])
def test_a_path_that_is_no_files_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="path must be that of a file"):
        SqliteSaver(wrong)


@pytest.mark.parametrize("wrong", [-1, True, float("nan"), "1"])
def test_a_timeout_that_cannot_be_meant_is_refused(path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
        SqliteSaver(path, timeout=wrong)


async def test_a_saver_keeps_to_its_file_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with SqliteSaver("runs.db") as saver:
        monkeypatch.chdir("/")
        await claim(saver)
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["runs.db"]


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"runs\.db' cannot be opened; its folder must be there"):
        await SqliteSaver(tmp_path / "none" / "runs.db").__aenter__()


# --- formats ---


async def test_an_older_format_is_brought_up_to_date_and_a_newer_one_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteSaver(path) as saver:
        await claim(saver)
    newer = [*module._MIGRATIONS, ("ALTER TABLE threads ADD COLUMN note TEXT", "UPDATE threads SET status = 'done'")]  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MIGRATIONS", newer)
        for _ in range(2):
            async with SqliteSaver(path) as saver:
                info = await saver.thread("thread")
                assert info is not None
                assert info.status == "done"
    before = await asyncio.to_thread(path.read_bytes)
    with pytest.raises(StoreError, match="has format 2, and this agentgraph knows formats up to 1; use a newer one"):
        await SqliteSaver(path).__aenter__()
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_a_migration_that_fails_leaves_the_older_format(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteSaver(path) as saver:
        await claim(saver)
    broken = [*module._MIGRATIONS, ("UPDATE threads SET status = 'done'", "DROP TABLE nowhere")]  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MIGRATIONS", broken)
        with pytest.raises(StoreError, match="nowhere"):
            await SqliteSaver(path).__aenter__()
    async with SqliteSaver(path) as saver:
        info = await saver.thread("thread")
        assert info is not None
        assert info.status == "new"


def test_another_programs_file_is_refused_and_not_written_to(path: Path) -> None:
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE threads (name TEXT)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is an SQLite file of another kind; nothing was written to it"):
        asyncio.run(numbers(path))
    assert path.read_bytes() == before
    path.write_bytes(text := b"# Notes\n" * 1000)
    with pytest.raises(StoreError, match=r"runs\.db' is no SQLite file; nothing was written to it"):
        asyncio.run(numbers(path))
    assert path.read_bytes() == text


# --- what fails ---


def writing(path: Path) -> sqlite3.Connection:
    """Another program that is writing and does not come to an end."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_a_locked_file_is_told_after_the_timeout_and_can_be_read_meanwhile(path: Path) -> None:
    async with SqliteSaver(path, timeout=0.02) as saver:
        info = await claim(saver)
        await saver.append("thread", info.epoch, [step(1)], lease=60)
        other = await asyncio.to_thread(writing, path)
        calls = [saver.append("thread", info.epoch, [step(n)], lease=60) for n in (2, 3)]
        found, *errors = await asyncio.gather(saver.read("thread", ALL), *calls, return_exceptions=True)
        assert found == [step(1)]
        assert [type(error) for error in errors] == [StoreError] * 2
        assert "runs.db' is locked: another process has been writing to it for more than 0.02 s" in str(errors[0])
        await asyncio.to_thread(other.close)
        await saver.append("thread", info.epoch, [step(2)], lease=60)
    assert await numbers(path) == [1, 2]


async def test_a_file_that_is_gone_is_told_and_used_again_when_it_is_back(path: Path) -> None:
    away = path.with_name("away.db")
    async with SqliteSaver(path) as saver:
        info = await claim(saver)
        await saver.append("thread", info.epoch, [step(1)], lease=60)
        await asyncio.to_thread(path.rename, away)
        with pytest.raises(StoreError, match=r"runs\.db' is gone \(No such file or directory\); put it back"):
            await saver.append("thread", info.epoch, [step(2)], lease=60)
        await asyncio.to_thread(path.write_bytes, b"")
        with pytest.raises(StoreError, match="was replaced by another file while it was open"):
            await saver.append("thread", info.epoch, [step(2)], lease=60)
        await asyncio.to_thread(away.rename, path)
        await saver.append("thread", info.epoch, [step(3)], lease=60)
    assert await numbers(path) == [1, 3]


def test_a_read_only_file_is_told_when_it_is_opened(path: Path) -> None:
    asyncio.run(numbers(path))
    path.chmod(0o444)
    for folder in path.parents[:3]:
        folder.chmod(0o755)
    code = """
import asyncio, os, sys
from agentgraph.checkpoint import SqliteSaver
from agentgraph.errors import StoreError
if os.getuid() == 0:
    os.setuid(65534)  # to root nothing is read-only
try:
    asyncio.run(SqliteSaver(sys.argv[1]).__aenter__())
except StoreError as error:
    print(error)
"""
    assert "runs.db' is read-only; this process needs the right to write the file and its folder" in said(
        python(code, path)
    )


FILL = """
import asyncio, os, resource, sys
from agentgraph.checkpoint import Entry, Line, Span, SqliteSaver
from agentgraph.errors import StoreError

async def main(path, make_room):
    async with SqliteSaver(path) as saver:
        info = await saver.claim("thread", "graph", "me", 60)
        seq = 0
        errors = []
        while len(errors) < 3:
            try:
                await saver.append("thread", info.epoch, [Entry(seq + 1, 0, "step", "", b"", bytes(9000))], lease=60)
                seq += 1
            except StoreError as error:
                errors.append(error)
        make_room()
        for _ in range(50):
            seq += 1
            await saver.append("thread", info.epoch, [Entry(seq, 0, "step", "", b"", bytes(9000))], lease=60)
        assert [e.seq for e in await saver.read("thread", [Span(0, 0, 9999)])] == list(range(1, seq + 1))
    print(errors[0])
"""


def test_a_full_disk_is_told_and_work_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=False, capture_output=True)  # noqa: S607
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        (disk / "filler").write_bytes(bytes(1_500_000))
        run = "asyncio.run(main(sys.argv[1] + '/runs.db', lambda: os.unlink(sys.argv[1] + '/filler')))"
        assert "runs.db' cannot grow, the disk is full; make room, and work goes on" in said(python(FILL + run, disk))
        assert len(asyncio.run(numbers(disk / "runs.db"))) > 60
    finally:
        subprocess.run(["umount", disk], check=True)  # noqa: S607


def test_a_limit_on_the_size_of_files_is_told_and_work_goes_on_without_it(path: Path) -> None:
    run = """
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
asyncio.run(main(sys.argv[1], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))))
"""
    assert "runs.db' failed (disk I/O error)" in said(python(FILL + run, path))
    assert len(asyncio.run(numbers(path))) > 50


@pytest.fixture
def written(path: Path) -> Path:
    """A file with a thread whose entries can be told from each other in its bytes."""

    async def write() -> None:
        async with SqliteSaver(path) as saver:
            info = await claim(saver, lease=0)
            entries = [step(n, b"<entry %03d>" % n * 100) for n in range(1, 101)]
            await saver.append("thread", info.epoch, entries, lease=0)

    asyncio.run(write())
    return path


def test_an_entry_that_is_not_what_was_written_is_told(written: Path) -> None:
    content = written.read_bytes()
    written.write_bytes(content.replace(b"<entry 050>", b"<entry 051>", 1))
    with pytest.raises(StoreError, match=r"runs\.db' is damaged; .* \(entry 50 is not what was written\)"):
        asyncio.run(numbers(written))

    async def others() -> list[Entry]:
        async with SqliteSaver(written) as saver:
            return await saver.read("thread", [Span(0, 50, 60)])

    assert len(asyncio.run(others())) == 10


def test_an_entry_of_a_wrong_type_is_told(written: Path) -> None:
    db = sqlite3.connect(written)
    db.execute("UPDATE entries SET data = 'text' WHERE id & 0xFF = 50")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="entry 50 is not what was written"):
        asyncio.run(numbers(written))


def test_a_page_of_rubbish_is_told(written: Path) -> None:
    content = written.read_bytes()
    start = content.index(b"<entry 050>") // 4096 * 4096
    written.write_bytes(content[:start] + b"\xa5" * 4096 + content[start + 4096 :])
    with pytest.raises(StoreError, match=r"runs\.db' is damaged; put a backup in its place"):
        asyncio.run(numbers(written))


def test_a_file_that_was_cut_short_is_told(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:40_000])
    with pytest.raises(StoreError, match=r"runs\.db' is damaged"):
        asyncio.run(numbers(written))
