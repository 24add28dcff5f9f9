"""A tool that is called again where it has failed."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from agentgraph import ConfigError, Retry, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ToolFinished, ToolStarted
from agentgraph.messages import ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.nodes import (
    AgentResult,
    ReactAgent,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolRequest,
    ToolTimeoutError,
    tool,
)
from agentgraph.nodes.interceptors import ToolRetry
from agentgraph.strategies import Append
from agentgraph.testing import ScriptedModel, with_clock

AT_ONCE = Retry(delay=0)


class Failing:
    """A tool that raises these, one a call, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def work(self, context: ToolContext) -> str:
        """Work."""
        self.calls += 1
        context.update(log=[f"attempt {self.calls}"])
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def run(worker: Any, retry: ToolRetry, **options: Any) -> AgentResult:
    name = getattr(worker, "name", None) or worker.__name__
    async with ScriptedModel([[ToolCall("c1", name)], "over"]) as model:
        agent = ReactAgent("clerk", model, [worker], interceptors=[retry], strategies={"log": Append()}, **options)
        return await agent.run("go")


def answer(result: AgentResult) -> ToolResponse:
    (response,) = next(m for m in result.messages if isinstance(m, ToolResponseMessage)).responses
    return response


@pytest.mark.parametrize("parallel", [True, False])
async def test_an_error_that_may_pass_is_tried_again_and_only_the_last_attempts_updates_stay(parallel: bool) -> None:
    failing = Failing(ConnectionError("down"), TimeoutError("late"))
    result = await run(failing.work, ToolRetry(retry=AT_ONCE), parallel=parallel)
    assert answer(result) == ToolResponse("c1", "work", "done")
    assert result.state["log"] == ["attempt 3"]


async def test_after_the_last_attempt_the_model_is_told_of_its_error() -> None:
    failing = Failing(*(ConnectionError(f"down {i}") for i in range(5)))
    result = await run(failing.work, ToolRetry(retry=AT_ONCE))
    assert (answer(result).content, answer(result).is_error, failing.calls) == ("ConnectionError: down 2", True, 3)
    assert "log" not in result.state or result.state["log"] == []


@pytest.mark.parametrize("error", [ValueError("odd"), ToolError("not found"), asyncio.CancelledError()])
async def test_other_errors_are_not_tried_again(error: BaseException) -> None:
    failing = Failing(error)
    await run(failing.work, ToolRetry(retry=AT_ONCE))
    assert failing.calls == 1


async def test_a_tool_error_is_tried_again_where_it_is_told_to() -> None:
    failing = Failing(ToolError("not found"))
    result = await run(failing.work, ToolRetry(retry=Retry(delay=0, on=ToolError)))
    assert answer(result).content == "done"


async def test_a_tool_error_that_is_a_connection_error_too_is_still_for_the_model() -> None:
    class UnreachableError(ToolError, ConnectionError):
        pass

    failing = Failing(UnreachableError("no way"))
    assert answer(await run(failing.work, ToolRetry(retry=AT_ONCE))).content == "no way"


async def test_a_group_is_tried_again_where_all_its_errors_are() -> None:
    failing = Failing(ExceptionGroup("both", [ConnectionError("a"), ExceptionGroup("in", [TimeoutError("b")])]))
    assert answer(await run(failing.work, ToolRetry(retry=AT_ONCE))).content == "done"
    failing = Failing(ExceptionGroup("both", [ConnectionError("a"), ValueError("b")]))
    assert answer(await run(failing.work, ToolRetry(retry=AT_ONCE))).is_error


