"""What holds for every async test: nothing that it started is left, and nothing blocked the event loop."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator

import pytest
from blockbuster import BlockBuster


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Fail a test after which a task is left in its event loop. The tests' own fixtures have ended by then."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    if left:
        pytest.fail("tasks are left after the test:\n" + "\n".join(f"  {task!r}" for task in left), pytrace=False)


@pytest.fixture
def nothing_blocks() -> Iterator[None]:
    """Raise where code that agentgraph runs in the event loop blocks it."""
    blockbuster = BlockBuster("agentgraph")
    blockbuster.activate()
    yield
    blockbuster.deactivate()


@pytest.fixture(autouse=True)
def async_test_is_clean(request: pytest.FixtureRequest) -> None:
    """Both checks, for async tests only: the event loop of the others is their own."""
    function = getattr(request.node, "function", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.iscoroutinefunction(inner):
        return
    if request.node.get_closest_marker("may_leave_tasks") is None:
        request.getfixturevalue("no_task_left")
    if request.node.get_closest_marker("may_block") is None:
        request.getfixturevalue("nothing_blocks")
