"""The public suite against each store of ours, and what the suite does about a store that breaks a rule."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph.checkpoint import Checkpointer, Entry, MemorySaver, Span, SqliteSaver
from agentgraph.testing import CheckpointerSuite
from agentgraph.testing.checkpointer_suite import compare_with_model


class TestMemorySaver(CheckpointerSuite):
    kept = MemorySaver()

    def saver(self) -> Checkpointer:
        return self.kept


class TestSqliteSaver(CheckpointerSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    def saver(self) -> Checkpointer:
        return SqliteSaver(self.path)


KINDS = ["memory", "sqlite"]


def make(kind: str, folder: Path) -> Checkpointer:
    return MemorySaver() if kind == "memory" else SqliteSaver(folder / "runs.db")


@pytest.mark.parametrize("kind", KINDS)
@given(draw=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_operations_gives_what_the_model_gives(kind: str, tmp_path: Path, draw: random.Random) -> None:
    async def run() -> None:
        async with make(kind, tmp_path) as saver:
            await compare_with_model(saver, draw, 15)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_saver_serves_several_event_loops_at_once(kind: str, tmp_path: Path) -> None:
    async def turns(saver: Checkpointer, name: str) -> int:
        for turn in range(10):
            info = await saver.claim(name, "graph", name, 60)
            assert info is not None
            await saver.append(name, info.epoch, [Entry(turn + 1, 0, "step", "", b"", b"x")], lease=60)
            await saver.release(name, info.epoch)
        return len(await saver.read(name, [Span(0, 0, 99)]))

    async def many(saver: Checkpointer, loop: int) -> list[int]:
        return await asyncio.gather(*(turns(saver, f"{loop} {i}") for i in range(5)))

    async with make(kind, tmp_path) as saver:
        loops = [asyncio.to_thread(asyncio.run, many(saver, loop)) for loop in range(4)]
        assert await asyncio.gather(*loops) == [[10] * 5] * 4


class Forgetful(MemorySaver):
    """Forgets that numbers replace what was there, and does not mind who writes."""

    async def append(self, thread_id: str, epoch: int, entries: Sequence[Entry], **options: Any) -> None:
        info = await self.thread(thread_id)
        await super().append(thread_id, info.epoch if info else epoch, entries, **options)


async def test_the_suite_tells_a_store_that_lets_an_older_writer_write() -> None:
    class Suite(CheckpointerSuite):
        def saver(self) -> Checkpointer:
            return Forgetful()

    with pytest.raises(AssertionError, match="must be refused by FencedError") as caught:
        await Suite().run()
    assert any("Suite.test_" in note for note in caught.value.__notes__)


async def test_the_suite_says_what_a_subclass_must_have() -> None:
    with pytest.raises(NotImplementedError, match="a method `saver`"):
        await CheckpointerSuite().run()
