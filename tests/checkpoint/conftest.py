"""A saver of each kind, for tests of runs that are kept."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentgraph.checkpoint import Checkpointer, MemorySaver, SqliteSaver


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Checkpointer]:
    """An open saver."""
    made: Checkpointer = MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "runs.db")
    async with made as opened:
        yield opened
