"""The tool node: every call of a message gets one answer, in call order, whatever its tool does."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import msgspec
import pytest

from agentgraph import (
    END,
    START,
    CancellationToken,
    CompiledGraph,
    ConfigError,
    InputError,
    RunContext,
    StateGraph,
    UpdateError,
)
from agentgraph.errors import NodeTimeoutError, RunEndedError
from agentgraph.events import StateUpdate, ToolFinished, ToolProgress, ToolStarted
from agentgraph.messages import (
    AssistantMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.nodes import Answer, Tool, ToolContext, ToolError, ToolHandler, ToolNode, ToolRequest, tool
from agentgraph.strategies import Append, Merge, Messages, Replace
from agentgraph.testing import run_with_clock, with_clock

State = dict[str, Any]
AnyTool = Tool | Callable[..., Any]


def app_of(tools: Iterable[AnyTool], **options: Any) -> CompiledGraph[State]:
    strategies = {"messages": Messages(), "log": Append(), "files": Merge(), "last": Replace()}
    graph = StateGraph(strategies=strategies)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


def asking(*calls: tuple[str, str] | str, finish_reason: str = "tool_calls") -> State:
    """A state whose last message makes these calls: a tool's name, or name and arguments."""
    pairs = [(c, "") if isinstance(c, str) else c for c in calls]
    made = [ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(pairs)]
    return {"messages": [AssistantMessage(id="asks", tool_calls=made, finish_reason=finish_reason)]}


def answers(state: State) -> list[ToolResponse]:
    return next(m for m in reversed(state["messages"]) if isinstance(m, ToolResponseMessage)).responses


def texts(state: State) -> list[str]:
    return [a.text for a in answers(state)]


def now() -> float:
    return asyncio.get_running_loop().time()


# --- parallel calls, and merging what they wrote


@pytest.mark.case("A1")
@with_clock
async def test_one_failing_call_is_an_error_answer_among_the_others_and_the_run_goes_on() -> None:
    async def work(n: int) -> int:
        await asyncio.sleep(0.02)
        return n

    async def fail() -> None:
        raise ValueError("boom")

    async def model(state: State) -> State:
        return {"log": texts(state)}

    graph = StateGraph(strategies={"messages": Messages(), "log": Append()})
    graph.add_node("tools", ToolNode([work, fail])).add_node("model", model)
    graph.add_edge(START, "tools").add_edge("tools", "model").add_edge("model", END)
    result = await graph.compile().invoke(asking(("work", '{"n": 1}'), "fail", ("work", '{"n": 3}')))
    assert [(a.id, a.is_error) for a in answers(result.state)] == [("c0", False), ("c1", True), ("c2", False)]
    assert result.state["log"] == ["1", "ValueError: boom", "3"]


@pytest.mark.case("A4")
@with_clock
async def test_calls_that_never_end_give_their_permits_to_those_that_wait() -> None:
    began: dict[int, float] = {}

    async def work(n: int) -> int:
        began[n] = now()
        await asyncio.sleep(float("inf") if n < 5 else 0.1)
        return n

    calls = [("work", f'{{"n": {n}}}') for n in range(10)]
    result = await app_of([work], max_parallel=5, timeout=0.2).invoke(asking(*calls))
    assert texts(result.state)[:5] == ["tool 'work' timed out after 0.2 s and was stopped"] * 5
    assert texts(result.state)[5:] == ["5", "6", "7", "8", "9"]
    assert list(began.values()) == pytest.approx([0.0] * 5 + [0.2] * 5)
    assert now() == pytest.approx(0.3)


@pytest.mark.case("A5")
@pytest.mark.parametrize("parallel", [True, False])
def test_updates_merge_in_call_order_whatever_finished_first(parallel: bool) -> None:
    ended: list[int] = []

    async def write(n: int, delay: float, ctx: ToolContext) -> None:
        await asyncio.sleep(delay)
        ctx.update(log=f"v{n}")
        ended.append(n)

    calls = [("write", f'{{"n": {n}, "delay": {delay}}}') for n, delay in enumerate((2, 3, 1))]
    result = run_with_clock(app_of([write], parallel=parallel).invoke(asking(*calls)))
    assert result.state["log"] == ["v0", "v1", "v2"]
    assert ended == ([2, 0, 1] if parallel else [0, 1, 2])


@pytest.mark.case("A6")
async def test_a_message_that_a_tool_writes_follows_all_the_answers() -> None:
    async def remark(ctx: ToolContext) -> str:
        ctx.update(messages=UserMessage(f"by {ctx.call_id}"))
        return "said"

    state = (await app_of([remark]).invoke(asking("remark", "remark"))).state
    assert [type(m) for m in state["messages"]] == [AssistantMessage, ToolResponseMessage, UserMessage, UserMessage]
    assert [m.text for m in state["messages"][1:]] == ["said\nsaid", "by c0", "by c1"]


@pytest.mark.case("A13")
async def test_a_call_that_fails_the_run_waits_for_its_siblings_and_starts_no_other() -> None:
    started, ended, outside = asyncio.Event(), asyncio.Event(), list[str]()

    async def fatal() -> None:
        await started.wait()
        raise ToolError("the run must fail", always_raise=True)

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
            outside.append("worked")
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def queued() -> None:
        outside.append("started")

    with pytest.raises(ToolError, match="the run must fail"):
        await app_of([fatal, work, queued], max_parallel=2).invoke(asking("fatal", "work", "queued"))
    assert ended.is_set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert outside == []


async def test_a_sibling_that_swallows_its_cancellation_is_told_and_not_heard_when_the_run_fails() -> None:
    tokens: list[CancellationToken] = []

    async def swallows(ctx: ToolContext) -> str:
        tokens.append(ctx.cancellation)
        return await stubborn(ctx)

    async def fatal() -> None:
        raise ToolError("fatal", always_raise=True)

    async def read() -> None:
        async with app_of([swallows, fatal]).stream(asking("swallows", "fatal")) as events:
            async for event in events:
                assert not isinstance(event, ToolFinished)

    with pytest.raises(ToolError, match="fatal"):
        await read()
    assert tokens[0].cancelled


