"""What a node may do with its run: `RunContext`, and the token that tells it to stop."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import (
    END,
    START,
    CancellationToken,
    Command,
    CompiledGraph,
    Interrupt,
    Retry,
    RunConfig,
    RunContext,
    RunEndedError,
    Send,
    StateGraph,
)
from agentgraph.events import Custom, ToolProgress
from agentgraph.messages import Usage
from agentgraph.strategies import Append
from agentgraph.testing import with_clock


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


def line(*names: str) -> StateGraph[Log]:
    """A graph whose nodes, added by the test, run one after the other."""
    graph = StateGraph(Log)
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


async def told_by(graph: StateGraph[Log]) -> list[Any]:
    """What the run's nodes emitted."""
    async with graph.compile().stream({}) as events:
        return [event async for event in events if isinstance(event, (Custom, ToolProgress))]


# what it knows


async def test_it_knows_where_it_is_and_what_the_caller_gave() -> None:
    async def look(state: Log, run: RunContext[str]) -> dict[str, Any]:
        return {"log": [[run.node, run.path, run.step, run.attempt, run.context, run.run_id, run.config.tags]]}

    inner = line("look").add_node("look", look).compile()
    app = line("first", "sub").add_node("first", look).add_node("sub", inner).compile()
    config = RunConfig(run_id="r1", tags=("t",))
    assert (await app.invoke({}, config, context="mine")).state["log"] == [
        ["first", ("first",), 1, 1, "mine", "r1", ("t",)],
        ["look", ("sub", "look"), 1, 1, "mine", "r1", ("t",)],
    ]


async def test_a_run_without_an_id_of_the_callers_gets_one() -> None:
    async def look(state: Log, run: RunContext[None]) -> dict[str, Any]:
        return {"log": run.run_id}

    app = line("look").add_node("look", look).compile()
    first, second = await app.invoke({}), await app.invoke({})
    assert first.state["log"] == [first.run_id]
    assert len({first.run_id, second.run_id, ""}) == 3


async def test_its_repr_tells_node_step_and_attempt_and_whether_it_has_ended() -> None:
    seen: list[RunContext[Any]] = []

    async def look(state: Log, run: RunContext[None]) -> dict[str, Any]:
        seen.append(run)
        return {"log": repr(run)}

    result = await line("look").add_node("look", look).compile().invoke({})
    assert result.state["log"] == ["<RunContext look step 1 attempt 1>"]
    assert repr(seen[0]) == "<RunContext look step 1 attempt 1 closed>"


# emit


async def test_an_event_is_told_as_it_is_and_any_other_value_as_a_custom_one() -> None:
    async def work(state: Log, run: RunContext[None]) -> None:
        await run.emit(ToolProgress(call_id="c", name="f", progress=0.5))
        await run.emit({"a": [1, None]})
        await run.emit(Custom(data="mine"))
        await run.emit(None)

    progress, *customs = await told_by(line("work").add_node("work", work))
    assert (progress.call_id, progress.progress, progress.path) == ("c", 0.5, ("work",))
    assert [c.data for c in customs] == [{"a": [1, None]}, "mine", None]


async def test_a_thread_emits_by_a_plain_call() -> None:
    def work(state: Log, run: RunContext[None]) -> None:
        for number in range(5):
            run.emit(number)

    assert [e.data for e in await told_by(line("work").add_node("work", work))] == [0, 1, 2, 3, 4]


async def test_a_thread_of_the_nodes_own_may_emit_too() -> None:
    async def work(state: Log, run: RunContext[None]) -> None:
        await asyncio.gather(*[asyncio.to_thread(run.emit, number) for number in range(5)])
        await run.emit("last")

    told = await told_by(line("work").add_node("work", work))
    assert sorted(e.data for e in told[:-1]) == [0, 1, 2, 3, 4]
    assert told[-1].data == "last"


async def test_emitting_without_awaiting_still_tells() -> None:
    async def work(state: Log, run: RunContext[None]) -> None:
        _ = run.emit("not awaited")

    assert [e.data for e in await told_by(line("work").add_node("work", work))] == ["not awaited"]


