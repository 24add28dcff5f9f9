"""The checks that hold for every async test do catch what they are for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
    may_block
    may_leave_tasks
"""


def outcome(tmp_path: Path, body: str) -> str:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(f"import asyncio, time, pytest\nfrom agentgraph import *\n{body}")
    (tmp_path / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stdout


LEAK = """
async def test_it():
    test_it.task = asyncio.create_task(asyncio.sleep(60), name="the leak")
"""

BLOCK = """
async def node(state):
    time.sleep(0.01)

async def test_it():
    graph = StateGraph(strategies={})
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    await graph.compile().invoke({})
"""


def test_a_task_that_is_left_fails_the_test(tmp_path: Path) -> None:
    assert "the leak" in (told := outcome(tmp_path, LEAK)), told
    assert "1 passed, 1 error" in told


def test_a_task_that_is_left_on_purpose_does_not(tmp_path: Path) -> None:
    told = outcome(tmp_path, f"@pytest.mark.may_leave_tasks{LEAK}")
    assert "1 passed" in told, told
    assert "error" not in told


def test_a_node_that_blocks_the_event_loop_fails_the_test(tmp_path: Path) -> None:
    assert "BlockingError" in (told := outcome(tmp_path, BLOCK)), told


def test_a_node_that_blocks_on_purpose_does_not(tmp_path: Path) -> None:
    told = outcome(tmp_path, BLOCK.replace("async def test_it", "@pytest.mark.may_block\nasync def test_it"))
    assert "1 passed" in told, told