@pytest.mark.case("A14")
def test_the_state_is_the_same_to_the_byte_in_parallel_serially_and_in_any_order() -> None:
    async def write(k: str, delay: float, ctx: ToolContext) -> Answer:
        await asyncio.sleep(delay)
        ctx.update(files={k: delay > 0}, log=[k], last=k)
        return Answer(k, metadata={"k": k})

    def state_after(parallel: bool, delays: dict[str, float]) -> State:
        calls = [("write", f'{{"k": "{k}", "delay": {d}}}') for k, d in delays.items()]
        given = asking(*calls) | {"files": {"old": True}, "log": ["old"]}
        state = run_with_clock(app_of([write], parallel=parallel).invoke(given)).state
        return state | {"messages": state["messages"][1:]}  # the calls themselves name the delays

    states = [state_after(p, {"k0": a, "k1": b}) for p in (True, False) for a, b in ((2, 1), (1, 2))]
    first = states[0]
    assert first["files"] == {"old": True, "k0": True, "k1": True}
    assert (first["log"], first["last"]) == (["old", "k0", "k1"], "k1")
    assert len({msgspec.json.encode(state) for state in states}) == 1


@pytest.mark.case("A15")
@pytest.mark.parametrize("questions", [["a", "b"], ["a", "a"]])
@pytest.mark.parametrize("ids", [["c1", "c2"], ["c1", "c1"]])
async def test_each_call_of_one_tool_runs_with_its_own_arguments_and_gets_its_own_answer(
    questions: list[str], ids: list[str]
) -> None:
    executed: list[str] = []

    async def look(q: str) -> str:
        executed.append(q)
        return f"{q}{len(executed)}"

    calls = [ToolCall(id, "look", f'{{"q": "{q}"}}') for id, q in zip(ids, questions, strict=True)]
    result = await app_of([look]).invoke({"messages": [AssistantMessage(tool_calls=calls)]})
    assert executed == questions
    assert [a.content for a in answers(result.state)] == [f"{questions[0]}1", f"{questions[1]}2"]
    assert [a.id for a in answers(result.state)] == [c.id for c in result.state["messages"][0].tool_calls]


async def test_call_ids_that_repeat_or_are_empty_get_others_in_call_answer_metadata_and_events() -> None:
    async def look(ctx: ToolContext) -> Answer:
        return Answer(ctx.call_id, metadata={"id": ctx.call_id})

    calls = [ToolCall(id, "look") for id in ("a", "", "a", "b", "")]
    asks = AssistantMessage(id="asks", tool_calls=calls)
    async with app_of([look]).stream({"messages": [UserMessage("go"), asks]}) as events:
        started = [e.call_id async for e in events if isinstance(e, ToolStarted)]
    _, asked, answer = events.result.state["messages"]
    ids = ["a", "call_2", "a_2", "b", "call_3"]
    assert [asked.id, *(c.id for c in asked.tool_calls)] == ["asks", *ids]
    assert [a.id for a in answer.responses] == [a.text for a in answer.responses] == ids
    assert (started, list(answer.metadata["answers"])) == (ids, ids)


async def test_a_message_whose_call_ids_differ_is_not_written_again() -> None:
    async with app_of([other]).stream(asking("other", "other")) as events:
        updates = [e.update async for e in events if isinstance(e, StateUpdate)]
    assert [[m.id for m in update["messages"]] for update in updates] == [["asks-answers"]]


@pytest.mark.parametrize("had", [["c", "c"], ["c", "c_2"]])
async def test_answers_that_are_there_count_for_calls_whose_ids_repeat_by_either_id(had: list[str]) -> None:
    executed: list[str] = []

    async def look(ctx: ToolContext) -> str:
        executed.append(ctx.call_id)
        return "new"

    asks = AssistantMessage(tool_calls=[ToolCall("c", "look") for _ in range(3)])
    partial = ToolResponseMessage([ToolResponse(id, "look", f"old {n}") for n, id in enumerate(had)])
    state = (await app_of([look]).invoke({"messages": [asks, partial]})).state
    assert [(a.id, a.text) for a in answers(state)] == [("c", "old 0"), ("c_2", "old 1"), ("c_3", "new")]
    assert executed == ["c_3"]


@pytest.mark.parametrize(
    ("options", "most"), [({"max_parallel": 2}, 2), ({"max_parallel": None}, 6), ({"parallel": False}, 1), ({}, 5)]
)
def test_at_most_so_many_calls_run_at_once_as_the_node_says(options: dict[str, Any], most: int) -> None:
    running: list[int] = []
    at_once: list[int] = []

    async def work(n: int) -> None:
        running.append(n)
        at_once.append(len(running))
        await asyncio.sleep(1)
        running.remove(n)

    run_with_clock(app_of([work], **options).invoke(asking(*[("work", f'{{"n": {n}}}') for n in range(6)])))
    assert max(at_once) == most


@pytest.mark.parametrize(
    "options", [{"max_parallel": 0}, {"max_parallel": 1.5}, {"timeout": 0}, {"timeout": -1}, {"max_parallel": True}]
)
def test_settings_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"ToolNode\({next(iter(options))}="):
        ToolNode([], **options)