async def test_wrong_arguments_are_never_tried_again() -> None:
    asked: list[Exception | None] = []

    @tool
    async def add(a: int) -> int:
        """Add."""
        return a

    async def watch(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        response = await call(request)
        asked.append(request.last.error)
        return response

    result = await run(add, ToolRetry(retry=AT_ONCE), tool_interceptors=[watch])
    assert (answer(result).is_error, len(asked)) == (True, 1)


async def test_only_the_tools_that_are_named_are_tried_again() -> None:
    failing = Failing(ConnectionError("down"))

    @tool
    async def other() -> str:
        """Do something else."""
        return "else"

    await run(failing.work, ToolRetry([other], AT_ONCE))
    assert failing.calls == 1


@with_clock
async def test_an_async_tool_that_ran_into_its_timeout_gets_it_whole_again() -> None:
    began: list[float] = []

    @tool(timeout=10)
    async def slow() -> str:
        """Hang twice."""
        began.append(asyncio.get_running_loop().time())
        if len(began) < 3:
            await asyncio.Event().wait()
        await asyncio.sleep(9)
        return "in time"

    result = await run(slow, ToolRetry(retry=AT_ONCE))
    assert (answer(result).content, began) == ("in time", [0, 10, 20])


async def test_a_thread_that_was_left_behind_is_not_called_again() -> None:
    calls: list[int] = []
    may_end = threading.Event()
    errors: list[Exception | None] = []

    @tool(timeout=0.02)
    def stuck() -> str:
        """Hang."""
        calls.append(1)
        may_end.wait(10)
        return "too late"

    async def watch(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        response = await call(request)
        errors.append(request.last.error)
        return response

    try:
        result = await run(stuck, ToolRetry(retry=AT_ONCE), tool_interceptors=[watch])
    finally:
        may_end.set()
    assert (len(calls), answer(result).is_error) == (1, True)
    assert isinstance(errors[0], ToolTimeoutError)
    assert (errors[0].seconds, errors[0].thread_runs) == (0.02, True)


async def test_an_error_at_the_end_may_fail_the_run() -> None:
    failing = Failing(*(ConnectionError(f"down {i}") for i in range(5)))
    with pytest.raises(ToolError, match="tool 'work' failed in attempt 3: ConnectionError: down 2") as raised:
        await run(failing.work, ToolRetry(retry=AT_ONCE, at_end="error"))
    assert isinstance(raised.value.__cause__, ConnectionError)


async def test_readers_are_told_of_one_call() -> None:
    failing = Failing(ConnectionError("down"))
    async with ScriptedModel([[ToolCall("c1", "work")], "over"]) as model:
        retry = ToolRetry(retry=AT_ONCE)
        agent = ReactAgent("clerk", model, [failing.work], interceptors=[retry], strategies={"log": Append()})
        async with agent.stream("go") as stream:
            told = [e async for e in stream if isinstance(e, (ToolStarted, ToolFinished))]
    assert [type(e) for e in told] == [ToolStarted, ToolFinished]
    assert isinstance(told[1], ToolFinished)
    assert told[1].outcome == "ok"


async def test_what_an_earlier_attempt_recorded_is_not_done_again() -> None:
    paid: list[int] = []
    tries: list[int] = []

    @tool
    async def pay(context: ToolContext) -> str:
        """Pay, then fail once."""
        await context.run.once("pay", lambda: paid.append(1))
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("down")
        return "paid"

    async with ScriptedModel([[ToolCall("c1", "pay")], "over"]) as model:
        retry = ToolRetry(retry=AT_ONCE)
        agent = ReactAgent("clerk", model, [pay], interceptors=[retry], checkpointer=MemorySaver())
        result = await agent.run("go", RunConfig(thread_id="t"))
    assert (answer(result).content, len(tries), len(paid)) == ("paid", 2, 1)


@with_clock
async def test_a_cancelled_run_ends_during_the_wait() -> None:
    failing = Failing(ConnectionError("down"))
    running = asyncio.create_task(run(failing.work, ToolRetry(retry=Retry(delay=60, max_delay=60))))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (asyncio.get_running_loop().time(), failing.calls) == (1, 1)


async def test_nothing_holds_an_error_when_the_call_has_ended() -> None:
    kept: list[ToolRequest] = []

    async def keep(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        kept.append(request)
        return await call(request)

    failing = Failing(ConnectionError("down"), ValueError("held"))
    gc.collect()
    gc.disable()
    try:
        await run(failing.work, ToolRetry(retry=AT_ONCE), tool_interceptors=[keep])
        assert kept[0].last.error is None
        assert not any(isinstance(o, ValueError) and o.args == ("held",) for o in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": "search"}, "tools come in a list"),
        ({"tools": [3]}, "tools are functions or Tool objects"),
        ({"retry": 3}, "ToolRetry takes a Retry"),
        ({"at_end": "stop"}, "unknown choice 'stop'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ToolRetry(**options)
