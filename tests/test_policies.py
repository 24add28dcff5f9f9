"""What a node's policies and a run's limits do: timeouts, retries, `on_error`, `max_concurrency`."""

import asyncio
import random
import threading
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import (
    END,
    START,
    CancellationToken,
    Command,
    ConfigError,
    NodeTimeoutError,
    Retry,
    RunConfig,
    RunContext,
    RunEndedError,
    RunTimeoutError,
    Send,
    StateGraph,
)
from agentgraph.events import Custom, NodeFinished
from agentgraph.strategies import Append
from agentgraph.testing import with_clock

pytestmark = pytest.mark.usefixtures("nothing_blocks")


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


def line(*names: str) -> StateGraph[Log]:
    """A graph whose nodes, added by the test, run one after the other."""
    graph = StateGraph(Log)
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def now() -> float:
    return asyncio.get_running_loop().time()


# timeout


@with_clock
async def test_a_node_that_takes_longer_than_its_timeout_is_cancelled_and_the_error_says_so() -> None:
    ended: list[float] = []

    async def slow(state: Log) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(now())

    with pytest.raises(NodeTimeoutError, match="node 'slow' reached its timeout of 10 s") as caught:
        await line("slow").add_node("slow", slow, timeout=10).compile().invoke({})
    assert (caught.value.node, caught.value.kind, caught.value.seconds) == ("slow", "timeout", 10)
    assert ended == [10]


@with_clock
async def test_a_timeout_counts_from_when_the_node_starts_not_while_it_waits_for_a_permit() -> None:
    async def work(state: Log) -> dict[str, Any]:
        await asyncio.sleep(8)
        return {"log": now()}

    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, work, timeout=10).add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({}, RunConfig(max_concurrency=1))
    assert result.state["log"] == [8, 16, 24]


@with_clock
async def test_a_timeout_holds_for_each_attempt_anew() -> None:
    async def slow(state: Log, run: RunContext[None]) -> dict[str, Any]:
        await asyncio.sleep(8 if run.attempt == 3 else 60)
        return {"log": now()}

    app = line("slow").add_node("slow", slow, timeout=10, retry=Retry(attempts=3, delay=0)).compile()
    assert (await app.invoke({})).state["log"] == [28]


@with_clock
async def test_a_subgraph_as_a_node_has_a_timeout_too() -> None:
    ended: list[str] = []

    async def slow(state: Log) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")

    inner = line("slow").add_node("slow", slow).compile()
    with pytest.raises(NodeTimeoutError, match="node 'sub' reached its timeout of 5 s"):
        await line("sub").add_node("sub", inner, timeout=5).compile().invoke({})
    assert (ended, now()) == (["slow"], 5)


@with_clock
async def test_an_object_with_call_as_a_node_has_a_timeout_too() -> None:
    class Slow:
        async def __call__(self, _state: Any, _run: RunContext[Any], /) -> None:
            await asyncio.sleep(60)

    with pytest.raises(NodeTimeoutError, match="node 'slow' reached its timeout of 5 s"):
        await line("slow").add_node("slow", Slow(), timeout=5).compile().invoke({})