@pytest.mark.parametrize(
    ("tools", "options", "told"),
    [
        (5, {}, "ToolNode: tools come in a list, found 5"),
        ([], {"interceptors": [5]}, r"ToolNode: an interceptor is an async function of \(request, call\), found 5"),
        ([], {"interceptors": 5}, "ToolNode: interceptors come in a list, found 5"),
        ([], {"resolver": 5}, r"ToolNode\(resolver=...\) is a function of \(name\), found 5"),
        ([], {"error_processor": 5}, r"ToolNode\(error_processor=...\) is a function of \(error, call\), found 5"),
        ([], {"tool_context": [5]}, r"ToolNode\(tool_context=...\) is a dict of values by name, found \[5\]"),
    ],
)
def test_what_is_no_list_of_tools_or_interceptors_is_refused(tools: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ToolNode(tools, **options)


def test_two_tools_of_one_name_are_refused() -> None:
    def look() -> None: ...

    with pytest.raises(ConfigError, match="two tools are named 'look'"):
        ToolNode([look, tool(look)])


@dataclass
class Typed:
    messages: Annotated[list[Any], Messages()]
    count: int = 0
    seen: Annotated[list[str], Append()] = field(default_factory=list[str])


async def test_a_typed_state_does_as_well() -> None:
    async def look(ctx: ToolContext) -> int:
        ctx.update(seen=type(ctx.state).__name__)
        return ctx.state.count

    graph = StateGraph(Typed)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "tools").add_edge("tools", END)
    state = (await graph.compile().invoke({**asking("look"), "count": 7})).state
    assert (state.messages[-1].text, state.seen) == ("7", ["Typed"])


# --- timeouts, threads, cancellation


@pytest.mark.case("B1")
@with_clock
async def test_a_tool_that_waits_for_a_dead_socket_times_out_and_is_over() -> None:
    over, server_over = list[str](), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        server_over.set()

    async def fetch(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
            over.append("fetch")

    async def fast() -> str:
        return "fast"

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = now()
        result = await app_of([fetch, fast], timeout=0.3).invoke(asking(("fetch", f'{{"port": {port}}}'), "fast"))
        await server_over.wait()
    assert texts(result.state) == ["tool 'fetch' timed out after 0.3 s and was stopped", "fast"]
    assert now() - began == pytest.approx(0.3, abs=0.1)
    assert over == ["fetch"]


@pytest.mark.case("B11")
@with_clock
async def test_a_calls_time_counts_from_its_permit_which_is_free_at_the_timeout() -> None:
    began: list[float] = []

    async def never() -> None:
        await asyncio.Event().wait()

    async def quick() -> str:
        began.append(now())
        await asyncio.sleep(9)
        return "done"

    result = await app_of([never, quick], max_parallel=1, timeout=10).invoke(asking("never", "quick"))
    assert texts(result.state) == ["tool 'never' timed out after 10 s and was stopped", "done"]
    assert began == [10.0]


@pytest.mark.case("B11")
@pytest.mark.parametrize("options", [{"max_parallel": 1}, {"max_parallel": 2}])
async def test_a_thread_that_never_ends_gives_its_permit_back_and_is_left_behind(options: dict[str, Any]) -> None:
    release, executed = threading.Event(), list[str]()

    def never() -> str:
        release.wait()
        return "thrown away"

    async def quick() -> str:
        executed.append("quick")
        return "done"

    try:
        result = await app_of([never, quick], timeout=0.02, **options).invoke(asking("never", "never", "quick"))
    finally:
        release.set()
    left = "tool 'never' timed out after 0.02 s and was left running, and its result is thrown away"
    assert texts(result.state) == [left, left, "done"]
    assert executed == ["quick"]


@pytest.mark.case("B11")
@with_clock
async def test_a_call_that_waits_for_its_permit_never_runs_once_the_run_is_cancelled() -> None:
    executed: list[str] = []

    async def never() -> None:
        await asyncio.Event().wait()

    async def quick() -> None:
        executed.append("quick")

    for options in ({"max_parallel": 1}, {"max_parallel": 2}):
        app = app_of([never, quick], timeout=10, **options)
        run = asyncio.create_task(app.invoke(asking("never", "never", "quick")))
        await asyncio.sleep(5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.sleep(60)
    assert executed == []


@pytest.mark.case("B14")
@with_clock
async def test_a_tools_own_timeout_error_is_told_apart_from_the_nodes() -> None:
    tokens: dict[str, CancellationToken] = {}

    async def own(ctx: ToolContext) -> None:
        tokens["own"] = ctx.cancellation
        raise TimeoutError("db said no")

    async def inner(ctx: ToolContext) -> None:
        tokens["inner"] = ctx.cancellation
        async with asyncio.timeout(1):
            await asyncio.sleep(60)

    async def late(ctx: ToolContext) -> None:
        tokens["late"] = ctx.cancellation
        await asyncio.sleep(60)

    async with app_of([own, inner, late], timeout=30).stream(asking("own", "inner", "late")) as events:
        ended = [e async for e in events if isinstance(e, ToolFinished)]
    assert texts(events.result.state) == [
        "TimeoutError: db said no",
        "TimeoutError",
        "tool 'late' timed out after 30 s and was stopped",
    ]
    assert {name: token.cancelled for name, token in tokens.items()} == {"own": False, "inner": False, "late": True}
    assert tokens["late"].reason == "it timed out after 30 s"
    assert [(e.name, e.outcome, e.seconds) for e in ended] == [
        ("own", "error", 0.0),
        ("inner", "error", 1.0),
        ("late", "timeout", 30.0),
    ]


@pytest.mark.case("B14")
@pytest.mark.parametrize("calls", [["never"], ["never", "other"]])
@with_clock
async def test_the_nodes_own_timeout_in_the_graph_ends_its_calls_and_comes_out_as_such(calls: list[str]) -> None:
    over, tokens = list[str](), list[CancellationToken]()

    async def never(ctx: ToolContext) -> None:
        tokens.append(ctx.cancellation)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append("never")

    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode([never, other]), timeout=3)
    graph.add_edge(START, "tools").add_edge("tools", END)
    with pytest.raises(NodeTimeoutError, match="node 'tools' reached its timeout of 3 s"):
        await graph.compile().invoke(asking(*calls))
    assert (over, now()) == (["never"], 3)
    assert tokens[0].cancelled


async def stubborn(ctx: ToolContext) -> str:
    """Catches its cancellation, and goes on as if nothing had been."""
    ctx.update(log="swallowed")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return "stopped"


async def other() -> str:
    return "other"


@pytest.mark.case("B15")
@pytest.mark.parametrize("calls", [["stubborn"], ["stubborn", "other"], ["stubborn", "stubborn"]])
def test_a_tool_that_swallows_its_timeout_has_timed_out_all_the_same(calls: list[str]) -> None:
    counts: list[int] = []

    async def model(state: State) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())

    graph = StateGraph(strategies={"messages": Messages(), "log": Append()})
    graph.add_node("tools", ToolNode([stubborn, other], timeout=2)).add_node("model", model)
    graph.add_edge(START, "tools").add_edge("tools", "model").add_edge("model", END)
    state = run_with_clock(graph.compile().invoke(asking(*calls))).state
    late = "tool 'stubborn' timed out after 2 s and was stopped"
    assert texts(state) == [late if c == "stubborn" else "other" for c in calls]
    assert state["log"] == []
    assert counts == [0]