async def test_a_task_that_outlived_its_node_can_emit_no_more() -> None:
    stray: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def linger(run: RunContext[None]) -> None:
        await go.wait()
        await run.emit("late")

    async def work(state: Log, run: RunContext[None]) -> None:
        stray.append(asyncio.create_task(linger(run)))

    async def after(state: Log) -> None:
        go.set()
        await asyncio.wait(stray)

    told = await told_by(line("work", "after").add_node("work", work).add_node("after", after))
    assert told == []
    with pytest.raises(RunEndedError, match="node 'work' emits an event, but this attempt has ended: it ended"):
        await stray[0]


@pytest.mark.may_block
async def test_what_a_thread_emits_while_its_node_ends_is_not_told() -> None:
    threads: list[threading.Thread] = []

    async def work(state: Log, run: RunContext[None]) -> None:
        threads.append(threading.Thread(target=run.emit, args=("late",)))
        threads[0].start()
        time.sleep(0.02)  # noqa: ASYNC251  # the loop must not turn between the thread's call and the node's end

    assert await told_by(line("work").add_node("work", work)) == []
    threads[0].join()


# once


async def test_once_gives_a_further_attempt_the_recorded_result() -> None:
    calls: list[str] = []

    def fetch() -> str:
        calls.append("fetch")
        return "fetched"

    async def flaky(state: Log, run: RunContext[None]) -> dict[str, Any]:
        got = await run.once("fetch", fetch)
        if run.attempt < 3:
            raise ConnectionError
        return {"log": [got, run.attempt]}

    app = line("flaky").add_node("flaky", flaky, retry=Retry(delay=0)).compile()
    assert (await app.invoke({})).state["log"] == ["fetched", 3]
    assert calls == ["fetch"]


async def test_once_takes_async_functions_and_keeps_nothing_of_a_failed_call() -> None:
    calls: list[int] = []

    async def fetch() -> int:
        await asyncio.sleep(0)
        calls.append(len(calls))
        if len(calls) == 1:
            raise ConnectionError
        return len(calls)

    async def flaky(state: Log, run: RunContext[None]) -> dict[str, Any]:
        got = await run.once("fetch", fetch)
        if run.attempt == 2:
            raise ConnectionError
        return {"log": got}

    app = line("flaky").add_node("flaky", flaky, retry=Retry(delay=0)).compile()
    assert (await app.invoke({})).state["log"] == [2]
    assert calls == [0, 1]


async def test_once_keeps_none_too() -> None:
    calls: list[str] = []

    async def flaky(state: Log, run: RunContext[None]) -> None:
        await run.once("note", lambda: calls.append("note"))
        if run.attempt == 1:
            raise ConnectionError

    await line("flaky").add_node("flaky", flaky, retry=Retry(delay=0)).compile().invoke({})
    assert calls == ["note"]


async def test_a_result_that_comes_after_the_attempt_has_ended_is_not_kept() -> None:
    stray: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def fetch() -> str:
        await go.wait()
        return "late"

    async def flaky(state: Log, run: RunContext[None]) -> dict[str, Any]:
        if run.attempt == 1:
            stray.append(asyncio.create_task(run.once("fetch", fetch)))
            await asyncio.sleep(0)
            raise ConnectionError
        go.set()
        await asyncio.wait(stray)
        return {"log": await run.once("fetch", lambda: "fresh")}

    app = line("flaky").add_node("flaky", flaky, retry=Retry(delay=0)).compile()
    assert (await app.invoke({})).state["log"] == ["fresh"]
    with pytest.raises(RunEndedError, match="records 'fetch', but this attempt has ended"):
        await stray[0]