@pytest.mark.case("B14")
@with_clock
async def test_a_timeout_error_of_the_nodes_own_comes_out_as_itself() -> None:
    async def own(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        raise TimeoutError("db said no")

    tokens: list[Any] = []
    app = line("own").add_node("own", own, timeout=30).compile()
    with pytest.raises(TimeoutError) as caught:
        await app.invoke({}, RunConfig(timeout=60))
    assert (type(caught.value), caught.value.args) == (TimeoutError, ("db said no",))
    assert not tokens[0].cancelled
    assert now() == 0


@pytest.mark.case("B14")
@with_clock
async def test_a_time_limit_inside_the_node_comes_out_as_itself() -> None:
    async def own(state: Log) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(5)

    app = line("own").add_node("own", own, timeout=30, idle_timeout=20).compile()
    with pytest.raises(TimeoutError) as caught:
        await app.invoke({}, RunConfig(timeout=60))
    assert (type(caught.value), now()) == (TimeoutError, 1)


@pytest.mark.case("B14")
@with_clock
async def test_events_tell_a_nodes_own_timeout_error_from_its_timeout() -> None:
    async def own(state: Log) -> None:
        raise TimeoutError("db said no")

    async def slow(state: Log) -> None:
        await asyncio.sleep(60)

    async def mend(state: Log, error: Exception) -> None: ...

    graph = line("own", "slow")
    graph.add_node("own", own, timeout=30, on_error=mend).add_node("slow", slow, timeout=30, on_error=mend)
    async with graph.compile().stream({}) as events:
        told = [event.error async for event in events if isinstance(event, NodeFinished)]
    assert told == ["TimeoutError: db said no", "NodeTimeoutError: node 'slow' reached its timeout of 30 s"]


@with_clock
async def test_what_a_node_returns_after_it_has_swallowed_its_timeout_is_thrown_away() -> None:
    async def stubborn(state: Log) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {"log": "too late"}
        return {"log": "never"}

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        task = asyncio.current_task()
        return {"log": [type(error).__name__, task is not None and task.cancelling()]}

    app = line("stubborn").add_node("stubborn", stubborn, timeout=5, on_error=mend).compile()
    assert (await app.invoke({})).state["log"] == ["NodeTimeoutError", 0]


@with_clock
async def test_an_error_that_a_node_raises_in_answer_to_its_timeout_is_the_timeouts_cause() -> None:
    async def clumsy(state: Log) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("while cleaning up")

    with pytest.raises(NodeTimeoutError) as caught:
        await line("clumsy").add_node("clumsy", clumsy, timeout=5).compile().invoke({})
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_thread_is_left_behind_at_its_timeout_and_told_to_stop() -> None:
    told = threading.Event()
    left: list[str] = []

    def stuck(state: Log, run: RunContext[None]) -> dict[str, Any]:
        left.append("started")
        if run.cancellation.wait(5):
            left.append(str(run.cancellation.reason))
        try:
            run.emit("too late")
        except RunEndedError as error:
            left.append(str(error))
        told.set()
        return {"log": "too late"}

    with pytest.raises(NodeTimeoutError, match="its worker thread still runs") as caught:
        await line("stuck").add_node("stuck", stuck, timeout=0.02).compile().invoke({})
    assert caught.value.thread_runs
    assert await asyncio.to_thread(told.wait, 5)
    over = "node 'stuck' emits an event, but this attempt has ended: it reached its timeout"
    assert left == ["started", "it reached its timeout", over]


async def test_no_further_attempt_is_made_while_a_thread_is_left_behind() -> None:
    go = threading.Event()
    attempts: list[int] = []

    def stuck(state: Log, run: RunContext[None]) -> None:
        attempts.append(run.attempt)
        go.wait(5)

    app = line("stuck").add_node("stuck", stuck, timeout=0.02, retry=Retry(attempts=3, delay=0)).compile()
    with pytest.raises(NodeTimeoutError):
        await app.invoke({})
    go.set()
    assert attempts == [1]


@with_clock
async def test_a_thread_that_has_ended_and_left_an_awaitable_does_not_stand_in_the_way_of_a_further_attempt() -> None:
    attempts: list[int] = []

    def start(state: Log, run: RunContext[None]) -> Any:
        attempts.append(run.attempt)
        return asyncio.sleep(60)

    app = line("start").add_node("start", start, timeout=5, retry=Retry(attempts=2, delay=0)).compile()
    with pytest.raises(NodeTimeoutError) as caught:
        await app.invoke({})
    assert (attempts, caught.value.thread_runs) == ([1, 2], False)


# idle_timeout


@with_clock
async def test_a_silent_node_reaches_its_idle_timeout() -> None:
    async def silent(state: Log) -> None:
        await asyncio.sleep(60)

    with pytest.raises(NodeTimeoutError, match="node 'silent' reached its idle_timeout of 5 s") as caught:
        await line("silent").add_node("silent", silent, idle_timeout=5).compile().invoke({})
    assert (caught.value.kind, now()) == ("idle_timeout", 5)


@with_clock
async def test_a_heartbeat_starts_the_idle_timeout_anew() -> None:
    async def alive(state: Log, run: RunContext[None]) -> None:
        for _ in range(10):
            await asyncio.sleep(4)
            run.heartbeat()
        await asyncio.sleep(60)

    with pytest.raises(NodeTimeoutError, match="idle_timeout"):
        await line("alive").add_node("alive", alive, idle_timeout=5).compile().invoke({})
    assert now() == 45


@with_clock
async def test_an_event_starts_the_idle_timeout_anew_whether_or_not_somebody_reads() -> None:
    async def alive(state: Log, run: RunContext[None]) -> dict[str, Any]:
        for i in range(10):
            await asyncio.sleep(4)
            await run.emit(i)
        return {"log": "done"}

    app = line("alive").add_node("alive", alive, idle_timeout=5).compile()
    assert (await app.invoke({})).state["log"] == ["done"]
    async with app.stream({}) as events:
        assert len([e async for e in events if isinstance(e, Custom)]) == 10


@with_clock
async def test_a_heartbeat_deep_inside_a_subgraph_keeps_the_subgraph_alive() -> None:
    async def alive(state: Log, run: RunContext[None]) -> dict[str, Any]:
        for _ in range(5):
            await asyncio.sleep(4)
            run.heartbeat()
        return {"log": "done"}

    inner = line("alive").add_node("alive", alive).compile()
    middle = line("inner").add_node("inner", inner).compile()
    app = line("middle").add_node("middle", middle, idle_timeout=5).compile()
    assert (await app.invoke({})).state["log"] == ["done"]


@with_clock
async def test_a_subgraph_whose_nodes_end_one_after_the_other_is_not_idle() -> None:
    async def work(state: Log) -> None:
        await asyncio.sleep(4)

    inner = line("a", "b", "c").add_node("a", work).add_node("b", work).add_node("c", work)
    app = line("sub").add_node("sub", inner.compile(), idle_timeout=5).compile()
    await app.invoke({})
    assert now() == 12


@with_clock
async def test_the_shorter_of_both_timeouts_holds() -> None:
    async def alive(state: Log, run: RunContext[None]) -> None:
        while True:
            await asyncio.sleep(1)
            run.heartbeat()

    with pytest.raises(NodeTimeoutError, match=r"reached its timeout of 7\.5 s"):
        await line("alive").add_node("alive", alive, timeout=7.5, idle_timeout=3).compile().invoke({})
    assert now() == 7.5


async def test_a_heartbeat_may_come_from_a_thread() -> None:
    def alive(state: Log, run: RunContext[None]) -> dict[str, Any]:
        for _ in range(15):
            threading.Event().wait(0.02)
            run.heartbeat()
        return {"log": "done"}

    app = line("alive").add_node("alive", alive, idle_timeout=0.25).compile()
    assert (await app.invoke({})).state["log"] == ["done"]


@with_clock
async def test_an_idle_timeout_does_not_count_the_wait_for_a_permit() -> None:
    async def work(state: Log) -> dict[str, Any]:
        await asyncio.sleep(4)
        return {"log": now()}

    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, work, idle_timeout=5).add_edge(START, name).add_edge(name, END)
    assert (await graph.compile().invoke({}, RunConfig(max_concurrency=1))).state["log"] == [4, 8, 12]