async def fails_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("instead") from None


async def refuses_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ToolError("instead", always_raise=True) from None


async def asks_when_cancelled(ctx: ToolContext) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ctx.interrupt("instead")


async def swallowing(request: ToolRequest, call: ToolHandler) -> ToolResponse:
    try:
        return await call(request)
    except asyncio.CancelledError:
        return ToolResponse("", "", "swallowed by the interceptor")


@pytest.mark.case("B15")
@pytest.mark.parametrize("does", [stubborn, fails_when_cancelled, refuses_when_cancelled, asks_when_cancelled])
@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"parallel": False}, {"interceptors": [swallowing]}, {"max_parallel": 2}])
async def test_one_cancellation_from_outside_is_enough_whatever_a_tool_makes_of_it(
    does: Callable[..., Any], calls: int, options: dict[str, Any]
) -> None:
    went_on: list[str] = []

    async def model(state: State) -> None:
        went_on.append("model")

    graph = StateGraph(strategies={"messages": Messages(), "log": Append()})
    graph.add_node("tools", ToolNode([does], **options)).add_node("model", model)
    graph.add_edge(START, "tools").add_edge("tools", "model").add_edge("model", END)
    run = asyncio.create_task(graph.compile().invoke(asking(*[does.__name__] * calls)))
    for _ in range(5):
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert went_on == []


@with_clock
async def test_a_cancellation_after_a_timeout_ends_the_run_and_nothing_is_tried_again() -> None:
    attempts: list[float] = []

    async def lingers() -> None:
        attempts.append(now())
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)

    async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        response = await call(request)
        return await call(request) if response.is_error else response

    run = asyncio.create_task(app_of([lingers], timeout=2, interceptors=[again]).invoke(asking("lingers")))
    await asyncio.sleep(2.5)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert attempts == [0.0]


async def test_a_cancelled_run_tells_the_tokens_of_its_calls_also_in_threads() -> None:
    started, told = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    tokens: list[CancellationToken] = []

    def work(ctx: ToolContext) -> None:
        loop.call_soon_threadsafe(started.set)
        tokens.append(ctx.cancellation)
        if ctx.cancellation.wait():
            told.set()

    run = asyncio.create_task(app_of([work]).invoke(asking("work")))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await asyncio.to_thread(told.wait, 10)
    assert tokens[0].reason is not None


async def test_a_thread_left_behind_can_touch_nothing_of_the_run() -> None:
    release, refused, over = threading.Event(), list[str](), threading.Event()

    def never(ctx: ToolContext) -> Answer:
        ctx.update(log="before")
        release.wait()
        for touch in (lambda: ctx.update(log="late"), lambda: ctx.emit(1), lambda: ctx.interrupt(1)):
            try:
                touch()
            except RunEndedError as error:
                refused.append(str(error))
        over.set()
        return Answer("late", update={"log": "late"})

    async def then(ctx: ToolContext) -> None:
        release.set()
        await asyncio.to_thread(over.wait, 10)

    app = app_of([tool(timeout=0.02)(never), then], parallel=False)
    result = await app.invoke(asking("never", "then"))
    assert len(refused) == 3
    assert result.state["log"] == []
    assert "was left running" in texts(result.state)[0]


async def test_a_tools_own_timeout_comes_before_the_nodes() -> None:
    @tool(timeout=0.001)
    async def never() -> None:
        await asyncio.Event().wait()

    assert "after 0.001 s" in texts((await app_of([never], timeout=None).invoke(asking("never"))).state)[0]


@with_clock
async def test_without_a_timeout_a_call_may_take_as_long_as_it_likes() -> None:
    async def day() -> str:
        await asyncio.sleep(86_400)
        return "over"

    assert texts((await app_of([day], timeout=None).invoke(asking("day"))).state) == ["over"]


@with_clock
async def test_calls_with_timeouts_of_their_own_each_end_at_theirs() -> None:
    async def never(ctx: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((ctx.name, now()))

    ended: list[tuple[str, float]] = []
    tools = [Tool(never, name=f"t{n}", timeout=n) for n in (3, 1, 2)]
    await app_of(tools).invoke(asking("t3", "t1", "t2"))
    assert ended == [("t1", 1.0), ("t2", 2.0), ("t3", 3.0)]


# --- errors


@pytest.mark.parametrize("beside", [[], ["other"]], ids=["alone", "beside another"])
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_cancelled_error_that_nobody_asked_for_is_that_calls_error(beside: list[str], parallel: bool) -> None:
    async def stray() -> None:
        raise asyncio.CancelledError("by itself")

    result = await app_of([stray, other], parallel=parallel).invoke(asking("stray", *beside))
    assert texts(result.state) == ["CancelledError, though nothing had cancelled it; by itself", *beside]
    assert answers(result.state)[0].is_error


async def test_awaiting_a_cancelled_task_is_an_error_too() -> None:
    async def wait() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    assert texts((await app_of([wait]).invoke(asking("wait"))).state)[0].startswith("CancelledError, though nothing")


async def fail(text: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(text)


@pytest.mark.parametrize("calls", [["gather"], ["gather", "gather"]])
async def test_an_exception_group_is_told_by_its_leaves(calls: list[str]) -> None:
    async def gather() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(fail("one"))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail("two"))

    result = await app_of([gather]).invoke(asking(*calls))
    assert texts(result.state) == ["ValueError: one; ValueError: two"] * len(calls)


async def test_a_tool_may_go_on_after_a_group_of_its_own_has_failed() -> None:
    async def mend(ctx: ToolContext) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail("one"))
        except* ValueError:
            ctx.update(log=ctx.call_id)
        await asyncio.sleep(0)
        return "mended"

    state = (await app_of([mend]).invoke(asking("mend", "mend"))).state
    assert (texts(state), state["log"]) == (["mended"] * 2, ["c0", "c1"])