async def test_what_once_keeps_belongs_to_key_node_step_and_send() -> None:
    calls: list[str] = []

    def record(name: str) -> Callable[[], str]:
        def fetch() -> str:
            calls.append(name)
            return name

        return fetch

    async def work(state: Any, run: RunContext[None]) -> dict[str, Any]:
        item = "" if isinstance(state, dict) else state
        keys = [await run.once(key, record(f"{run.node}{item} {run.step} {key}")) for key in ("k", "l")]
        if run.attempt == 1:
            raise ConnectionError
        return {"log": keys}

    async def again(state: Log) -> Command:
        return Command(goto=END if len(state["log"]) > 8 else ["a", "b"])

    graph = StateGraph(Log)
    for name in ("a", "b"):
        graph.add_node(name, work, retry=Retry(delay=0)).add_edge(START, name).add_edge(name, "again")
    graph.add_node("again", again, ends=["a", "b", END])
    state = (await graph.compile().invoke({})).state
    assert (
        state["log"] == [f"{node} {step} {key}" for step in (1, 3) for node in "ab" for key in "kl"] + state["log"][8:]
    )
    assert sorted(calls) == sorted(state["log"])

    sends = StateGraph(Log).add_node("w", work, retry=Retry(delay=0)).add_edge("w", END)
    sends.add_conditional_edges(START, lambda _: [Send("w", 1), Send("w", 2)], ["w"])
    assert (await sends.compile().invoke({})).state["log"] == ["w1 1 k", "w1 1 l", "w2 1 k", "w2 1 l"]


# interrupt


async def test_an_interrupt_ends_the_run_and_says_who_asks_what() -> None:
    ran: list[str] = []

    async def ask(state: Log, run: RunContext[None]) -> None:
        run.interrupt({"really": "?"})
        ran.append("after the question")

    async def after(state: Log) -> None:
        ran.append("after")

    app = line("ask", "after").add_node("ask", ask).add_node("after", after).compile()
    result = await app.invoke({"log": "before"})
    assert (result.status, result.state["log"], ran) == ("interrupted", ["before"], [])
    (asked,) = result.interrupts
    assert isinstance(asked, Interrupt)
    assert (asked.value, asked.node) == ({"really": "?"}, ("ask",))


async def test_no_except_exception_of_a_node_takes_an_interrupt() -> None:
    async def ask(state: Log, run: RunContext[None]) -> dict[str, Any]:
        try:
            run.interrupt("?")
        except Exception:
            return {"log": "taken"}
        return {"log": "answered"}

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": "mended"}

    app = line("ask").add_node("ask", ask, retry=Retry(delay=0), on_error=mend, timeout=60).compile()
    result = await app.invoke({})
    assert (result.status, result.state["log"]) == ("interrupted", [])


async def test_a_thread_may_ask_too() -> None:
    def ask(state: Log, run: RunContext[None]) -> None:
        run.interrupt("from a thread")

    result = await line("ask").add_node("ask", ask).compile().invoke({})
    assert [i.value for i in result.interrupts] == ["from a thread"]


async def test_siblings_finish_before_the_run_is_interrupted_and_all_questions_are_told() -> None:
    asked, finished = asyncio.Event(), list[str]()

    async def ask(state: Log, run: RunContext[None]) -> None:
        asked.set()
        run.interrupt(run.node)

    async def slow(state: Log) -> None:
        await asked.wait()
        await asyncio.sleep(0)
        finished.append("slow")

    graph = StateGraph(Log).add_node("b", ask).add_node("slow", slow).add_node("a", ask)
    for name in ("b", "slow", "a"):
        graph.add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({})
    assert ([i.value for i in result.interrupts], finished) == (["b", "a"], ["slow"])


async def test_a_question_deep_in_a_subgraph_interrupts_the_whole_run() -> None:
    async def ask(state: Log, run: RunContext[None]) -> None:
        run.interrupt("deep")

    inner = line("ask").add_node("ask", ask).compile()
    middle = line("inner").add_node("inner", inner).compile()
    result = await line("middle").add_node("middle", middle).compile().invoke({})
    assert [(i.value, i.node) for i in result.interrupts] == [("deep", ("middle", "inner", "ask"))]


