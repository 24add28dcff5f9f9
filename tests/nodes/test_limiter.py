"""Limits over all runs: calls that wait hold nothing, and nested ones never deadlock."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, CompiledGraph, ConfigError, RunConfig, StateGraph, threads
from agentgraph.events import ToolFinished, ToolStarted
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage, UserMessage
from agentgraph.nodes import Limiter, ReactAgent, Tool, ToolContext, ToolError, ToolHandler, ToolNode, ToolRequest, tool
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel, run_with_clock, with_clock

State = dict[str, Any]


def app_of(tools: Iterable[Tool | Callable[..., Any]], **options: Any) -> CompiledGraph[State]:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


def asking(*calls: tuple[str, str] | str) -> State:
    """A state whose last message makes these calls: a tool's name, or name and arguments."""
    pairs = [(c, "") if isinstance(c, str) else c for c in calls]
    made = [ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(pairs)]
    return {"messages": [AssistantMessage(id="asks", tool_calls=made)]}


def texts(state: State) -> list[str]:
    return [a.text for m in state["messages"] if isinstance(m, ToolResponseMessage) for a in m.responses]


def now() -> float:
    return asyncio.get_running_loop().time()


class Work:
    """Counts who is at work."""

    def __init__(self) -> None:
        self.at_once = 0
        self.most = 0
        self.began: list[tuple[str, float]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.at_once -= 1

    def tool(self, name: str, limit: int | Limiter | None = None, seconds: float = 1, **options: Any) -> Tool:
        async def run() -> str:
            self.began.append((name, now()))
            with self:
                await asyncio.sleep(seconds)
            return name

        return Tool(run, name=name, max_parallel=limit, **options)


# --- what is limited


@with_clock
async def test_a_tool_with_a_limit_of_one_never_runs_twice_at_once_in_all_runs_together() -> None:
    work = Work()
    single = work.tool("single", 1)
    apps = [app_of([single]), app_of([single], parallel=False)]
    await asyncio.gather(*(app.invoke(asking("single", "single", "single")) for app in apps))
    assert (work.most, now()) == (1, 6.0)
    assert single.limiter is not None
    assert (single.limiter.busy, single.limiter.waiting) == (0, 0)


@with_clock
async def test_agents_and_tools_may_share_one_limiter() -> None:
    work, limiter = Work(), Limiter(3)
    free, held = work.tool("free"), work.tool("held", limiter)
    asks = [ToolCall(f"c{i}", "free") for i in range(4)]
    agents = [
        ReactAgent(name, ScriptedModel([asks, "done"]), [free], max_parallel=limiter).run("go") for name in ("a", "b")
    ]
    await asyncio.gather(*agents, app_of([held], max_parallel=None).invoke(asking("held")))
    assert (work.most, now(), limiter.busy) == (3, 3.0, 0)


@with_clock
async def test_a_limiter_that_a_tool_and_its_node_both_have_counts_a_call_once() -> None:
    limiter = Limiter(1)
    result = await app_of([Work().tool("t", limiter)], max_parallel=limiter, timeout=10).invoke(asking("t", "t"))
    assert (texts(result.state), now()) == (["t", "t"], 2.0)


@with_clock
async def test_a_call_that_waits_for_a_limiter_keeps_none_of_its_messages_permits() -> None:
    work = Work()
    app = app_of([work.tool("single", 1, 10), work.tool("free")], max_parallel=2)
    await app.invoke(asking("single", "single", "single", "free", "free"))
    assert work.began == [("single", 0), ("free", 0), ("free", 1), ("single", 10), ("single", 20)]
    assert work.most == 2


@with_clock
async def test_permits_are_taken_together_or_not_at_all() -> None:
    a, b, work = Limiter(1), Limiter(1), Work()
    one = app_of([work.tool("a", a), work.tool("long a", a, 5)], max_parallel=b)
    other = app_of([work.tool("b", b)], max_parallel=a)
    alone = app_of([work.tool("long a", a, 5)])
    first = asyncio.create_task(alone.invoke(asking("long a")))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(one.invoke(asking("a")))  # waits for a, and must not keep b meanwhile
    await asyncio.sleep(0)
    await app_of([work.tool("only b", b)]).invoke(asking("only b"))
    assert now() == 1.5
    await asyncio.gather(first, second, other.invoke(asking("b", "b")))
    assert (a.busy, b.busy, work.most) == (0, 0, 2)


@with_clock
async def test_first_come_is_first_served_over_all_runs() -> None:
    work, limiter = Work(), Limiter(1)
    apps = [app_of([work.tool(f"t{i}", limiter)]) for i in range(5)]
    await asyncio.gather(*(app.invoke(asking(f"t{i}")) for i, app in enumerate(apps)))
    assert work.began == [(f"t{i}", i) for i in range(5)]


def test_a_method_has_one_limit_for_all_instances() -> None:
    class Desk:
        @tool(max_parallel=1)
        def write(self) -> None:
            """Write."""

    assert Desk().write.limiter is Desk().write.limiter is not None


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "2"])
def test_limits_that_cannot_be_meant_are_refused(most: Any) -> None:
    async def t() -> None: ...

    makes: list[Callable[[Any], Any]] = [
        Limiter,
        lambda most: Tool(t, max_parallel=most),
        lambda most: ToolNode([t], max_parallel=most),
    ]
    for make in makes:
        with pytest.raises(ConfigError, match="positive whole number"):
            make(most)