@with_clock
async def test_a_timeout_after_a_group_has_failed_is_still_a_timeout() -> None:
    async def mend() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail("one"))
        except* ValueError:
            await asyncio.sleep(60)

    late = "tool 'mend' timed out after 1 s and was stopped"
    for calls in (["mend"], ["mend", "mend"]):
        assert texts((await app_of([mend], timeout=1).invoke(asking(*calls))).state) == [late] * len(calls)


async def test_an_error_without_text_is_told_by_its_type() -> None:
    async def fail() -> None:
        raise KeyError

    assert texts((await app_of([fail]).invoke(asking("fail"))).state) == ["KeyError"]


async def test_a_tool_errors_text_is_the_answer() -> None:
    async def refuse() -> None:
        raise ToolError("try again with a city")

    (answer,) = answers((await app_of([refuse]).invoke(asking("refuse"))).state)
    assert answer == ToolResponse("c0", "refuse", "try again with a city", is_error=True)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_error_processor_makes_the_answer_of_a_tool_error_and_of_no_other(kind: str) -> None:
    def process(error: ToolError, call: ToolCall) -> Any:
        return {"error": str(error), "call": call.id}

    async def process_later(error: ToolError, call: ToolCall) -> Any:
        return process(error, call)

    async def refuse() -> None:
        raise ToolError("no")

    app = app_of([refuse, fail], error_processor=process if kind == "sync" else process_later)
    result = await app.invoke(asking("refuse", ("fail", '{"text": "x"}')))
    assert texts(result.state) == ['{"error":"no","call":"c0"}', "ValueError: x"]
    assert [a.is_error for a in answers(result.state)] == [True, True]


@pytest.mark.parametrize("calls", [["refuse"], ["other", "refuse"]])
async def test_what_an_error_processor_raises_fails_the_run(calls: list[str]) -> None:
    def process(error: ToolError, call: ToolCall) -> str:
        raise LookupError(f"no way on after {error}")

    async def refuse() -> None:
        raise ToolError("no")

    with pytest.raises(LookupError, match="no way on after no"):
        await app_of([refuse, other], error_processor=process, interceptors=[passing]).invoke(asking(*calls))


async def passing(request: ToolRequest, call: ToolHandler) -> ToolResponse:
    return await call(request)


@pytest.mark.parametrize("calls", [["fatal"], ["other", "fatal", "other"]])
@pytest.mark.parametrize("grouped", [False, True])
async def test_an_error_that_must_fail_the_run_does_whatever_the_processor(calls: list[str], grouped: bool) -> None:
    async def raises() -> None:
        raise ToolError("fatal", always_raise=True)

    async def fatal() -> None:
        if not grouped:
            await raises()
        async with asyncio.TaskGroup() as group:
            group.create_task(raises())

    def process(error: ToolError, call: ToolCall) -> str:
        return "swallowed"

    with pytest.raises(ToolError, match="fatal"):
        await app_of([fatal, other], error_processor=process).invoke(asking(*calls))


async def test_of_several_that_fail_the_run_the_first_in_call_order_comes_out_and_names_the_others() -> None:
    go = asyncio.Event()

    async def fatal(n: int) -> None:
        await go.wait() if n < 2 else go.set()
        raise ToolError(f"number {n}", always_raise=True)

    calls = [("fatal", f'{{"n": {n}}}') for n in range(3)]
    with pytest.raises(ToolError) as caught:
        await app_of([fatal]).invoke(asking(*calls))
    first, *others = (n for n in range(3) if f"number {n}" in "\n".join([str(caught.value), *caught.value.__notes__]))
    assert str(caught.value) == f"number {first}"
    assert others


def test_system_exit_goes_through_also_where_a_timeout_or_a_cancellation_brings_it_on() -> None:
    async def stop() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise SystemExit("now") from None

    async def main() -> None:
        run = asyncio.create_task(app_of([stop]).invoke(asking("stop")))
        await asyncio.sleep(0)
        run.cancel()
        await run

    with pytest.raises(SystemExit, match="now"):
        app_of([stop], timeout=0.001).invoke_sync(asking("stop"))
    with pytest.raises(SystemExit, match="now"):
        asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("calls", [["stop"], ["stop", "other"]])
def test_keyboard_interrupt_and_system_exit_go_through(
    error: type[BaseException], in_thread: bool, calls: list[str]
) -> None:
    def stop() -> None:
        raise error("now")

    async def stop_later() -> None:
        raise error("now")

    made = Tool(stop if in_thread else stop_later, name="stop")
    with pytest.raises(error, match="now"):
        app_of([made, other], interceptors=[passing]).invoke_sync(asking(*calls))


# --- which calls, which tool


async def test_calls_that_have_an_answer_are_not_run_again_and_the_message_is_completed_in_place() -> None:
    executed: list[str] = []

    async def look(q: str) -> str:
        executed.append(q)
        return q.upper()

    state = asking(*[("look", f'{{"q": "{q}"}}') for q in "abc"])
    partial = ToolResponseMessage([ToolResponse("c1", "look", "had it")], id="p", metadata={"mine": 1})
    result = await app_of([look]).invoke({"messages": [*state["messages"], partial]})
    assert executed == ["a", "c"]
    assert [m.id for m in result.state["messages"]] == ["asks", "p"]
    assert [(a.id, a.content) for a in answers(result.state)] == [("c0", "A"), ("c1", "had it"), ("c2", "C")]
    assert result.state["messages"][-1].metadata == {"mine": 1}