async def test_each_question_has_an_id_of_its_own() -> None:
    async def ask(item: Any, run: RunContext[None]) -> None:
        run.interrupt(item)

    graph = StateGraph(Log).add_node("ask", ask).add_node("other", ask).add_edge("ask", END).add_edge("other", END)
    graph.add_conditional_edges(START, lambda _: [Send("ask", 1), Send("ask", 2), Send("other", 3)], ["ask", "other"])
    result = await graph.compile().invoke({})
    assert [i.value for i in result.interrupts] == [1, 2, 3]
    assert len({i.id for i in result.interrupts}) == 3


# what the nodes of a run share


async def test_the_scratch_is_shared_by_the_nodes_of_one_graph_and_gone_with_the_run() -> None:
    async def write(state: Log, run: RunContext[None]) -> dict[str, Any]:
        seen = dict(run.scratch)
        run.scratch[run.node] = "was here"
        return {"log": seen}

    inner = line("deep").add_node("deep", write).compile()
    app = line("a", "sub", "b").add_node("a", write).add_node("sub", inner).add_node("b", write).compile()
    for _ in range(2):
        assert (await app.invoke({})).state["log"] == [{}, {}, {"a": "was here"}]


async def test_rounds_are_counted_for_each_node_from_zero() -> None:
    async def work(state: Log, run: RunContext[None]) -> dict[str, Any]:
        before = run.iterations
        return {"log": [[run.node, before, run.next_iteration(), run.iterations]]}

    app = line("a", "b").add_node("a", work).add_node("b", work).compile()
    for _ in range(2):
        assert (await app.invoke({})).state["log"] == [["a", -1, 0, 0], ["b", -1, 0, 0]]


async def test_usage_sums_up_over_the_whole_run_subgraphs_included() -> None:
    async def call(state: Log, run: RunContext[None]) -> dict[str, Any]:
        run.add_usage(Usage(10, 1))
        return {"log": run.usage and run.usage.calls}

    inner = line("deep").add_node("deep", call).compile()
    app = line("a", "sub").add_node("a", call).add_node("sub", inner).compile()
    result = await app.invoke({})
    assert (result.usage, result.state["log"]) == (Usage(20, 2, calls=2), [1, 2])


async def test_the_usage_is_unknown_where_no_model_was_called() -> None:
    async def work(state: Log) -> None: ...

    assert (await line("work").add_node("work", work).compile().invoke({})).usage is None


# the token


def test_a_token_is_cancelled_once_and_for_good() -> None:
    token, called = CancellationToken(), list[str]()
    token.on_cancel(lambda: called.append("called"))
    token.cancel("enough")
    token.cancel("again")
    assert (token.cancelled, token.reason, called) == (True, "enough", ["called"])


def test_a_token_calls_back_in_the_order_in_which_it_was_asked_to() -> None:
    token, called = CancellationToken(), list[int]()
    for number in range(5):
        token.on_cancel(lambda number=number: called.append(number))
    token.cancel()
    assert called == [0, 1, 2, 3, 4]


def test_a_callback_that_is_asked_for_too_late_is_called_at_once() -> None:
    token, called = CancellationToken(), list[str]()
    token.cancel()
    token.on_cancel(lambda: called.append("called"))
    assert called == ["called"]


def test_a_callback_that_was_taken_back_is_not_called() -> None:
    token, called = CancellationToken(), list[str]()
    remove = token.on_cancel(lambda: called.append("first"))
    token.on_cancel(lambda: called.append("second"))
    assert (remove(), remove()) == (True, False)
    token.cancel()
    assert called == ["second"]


def test_a_callback_that_fails_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no")

    token, called = CancellationToken(), list[str]()
    token.on_cancel(fail)
    token.on_cancel(lambda: called.append("called"))
    with caplog.at_level(logging.ERROR, logger="agentgraph"):
        token.cancel()
    assert called == ["called"]
    assert "a callback of a cancellation token failed" in caplog.text
    assert "ValueError: no" in caplog.text


def test_a_child_is_cancelled_with_its_parent_and_without_it() -> None:
    parent = CancellationToken()
    first, second = parent.child(), parent.child()
    first.cancel("alone")
    assert (parent.cancelled, second.cancelled) == (False, False)
    parent.cancel("all")
    assert (second.cancelled, second.reason, first.reason) == (True, "all", "alone")


