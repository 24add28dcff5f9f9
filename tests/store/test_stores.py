"""All stores, by the public suite."""

import itertools
from pathlib import Path

import pytest

from agentgraph.store import MemoryStore, PostgresStore, SqliteStore, Store
from agentgraph.testing.store_suite import StoreSuite
from tests.services.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


class SuiteWithClock(StoreSuite):
    """Time stands still, but for what `pass_time` says."""

    now = 1_700_000_000.0

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


class TestMemoryStore(SuiteWithClock):
    def store(self) -> Store:
        return MemoryStore(clock=self.clock)


class TestSqliteStore(SuiteWithClock):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"{number}.db" for number in itertools.count())

    def store(self) -> Store:
        return SqliteStore(next(self.paths), clock=self.clock)


class TestPostgresStore(SuiteWithClock):
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn: str) -> None:
        self.dsn = postgres_dsn
        self.schemas = (None, *(f"suite_{number}" for number in range(9)))
        self.used = 0

    def store(self) -> Store:
        self.used += 1
        return PostgresStore(self.dsn, schema=self.schemas[self.used - 1], clock=self.clock)


async def test_the_suite_runs_without_pytest() -> None:
    suite = TestMemoryStore()
    await suite.run()
    assert suite.now > SuiteWithClock.now


async def test_the_suite_says_in_which_test_a_store_failed() -> None:
    class Forgetful(MemoryStore):
        async def delete(self, namespace: tuple[str, ...], key: str) -> bool:
            return True

    class Suite(SuiteWithClock):
        def store(self) -> Store:
            return Forgetful(clock=self.clock)

    with pytest.raises(AssertionError) as caught:
        await Suite().run()
    assert caught.value.__notes__[-1].startswith("in Suite.test_")