async def test_answers_to_repeated_ids_stand_for_one_call_each() -> None:
    async def look() -> str:
        return "new"

    asks = AssistantMessage(tool_calls=[ToolCall("c", "look"), ToolCall("c", "look")])
    partial = ToolResponseMessage([ToolResponse("c", "look", "old")])
    result = await app_of([look]).invoke({"messages": [asks, partial]})
    assert texts(result.state) == ["old", "new"]


async def test_where_no_call_is_open_there_is_no_update() -> None:
    asks = asking("other")["messages"]
    whole = ToolResponseMessage([ToolResponse("c0", "other", "had it")])
    for messages in ([*asks, whole], [AssistantMessage("no calls")]):
        result = await app_of([other]).invoke({"messages": messages})
        assert result.state["messages"] == messages


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "there is none"),
        ([UserMessage("hi")], "found a UserMessage"),
        ([AssistantMessage(tool_calls=[ToolCall("c", "other")]), UserMessage("hi")], "found a UserMessage"),
        ([ToolResponseMessage([])], "no assistant message stands before it"),
    ],
)
async def test_a_last_message_of_another_kind_is_an_error(messages: list[Any], told: str) -> None:
    with pytest.raises(InputError, match=rf"node 'tools'.*{told}"):
        await app_of([other]).invoke({"messages": messages})


def named(name: str, text: str) -> Tool:
    async def say() -> str:
        return text

    return Tool(say, name=name)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_is_looked_for_in_the_node_then_in_the_run_then_by_the_resolver(kind: str) -> None:
    asked: list[str] = []

    def resolve(name: str) -> Tool | None:
        asked.append(name)
        return named(name, "resolved") if name != "none" else None

    async def resolve_later(name: str) -> Tool | None:
        return resolve(name)

    async def bring(state: State, run: RunContext[Any]) -> None:
        run.scratch["tools"] = {n: named(n, "the run's") for n in ("a", "b")}

    graph = StateGraph(strategies={"messages": Messages()})
    node = ToolNode([named("a", "the node's")], resolver=resolve if kind == "sync" else resolve_later)
    graph.add_node("bring", bring).add_node("tools", node)
    graph.add_edge(START, "bring").add_edge("bring", "tools").add_edge("tools", END)
    result = await graph.compile().invoke(asking("a", "b", "c", "none"))
    assert texts(result.state) == [
        "the node's",
        "the run's",
        "resolved",
        "unknown tool 'none'; known: 'a', 'b'",
    ]
    assert asked == ["c", "none"]


async def test_an_unknown_tool_is_answered_with_the_nearest_name_and_what_there_is() -> None:
    result = await app_of([named("search", "s"), named("other", "o")]).invoke(asking("serach", "search"))
    assert texts(result.state) == ["unknown tool 'serach'; did you mean 'search'? known: 'search', 'other'", "s"]
    assert [a.is_error for a in answers(result.state)] == [True, False]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"other": other}, "other"),
        ({"other": 5}, "ConfigError: tools are functions or Tool objects; found 5"),
        ([other], 'ConfigError: run.scratch["tools"] holds tools by name, found [<'),
    ],
    ids=["function", "number", "list"],
)
async def test_the_runs_tools_may_be_functions_by_name_and_what_is_neither_is_told(given: Any, answer: str) -> None:
    async def bring(state: Any, run: RunContext[Any]) -> None:
        run.scratch["tools"] = given

    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("bring", bring).add_node("tools", ToolNode([]))
    graph.add_edge(START, "bring").add_edge("bring", "tools").add_edge("tools", END)
    (text,) = texts((await graph.compile().invoke(asking("other"))).state)
    assert text.startswith(answer)


async def test_a_plain_function_may_have_parameters_of_any_name_and_its_own_is_told() -> None:
    def stop(self: int, fn: int, args: int, keywords: int) -> int:
        if fn:
            raise StopIteration
        return self + fn + args + keywords

    calls = [("stop", f'{{"self": 1, "fn": {fn}, "args": 2, "keywords": 3}}') for fn in (0, 1)]
    result = await app_of([stop]).invoke(asking(*calls))
    assert texts(result.state) == ["6", "RuntimeError: 'stop' raised StopIteration"]


async def test_names_that_a_model_makes_up_forge_no_log_line_and_no_long_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agentgraph")
    result = await app_of([other], log=True).invoke(asking("x\nroot: all well", "y" * 100_000))
    assert not any("\n" in r.getMessage() for r in caplog.records)
    assert texts(result.state)[1] == f"unknown tool '{'y' * 99}...; known: 'other'"
    assert max(len(r.getMessage()) for r in caplog.records) < 400


async def test_a_resolver_may_give_a_function() -> None:
    def resolve(name: str) -> Any:
        return other

    result = await app_of([], resolver=resolve).invoke(asking("anything"))
    assert texts(result.state) == ["other"]


@pytest.mark.parametrize(("gives", "told"), [(LookupError("registry is down"), "registry is down"), (7, "found 7")])
async def test_a_resolver_that_fails_or_gives_no_tool_is_an_error_answer(gives: Any, told: str) -> None:
    def resolve(name: str) -> Any:
        if isinstance(gives, Exception):
            raise gives
        return gives

    result = await app_of([other], resolver=resolve).invoke(asking("gone", "other"))
    assert told in texts(result.state)[0]
    assert texts(result.state)[1] == "other"


