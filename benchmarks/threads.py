"""A kept thread's turn: a question of 200 characters, one node that answers with as many, on SQLite and on Postgres.

LangGraph runs beside it, block by block, with the usual reducer and with its DeltaChannel; not for 3,200 turns, which
would take it minutes and gigabytes. A quarter's time is that of its median turn: what else the machine does falls on
few turns. The average of all turns stands beside it, and holds what is done now and then: whole states that are
written, garbage collection, the database's own work. All sides have their defaults, so that LangGraph's on Postgres
waits for the disk and ours does not; in the rows that say "sync" every side waits.
"""

import asyncio
import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path

import psycopg

from agentgraph.checkpoint import Checkpointer
from agentgraph.checkpoint.protocol import Entry
from benchmarks import peer_threads, postgres
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.talk import Talk, saver_at, talk

FEW, MANY = 800, 3_200
BLOCK = 25
"""Turns that a side takes before the next side's turn."""
FLAT = 1.2
"""Wanted: the last quarter takes at most so many times what the first one took."""
TIMES = 30.0
"""Wanted: so many times faster than LangGraph at the end of a short thread."""
ON_DISK = 1_200
"""Wanted: at most so many bytes a turn."""
AT_ONCE = 64
STEPS = 100

Opened = Callable[[str], AbstractAsyncContextManager[Talk]]
ALL: dict[Side, Opened] = {
    "agentgraph": talk,
    "LangGraph": peer_threads.talk,
    "LangGraph delta": peer_threads.delta_talk,
}
OURS: dict[Side, Opened] = {"agentgraph": talk}

_names = count(1)