@with_clock
async def test_a_limiter_tells_who_holds_and_who_waits() -> None:
    limiter = Limiter(2)
    run = asyncio.create_task(app_of([Work().tool("t", limiter)]).invoke(asking("t", "t", "t")))
    await asyncio.sleep(0.5)
    assert repr(limiter) == "<Limiter 2 of 2 busy, 1 waiting>"
    await run
    assert repr(limiter) == "<Limiter 0 of 2 busy, 0 waiting>"


# --- what a call does with its permits


@pytest.mark.case("B11")
@with_clock
async def test_a_calls_time_counts_from_its_permits_which_are_free_at_the_timeout() -> None:
    work = Work()
    never = work.tool("never", limiter := Limiter(1), float("inf"), timeout=10)
    quick = work.tool("quick", limiter, 9)
    result = await app_of([never, quick], timeout=10).invoke(asking("never", "quick"))
    assert texts(result.state) == ["tool 'never' timed out after 10 s and was stopped", "quick"]
    assert work.began == [("never", 0), ("quick", 10)]


@pytest.mark.case("B11")
async def test_a_thread_left_behind_holds_no_permit() -> None:
    release = threading.Event()

    @tool(max_parallel=1)
    def never() -> None:
        release.wait()

    try:
        result = await app_of([never], timeout=0.02).invoke(asking("never", "never"))
    finally:
        release.set()
    assert ["was left running" in text for text in texts(result.state)] == [True, True]
    assert never.limiter is not None
    assert never.limiter.busy == 0


@with_clock
async def test_a_call_is_told_of_when_it_has_its_permits() -> None:
    app = app_of([Work().tool("t", 1)])
    told: list[tuple[str, float]] = []
    async with app.stream(asking("t", "t")) as events:
        async for event in events:
            if isinstance(event, (ToolStarted, ToolFinished)):
                told.append((event.call_id, now()))
                assert not isinstance(event, ToolFinished) or event.seconds == 1
    assert told == [("c0", 0), ("c0", 1), ("c1", 1), ("c1", 2)]


@with_clock
async def test_a_resolved_tool_is_limited_too() -> None:
    work = Work()
    found = work.tool("found", 1)

    async def resolver(name: str) -> Tool:
        await asyncio.sleep(1)
        return found

    await asyncio.gather(*(app_of([], resolver=resolver).invoke(asking("found", "found")) for _ in range(2)))
    assert work.began == [("found", 1), ("found", 2), ("found", 3), ("found", 4)]