# retry


class AnsweredError(Exception):
    """An HTTP error, as clients raise them."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status_code = status


class NumberedError(Exception):
    """An HTTP error, as other clients raise them."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class WrappedError(Exception):
    """An error that has the response it came of."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.response = AnsweredError(status)


KINDS = (AnsweredError, NumberedError, WrappedError)


def tried_by(*, retried: bool) -> Exception:
    error = ConnectionError("gone")
    error.retried = retried  # pyright: ignore[reportAttributeAccessIssue]
    return error


async def attempts_after(error: Exception, retry: Retry) -> int:
    """How many attempts are made of a node that always fails so."""
    attempts: list[int] = []

    async def fail(state: Log, run: RunContext[None]) -> None:
        attempts.append(run.attempt)
        raise error

    with pytest.raises(type(error)) as caught:
        await line("fail").add_node("fail", fail, retry=retry).compile().invoke({})
    assert caught.value is error
    assert attempts == list(range(1, len(attempts) + 1))
    return len(attempts)


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ConnectionError("gone"), 3),
        (ConnectionResetError("gone"), 3),
        (TimeoutError("late"), 3),
        *((kind(status), 3) for kind in KINDS for status in (408, 409, 429, 500, 502, 503, 529)),
        *((kind(status), 1) for kind in KINDS for status in (400, 401, 403, 404, 422)),
        (ValueError("no"), 1),
        (KeyError("no"), 1),
        (OSError("disk"), 1),
        (tried_by(retried=True), 1),
        (tried_by(retried=False), 3),
    ],
    ids=repr,
)
@with_clock
async def test_the_kind_of_error_says_whether_a_node_is_tried_again(error: Exception, attempts: int) -> None:
    assert await attempts_after(error, Retry(attempts=3)) == attempts


@with_clock
async def test_errors_of_http_clients_are_known_by_their_names() -> None:
    assert await attempts_after(httpx.ConnectError("gone"), Retry(attempts=2)) == 2
    assert await attempts_after(httpx.ReadTimeout("late"), Retry(attempts=2)) == 2
    assert await attempts_after(httpx.InvalidURL("no"), Retry(attempts=2)) == 1


def says_again(error: Exception) -> bool:
    return "again" in str(error)


@pytest.mark.parametrize(
    "rule", [ValueError, (KeyError, ValueError), says_again], ids=["a type", "types", "a function"]
)
@with_clock
async def test_the_callers_own_rule_takes_the_place_of_the_usual_one(rule: Any) -> None:
    assert await attempts_after(ValueError("again"), Retry(attempts=2, on=rule)) == 2
    assert await attempts_after(ConnectionError("gone"), Retry(attempts=2, on=rule)) == 1


@with_clock
async def test_a_further_attempt_starts_only_when_the_one_before_has_ended() -> None:
    spans: list[tuple[str, float]] = []

    async def slow(state: Log) -> None:
        spans.append(("start", now()))
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await asyncio.sleep(3)  # its clean-up takes a while
            finally:
                spans.append(("end", now()))

    app = line("slow").add_node("slow", slow, timeout=10, retry=Retry(attempts=2, delay=0)).compile()
    with pytest.raises(NodeTimeoutError):
        await app.invoke({})
    assert spans == [("start", 0), ("end", 13), ("start", 13), ("end", 26)]


@with_clock
async def test_the_waits_between_attempts_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    starts: list[float] = []

    async def fail(state: Log) -> None:
        starts.append(now())
        raise ConnectionError

    app = line("fail").add_node("fail", fail, retry=Retry(attempts=6, delay=1, max_delay=5)).compile()
    with pytest.raises(ConnectionError):
        await app.invoke({})
    assert starts == [0, 1, 3, 7, 12, 17]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6), st.floats(0, 1e6))
@settings(max_examples=60)
def test_a_wait_is_half_to_all_of_what_its_number_says(attempt: int, drawn: float, delay: float, most: float) -> None:
    wait = Retry(delay=delay, max_delay=most).wait(attempt, drawn)
    full = min(most, delay * 2.0 ** min(attempt - 1, 60))
    assert full / 2 <= wait <= full


@with_clock
async def test_the_last_attempts_error_comes_out_with_a_note_of_how_often_it_was_tried() -> None:
    async def fail(state: Log, run: RunContext[None]) -> None:
        raise ConnectionError(f"number {run.attempt}")

    with pytest.raises(ConnectionError, match="number 3") as caught:
        await line("fail").add_node("fail", fail, retry=Retry(attempts=3)).compile().invoke({})
    assert "attempt 3 of 3" in caught.value.__notes__


@with_clock
async def test_each_attempt_gets_the_same_state_and_only_the_last_ones_update_counts() -> None:
    seen: list[list[Any]] = []

    async def flaky(state: Log, run: RunContext[None]) -> dict[str, Any]:
        seen.append(state["log"])
        state["log"] = ["spoilt"]
        if run.attempt == 1:
            raise ConnectionError
        return {"log": "b"}

    app = line("flaky").add_node("flaky", flaky, retry=Retry()).compile()
    assert (await app.invoke({"log": "a"})).state["log"] == ["a", "b"]
    assert seen == [["a"], ["a"]]


@with_clock
async def test_while_a_node_waits_for_its_next_attempt_another_has_its_permit() -> None:
    async def flaky(state: Log, run: RunContext[None]) -> dict[str, Any]:
        if run.attempt == 1:
            raise ConnectionError
        return {"log": "flaky"}

    async def other(state: Log) -> dict[str, Any]:
        times.append(now())
        return {"log": "other"}

    times: list[float] = []
    graph = StateGraph(Log).add_node("flaky", flaky, retry=Retry(delay=60)).add_node("other", other)
    for name in ("flaky", "other"):
        graph.add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({}, RunConfig(max_concurrency=1))
    assert (result.state["log"], times) == (["flaky", "other"], [0])


@with_clock
async def test_a_subgraph_is_tried_again_as_a_whole() -> None:
    async def count(state: Log, run: RunContext[None]) -> dict[str, Any]:
        return {"log": "counted"}

    async def flaky(state: Log) -> None:
        tries.append(len(state["log"]))
        if len(tries) < 3:
            raise ConnectionError

    tries: list[int] = []
    inner = line("count", "flaky").add_node("count", count).add_node("flaky", flaky).compile()
    app = line("sub").add_node("sub", inner, retry=Retry()).compile()
    assert (await app.invoke({})).state["log"] == ["counted"]
    assert tries == [1, 1, 1]


@with_clock
async def test_a_cancelled_node_is_not_tried_again() -> None:
    attempts: list[int] = []

    async def slow(state: Log, run: RunContext[None]) -> None:
        attempts.append(run.attempt)
        await asyncio.sleep(60)

    app = line("slow").add_node("slow", slow, retry=Retry(on=lambda error: True)).compile()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await app.invoke({})
    assert attempts == [1]


@pytest.mark.case("I4")
@with_clock
async def test_a_run_that_waits_for_its_next_attempt_ends_at_once_when_cancelled() -> None:
    async def fail(state: Log) -> None:
        raise ConnectionError

    app = line("fail").add_node("fail", fail, retry=Retry(delay=60, max_delay=60)).compile()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await app.invoke({})
    assert now() == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 1.5},
        {"attempts": True},
        {"attempts": None},
        {"delay": -1},
        {"max_delay": float("nan")},
        {"on": int},
        {"on": "timeout"},
        {"on": (ValueError, "timeout")},
    ],
    ids=repr,
)
def test_a_retry_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"Retry\("):
        Retry(**wrong)


# on_error


async def fail(state: Log) -> None:
    raise ValueError("no")


async def test_on_error_gets_state_and_error_and_its_update_takes_the_place_of_the_nodes() -> None:
    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": [*state["log"], repr(error)]}

    app = line("fail").add_node("fail", fail, on_error=mend).compile()
    assert (await app.invoke({"log": "a"})).state["log"] == ["a", "a", "ValueError('no')"]


async def test_on_error_may_take_the_run_too() -> None:
    async def mend(state: Log, error: Exception, run: RunContext[str]) -> dict[str, Any]:
        return {"log": [run.node, run.step, run.attempt, run.context]}

    app = line("fail").add_node("fail", fail, on_error=mend).compile()
    assert (await app.invoke({}, context="mine")).state["log"] == ["fail", 1, 1, "mine"]


async def test_a_plain_on_error_runs_in_a_thread() -> None:
    def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": threading.current_thread() is threading.main_thread()}

    app = line("fail").add_node("fail", fail, on_error=mend).compile()
    assert (await app.invoke({})).state["log"] == [False]


async def test_an_object_with_async_call_as_on_error_is_awaited_in_the_loop() -> None:
    class Mend:
        async def __call__(self, _state: Log, _error: Exception) -> dict[str, Any]:
            return {"log": threading.current_thread() is threading.main_thread()}

    app = line("fail").add_node("fail", fail, on_error=Mend()).compile()
    assert (await app.invoke({})).state["log"] == [True]


async def test_on_error_may_go_elsewhere() -> None:
    async def mend(state: Log, error: Exception) -> Command:
        return Command(update={"log": "mended"}, goto="other")

    async def note(state: Log, run: RunContext[None]) -> dict[str, Any]:
        return {"log": run.node}

    graph = StateGraph(Log)
    graph.add_node("fail", fail, on_error=mend, ends=["other"]).add_node("next", note).add_node("other", note)
    graph.add_edge(START, "fail").add_edge("fail", "next").add_edge("next", END).add_edge("other", END)
    assert (await graph.compile().invoke({})).state["log"] == ["mended", "other"]


@with_clock
async def test_on_error_is_asked_once_after_the_last_attempt() -> None:
    calls: list[str] = []

    async def flaky(state: Log, run: RunContext[None]) -> None:
        calls.append(f"attempt {run.attempt}")
        raise ConnectionError

    async def mend(state: Log, error: Exception) -> None:
        calls.append("mend")

    await line("n").add_node("n", flaky, retry=Retry(attempts=2), on_error=mend).compile().invoke({})
    assert calls == ["attempt 1", "attempt 2", "mend"]


async def test_an_error_of_on_error_comes_out_and_carries_the_nodes() -> None:
    async def mend(state: Log, error: Exception) -> None:
        raise RuntimeError("cannot mend")

    with pytest.raises(RuntimeError, match="cannot mend") as caught:
        await line("fail").add_node("fail", fail, on_error=mend).compile().invoke({})
    assert isinstance(caught.value.__context__, ValueError)
    assert any("node 'fail'" in note for note in caught.value.__notes__)


async def test_on_error_may_raise_what_it_got() -> None:
    async def pass_on(state: Log, error: Exception) -> None:
        raise error

    with pytest.raises(ValueError, match="no"):
        await line("fail").add_node("fail", fail, on_error=pass_on).compile().invoke({})


async def test_a_cancelled_error_that_nobody_asked_for_reaches_on_error_too() -> None:
    async def stray(state: Log) -> None:
        raise asyncio.CancelledError

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": type(error).__name__}

    app = line("stray").add_node("stray", stray, on_error=mend).compile()
    assert (await app.invoke({})).state["log"] == ["StrayCancelError"]


async def test_on_error_in_a_thread_is_told_to_stop_when_the_run_is_cancelled() -> None:
    started, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def mend(state: Log, error: Exception, run: RunContext[None]) -> None:
        loop.call_soon_threadsafe(started.set)
        if run.cancellation.wait(5):
            stopped.set()

    running = asyncio.create_task(line("fail").add_node("fail", fail, on_error=mend).compile().invoke({}))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(stopped.wait, 5)


async def test_on_error_keeps_the_siblings_running() -> None:
    failed = asyncio.Event()

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        failed.set()
        return {"log": "mended"}

    async def sibling(state: Log) -> dict[str, Any]:
        await failed.wait()
        return {"log": "sibling"}

    graph = StateGraph(Log).add_node("fail", fail, on_error=mend).add_node("sibling", sibling)
    for name in ("fail", "sibling"):
        graph.add_edge(START, name).add_edge(name, END)
    assert (await graph.compile().invoke({})).state["log"] == ["mended", "sibling"]


@with_clock
async def test_on_error_works_under_a_permit_as_its_node_does() -> None:
    busy: list[str] = []

    async def mend(state: Log, error: Exception, run: RunContext[None]) -> None:
        busy.append(run.node)
        assert len(busy) == 1
        await asyncio.sleep(1)
        busy.remove(run.node)

    graph = StateGraph(Log)
    for name in ("a", "b", "c"):
        graph.add_node(name, fail, on_error=mend).add_edge(START, name).add_edge(name, END)
    await graph.compile().invoke({}, RunConfig(max_concurrency=1))
    assert now() == 3


async def test_on_error_is_not_asked_when_the_run_is_cancelled() -> None:
    started = asyncio.Event()
    asked: list[Exception] = []

    async def slow(state: Log) -> None:
        started.set()
        await asyncio.Event().wait()

    async def mend(state: Log, error: Exception) -> None:
        asked.append(error)

    running = asyncio.create_task(line("slow").add_node("slow", slow, on_error=mend).compile().invoke({}))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asked == []


# max_concurrency


def busy_fan(width: int, most: list[int]) -> StateGraph[Log]:
    """A fan of nodes; `most` is told how many were at work at once."""
    at_work: set[str] = set()

    async def work(state: Log, run: RunContext[None]) -> dict[str, Any]:
        me = "/".join(run.path)
        at_work.add(me)
        most.append(len(at_work))
        await asyncio.sleep(1)
        at_work.discard(me)
        return {"log": run.node}

    graph = StateGraph(Log)
    for i in range(width):
        graph.add_node(f"n{i}", work).add_edge(START, f"n{i}").add_edge(f"n{i}", END)
    return graph


@with_clock
async def test_no_more_nodes_are_at_work_at_once_than_allowed() -> None:
    most: list[int] = []
    result = await busy_fan(7, most).compile().invoke({}, RunConfig(max_concurrency=3))
    assert (max(most), now()) == (3, 3)
    assert result.state["log"] == [f"n{i}" for i in range(7)]


@with_clock
async def test_the_limit_holds_for_all_subgraphs_together_and_none_waits_for_itself() -> None:
    most: list[int] = []
    leaf = busy_fan(2, most).compile()
    graph = leaf
    for _ in range(3):
        outer = StateGraph(Log)
        for name in ("left", "right"):
            outer.add_node(name, graph).add_edge(START, name).add_edge(name, END)
        graph = outer.compile()
    result = await graph.invoke({}, RunConfig(max_concurrency=1, timeout=1000))
    assert max(most) == 1
    assert result.state["log"] == ["n0", "n1"] * 8


@given(st.integers(1, 4), st.data())
@settings(max_examples=25, deadline=None)
def test_no_nesting_of_graphs_deadlocks_under_any_limit(limit: int, data: st.DataObject) -> None:
    def build(depth: int) -> StateGraph[Log]:
        graph = StateGraph(Log)
        for i in range(data.draw(st.integers(1, 3))):
            name = f"n{i}"
            kind = data.draw(st.sampled_from(["leaf", "graph", "by hand"] if depth else ["leaf"]))
            node: Any = work
            if kind == "graph":
                node = build(depth - 1).compile()
            elif kind == "by hand":
                node = caller(build(depth - 1).compile())
            graph.add_node(name, node).add_edge(START, name).add_edge(name, END)
        return graph

    async def work(state: Log) -> dict[str, Any]:
        at_work.append(1)
        assert len(at_work) <= limit
        await asyncio.sleep(1)
        at_work.pop()
        return {"log": "x"}

    def caller(child: Any) -> Any:
        async def call(state: Log, run: RunContext[None]) -> Any:
            first: asyncio.Task[Any] = asyncio.ensure_future(child(state, run))
            await child(state, run)
            return await first

        return call

    @with_clock
    async def case() -> None:
        await build(2).compile().invoke({}, RunConfig(max_concurrency=limit, timeout=1000))

    at_work: list[int] = []
    case()


@with_clock
async def test_a_node_that_runs_a_graph_by_hand_lends_its_permit_and_takes_it_again() -> None:
    most: list[int] = []
    child = busy_fan(2, most).compile()

    async def call(state: Log, run: RunContext[None]) -> Any:
        updates = await child(state, run)
        await asyncio.sleep(10)
        return updates

    graph = StateGraph(Log)
    for name in ("a", "b"):
        graph.add_node(name, call).add_edge(START, name).add_edge(name, END)
    await graph.compile().invoke({}, RunConfig(max_concurrency=1))
    assert (max(most), now()) == (1, 24)


@with_clock
async def test_a_child_that_comes_while_a_node_takes_its_permit_again_does_not_wait_for_that_node() -> None:
    child = busy_fan(1, []).compile()

    async def later(state: Log, run: RunContext[None]) -> None:
        await asyncio.sleep(1.5)
        await child(state, run)

    async def call(state: Log, run: RunContext[None]) -> None:
        await asyncio.gather(child(state, run), later(state, run))

    async def once(state: Log, run: RunContext[None]) -> None:
        await child(state, run)

    graph = StateGraph(Log).add_node("call", call).add_node("once", once)
    for name in ("call", "once"):
        graph.add_edge(START, name).add_edge(name, END)
    await graph.compile().invoke({}, RunConfig(max_concurrency=1, timeout=1000))
    assert now() == 3


@with_clock
async def test_a_timeout_while_a_child_waits_for_a_permit_is_told_at_once() -> None:
    async def call(state: Log, run: RunContext[None]) -> Any:
        return await child(state, run)

    async def long(state: Log) -> None:
        await asyncio.sleep(100)

    async def mend(state: Log, error: Exception) -> None:
        told.append(error)

    told: list[Exception] = []
    ended: list[float] = []
    child = busy_fan(1, []).compile()
    graph = StateGraph(Log)
    graph.add_node("call", call, timeout=0.5, on_error=mend).add_node("long", long)
    for name in ("call", "long"):
        graph.add_edge(START, name).add_edge(name, END)
    async with graph.compile().stream({}, RunConfig(max_concurrency=1)) as events:
        ended += [now() async for e in events if isinstance(e, NodeFinished) and e.path == ("call",)]
    assert ended == [0.5]
    assert [type(e) for e in told] == [NodeTimeoutError]


@with_clock
async def test_a_node_that_waited_for_the_reader_gives_its_permit_back_when_cancelled() -> None:
    async def quick(state: Log) -> dict[str, Any]:
        return {"log": "quick"}

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": type(error).__name__}

    inner = line("deep").add_node("deep", quick).compile()
    graph = line("sub", "after").add_node("sub", inner, timeout=5, on_error=mend).add_node("after", quick)
    async with graph.compile().stream({}, RunConfig(max_concurrency=1), buffer=1) as events:
        for _ in range(4):  # up to the subgraph's step: its node waits for room to say that it starts
            await anext(events)
        await asyncio.sleep(6)
        _ = [event async for event in events]
    assert events.result.state["log"] == ["NodeTimeoutError", "quick"]


@with_clock
async def test_sends_are_bounded_too() -> None:
    at_work: list[Any] = []

    async def work(item: int) -> dict[str, Any]:
        at_work.append(item)
        assert len(at_work) <= 2
        await asyncio.sleep(1)
        at_work.remove(item)
        return {"log": item}

    graph = StateGraph(Log).add_node("work", work).add_edge("work", END)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(5)], ["work"])
    assert (await graph.compile().invoke({}, RunConfig(max_concurrency=2))).state["log"] == [0, 1, 2, 3, 4]
    assert now() == 3


# the run's own timeout


@with_clock
async def test_a_run_that_takes_longer_than_its_timeout_ends_with_an_error_that_says_where() -> None:
    ended: list[str] = []

    async def quick(state: Log) -> None:
        await asyncio.sleep(1)

    async def slow(state: Log) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")

    app = line("quick", "slow").add_node("quick", quick).add_node("slow", slow).compile()
    with pytest.raises(RunTimeoutError, match=r"timeout of 10 s in step 2, in 'slow'") as caught:
        await app.invoke({}, RunConfig(timeout=10))
    assert (caught.value.seconds, caught.value.step, caught.value.nodes) == (10, 2, ("slow",))
    assert (ended, now()) == (["slow"], 10)


@pytest.mark.case("B14")
@pytest.mark.parametrize("raised", [TimeoutError("db said no"), NodeTimeoutError("other", "timeout", 3)], ids=repr)
@with_clock
async def test_a_timeout_error_that_a_node_raises_is_not_taken_for_the_runs_timeout(raised: Exception) -> None:
    async def own(state: Log) -> None:
        await asyncio.sleep(5)
        raise raised

    with pytest.raises(TimeoutError) as caught:
        await line("own").add_node("own", own).compile().invoke({}, RunConfig(timeout=60))
    assert caught.value is raised


@pytest.mark.case("B14")
@pytest.mark.parametrize("policy", [{}, {"timeout": 60.0}], ids=["awaited in place", "with a policy"])
async def test_a_node_that_fails_by_itself_finds_its_token_not_cancelled(policy: dict[str, Any]) -> None:
    tokens: list[CancellationToken] = []

    async def own(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        raise TimeoutError("db said no")

    with pytest.raises(TimeoutError, match="db said no"):
        await line("own").add_node("own", own, **policy).compile().invoke({})
    assert [t.cancelled for t in tokens] == [False]


@with_clock
async def test_a_node_that_swallows_the_runs_timeout_does_not_keep_the_run_alive() -> None:
    ran: list[str] = []

    async def stubborn(state: Log) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ran.append("stubborn")

    async def after(state: Log) -> None:
        ran.append("after")

    app = line("stubborn", "after").add_node("stubborn", stubborn).add_node("after", after).compile()
    with pytest.raises(RunTimeoutError):
        await app.invoke({}, RunConfig(timeout=10))
    assert ran == ["stubborn"]


@with_clock
async def test_a_run_that_ends_in_time_is_not_touched_by_its_timeout() -> None:
    async def work(state: Log) -> dict[str, Any]:
        await asyncio.sleep(9)
        return {"log": "done"}

    result = await line("work").add_node("work", work).compile().invoke({}, RunConfig(timeout=10))
    await asyncio.sleep(60)
    assert result.state["log"] == ["done"]


@with_clock
async def test_a_timeout_round_the_run_stays_the_callers_own() -> None:
    async def slow(state: Log) -> None:
        await asyncio.sleep(60)

    app = line("slow").add_node("slow", slow, timeout=30).compile()
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(10):
            await app.invoke({}, RunConfig(timeout=20))
    assert (type(caught.value), now()) == (TimeoutError, 10)


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": -1}, {"timeout": "10"}, {"timeout": True}, {"timeout": float("nan")}]
    + [{"max_concurrency": n} for n in (0, -1, 1.5, "2", True)]
    + [{"recursion_limit": n} for n in (0, -1, None, 1.5)]
    + [{"thread_id": t} for t in ("", 7)],
    ids=repr,
)
def test_a_setting_that_cannot_be_meant_is_refused_and_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"RunConfig\({name}=...\) must be"):
        RunConfig(**wrong)


async def test_a_retry_rule_that_raises_tells_of_the_error_it_was_asked_about() -> None:
    async def node(state: Log) -> None:
        raise ValueError("boom")

    def rule(error: Exception) -> bool:
        raise KeyError("no such rule")

    app = line("n").add_node("n", node, retry=Retry(attempts=2, on=rule)).compile()
    with pytest.raises(KeyError) as caught:
        await app.invoke({})
    assert repr(caught.value.__cause__) == "ValueError('boom')"
    assert "raised by Retry(on=...), which was asked about the error above" in caught.value.__notes__


async def test_a_node_that_asks_is_told_as_finished() -> None:
    async def ask(state: Log, run: RunContext[None]) -> None:
        run.interrupt("?")

    async with line("ask").add_node("ask", ask).compile().stream({}) as events:
        told = [type(event).__name__ async for event in events]
    assert told[-3:] == ["NodeFinished", "InterruptRaised", "RunFinished"]