@pytest.mark.case("H7")
async def test_arguments_that_do_not_do_are_an_answer_and_the_tool_does_not_run() -> None:
    executed: list[str] = []

    async def act(action: str) -> None:
        executed.append(action)

    result = await app_of([act]).invoke(asking(("act", '{"action": listt_windows"}'), ("act", "{}")))
    assert executed == []
    assert "not valid JSON" in texts(result.state)[0]
    assert "'action' missing" in texts(result.state)[1]
    assert all(a.is_error for a in answers(result.state))


async def test_a_call_cut_off_by_the_output_limit_is_answered_so_and_whole_ones_run() -> None:
    executed: list[str] = []

    async def write(text: str = "default") -> str:
        executed.append(text)
        return text

    for cut in ('{"text": "b', ""):
        state = asking(("write", '{"text": "a"}'), ("write", cut), finish_reason="length")
        result = await app_of([write]).invoke(state)
        assert texts(result.state)[0] == "a"
        assert "'write' was cut off by the output limit and did not run" in texts(result.state)[1]
    assert executed == ["a", "a"]


async def test_a_whole_last_call_runs_though_the_message_was_cut_off() -> None:
    async def write(text: str = "default") -> str:
        return text

    state = asking("write", ("write", '{"text": "a"}'), "other", finish_reason="length")
    assert texts((await app_of([write, other]).invoke(state)).state) == ["default", "a", "other"]


async def test_arguments_that_came_as_an_object_do() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    call = ToolCall("c", "add", cast("Any", {"a": 1, "b": 2}))
    result = await app_of([add]).invoke({"messages": [AssistantMessage(tool_calls=[call])]})
    assert texts(result.state) == ["3"]


# --- interceptors


async def test_interceptors_wrap_each_call_the_first_outermost() -> None:
    seen: list[str] = []

    def layer(name: str) -> Callable[[ToolRequest, ToolHandler], Awaitable[ToolResponse]]:
        async def intercept(request: ToolRequest, call: ToolHandler) -> ToolResponse:
            seen.append(f"{name} in")
            response = await call(request)
            seen.append(f"{name} out")
            return msgspec.structs.replace(response, content=f"{name}({response.content})")

        return intercept

    result = await app_of([other], interceptors=[layer("a"), layer("b")]).invoke(asking("other"))
    assert texts(result.state) == ["a(b(other))"]
    assert seen == ["a in", "b in", "b out", "a out"]