class Files:
    """Stores in SQLite files of one folder."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self) -> str:
        """Where a store may be made."""
        place = self._folder / str(next(_names))
        place.mkdir()
        return str(place / "threads.db")

    def size(self, where: str) -> int:
        """The bytes that a closed store has, with its log."""
        return sum(file.stat().st_size for file in Path(where).parent.iterdir())

    def remove(self, where: str) -> None:
        """Remove a closed store."""
        shutil.rmtree(Path(where).parent)


class Databases:
    """Stores in databases of one Postgres server, each in its own."""

    name = "Postgres"

    def __init__(self, address: str) -> None:
        self._address = address
        self._admin = psycopg.connect(address.format("postgres"), autocommit=True)

    def new(self) -> str:
        """Where a store may be made."""
        name = f"bench_{next(_names)}"
        self._admin.execute(f"CREATE DATABASE {name}".encode())
        return self._address.format(name)

    def size(self, where: str) -> int:
        """The bytes that a store's tables have, with their indexes."""
        with psycopg.connect(where, autocommit=True) as db:
            found = db.execute(
                "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
                "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            ).fetchone()
        return found[0] if found else 0

    def remove(self, where: str) -> None:
        """Remove a closed store."""
        name = where.partition("?")[0].rpartition("/")[2]
        self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def close(self) -> None:
        """Let the server go."""
        self._admin.close()


Places = Files | Databases


async def _turns(sides: Mapping[Side, Opened], where: Mapping[Side, str], turns: int) -> dict[Side, list[float]]:
    """Seconds that each turn of a thread takes, side after side in blocks of turns."""
    took: dict[Side, list[float]] = {side: [] for side in sides}
    async with AsyncExitStack() as stack:
        talks: dict[Side, Talk] = {
            side: await stack.enter_async_context(opened(where[side])) for side, opened in sides.items()
        }
        for _ in range(turns // BLOCK):
            for side, one in talks.items():
                gc.unfreeze()
                gc.collect()
                gc.freeze()  # the other sides' conversations are kept out of this one's garbage collector
                for _ in range(BLOCK):
                    started = time.perf_counter()
                    await one.turn("t")
                    took[side].append(time.perf_counter() - started)
        for one in talks.values():
            assert await one.load("t") == 2 * turns
    gc.unfreeze()
    return took


async def _begun(places: Places, opened: Opened) -> tuple[str, int]:
    """A store that has been used, so that all is loaded and made that is so once; and its size."""
    where = places.new()
    async with opened(where) as one:
        for _ in range(BLOCK):
            await one.turn("warm")
    return where, places.size(where)


def _quarters(took: Sequence[float]) -> list[float]:
    size = len(took) // 4
    return [statistics.median(took[k * size :][:size]) for k in range(4)]


def _turn_rows(
    name: str, turns: int, quarters: Mapping[Side, Sequence[float]], size: Mapping[Side, float]
) -> list[Row]:
    found: list[Row] = []
    for quarter, which in enumerate(("first", "second", "third", "last")):
        what = f"{name}: a turn, {which} quarter of {turns:,}"
        found.append(Row(what=what, values={side: times[quarter] for side, times in quarters.items()}))
    flat: dict[Side, float] = {side: times[3] / times[0] for side, times in quarters.items()}
    found.append(Row(what=f"{name}: the last quarter's to the first's", values=flat, unit="times", below=FLAT))
    what = f"{name}: on disk, {turns:,} turns"
    return [*found, Row(what=what, values=size, unit="bytes", below=ON_DISK * turns)]


async def _load(opened: Opened, where: str, turns: int, repeats: int) -> float:
    """Seconds to read a thread by a graph and a store that were just made."""
    took: list[float] = []
    for _ in range(repeats + 1):
        async with opened(where) as one:
            gc.collect()
            started = time.perf_counter()
            messages = await one.load("t")
            took.append(time.perf_counter() - started)
            assert messages == 2 * turns
    return statistics.median(took[1:])


async def _beside(places: Places, repeats: int) -> list[Row]:
    """All sides on short threads."""
    where: dict[Side, str] = {}
    before: dict[Side, int] = {}
    for side, opened in ALL.items():
        where[side], before[side] = await _begun(places, opened)
    took = await _turns(ALL, where, FEW)
    sizes: dict[Side, float] = {side: places.size(one) - before[side] for side, one in where.items()}
    rows = _turn_rows(places.name, FEW, {side: _quarters(times) for side, times in took.items()}, sizes)
    average: dict[Side, float] = {side: statistics.mean(times) for side, times in took.items()}
    rows.append(Row(what=f"{places.name}: a turn, average of {FEW:,}", values=average))
    newest: dict[Side, float] = {side: statistics.median(times[-BLOCK:]) for side, times in took.items()}
    rows.append(Row(what=f"{places.name}: a turn, at turn {FEW:,}", values=newest, times=TIMES, times_delta=TIMES))
    loads: dict[Side, float] = {side: await _load(opened, where[side], FEW, repeats) for side, opened in ALL.items()}
    rows.append(Row(what=f"{places.name}: reading {FEW:,} turns, cold", values=loads))
    async with AsyncExitStack() as stack:
        talks: dict[Side, Talk] = {
            side: await stack.enter_async_context(opened(where[side])) for side, opened in ALL.items()
        }
        what = f"{places.name}: a turn, {AT_ONCE} threads at once"
        turns: dict[Side, Case] = {side: _all_at_once(one) for side, one in talks.items()}
        row = await compare(what, turns, units=AT_ONCE, repeats=repeats)
        a_second = round(1 / row.values["agentgraph"], -1)
        rows.append(Row(what=f"{what} (ours: {a_second:,.0f} a second)", values=row.values))
        what = f"{places.name}: a step, sync"
        steps: dict[Side, Case] = {side: _steps(one) for side, one in talks.items() if side != "LangGraph delta"}
        rows.append(await compare(what, steps, units=STEPS, repeats=repeats))
    for one in where.values():
        places.remove(one)
    return rows


def _all_at_once(one: Talk) -> Case:
    async def case() -> None:
        start = next(_names)
        await asyncio.gather(*(one.turn(f"{start} {k}") for k in range(AT_ONCE)))

    return case


def _steps(one: Talk) -> Case:
    async def case() -> None:
        assert await one.steps(f"steps {next(_names)}", STEPS) == STEPS

    return case


async def _alone(places: Places, repeats: int) -> list[Row]:
    """Ours on long threads."""
    all_quarters: list[list[float]] = []
    averages: list[float] = []
    size, load = 0, 0.0
    for left in reversed(range(repeats)):
        where, before = await _begun(places, talk)
        times = (await _turns(OURS, {"agentgraph": where}, MANY))["agentgraph"]
        all_quarters.append(_quarters(times))
        averages.append(statistics.mean(times))
        size = places.size(where) - before
        if not left:
            load = await _load(talk, where, MANY, repeats)
        places.remove(where)
    took = [statistics.median(quarter) for quarter in zip(*all_quarters, strict=True)]
    rows = _turn_rows(places.name, MANY, {"agentgraph": took}, {"agentgraph": size})
    average = statistics.median(averages)
    rows.append(Row(what=f"{places.name}: a turn, average of {MANY:,}", values={"agentgraph": average}))
    rows.append(Row(what=f"{places.name}: reading {MANY:,} turns, cold", values={"agentgraph": load}))
    where = places.new()
    async with saver_at(where) as saver:
        case = await _appends(saver)
        what = f"{places.name}: an append, {AT_ONCE} threads at once"
        rows.append(await compare(what, {"agentgraph": case}, units=AT_ONCE, repeats=repeats))
    places.remove(where)
    return rows


async def _appends(saver: Checkpointer) -> Case:
    epochs: dict[str, int] = {}
    for k in range(AT_ONCE):
        claimed = await saver.claim(f"t{k}", "graph", "bench", 60)
        assert claimed is not None
        epochs[f"t{k}"] = claimed.epoch
    numbers = count(1)

    async def case() -> None:
        entry = Entry(next(numbers), 0, "step", "", bytes(60), bytes(600))
        await asyncio.gather(*(saver.append(name, epoch, [entry], lease=60) for name, epoch in epochs.items()))

    return case


@contextmanager
def _files() -> Generator[Files]:
    with tempfile.TemporaryDirectory() as folder:
        yield Files(Path(folder))


@contextmanager
def _databases(programs: Path) -> Generator[Databases]:
    with postgres.server(programs) as address:
        databases = Databases(address)
        try:
            yield databases
        finally:
            databases.close()


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    with _files() as files:
        found = [*await _beside(files, repeats), *await _alone(files, repeats)]
    programs = postgres.binaries()
    if programs is None:
        print("no Postgres server is installed (on Debian: apt install postgresql)", file=sys.stderr)
        return [*found, Row(what="Postgres: not installed, not measured", values={})]
    with _databases(programs) as databases:
        return [*found, *await _beside(databases, repeats), *await _alone(databases, repeats)]
