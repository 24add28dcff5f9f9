"""A saver of each kind, for tests of runs that are kept."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentgraph.checkpoint import Checkpointer, MemorySaver, PostgresSaver, SqliteSaver
from tests.services.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn", "saver"]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Checkpointer]:
    """An open saver."""
    made: Checkpointer
    if request.param == "postgres":
        made = PostgresSaver(request.getfixturevalue("postgres_dsn"))
    else:
        made = MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "runs.db")
    async with made as opened:
        yield opened
