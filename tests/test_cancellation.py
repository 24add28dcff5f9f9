"""Cancellation and failure: nothing that a run started outlives it, and what comes out is what happened."""

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from agentgraph import (
    END,
    START,
    AgentGraphError,
    CancellationToken,
    NodeTimeoutError,
    RunConfig,
    RunContext,
    RunEndedError,
    RunNote,
    StateGraph,
    tasks,
)
from agentgraph.errors import StrayCancelError
from agentgraph.messages import Usage
from agentgraph.strategies import Append
from agentgraph.testing import with_clock


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


@pytest.fixture(params=[True, False], ids=["short way", "long way"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one node without policies is active the engine takes a shorter way, which must change nothing."""
    monkeypatch.setattr("agentgraph._engine.run.SHORT_WAY", request.param)


@pytest.fixture
async def unheard(request: pytest.FixtureRequest) -> AsyncIterator[list[dict[str, Any]]]:
    """What reaches the loop's exception handler, which is where errors go that nobody looks at."""
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    yield told
    loop.set_exception_handler(None)


def line(*names: str) -> StateGraph[Log]:
    """A graph whose nodes, added by the test, run one after the other."""
    graph = StateGraph(Log)
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def fan(**nodes: Any) -> StateGraph[Log]:
    """A graph whose nodes run beside each other."""
    graph = StateGraph(Log)
    for name, node in nodes.items():
        graph.add_node(name, node).add_edge(START, name).add_edge(name, END)
    return graph


def now() -> float:
    return asyncio.get_running_loop().time()


class Waiter:
    """A node that waits until it is cancelled, and tells when it has started and when it has ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = False
        self.clean_up = 3
        """Turns of the loop that its clean-up takes."""

    async def __call__(self, _state: Any, _run: RunContext[Any], /) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(self.clean_up):
                await asyncio.sleep(0)
            self.ended = True


async def cancelled_when(started: asyncio.Event, running: asyncio.Task[Any]) -> None:
    """Cancel the task once that has started, and see that it ends as cancelled."""
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert running.cancelled()


# from outside


async def test_a_cancelled_run_ends_when_its_node_has_cleaned_up() -> None:
    node = Waiter()
    await cancelled_when(node.started, asyncio.create_task(line("n").add_node("n", node).compile().invoke({})))
    assert node.ended


async def test_all_nodes_of_the_step_are_cancelled_and_waited_for() -> None:
    nodes = [Waiter(), Waiter(), Waiter()]
    app = fan(a=nodes[0], b=nodes[1], c=nodes[2]).compile()
    await cancelled_when(nodes[2].started, asyncio.create_task(app.invoke({})))
    assert all(n.ended for n in nodes)


async def test_nodes_of_subgraphs_are_cancelled_and_waited_for_at_any_depth() -> None:
    nodes = [Waiter(), Waiter(), Waiter()]
    inner = fan(a=nodes[0], b=nodes[1]).compile()
    middle = line("inner").add_node("inner", inner).compile()
    await cancelled_when(nodes[0].started, asyncio.create_task(fan(middle=middle, c=nodes[2]).compile().invoke({})))
    assert all(n.ended for n in nodes)


async def test_no_step_follows_a_cancelled_one() -> None:
    node, ran = Waiter(), list[str]()

    async def after(state: Log) -> None:
        ran.append("after")

    app = line("n", "after").add_node("n", node).add_node("after", after).compile()
    await cancelled_when(node.started, asyncio.create_task(app.invoke({})))
    assert ran == []


async def test_a_second_cancel_while_nodes_clean_up_does_not_leave_them_behind() -> None:
    nodes = [Waiter(), Waiter()]
    nodes[0].clean_up = nodes[1].clean_up = 20
    running = asyncio.create_task(fan(a=nodes[0], b=nodes[1]).compile().invoke({}))
    await nodes[1].started.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert len(asyncio.all_tasks()) == 1


async def test_a_run_that_is_cancelled_before_it_began_runs_nothing() -> None:
    node = Waiter()
    running = asyncio.create_task(line("n").add_node("n", node).compile().invoke({}))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not node.started.is_set()


async def test_a_run_is_cancelled_while_its_router_waits() -> None:
    started, ended = asyncio.Event(), list[str]()

    async def work(state: Log) -> None: ...

    async def route(state: Log) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("route")
        return END

    graph = StateGraph(Log).add_node("work", work).add_edge(START, "work")
    graph.add_conditional_edges("work", route, [END])
    await cancelled_when(started, asyncio.create_task(graph.compile().invoke({})))
    assert ended == ["route"]


async def test_a_run_is_cancelled_while_nodes_wait_for_a_permit() -> None:
    first, second = Waiter(), Waiter()
    running = asyncio.create_task(fan(a=first, b=second).compile().invoke({}, RunConfig(max_concurrency=1)))
    await cancelled_when(first.started, running)
    assert first.ended
    assert not second.started.is_set()


async def test_a_run_is_cancelled_while_on_error_works() -> None:
    node = Waiter()

    async def fail(state: Log) -> None:
        raise ValueError

    async def mend(state: Log, error: Exception, run: RunContext[Any]) -> None:
        await node(state, run)

    app = line("fail").add_node("fail", fail, on_error=mend).compile()
    await cancelled_when(node.started, asyncio.create_task(app.invoke({})))
    assert node.ended


@pytest.mark.parametrize("alone", [True, False])
async def test_an_error_of_a_nodes_clean_up_does_not_hide_the_cancellation(alone: bool) -> None:
    started = asyncio.Event()

    async def clumsy(state: Log) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    graph = fan(clumsy=clumsy) if alone else fan(clumsy=clumsy, other=Waiter())
    await cancelled_when(started, asyncio.create_task(graph.compile().invoke({})))


async def test_runs_of_one_graph_are_cancelled_one_by_one() -> None:
    stop = asyncio.Event()

    async def wait(state: Log) -> dict[str, Any]:
        await stop.wait()
        return {"log": "done"}

    app = line("wait").add_node("wait", wait).compile()
    first, second = asyncio.create_task(app.invoke({})), asyncio.create_task(app.invoke({}))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    stop.set()
    assert (await second).state["log"] == ["done"]


async def test_a_run_in_the_clean_up_of_a_cancelled_task_runs_to_its_end() -> None:
    results: list[Any] = []

    async def work(state: Log) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": "saved"}

    async def task() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            results.append(await line("a", "b").add_node("a", work).add_node("b", work).compile().invoke({}))

    running = asyncio.create_task(task())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert results[0].state["log"] == ["saved", "saved"]


# swallowed by a node


@pytest.mark.case("B15")
@pytest.mark.parametrize("alone", [True, False])
async def test_one_cancel_is_enough_also_where_a_node_swallows_it(alone: bool) -> None:
    started, ran = asyncio.Event(), list[str]()

    async def stubborn(state: Log) -> dict[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ran.append("swallowed")
        return {"log": "stopped"}

    async def after(state: Log) -> None:
        ran.append("after")

    graph = fan(stubborn=stubborn) if alone else fan(stubborn=stubborn, other=Waiter())
    graph.add_node("after", after).add_edge("stubborn", "after").add_edge("after", END)
    await cancelled_when(started, asyncio.create_task(graph.compile().invoke({})))
    assert ran == ["swallowed"]


@pytest.mark.case("B15")
async def test_one_cancel_is_enough_where_a_node_deep_in_a_subgraph_swallows_it() -> None:
    started, ran = asyncio.Event(), list[str]()

    async def stubborn(state: Log) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ran.append("swallowed")

    async def after(state: Log) -> None:
        ran.append("after")

    inner = line("stubborn", "inside").add_node("stubborn", stubborn).add_node("inside", after).compile()
    outer = line("inner", "outside").add_node("inner", inner).add_node("outside", after).compile()
    await cancelled_when(started, asyncio.create_task(outer.invoke({})))
    assert ran == ["swallowed"]


@pytest.mark.case("B15")
@with_clock
async def test_where_a_node_swallows_its_timeout_the_run_goes_on_as_if_nothing_had_been() -> None:
    async def stubborn(state: Log) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {"log": "stopped"}
        return {}

    async def mend(state: Log, error: Exception) -> dict[str, Any]:
        return {"log": type(error).__name__}

    async def after(state: Log) -> dict[str, Any]:
        task = asyncio.current_task()
        await asyncio.sleep(1)
        return {"log": task is not None and task.cancelling()}

    graph = line("stubborn", "after").add_node("stubborn", stubborn, timeout=5, on_error=mend)
    result = await graph.add_node("after", after).compile().invoke({})
    assert result.state["log"] == ["NodeTimeoutError", 0]


async def test_a_node_may_use_task_groups_and_timeouts_that_cancel_inside_it() -> None:
    async def fail() -> None:
        raise ValueError

    async def inside(state: Log) -> dict[str, Any]:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.Event().wait())
        except* ValueError:
            pass
        return {"log": "inside"}

    app = line("a", "b").add_node("a", inside).add_node("b", inside).compile()
    assert (await app.invoke({})).state["log"] == ["inside", "inside"]


# raised by a node, with nobody having cancelled


@pytest.mark.parametrize("alone", [True, False])
async def test_a_cancelled_error_that_nobody_asked_for_is_the_nodes_error(alone: bool) -> None:
    async def stray(state: Log) -> None:
        raise asyncio.CancelledError("by myself")

    graph = fan(stray=stray) if alone else fan(stray=stray, other=Waiter())
    with pytest.raises(StrayCancelError, match="node 'stray' raised CancelledError, and nothing had cancelled it"):
        await graph.compile().invoke({})


async def test_awaiting_what_somebody_else_has_cancelled_is_the_nodes_error() -> None:
    async def stray(state: Log) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    with pytest.raises(AgentGraphError, match="something that it awaits was cancelled"):
        await line("stray").add_node("stray", stray, timeout=60).compile().invoke({})


async def test_a_stray_cancelled_error_deep_inside_names_the_node_that_raised_it() -> None:
    async def stray(state: Log) -> None:
        raise asyncio.CancelledError

    inner = line("stray").add_node("stray", stray).compile()
    with pytest.raises(StrayCancelError) as caught:
        await fan(inner=inner, other=Waiter()).compile().invoke({})
    assert caught.value.node == "inner/stray"


# a node that fails


async def fail(state: Log) -> None:
    raise ValueError("no")


async def test_a_failing_nodes_own_exception_comes_out_as_itself_when_its_siblings_have_ended() -> None:
    error, waiters = KeyError("mine"), [Waiter(), Waiter()]

    async def own(state: Log) -> None:
        await waiters[0].started.wait()
        await waiters[1].started.wait()
        raise error

    with pytest.raises(KeyError) as caught:
        await fan(a=waiters[0], own=own, b=waiters[1]).compile().invoke({})
    assert caught.value is error
    assert all(w.ended for w in waiters)


async def test_siblings_inside_subgraphs_end_too() -> None:
    waiter = Waiter()

    async def own(state: Log) -> None:
        await waiter.started.wait()
        raise ValueError("no")

    inner = line("waiter").add_node("waiter", waiter).compile()
    with pytest.raises(ValueError, match="no"):
        await fan(own=own, inner=inner).compile().invoke({})
    assert waiter.ended


async def test_the_first_in_node_order_comes_out_and_names_the_others_in_its_notes() -> None:
    later = asyncio.Event()

    async def first(state: Log) -> None:
        try:
            await later.wait()
        finally:
            raise ValueError("first in order, last to fail")

    async def second(state: Log) -> None:
        raise KeyError("second")

    async def third(state: Log) -> None:
        try:
            await later.wait()
        finally:
            raise RuntimeError("third")

    with pytest.raises(ValueError, match="first in order") as caught:
        await fan(first=first, second=second, third=third).compile().invoke({})
    others = [n for n in caught.value.__notes__ if n.startswith("also failed")]
    assert others == [
        "also failed: node 'second': KeyError: 'second'",
        "also failed: node 'third': RuntimeError: third",
    ]


async def test_an_exception_group_that_a_node_raises_comes_out_as_it_is() -> None:
    async def work(state: Log) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(state))

    with pytest.raises(ExceptionGroup) as caught:
        await fan(work=work, other=Waiter()).compile().invoke({})
    assert [type(e) for e in caught.value.exceptions] == [ValueError]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.may_leave_tasks
async def test_an_exit_is_nobodys_error(kind: type[BaseException]) -> None:
    async def leave(state: Log) -> None:
        raise kind

    with pytest.raises(kind):
        await line("leave").add_node("leave", leave).compile().invoke({})


# where it was


def note_of(error: BaseException) -> RunNote:
    (note,) = [n for n in error.__notes__ if isinstance(n, RunNote)]
    return note


@pytest.mark.parametrize("alone", [True, False])
async def test_a_note_says_node_step_and_thread_in_words_and_fields(alone: bool) -> None:
    async def work(state: Log) -> None: ...

    graph = line("work", "fail").add_node("work", work).add_node("fail", fail)
    if not alone:
        graph.add_node("beside", Waiter()).add_edge("work", "beside").add_edge("beside", END)
    with pytest.raises(ValueError, match="no") as caught:
        await graph.compile().invoke({}, RunConfig(thread_id="t1", run_id="r1"))
    note = note_of(caught.value)
    assert note == "in node 'fail', step 2, thread 't1'"
    assert (note.path, note.step, note.thread_id, note.run_id) == (("fail",), 2, "t1", "r1")


async def test_a_note_tells_the_innermost_place_once() -> None:
    inner = line("fail").add_node("fail", fail).compile()
    middle = line("inner").add_node("inner", inner).compile()
    with pytest.raises(ValueError, match="no") as caught:
        await line("middle").add_node("middle", middle).compile().invoke({})
    assert note_of(caught.value) == "in node 'middle/inner/fail', step 1"


async def test_a_run_inside_a_run_notes_both() -> None:
    inner = line("fail").add_node("fail", fail).compile()

    async def call(state: Log) -> None:
        await inner.invoke({})

    with pytest.raises(ValueError, match="no") as caught:
        await line("call").add_node("call", call).compile().invoke({})
    assert [n for n in caught.value.__notes__ if isinstance(n, RunNote)] == [
        "in node 'fail', step 1",
        "in node 'call', step 1",
    ]


async def test_an_error_of_a_router_says_which_nodes_it_was() -> None:
    async def work(state: Log) -> None: ...

    def route(state: Log) -> str:
        raise ValueError("no way")

    graph = StateGraph(Log).add_node("work", work).add_edge(START, "work").add_conditional_edges("work", route, [END])
    with pytest.raises(ValueError, match="no way") as caught:
        await graph.compile().invoke({})
    assert note_of(caught.value).path == ("work",)


# the token


async def test_the_token_tells_a_node_to_stop_when_its_run_is_cancelled() -> None:
    tokens, started = list[CancellationToken](), asyncio.Event()

    async def work(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        started.set()
        await asyncio.Event().wait()

    await cancelled_when(started, asyncio.create_task(line("work").add_node("work", work).compile().invoke({})))
    assert tokens[0].cancelled


async def test_the_tokens_of_a_failed_steps_siblings_are_cancelled_and_the_failed_ones_is_not() -> None:
    tokens = dict[str, CancellationToken]()

    async def sibling(state: Log, run: RunContext[None]) -> None:
        tokens["sibling"] = run.cancellation
        await asyncio.Event().wait()

    async def own(state: Log, run: RunContext[None]) -> None:
        tokens["own"] = run.cancellation
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fan(sibling=sibling, own=own).compile().invoke({})
    assert {name: t.cancelled for name, t in tokens.items()} == {"sibling": True, "own": False}


async def test_a_token_deep_inside_is_cancelled_with_the_outermost_run() -> None:
    tokens, started = list[CancellationToken](), asyncio.Event()

    async def work(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        started.set()
        await asyncio.Event().wait()

    app = line("work").add_node("work", work).compile()
    for _ in range(3):
        app = line("sub").add_node("sub", app).compile()
    await cancelled_when(started, asyncio.create_task(app.invoke({})))
    assert tokens[0].cancelled


async def test_a_token_that_was_not_asked_to_stop_stays_open() -> None:
    tokens = list[CancellationToken]()

    async def work(state: Log, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)

    await line("a", "b").add_node("a", work).add_node("b", work).compile().invoke({})
    assert [t.cancelled for t in tokens] == [False, False]


# worker threads, which Python cannot stop


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds a thread until the test is over, at most."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_cancelled_run_leaves_a_blocked_thread_behind_at_once(gate: threading.Event) -> None:
    started, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(state: Log, run: RunContext[None]) -> dict[str, Any]:
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)
        if run.cancellation.cancelled:
            stopped.set()
        return {"log": "too late"}

    await cancelled_when(started, asyncio.create_task(line("block").add_node("block", block).compile().invoke({})))
    assert not stopped.is_set()
    gate.set()
    assert await asyncio.to_thread(stopped.wait, 10)


async def test_a_failing_node_does_not_wait_for_a_siblings_blocked_thread(gate: threading.Event) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def block(state: Log) -> None:
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)

    async def own(state: Log) -> None:
        await started.wait()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fan(block=block, own=own).compile().invoke({})
    assert not gate.is_set()


def emit(run: RunContext[Any]) -> None:
    run.emit(1)


def ask_for_scratch(run: RunContext[Any]) -> None:
    run.scratch["left"] = "behind"


def count_a_round(run: RunContext[Any]) -> None:
    run.next_iteration()


def count_tokens(run: RunContext[Any]) -> None:
    run.add_usage(Usage(1, 1))


def keep_a_result(run: RunContext[Any]) -> None:
    def fetch() -> int:
        raise AssertionError("it was called")

    asyncio.run(run.once("k", fetch))


@pytest.mark.parametrize("touch", [emit, ask_for_scratch, count_a_round, count_tokens, keep_a_result])
async def test_a_thread_that_was_left_behind_can_touch_nothing_of_the_run(touch: Any, gate: threading.Event) -> None:
    errors, ended, started = list[BaseException](), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block(state: Log, run: RunContext[None]) -> None:
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)
        try:
            touch(run)
        except BaseException as error:
            errors.append(error)
        ended.set()

    await cancelled_when(started, asyncio.create_task(line("block").add_node("block", block).compile().invoke({})))
    gate.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert [type(e) for e in errors] == [RunEndedError]
    assert "node 'block'" in str(errors[0])


async def test_an_error_of_a_thread_that_was_left_behind_reaches_nobody(
    gate: threading.Event, unheard: list[Any]
) -> None:
    started, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(state: Log) -> None:
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)
        ended.set()
        raise ValueError("too late")

    await cancelled_when(started, asyncio.create_task(line("block").add_node("block", block).compile().invoke({})))
    gate.set()
    await asyncio.to_thread(ended.wait, 10)
    await asyncio.sleep(0)
    gc.collect()
    assert unheard == []


async def test_a_thread_has_the_callers_context_variables_and_cannot_change_them() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("me")

    def work(state: Log) -> dict[str, Any]:
        seen = who.get()
        who.set("somebody else")
        return {"log": seen}

    result = await line("a", "b").add_node("a", work).add_node("b", work).compile().invoke({})
    assert (result.state["log"], who.get()) == (["me", "me"], "me")


def test_a_thread_that_ends_after_its_event_loop_does_so_quietly(gate: threading.Event) -> None:
    ended = threading.Event()

    def block(state: Log) -> None:
        gate.wait(10)
        threading.current_thread().name = "left behind"
        ended.set()

    app = line("block").add_node("block", block, timeout=0.02).compile()
    with pytest.raises(NodeTimeoutError):
        app.invoke_sync({})
    gate.set()
    assert ended.wait(10)

    def name(state: Log) -> dict[str, Any]:
        return {"log": threading.current_thread().name}

    while line("name").add_node("name", name).compile().invoke_sync({}).state["log"] != ["left behind"]:
        pass  # the thread is on its way back to those that wait for work


async def test_a_stop_iteration_of_a_plain_function_is_an_error_like_any_other() -> None:
    def stop(state: Log) -> None:
        raise StopIteration("no more")

    with pytest.raises(RuntimeError, match="'stop' raised StopIteration") as caught:
        await line("stop").add_node("stop", stop).compile().invoke({})
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_blocked_thread_does_not_hold_up_the_interpreters_exit() -> None:
    code = """
import asyncio, threading
from agentgraph import *

def block(state):
    threading.Event().wait(60)

graph = StateGraph()
graph.add_node("block", block, timeout=0.05).add_edge(START, "block").add_edge("block", END)
try:
    asyncio.run(graph.compile().invoke({}))
except NodeTimeoutError:
    print("timed out")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("timed out\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    code = """
import os, warnings
from agentgraph import *

def work(state):
    return {"pid": os.getpid()}

graph = StateGraph()
graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
app = graph.compile()
app.invoke_sync({})
warnings.simplefilter("ignore")  # newer Pythons warn of forking with threads
child = os.fork()
mine = app.invoke_sync({}).state["pid"] == os.getpid()
if not child:
    os._exit(0 if mine else 1)
print(os.waitpid(child, 0)[1])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.stderr) == ("0\n", "")


# a stream


@pytest.mark.case("B4")
async def test_a_time_limit_round_reading_a_silent_run_leaves_nothing_behind(unheard: list[Any]) -> None:
    node = Waiter()
    app = line("node").add_node("node", node).compile()

    async def read() -> list[Any]:
        async with app.stream({}) as events:
            return [event async for event in events]

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.02)
    assert node.ended
    assert len(asyncio.all_tasks()) == 1
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []


@pytest.mark.case("B4")
async def test_a_run_that_fails_after_its_reader_gave_up_is_told_to_nobody(unheard: list[Any]) -> None:
    async def clumsy(state: Log) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    async def read() -> None:
        async with line("clumsy").add_node("clumsy", clumsy).compile().stream({}) as events:
            async for _ in events:
                pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.02)
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []


@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_a_run_that_cleans_up_in_a_cancelled_scope_of_anyio_does_not_keep_the_loop_spinning(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = asyncio.wait

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*args, **kwargs)

    monkeypatch.setattr(tasks.asyncio, "wait", counted)
    started, cleaning, over = 0, asyncio.Event(), asyncio.Event()

    async def slow(state: dict[str, Any]) -> None:
        nonlocal started
        started += 1
        if started == 2:
            scope.cancel()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            with anyio.CancelScope(shield=True):
                await over.wait()

    graph = StateGraph()
    for name in ("a", "b"):
        graph.add_node(name, slow).add_edge(START, name).add_edge(name, END)

    async def let_go() -> None:
        await cleaning.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        over.set()

    ending = asyncio.create_task(let_go())
    with anyio.CancelScope() as scope:
        if how == "invoke":
            await graph.compile().invoke({})
        else:
            async with graph.compile().stream({}) as events:
                async for _ in events:
                    pass
    await ending
    assert 1 <= waits <= 6