@pytest.mark.parametrize("calls", [1, 3])
@with_clock
async def test_a_tool_that_an_interceptor_puts_in_place_needs_its_own_permits(calls: int) -> None:
    work, limiter = Work(), Limiter(1)
    given, other = work.tool("given", limiter), work.tool("other", 1)

    async def swap(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        assert limiter.busy == 1
        return await call(msgspec.structs.replace(request, tool=other))

    apps = [app_of([given], interceptors=[swap], max_parallel=2) for _ in range(2)]
    await asyncio.gather(*(app.invoke(asking(*["given"] * calls)) for app in apps))
    assert work.began == [("other", i) for i in range(2 * calls)]
    assert other.limiter is not None
    assert (limiter.busy, other.limiter.busy) == (0, 0)


@with_clock
async def test_an_interceptor_that_gives_up_waiting_may_call_on_again_and_the_tool_has_its_permit() -> None:
    work = Work()
    plain, other = work.tool("plain"), work.tool("other", 1, 5)

    async def impatient(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        swapped = msgspec.structs.replace(request, tool=other)
        try:
            async with asyncio.timeout(1):
                return await call(swapped)
        except TimeoutError:
            assert other.limiter is not None
            assert other.limiter.waiting == 0
            return await call(swapped)

    busy = asyncio.create_task(app_of([other]).invoke(asking("other")))
    await asyncio.sleep(0)
    await app_of([plain], interceptors=[impatient]).invoke(asking("plain"))
    await busy
    assert (work.began, work.most) == ([("other", 0), ("other", 5)], 1)
    assert other.limiter is not None
    assert (other.limiter.busy, other.limiter.waiting) == (0, 0)


# --- failing and cancelling


@pytest.mark.case("A13")
@pytest.mark.parametrize("limits", [{"max_parallel": Limiter(2)}, {"max_parallel": 2}])
async def test_a_call_that_waits_never_starts_once_another_has_failed_the_run(limits: dict[str, Any]) -> None:
    written: list[str] = []
    started, limiter = asyncio.Event(), Limiter(2)

    @tool(max_parallel=limiter)
    async def fail() -> None:
        await started.wait()
        raise ToolError("boom", always_raise=True)

    @tool(max_parallel=limiter)
    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            written.append("cancelled")

    @tool(max_parallel=limiter)
    async def queued() -> None:
        written.append("queued")

    with pytest.raises(ToolError, match="boom"):
        await app_of([fail, slow, queued], **limits).invoke(asking("fail", "slow", "queued"))
    assert (written, limiter.busy, limiter.waiting) == (["cancelled"], 0, 0)


@with_clock
async def test_a_cancelled_call_that_waits_leaves_the_queue() -> None:
    work, limiter = Work(), Limiter(1)
    app = app_of([work.tool("t", limiter)])
    runs = [asyncio.create_task(app.invoke(asking("t"))) for _ in range(3)]
    await asyncio.sleep(0.5)
    runs[1].cancel()
    assert [type(r) for r in await asyncio.gather(*runs, return_exceptions=True)][1] is asyncio.CancelledError
    assert (len(work.began), now(), limiter.busy, limiter.waiting) == (2, 2.0, 0, 0)


@with_clock
async def test_a_call_cancelled_at_the_moment_of_its_turn_hands_it_on() -> None:
    work, limiter = Work(), Limiter(1)

    async def first() -> None:
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_soon(runs[0].cancel)  # after its permit came, before it goes on

    apps = [app_of([Tool(first, max_parallel=limiter)]), app_of([work.tool("t", limiter)])]
    runs: list[asyncio.Task[Any]] = []
    ahead = asyncio.create_task(apps[0].invoke(asking("first")))
    await asyncio.sleep(0.5)
    runs += [asyncio.create_task(apps[1].invoke(asking("t"))) for _ in range(2)]
    await asyncio.gather(ahead, *runs, return_exceptions=True)
    assert (runs[0].cancelled(), work.began, limiter.busy) == (True, [("t", 1)], 0)


def test_a_loop_that_was_closed_with_calls_in_it_keeps_nobody_waiting() -> None:
    limiter = Limiter(1)
    hold, held = threading.Event(), threading.Event()

    @tool(max_parallel=limiter)
    def work() -> str:
        held.set()
        hold.wait()
        return "done"

    app = app_of([work], timeout=None)
    other = threading.Thread(target=lambda: app.invoke_sync(asking("work")))
    other.start()
    held.wait()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(app.invoke(asking("work")))
    loop.run_until_complete(asyncio.sleep(0))
    assert limiter.waiting == 1
    loop.close()
    hold.set()
    other.join()
    assert texts(app.invoke_sync(asking("work")).state) == ["done"]
    waiting.get_coro().close()
    assert (limiter.busy, limiter.waiting) == (0, 0)


def test_a_coroutine_that_is_dropped_gives_back_what_it_held() -> None:
    limiter = Limiter(1)

    @tool(max_parallel=limiter)
    async def never() -> None:
        await asyncio.Event().wait()

    running = app_of([never], timeout=None).invoke(asking("never"))

    async def drop() -> None:
        running.send(None)
        assert limiter.busy == 1
        running.close()

    asyncio.run(drop())
    assert limiter.busy == 0


@pytest.mark.parametrize("threads", [8])
def test_a_limiter_holds_over_the_event_loops_of_several_threads(threads: int) -> None:
    limiter, work, done = Limiter(2), Work(), Counter[str]()

    async def t() -> None:
        with work:
            await asyncio.sleep(0.001)

    def run() -> None:
        app = app_of([Tool(t, max_parallel=limiter)])
        for _ in range(5):
            done.update(texts(app.invoke_sync(asking("t", "t", "t")).state))

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert (work.most, limiter.busy, limiter.waiting) == (2, 0, 0)
    assert done.total() == threads * 15


# --- calls in calls


@pytest.mark.parametrize("way", ["run", "node", "thread"])
async def test_a_tool_may_run_an_agent_that_calls_it_again(way: str) -> None:
    depth, depths = contextvars.ContextVar("depth", default=0), list[int]()

    async def inside() -> str:
        depth.set(depth.get() + 1)
        depths.append(depth.get())
        if depth.get() == 3:
            return "deep enough"
        agent = ReactAgent("inner", ScriptedModel([[ToolCall("c1", "again")], "done"]), [again])
        if way == "run":
            return (await agent.run("go")).text
        graph = StateGraph(strategies={"messages": Messages()})
        graph.add_node("inner", agent).add_edge(START, "inner").add_edge("inner", END)
        return (await graph.compile().invoke({"messages": UserMessage("go")})).state["messages"][-1].text

    def thread() -> str:
        return asyncio.run(inside())

    limiter = Limiter(1)
    again = Tool(thread if way == "thread" else inside, name="again", max_parallel=limiter)
    result = await app_of([again]).invoke(asking("again", "again"))
    assert texts(result.state) == ["done", "done"]
    assert (sorted(depths), limiter.busy, limiter.waiting) == ([1, 1, 2, 2, 3, 3], 0, 0)


@with_clock
async def test_an_enclosing_permit_is_lent_only_while_a_call_inside_waits_and_taken_back_before_it_goes_on() -> None:
    outer, inner, told = Limiter(1), Limiter(1), list[tuple[str, float, int]]()
    work = Work()
    nested = app_of([work.tool("deep", inner, 2)])

    @tool(max_parallel=outer)
    async def wide() -> str:
        told.append(("in", now(), outer.busy))
        await nested.invoke(asking("deep"))
        told.append(("out", now(), outer.busy))
        await asyncio.sleep(1)
        return "wide"

    app = app_of([wide, work.tool("narrow", outer, 9)])
    ahead = asyncio.create_task(nested.invoke(asking("deep")))  # until 2
    await asyncio.sleep(1)
    await app.invoke(asking("wide", "narrow"))
    await ahead
    assert work.began == [("deep", 0), ("narrow", 1), ("deep", 2)]
    assert told == [("in", 1, 1), ("out", 10, 1)]  # it waits for `narrow`, which has taken its permit
    assert (now(), outer.busy, inner.busy) == (11, 0, 0)


@with_clock
async def test_an_enclosing_permit_is_kept_where_nothing_inside_has_to_wait() -> None:
    outer, work = Limiter(1), Work()
    nested = app_of([work.tool("deep", 9, 2)], max_parallel=2)

    @tool(max_parallel=outer)
    async def wide() -> None:
        await nested.invoke(asking("deep", "deep", "deep"))  # the third waits for its message alone
        assert outer.busy == 1

    app = app_of([wide, work.tool("narrow", outer)])
    await app.invoke(asking("wide", "narrow"))
    assert work.began == [("deep", 0), ("deep", 0), ("deep", 2), ("narrow", 4)]


@with_clock
async def test_of_several_runs_inside_one_call_the_last_that_borrowed_gives_back() -> None:
    outer, inner, work, busy = Limiter(1), Limiter(1), Work(), dict[str, int]()
    nested = app_of([work.tool("deep", inner, 2)])

    @tool(max_parallel=outer)
    async def wide() -> None:
        async def one(name: str) -> None:
            await nested.invoke(asking("deep"))
            busy[name] = outer.busy

        await asyncio.gather(one("first"), one("second"), one("third"))
        busy["after"] = outer.busy

    await app_of([wide]).invoke(asking("wide"))
    assert busy == {"first": 0, "second": 0, "third": 1, "after": 1}
    assert (outer.busy, inner.busy, now()) == (0, 0, 6)


@with_clock
async def test_a_run_inside_that_has_to_wait_while_another_gives_back_lends_again() -> None:
    outer, inner, work = Limiter(1), Limiter(1), Work()
    nested, same = app_of([work.tool("deep", inner, 2)]), app_of([work.tool("same", outer)])

    @tool(max_parallel=outer)
    async def wide() -> str:
        async def later() -> None:
            await asyncio.sleep(5)  # `deep` has ended by then, and its node waits for `narrow`
            await same.invoke(asking("same"))

        await asyncio.gather(later(), nested.invoke(asking("deep")))
        return f"{outer.busy} at {now():g}"

    ahead = asyncio.create_task(nested.invoke(asking("deep")))
    await asyncio.sleep(0)
    result = await app_of([wide, work.tool("narrow", outer, 6)]).invoke(asking("wide", "narrow"))
    await ahead
    assert (texts(result.state), outer.busy, inner.busy) == (["1 at 7", "narrow"], 0, 0)


@with_clock
async def test_a_call_that_ends_the_run_inside_it_by_its_own_time_limit_has_its_permit_again_when_it_is_free() -> None:
    outer, inner, work = Limiter(1), Limiter(1), Work()
    nested = app_of([work.tool("deep", inner, 100)])
    busy: list[int] = []

    @tool(max_parallel=outer)
    async def wide() -> None:
        try:
            async with asyncio.timeout(2):
                await nested.invoke(asking("deep"))
        except TimeoutError:
            assert now() == 2  # at once: what is cancelled does not wait
        await asyncio.sleep(10)
        busy.append(outer.busy)

    ahead = asyncio.create_task(nested.invoke(asking("deep")))
    await asyncio.sleep(0)
    app = app_of([wide, work.tool("narrow", outer, 5), work.tool("last", outer, 1)])
    await app.invoke(asking("wide", "narrow", "last"))
    assert work.began == [("deep", 0), ("narrow", 0), ("last", 12)]
    assert (busy, outer.busy) == ([1], 0)
    ahead.cancel()
    await asyncio.gather(ahead, return_exceptions=True)


@with_clock
async def test_a_cancelled_run_ends_at_once_though_permits_were_to_be_given_back() -> None:
    outer, inner, work = Limiter(1), Limiter(1), Work()
    nested = app_of([work.tool("deep", inner, 2)])

    @tool(max_parallel=outer)
    async def wide() -> None:
        await nested.invoke(asking("deep"))

    ahead = asyncio.create_task(nested.invoke(asking("deep")))
    await asyncio.sleep(0)
    run = asyncio.create_task(app_of([wide]).invoke(asking("wide")))
    await asyncio.sleep(1)
    narrow = asyncio.create_task(app_of([work.tool("narrow", outer, 50)]).invoke(asking("narrow")))
    await asyncio.sleep(9)  # `deep` has ended at 4; now it waits for `narrow`
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (now(), outer.busy, outer.waiting) == (10, 1, 0)
    await asyncio.gather(ahead, narrow)
    assert (outer.busy, inner.busy) == (0, 0)


async def test_a_tool_in_a_thread_gets_one_though_all_threads_wait_for_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_AT_ONCE", 1)
    limiter, go, begun, loop = Limiter(1), threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    @tool(max_parallel=limiter)
    def held() -> str:
        return "held"

    def unlimited() -> str:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        return texts(app_of([held]).invoke_sync(asking("held")).state)[0]

    async def started(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        go.set()  # it has its permit, and no thread yet
        return await call(request)

    ahead = asyncio.create_task(app_of([unlimited]).invoke(asking("unlimited")))
    await begun.wait()
    behind = asyncio.create_task(app_of([held], interceptors=[started]).invoke(asking("held")))
    results = await asyncio.gather(ahead, behind)
    assert [texts(r.state) for r in results] == [["held"], ["held"]]


async def test_a_thread_left_behind_goes_on_inside_and_touches_nobodys_permits() -> None:
    limiter, release, over = Limiter(1), threading.Event(), threading.Event()
    seen: list[int] = []

    @tool(max_parallel=1)
    async def deep() -> str:
        return "deep"

    def wide() -> None:
        release.wait()
        try:
            app_of([Tool(deep.fn, name="deep", max_parallel=limiter)]).invoke_sync(asking("deep", "deep"))
            seen.append(limiter.busy)
        finally:
            over.set()

    result = await app_of([Tool(wide, max_parallel=limiter)], timeout=0.02).invoke(asking("wide"))
    assert "was left running" in texts(result.state)[0]
    assert limiter.busy == 0
    release.set()
    await asyncio.to_thread(over.wait)
    assert (seen, limiter.busy, limiter.waiting) == ([0], 0, 0)


@with_clock
async def test_what_outlives_its_call_borrows_nothing_from_those_further_out() -> None:
    outermost, middle, inner, work = Limiter(1), Limiter(1), Limiter(1), Work()
    deep = app_of([work.tool("deep", inner, 5)])
    left: list[asyncio.Task[Any]] = []

    @tool(max_parallel=middle)
    async def leaves() -> None:
        async def later() -> None:
            await asyncio.sleep(1)
            await deep.invoke(asking("deep"))

        left.append(asyncio.create_task(later()))

    nested = app_of([leaves])

    @tool(max_parallel=outermost)
    async def root() -> str:
        await nested.invoke(asking("leaves"))
        await asyncio.sleep(3)
        return str(outermost.busy)

    ahead = asyncio.create_task(deep.invoke(asking("deep")))  # until 5, so that `later` waits
    await asyncio.sleep(0)
    assert texts((await app_of([root]).invoke(asking("root"))).state) == ["1"]
    await asyncio.gather(ahead, *left)
    assert (outermost.busy, middle.busy, inner.busy) == (0, 0, 0)


@with_clock
async def test_a_fan_out_of_agents_that_all_share_one_limiter_comes_to_its_end() -> None:
    limiter, work = Limiter(2), Work()
    leaf = work.tool("leaf", limiter)

    @tool(max_parallel=limiter)
    async def branch() -> str:
        return ",".join(texts((await app_of([leaf], max_parallel=limiter).invoke(asking("leaf", "leaf"))).state))

    @tool(max_parallel=limiter)
    async def root() -> str:
        return ";".join(texts((await app_of([branch]).invoke(asking(*["branch"] * 3))).state))

    result = await app_of([root], max_parallel=limiter, timeout=None).invoke(asking("root", "root", "root"))
    assert texts(result.state) == [";".join(["leaf,leaf"] * 3)] * 3
    assert (work.most, now(), limiter.busy, limiter.waiting) == (2, 9, 0, 0)


@with_clock
async def test_a_tool_may_run_a_graph_within_its_run_though_another_node_waits_for_the_same_limiter() -> None:
    async def leaf(state: State) -> None:
        await asyncio.sleep(1)

    graph = StateGraph(strategies={"messages": Messages()})
    inner = graph.add_node("leaf", leaf).add_edge(START, "leaf").add_edge("leaf", END).compile()

    @tool(max_parallel=1)
    async def within(ctx: ToolContext) -> None:
        await inner(ctx.state, ctx.run)

    outer = StateGraph(strategies={"messages": Messages()})
    for name in ("a", "b"):
        outer.add_node(name, app_of([within])).add_edge(START, name).add_edge(name, END)
    await outer.compile().invoke(asking("within"), RunConfig(max_concurrency=1))
    assert now() == 2


# --- all of it at once


class Call(msgspec.Struct):
    """A call of the tool with that number; then it makes calls itself, in messages one after the other or at once."""

    tool: int
    seconds: int
    messages: list[list["Call"]] = []
    at_once: bool = False
    fails: bool = False


leaves = st.builds(Call, st.integers(0, 3), st.integers(0, 3), fails=st.booleans())


def grown(inner: st.SearchStrategy[Call]) -> st.SearchStrategy[Call]:
    messages = st.lists(st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=2)
    return st.builds(Call, st.integers(0, 3), st.integers(0, 2), messages, st.booleans())


calls = st.one_of(leaves, grown(st.one_of(leaves, grown(leaves))))
node_limits = st.sampled_from(["shared", 1, 2, None])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(calls, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=5, max_size=5),
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=4, max_size=4),
    node_limits,
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_whatever_is_called_no_limit_is_passed_and_nothing_is_left_taken(
    runs: list[list[Call]],
    most: list[int],
    has: list[int | None],
    node_limit: Any,
    parallel: bool,
    timeout: int | None,
    cancelled_at: int | None,
) -> None:
    limiters = [Limiter(n) for n in most]
    work = [Work() for _ in limiters]
    of_node = limiters[4] if node_limit == "shared" else node_limit

    def counted(number: int) -> set[int]:
        """The limiters that a call of this tool needs."""
        mine = has[number]
        return {n for n in (mine, 4 if node_limit == "shared" else None) if n is not None}

    async def at_work(number: int, seconds: float) -> None:
        taken = counted(number)
        for n in taken:
            work[n].__enter__()
        try:
            for n in taken:
                assert work[n].at_once <= limiters[n].most
                assert limiters[n].busy >= 1
            await asyncio.sleep(seconds)
        finally:
            for n in taken:
                work[n].__exit__()

    def make(number: int) -> Tool:
        async def run(call: dict[str, Any]) -> str:
            given = msgspec.convert(call, Call)
            await at_work(number, given.seconds)
            if given.fails:
                raise ValueError("fails")
            if given.at_once:
                async with asyncio.TaskGroup() as group:
                    for message in given.messages:
                        group.create_task(app.invoke(ask(message)))
            else:
                for message in given.messages:
                    await app.invoke(ask(message))
            await at_work(number, 1)
            return "ok"

        index = has[number]
        return Tool(run, name=f"t{number}", max_parallel=None if index is None else limiters[index])

    def ask(message: list[Call]) -> State:
        return asking(*((f"t{c.tool}", msgspec.json.encode({"call": c}).decode()) for c in message))

    app = app_of([make(n) for n in range(4)], max_parallel=of_node, parallel=parallel, timeout=timeout)

    async def main() -> None:
        tasks = [asyncio.create_task(app.invoke(ask(message))) for message in runs]
        if cancelled_at is not None:
            asyncio.get_running_loop().call_later(cancelled_at, tasks[0].cancel)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 100_000)
        for task in tasks:
            assert task.cancelled() or not [t for t in texts(task.result().state) if "Assertion" in t]

    run_with_clock(main())
    assert [w.most <= limiter.most for w, limiter in zip(work, limiters, strict=True)] == [True] * 5
    assert [(limiter.busy, limiter.waiting) for limiter in limiters] == [(0, 0)] * 5