async def test_an_interceptor_knows_its_call_and_may_change_it_or_answer_itself() -> None:
    known: list[Any] = []

    async def look(q: str) -> str:
        return q

    async def intercept(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        known.append((request.index, request.tool, request.run.node, request.state["log"]))
        if request.tool is None:
            return ToolResponse("another id", "another name", "emulated")
        changed = msgspec.structs.replace(request.call, arguments='{"q": "changed"}')
        return await call(msgspec.structs.replace(request, call=changed))

    made = tool(look)
    given = {**asking(("look", '{"q": "it"}'), "gone"), "log": ["old"]}
    result = await app_of([made], interceptors=[intercept]).invoke(given)
    assert answers(result.state) == [ToolResponse("c0", "look", "changed"), ToolResponse("c1", "gone", "emulated")]
    assert known == [(0, made, "tools", ["old"]), (1, None, "tools", ["old"])]


async def test_calling_on_twice_keeps_the_last_attempts_updates_only() -> None:
    attempts: list[str] = []

    async def flaky(ctx: ToolContext) -> Answer:
        attempts.append(ctx.call_id)
        ctx.update(log=f"attempt {len(attempts)}")
        if len(attempts) == 2:
            raise ConnectionError("reset")
        return Answer(len(attempts), metadata={"n": len(attempts)})

    async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        await call(request)
        response = await call(request)
        return await call(request) if response.is_error else response

    async with app_of([flaky], interceptors=[again]).stream(asking("flaky")) as events:
        outcomes = [e.outcome async for e in events if isinstance(e, ToolFinished)]
    state = events.result.state
    assert (texts(state), state["log"]) == (["3"], ["attempt 3"])
    assert state["messages"][-1].metadata["answers"] == {"c0": {"n": 3}}
    assert outcomes == ["ok"]


async def test_nothing_of_an_attempt_before_a_failed_one_is_kept() -> None:
    attempts: list[int] = []

    async def flaky(ctx: ToolContext) -> Answer:
        attempts.append(1)
        ctx.update(log="written")
        if len(attempts) == 2:
            raise ConnectionError("reset")
        return Answer("ok", metadata={"n": 1})

    async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        await call(request)
        return await call(request)

    state = (await app_of([flaky], interceptors=[again]).invoke(asking("flaky"))).state
    assert (texts(state), state["log"]) == (["ConnectionError: reset"], [])
    assert state["messages"][-1].metadata == {}


@with_clock
async def test_how_a_call_ended_is_what_its_last_attempt_says() -> None:
    async def never(n: int) -> None:
        await asyncio.Event().wait()

    async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        await call(request)
        bad = msgspec.structs.replace(request.call, arguments="{}")
        return await call(msgspec.structs.replace(request, call=bad))

    app = app_of([never], timeout=1, interceptors=[again])
    async with app.stream(asking(("never", '{"n": 1}'))) as events:
        assert [e.outcome async for e in events if isinstance(e, ToolFinished)] == ["error"]


async def test_an_interceptor_that_fails_is_an_error_answer_of_its_call() -> None:
    async def intercept(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        if request.index == 0:
            raise ValueError("intercepted")
        if request.index == 1:
            raise ToolError("refused")
        if request.index == 2:
            return cast("Any", None)
        if request.index == 3:
            raise asyncio.CancelledError
        return ToolResponse("", "", "")

    result = await app_of([other], interceptors=[intercept]).invoke(asking(*["other"] * 5))
    assert texts(result.state) == [
        "ValueError: intercepted",
        "refused",
        "TypeError: an interceptor returned NoneType, and no ToolResponse",
        "CancelledError",
        "(no output)",
    ]
    assert [a.is_error for a in answers(result.state)] == [True] * 4 + [False]


@pytest.mark.parametrize("calls", [1, 2])
@with_clock
async def test_an_interceptors_own_time_limit_ends_its_call_and_no_other(calls: int) -> None:
    tokens: list[CancellationToken] = []

    async def never(ctx: ToolContext) -> None:
        tokens.append(ctx.cancellation)
        await asyncio.Event().wait()

    async def limit(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        return await asyncio.wait_for(cast("Any", call(request)), 1)

    result = await app_of([never, other], interceptors=[limit]).invoke(asking("never", *["other"] * (calls - 1)))
    assert texts(result.state) == ["TimeoutError", *["other"] * (calls - 1)]
    assert tokens[0].cancelled


# --- stopping after the tools, and events


@tool(return_direct=True)
async def form(ok: bool = True) -> str:
    if not ok:
        raise ValueError("not filled in")
    return "a form"


@pytest.mark.case("A17")
@pytest.mark.parametrize(
    ("calls", "direct"),
    [
        (["form"], True),
        (["form", "form"], True),
        (["form", "other"], False),
        (["other"], False),
        ([("form", '{"ok": false}')], False),
        (["form", ("form", '{"ok": false}')], False),
        (["form", ("form", '{"ok": "what?"}')], False),
        (["form", "gone"], False),
    ],
)
async def test_the_agent_may_stop_only_after_calls_that_are_all_return_direct_and_went_well(
    calls: list[Any], direct: bool
) -> None:
    message = (await app_of([form, other]).invoke(asking(*calls))).state["messages"][-1]
    assert message.metadata == ({"finish_reason": "return_direct"} if direct else {})


@pytest.mark.case("A17")
@pytest.mark.parametrize(("had", "direct"), [("form", True), ("other", False)])
async def test_answers_that_were_there_already_count_for_return_direct(had: str, direct: bool) -> None:
    partial = ToolResponseMessage([ToolResponse("c0", had, "had")], metadata={"finish_reason": "return_direct"})
    messages = [*asking(had, "form")["messages"], partial]
    message = (await app_of([form, other]).invoke({"messages": messages})).state["messages"][-1]
    assert message.metadata == ({"finish_reason": "return_direct"} if direct else {})


async def test_the_tool_that_an_interceptor_put_in_place_counts_for_return_direct() -> None:
    async def swap(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        return await call(msgspec.structs.replace(request, tool=form))

    message = (await app_of([other], interceptors=[swap]).invoke(asking("other"))).state["messages"][-1]
    assert (message.text, message.metadata) == ("a form", {"finish_reason": "return_direct"})


async def test_a_tool_of_the_run_counts_for_return_direct_also_where_its_answer_was_there() -> None:
    async def bring(state: State, run: RunContext[Any]) -> None:
        run.scratch["tools"] = {"form": form}

    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("bring", bring).add_node("tools", ToolNode([]))
    graph.add_edge(START, "bring").add_edge("bring", "tools").add_edge("tools", END)
    messages = [*asking("form", "form")["messages"], ToolResponseMessage([ToolResponse("c0", "form", "had")])]
    message = (await graph.compile().invoke({"messages": messages})).state["messages"][-1]
    assert (message.text, message.metadata) == ("had\na form", {"finish_reason": "return_direct"})


@pytest.mark.case("G6")
async def test_progress_is_read_while_the_tool_runs() -> None:
    seen = asyncio.Event()

    async def work(ctx: ToolContext) -> str:
        for n in range(0, 101, 10):
            await ctx.progress(n, total=100)
            await seen.wait()  # set by the reader, who so has it while the tool runs
            seen.clear()
        return "done"

    reports: list[float | None] = []
    async with app_of([work]).stream(asking("work"), buffer=1) as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                reports.append(event.progress)
                seen.set()
    assert reports == list(range(0, 101, 10))
    assert texts(events.result.state) == ["done"]


@with_clock
async def test_events_tell_when_each_call_starts_and_how_it_ended() -> None:
    async def slow() -> str:
        await asyncio.sleep(2)
        return "slow"

    state = asking(("slow", "{}"), "gone", "other")
    async with app_of([slow, other], parallel=False).stream(state) as events:
        told = [e async for e in events if isinstance(e, (ToolStarted, ToolFinished))]
    started = [e for e in told if isinstance(e, ToolStarted)]
    ended = [e for e in told if isinstance(e, ToolFinished)]
    assert [(e.call_id, e.name, e.arguments) for e in started] == [
        ("c0", "slow", "{}"),
        ("c1", "gone", ""),
        ("c2", "other", ""),
    ]
    assert [(e.call_id, e.outcome, e.seconds) for e in ended] == [("c0", "ok", 2), ("c1", "error", 0), ("c2", "ok", 0)]
    assert [e.content for e in ended] == texts(events.result.state)
    assert {e.path for e in told} == {("tools",)}


async def test_with_log_each_call_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentgraph")
    await app_of([other], log=True, agent_name="ada").invoke(asking("other", "gone"))
    assert [r.getMessage()[:34] for r in caplog.records] == [
        "ada: tool 'other' ('c0') ok: 'othe",
        "ada: tool 'gone' ('c1') error: \"un",
    ]
    assert repr(ToolNode([other], agent_name="ada")) == "<ToolNode ada ['other']>"


@pytest.mark.parametrize("by", ["context", "answer"])
async def test_a_write_that_the_state_does_not_take_names_the_tool_that_made_it(by: str) -> None:
    def fine(context: ToolContext) -> None:
        context.update(log=[1])

    def wrong(context: ToolContext) -> Answer | None:
        if by == "answer":
            return Answer("x", update={"lgo": [2]})
        context.update(lgo=[2])
        return None

    with pytest.raises(UpdateError, match=r"unknown state key 'lgo'; did you mean 'log'\?") as caught:
        await app_of([fine, wrong]).invoke(asking("fine", "wrong"))
    assert "written by tool 'wrong'" in caught.value.__notes__