def test_a_child_of_a_cancelled_token_is_cancelled() -> None:
    parent = CancellationToken()
    parent.cancel("enough")
    assert parent.child().reason == "enough"


def test_a_child_that_was_detached_is_not_cancelled_with_its_parent() -> None:
    parent = CancellationToken()
    child = parent.child()
    child.detach()
    child.detach()
    parent.cancel()
    assert not child.cancelled


def test_asking_a_token_raises_where_the_work_is_to_stop() -> None:
    token = CancellationToken()
    token.raise_if_cancelled()
    token.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        token.raise_if_cancelled()


def test_a_tokens_repr_tells_its_state() -> None:
    token = CancellationToken()
    assert repr(token) == "<CancellationToken open>"
    token.cancel("enough")
    assert repr(token) == "<CancellationToken cancelled: enough>"


async def test_waiting_for_a_token_returns_when_it_is_cancelled_from_any_thread() -> None:
    token = CancellationToken()
    loop = asyncio.get_running_loop()
    helper = threading.Timer(0.02, token.cancel)
    helper.start()
    async with asyncio.timeout_at((began := loop.time()) + 5):
        await asyncio.gather(*[token.wait_cancelled() for _ in range(3)])
        await token.wait_cancelled()
    assert loop.time() < began + 4  # woken at once, and not by the time limit
    helper.join()


async def test_giving_up_waiting_for_a_token_leaves_nothing_with_it() -> None:
    token = CancellationToken()
    waiter = asyncio.create_task(token.wait_cancelled())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    reached = list[str]()
    token.on_cancel(lambda: reached.append("only me"))
    token.cancel()
    assert reached == ["only me"]


def test_a_thread_waits_for_a_token_for_as_long_as_it_says() -> None:
    token = CancellationToken()
    assert token.wait(0.001) is False
    helper = threading.Timer(0.01, token.cancel)
    helper.start()
    assert token.wait(10) is True
    assert token.wait() is True
    helper.join()


