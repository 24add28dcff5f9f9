"""Processes are killed at random instants, and others go on: nothing that was recorded is done again."""

import asyncio
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentgraph.checkpoint import Checkpointer, spans
from agentgraph.messages import ToolResponseMessage
from tests.checkpoint import killed_worker

RUNS = int(os.environ.get("KILLED_RUNS", "200"))


async def recorded(saver: Checkpointer) -> tuple[set[str], set[str]]:
    """The calls that are recorded, named as in the worker's log; and those of them whose step is not stored yet."""
    found: set[str] = set()
    early: set[str] = set()
    for k in range(RUNS):
        info = await saver.thread(f"run{k}")
        if info is None:
            continue
        step = 0
        for entry in await saver.read(info.thread_id, spans(info.lines, info.line, info.last)):
            if entry.kind == "step":
                step += 1
                rounds = (step - 1) // 2
                if step % 2:
                    found.add(f"run{k} model {rounds}")
                else:
                    found.update(f"run{k} tool {rounds}-{j}" for j in range(killed_worker.TOOLS))
            elif entry.key.startswith("llm@"):
                early.add(f"run{k} model {step // 2}")
            elif entry.key.startswith("tools:"):
                early.add(entry.key.removeprefix("tools:").partition("@")[0].replace("-", " tool ", 1))
    return found | early, early


async def killed(where: str, tmp_path: Path) -> str:
    """Do all runs in workers that are killed; tells of it."""
    path = tmp_path / "log"
    path.touch()
    log = os.open(path, os.O_RDONLY)
    kills = 0
    known: set[str] = set()
    again: list[str] = []
    in_mid_step: set[str] = set()
    while True:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, killed_worker.__file__, where, str(RUNS), str(path), env={**os.environ, "PYTHONPATH": "."}
        )
        seen = os.fstat(log).st_size
        most = random.randint(1, 150)
        # calls, not seconds: each worker gets on, however slow the machine is
        while os.pread(log, 1 << 24, seen).count(b"\n") < most and worker.returncode is None:  # noqa: ASYNC110  # a file
            await asyncio.sleep(random.uniform(0, 0.004))
        if worker.returncode is None:
            worker.kill()
            kills += await worker.wait() != 0
        began = os.pread(log, 1 << 24, seen).decode().splitlines()
        again += [call for call in began if call in known]
        async with killed_worker.store(where) as saver:
            known, early = await recorded(saver)
            in_mid_step |= early
            if worker.returncode == 0:
                break
            assert worker.returncode == -9
    calls = Counter(path.read_text().splitlines())
    os.close(log)
    assert again == []
    assert any("tool" in call for call in in_mid_step)
    assert len(calls) == RUNS * (killed_worker.ROUNDS * (killed_worker.TOOLS + 1) + 1)
    async with killed_worker.store(where) as saver:
        app = killed_worker.agent(saver, -1).app
        for k in range(RUNS):
            found = await app.state(killed_worker.RunConfig(thread_id=f"run{k}"))
            assert found is not None
            ids = [f"run{k}-{r}-{j}" for r in range(killed_worker.ROUNDS) for j in range(killed_worker.TOOLS)]
            answers = [r for m in found.state["messages"] if isinstance(m, ToolResponseMessage) for r in m.responses]
            assert ([r.id for r in answers], found.state["done"]) == (ids, ids)
            assert found.state["messages"][-1].text == "done"
    repeats = sum(count - 1 for count in calls.values())
    assert repeats <= kills * killed_worker.AT_ONCE * killed_worker.TOOLS
    return f"{RUNS} runs, {kills} kills, {sum(calls.values())} calls, of which {repeats} were under way and made again"


@pytest.mark.may_block
async def test_killed_workers_do_nothing_again_that_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = await killed(str(tmp_path / "runs.db"), tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\nSQLite: {told}\n")


@pytest.mark.may_block
async def test_killed_workers_do_nothing_again_that_was_recorded_in_postgres(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = await killed(postgres_dsn, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\nPostgres: {told}\n")