@given(st.integers(1, 4), st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_threads_may_cancel_ask_and_take_back_all_at_once(cancellers: int, callbacks: int) -> None:
    token, called = CancellationToken(), list[int]()
    removed: list[int] = []
    all_there = threading.Barrier(cancellers + 1, timeout=10)

    def cancel() -> None:
        all_there.wait()
        token.cancel()

    threads = [threading.Thread(target=cancel) for _ in range(cancellers)]
    for thread in threads:
        thread.start()
    removes = [token.on_cancel(lambda n=n: called.append(n)) for n in range(callbacks)]
    all_there.wait()
    removed += [n for n, remove in enumerate(removes) if n % 2 and remove()]
    for thread in threads:
        thread.join()
    assert sorted(called + removed) == list(range(callbacks))


async def test_a_thread_that_polls_its_token_stops_soon_after_the_run_was_cancelled() -> None:
    started, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def poll(state: Log, run: RunContext[None]) -> None:
        loop.call_soon_threadsafe(started.set)
        run.cancellation.wait(10)
        if run.cancellation.reason == "the run was cancelled":
            stopped.set()

    running = asyncio.create_task(line("poll").add_node("poll", poll).compile().invoke({}))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(stopped.wait, 5)


@with_clock
async def test_a_nodes_token_is_cancelled_at_its_timeout_and_each_attempt_has_its_own() -> None:
    tokens: list[CancellationToken] = []

    async def slow(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        await asyncio.sleep(60 if run.attempt == 1 else 1)

    await line("slow").add_node("slow", slow, timeout=5, retry=Retry(delay=0)).compile().invoke({})
    assert [(t.cancelled, t.reason) for t in tokens] == [(True, "it reached its timeout"), (False, None)]


async def test_a_token_asked_for_after_the_end_is_cancelled() -> None:
    seen: list[RunContext[Any]] = []

    async def work(state: Log, run: RunContext[None]) -> None:
        seen.append(run)

    await line("work").add_node("work", work).compile().invoke({})
    assert seen[0].cancellation.cancelled


# --- parts of an attempt, and who asks ---


async def asked(*builds: tuple[str, Any], sends: int = 0) -> list[str]:
    """The ids of what is asked by these nodes beside each other, or by `sends` Sends to the one there is."""
    graph = StateGraph()
    for name, node in builds:
        graph.add_node(name, node).add_edge(name, END)
        if not sends:
            graph.add_edge(START, name)
    if sends:
        graph.add_conditional_edges(START, lambda state: [Send(builds[0][0], {})] * sends, [builds[0][0]])
    return [i.id for i in (await graph.compile().invoke({})).interrupts]


def asking(name: str = "ask") -> CompiledGraph[dict[str, Any]]:
    async def ask(state: dict[str, Any], run: RunContext[None]) -> None:
        run.interrupt("?")

    return StateGraph().add_node(name, ask).add_edge(START, name).add_edge(name, END).compile()


async def ask(state: dict[str, Any], run: RunContext[None]) -> None:
    run.interrupt("?")


async def test_each_of_several_sends_asks_under_an_id_of_its_own_at_any_depth() -> None:
    assert await asked(("sub", asking()), sends=3) == ["sub#1/ask", "sub#2/ask", "sub#3/ask"]


async def test_a_name_that_looks_like_a_path_is_told_from_the_path() -> None:
    assert await asked(("a/b", ask), ("a", asking("b"))) == ["a%2Fb", "a/b"]


async def test_parts_of_one_node_ask_each_under_its_own_id() -> None:
    async def several(state: dict[str, Any], run: RunContext[None]) -> None:
        async def part(name: str) -> None:
            run.part(name).interrupt(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(part("x:1"))
            group.create_task(part("y"))

    assert sorted(await asked(("n", several))) == ["n:x%3A1", "n:y"]


async def test_what_fails_beside_a_question_in_a_group_ends_the_run() -> None:
    async def both(state: dict[str, Any], run: RunContext[None]) -> None:
        async def fail() -> None:
            raise ValueError("boom")

        async def question() -> None:
            run.interrupt("?")

        async with asyncio.TaskGroup() as group:
            group.create_task(question())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await asked(("n", both))
    assert [repr(e) for e in caught.value.exceptions] == ["ValueError('boom')"]


async def test_a_part_that_was_closed_can_touch_nothing_while_its_attempt_goes_on() -> None:
    refused: list[str] = []

    async def node(state: dict[str, Any], run: RunContext[None]) -> None:
        part = run.part("p")
        token = part.cancellation
        part.close("it is over", cancel=True)
        for touch in (
            lambda: part.emit(1),
            lambda: part.add_usage(Usage()),
            lambda: part.scratch,
            lambda: part.part("q"),
            lambda: part.interrupt(1),
        ):
            with pytest.raises(RunEndedError, match="it is over"):
                touch()
            refused.append("refused")
        assert (token.cancelled, run.cancellation.cancelled) == (True, False)
        await run.emit(2)

    graph = StateGraph().add_node("n", node).add_edge(START, "n").add_edge("n", END)
    await graph.compile().invoke({})
    assert len(refused) == 5


async def test_a_part_ends_with_its_attempt_and_its_token_with_the_attempts() -> None:
    parts: list[RunContext[None]] = []

    async def node(state: dict[str, Any], run: RunContext[None]) -> None:
        parts.append(run.part("p"))
        run.cancellation.cancel("enough")
        assert parts[0].cancellation.cancelled

    await StateGraph().add_node("n", node).add_edge(START, "n").add_edge("n", END).compile().invoke({})
    with pytest.raises(RunEndedError):
        parts[0].emit(1)


async def test_what_outlives_its_node_cannot_run_a_graph_as_part_of_the_run() -> None:
    kept: list[RunContext[None]] = []
    inner = asking()

    async def node(state: dict[str, Any], run: RunContext[None]) -> None:
        kept.append(run)

    await StateGraph().add_node("n", node).add_edge(START, "n").add_edge("n", END).compile().invoke({})
    with pytest.raises(RunEndedError, match="runs graph 'graph', but this attempt has ended"):
        await inner({}, kept[0])
