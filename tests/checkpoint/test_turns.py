"""Turns of a thread: each goes on from where the last one ended, in this process or in another."""

import asyncio
import logging
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pytest

from agentgraph import (
    END,
    START,
    CheckpointError,
    Command,
    CompiledGraph,
    Retry,
    RunConfig,
    RunContext,
    Send,
    StateGraph,
)
from agentgraph.checkpoint import Checkpointer, MemorySaver
from agentgraph.errors import (
    CodecError,
    ConfigError,
    InputError,
    RecursionLimitError,
    ResumeError,
    ThreadBusyError,
    UpdateError,
)
from agentgraph.events import CheckpointWritten
from agentgraph.messages import AssistantMessage, UserMessage
from agentgraph.strategies import Append, Merge, Messages, Reduce
from tests.checkpoint.wrapped import Wrapped

T = RunConfig(thread_id="t")


class Log(TypedDict):
    log: Annotated[list[str], Append()]
    n: int


async def once_more(state: Log) -> dict[str, Any]:
    return {"log": [f"turn {state.get('n', 0) + 1}"], "n": state.get("n", 0) + 1}


def one_node(saver: Checkpointer, fn: Any = once_more, **options: Any) -> CompiledGraph[Log]:
    graph = StateGraph(Log)
    graph.add_node("a", fn)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    return graph.compile(checkpointer=saver, **options)


async def test_a_thread_goes_on_from_its_last_turn_also_in_a_graph_compiled_anew(saver: Checkpointer) -> None:
    app = one_node(saver)
    await app.invoke({"log": ["hello"]}, T)
    await app.invoke({"log": ["again"]}, T)
    result = await one_node(saver).invoke({"log": ["and again"]}, T)
    assert result.state == {"log": ["hello", "turn 1", "again", "turn 2", "and again", "turn 3"], "n": 3}


@pytest.mark.case("F8")
async def test_without_a_thread_nothing_is_kept_and_nobody_sees_anybody(saver: Checkpointer) -> None:
    app = one_node(saver)
    results = await asyncio.gather(app.invoke({"log": ["one"]}), app.invoke({"log": ["two"]}))
    assert [r.state["log"] for r in results] == [["one", "turn 1"], ["two", "turn 1"]]
    assert [r.checkpoint_id for r in results] == [None, None]
    assert await saver.threads() == []


async def test_threads_do_not_see_each_other(saver: Checkpointer) -> None:
    app = one_node(saver)
    for name in ("a", "b", "a"):
        await app.invoke({"log": [name]}, RunConfig(thread_id=name))
    found = [await app.state(RunConfig(thread_id=name)) for name in ("a", "b", "c")]
    assert [f and f.state.get("n") for f in found] == [2, 1, None]


async def test_the_history_tells_each_checkpoint_and_its_parent(saver: Checkpointer) -> None:
    app = one_node(saver)
    await app.invoke({"log": ["one"]}, T)
    last = await app.invoke({"log": ["two"]}, T)
    history = await app.history(T)
    assert [(c.kind, c.ran, c.next) for c in history] == [
        ("step", ("a",), ()),
        ("input", (), ("a",)),
        ("step", ("a",), ()),
        ("input", (), ("a",)),
    ]
    assert history[0].checkpoint_id == last.checkpoint_id
    assert [c.parent_id for c in history] == [*(c.checkpoint_id for c in history[1:]), None]
    assert [c.checkpoint_id for c in await app.history(T, limit=2)] == [c.checkpoint_id for c in history[:2]]


async def test_the_state_at_a_checkpoint_is_that_of_then(saver: Checkpointer) -> None:
    app = one_node(saver)
    for word in ("one", "two", "three"):
        await app.invoke({"log": [word]}, T)
    history = await app.history(T)
    states = [await app.state(RunConfig(thread_id="t", checkpoint_id=c.checkpoint_id)) for c in history]
    assert [s and len(s.state["log"]) for s in states] == [6, 5, 4, 3, 2, 1]


async def test_a_checkpoint_that_is_not_there_is_an_error_that_lists_those_there_are(saver: Checkpointer) -> None:
    app = one_node(saver)
    await app.invoke({"log": []}, T)
    for bad in ("0.99", "7.1", "nonsense", "0.x"):
        with pytest.raises(ResumeError, match=rf"thread 't' has no checkpoint '{bad}'; its newest are '0.2', '0.1'"):
            await app.invoke({"log": []}, RunConfig(thread_id="t", checkpoint_id=bad))
    with pytest.raises(ResumeError, match="thread 'u' is not there"):
        await app.state(RunConfig(thread_id="u", checkpoint_id="0.1"))


async def test_what_continues_a_thread_needs_one(saver: Checkpointer) -> None:
    app = one_node(saver)
    plain = StateGraph(Log)
    plain.add_node("a", once_more)
    plain.add_edge(START, "a")
    plain.add_edge("a", END)
    for graph, config in ((app, RunConfig()), (plain.compile(), T)):
        for given in (None, Command(resume={"a": 1})):
            with pytest.raises(ResumeError, match="continues a thread: compile"):
                await graph.invoke(given, config)
    with pytest.raises(ConfigError, match=r"history\(\) is about threads, and this graph keeps none"):
        await plain.compile().history(T)
    with pytest.raises(ResumeError, match="has nothing to go on with"):
        await app.invoke(None, T)
    await app.invoke({"log": []}, T)
    with pytest.raises(ResumeError, match="has nothing to go on with"):
        await app.invoke(None, T)
    with pytest.raises(ResumeError, match="has no open question"):
        await app.invoke(Command(resume={"a": 1}), T)
    with pytest.raises(ResumeError, match="a Command as input answers questions"):
        await app.invoke(Command(update={"n": 1}), T)
    found = await app.state(T)
    assert found is not None
    assert found.state["log"] == ["turn 1"]


@pytest.mark.case("E4")
async def test_a_run_that_reached_its_limit_goes_on_with_a_higher_one(saver: Checkpointer) -> None:
    async def loop(state: Log) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(Log)
    graph.add_node("loop", loop)
    graph.add_edge(START, "loop")
    graph.add_conditional_edges("loop", lambda s: END if s["n"] == 40 else "loop", ["loop", END])
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RecursionLimitError, match="its limit of 25 steps"):
        await app.invoke({}, RunConfig(thread_id="t", recursion_limit=25))
    found = await app.state(T)
    assert found is not None
    assert (found.state["n"], found.next, found.status) == (25, ("loop",), "failed")
    assert (await app.invoke(None, T)).state["n"] == 40


async def test_a_failed_run_goes_on_where_it_stood_and_what_had_ended_does_not_run_again(saver: Checkpointer) -> None:
    ran: list[str] = []
    broken = True
    may_fail = asyncio.Event()

    async def quick(state: Log) -> dict[str, Any]:
        ran.append("quick")
        may_fail.set()
        return {"log": ["quick"]}

    async def bad(state: Log) -> dict[str, Any]:
        ran.append("bad")
        await may_fail.wait()
        await asyncio.sleep(0)
        if broken:
            raise RuntimeError("no")
        return {"log": ["bad"]}

    graph = StateGraph(Log)
    for name, fn in (("quick", quick), ("bad", bad)):
        graph.add_node(name, fn)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="no"):
        await app.invoke({}, RunConfig(thread_id="t", durability="sync"))
    broken = False
    result = await app.invoke(None, T)
    assert (result.state["log"], ran) == (["quick", "bad"], ["quick", "bad", "bad"])


async def test_a_new_input_after_a_failure_keeps_what_had_ended_and_begins_anew(saver: Checkpointer) -> None:
    async def good(state: Log) -> dict[str, Any]:
        return {"log": ["good"]}

    async def bad(state: Log) -> dict[str, Any]:
        if "again" not in state["log"]:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise RuntimeError("no")
        return {"log": ["bad"]}

    graph = StateGraph(Log)
    for name, fn in (("good", good), ("bad", bad)):
        graph.add_node(name, fn)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="no"):
        await app.invoke({"log": ["first"]}, T)
    result = await app.invoke({"log": ["again"]}, T)
    assert result.state["log"] == ["first", "good", "again", "good", "bad"]


@pytest.mark.case("A8")
async def test_thirty_branches_that_end_at_once_are_thirty_records_and_none_runs_again(saver: Checkpointer) -> None:
    ran: list[int] = []
    broken = True

    async def branch(state: Any) -> dict[str, Any]:
        ran.append(state["k"])
        return {"log": [str(state["k"])]}

    def after(state: Log) -> str:
        if broken:
            raise RuntimeError("before the step is stored")
        return END

    graph = StateGraph(Log)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, lambda s: [Send("branch", {"k": k}) for k in range(30)], ["branch"])
    graph.add_conditional_edges("branch", after, [END])
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="before the step"):
        await app.invoke({}, T)
    info = await saver.thread("t")
    assert info is not None
    broken = False
    result = await one_more(graph, saver).invoke(None, T)
    assert (result.state["log"], sorted(ran)) == ([str(k) for k in range(30)], list(range(30)))


def one_more(graph: StateGraph[Log], saver: Checkpointer) -> CompiledGraph[Log]:
    """The graph as another process would have it: nothing remembered."""
    return graph.compile(checkpointer=saver)


async def test_once_is_not_done_again_when_its_node_is(saver: Checkpointer) -> None:
    drawn: list[int] = []
    broken = True

    async def draw(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        number = await run.once("number", lambda: drawn.append(len(drawn)) or {"number": len(drawn)})
        other = await run.once("other", lambda: len(drawn))
        if broken:
            raise RuntimeError("after it was drawn")
        return {"log": [f"{number} {other}"]}

    app = one_node(saver, draw)
    with pytest.raises(RuntimeError, match="after it"):
        await app.invoke({}, T)
    broken = False
    assert (await one_node(saver, draw).invoke(None, T)).state["log"] == ["{'number': 1} 1"]
    assert drawn == [0]
    assert (await app.invoke({}, T)).state["log"][1] == "{'number': 2} 2"


async def test_joins_waits_and_sends_go_on_where_they_stood(saver: Checkpointer) -> None:
    broken = True

    def add(name: str, *, fails: bool = False) -> Any:
        async def node(state: Any) -> dict[str, Any]:
            if fails and broken:
                raise RuntimeError(name)
            return {"log": [name if "k" not in state else f"{name}{state['k']}"]}

        return node

    def build() -> CompiledGraph[Log]:
        graph = StateGraph(Log)
        graph.add_node("a", add("a"))
        graph.add_node("b", add("b"))
        graph.add_node("b2", add("b2", fails=True))
        graph.add_node("join", add("join"))
        graph.add_node("last", add("last"), wait=True)
        graph.add_node("sent", add("sent"))
        graph.add_edge(START, "a")
        graph.add_edge(START, "b")
        graph.add_edge("b", "b2")
        graph.add_edge(["a", "b2"], "join")
        graph.add_edge("a", "last")
        graph.add_conditional_edges("join", lambda s: [Send("sent", {"k": k}) for k in range(2)], ["sent"])
        graph.add_edge("sent", "last")
        graph.add_edge("last", END)
        return graph.compile(checkpointer=saver)

    with pytest.raises(RuntimeError, match="b2"):
        await build().invoke({}, T)
    broken = False
    result = await build().invoke(None, T)
    assert result.state["log"] == ["a", "b", "b2", "join", "sent0", "sent1", "last"]


async def test_a_subgraph_goes_on_from_its_own_step(saver: Checkpointer) -> None:
    broken = True
    ran: list[str] = []

    def step(name: str) -> Any:
        async def node(state: Any, run: RunContext[Any]) -> dict[str, Any]:
            ran.append(name)
            if name == "third" and broken:
                raise RuntimeError(name)
            return {"log": [name]}

        return node

    inner = StateGraph(Log)
    for name, before in (("first", START), ("second", "first"), ("third", "second")):
        inner.add_node(name, step(name))
        inner.add_edge(before, name)
    inner.add_edge("third", END)
    middle = StateGraph(Log)
    middle.add_node("inner", inner.compile())
    middle.add_edge(START, "inner")
    middle.add_edge("inner", END)
    outer = StateGraph(Log)
    outer.add_node("begin", step("begin"))
    outer.add_node("middle", middle.compile())
    outer.add_edge(START, "begin")
    outer.add_edge("begin", "middle")
    outer.add_edge("middle", END)
    with pytest.raises(RuntimeError, match="third"):
        await outer.compile(checkpointer=saver).invoke({"log": ["in"]}, T)
    broken = False
    result = await outer.compile(checkpointer=saver).invoke(None, T)
    assert result.state["log"] == ["in", "begin", "first", "second", "third"]
    assert ran == ["begin", "first", "second", "third", "third"]


async def test_what_an_attempt_does_to_a_recorded_value_the_next_does_not_see(saver: Checkpointer) -> None:
    async def spoil(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        words = await run.once("words", lambda: ["good"])
        if run.attempt == 1:
            words.append("spoilt")
            raise ConnectionError
        return {"log": words}

    graph = StateGraph(Log)
    graph.add_node("a", spoil, retry=Retry(delay=0))
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    assert (await graph.compile(checkpointer=saver).invoke({}, T)).state["log"] == ["good"]


@pytest.mark.case("F12")
async def test_a_key_that_is_gone_is_kept_aside_and_a_new_one_starts_empty(saver: Checkpointer) -> None:
    class Old(TypedDict):
        log: Annotated[list[str], Append()]
        gone: Annotated[list[int], Append()]

    class New(TypedDict):
        log: Annotated[list[str], Append()]
        fresh: Annotated[dict[str, int], Merge()]

    def build(state: Any) -> CompiledGraph[Any]:
        graph = StateGraph(state)
        graph.add_node("a", lambda s: {"log": [" ".join(sorted(k for k in s if not k.startswith("_")))]})
        graph.add_edge(START, "a")
        graph.add_edge("a", END)
        return graph.compile(checkpointer=saver)

    await build(Old).invoke({"gone": [1, 2]}, T)
    result = await build(New).invoke({}, T)
    assert result.state == {"log": ["gone log", "fresh log"], "fresh": {}}
    assert (await build(Old).invoke({"gone": [3]}, T)).state["gone"] == [1, 2, 3]


@pytest.mark.case("F12")
async def test_a_value_whose_type_no_longer_fits_is_an_error_with_its_path(saver: Checkpointer) -> None:
    class Counts(TypedDict):
        n: dict[str, str]

    async def nothing(state: Any) -> None: ...

    graph: StateGraph[Any] = StateGraph(dict)
    graph.add_node("a", nothing)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    await graph.compile(checkpointer=saver).invoke({"n": {"x": 1}}, T)
    changed: StateGraph[Any] = StateGraph(Counts)
    changed.add_node("a", nothing)
    changed.add_edge(START, "a")
    changed.add_edge("a", END)
    with pytest.raises(CodecError, match=r"thread 't': what is stored for state\['n'\] does not fit.*\[\.\.\.\]"):
        await changed.compile(checkpointer=saver).invoke({}, T)


async def test_a_value_that_cannot_be_stored_is_told_by_node_and_key(saver: Checkpointer) -> None:
    class Odd:
        pass

    async def odd(state: Any) -> dict[str, Any]:
        return {"log": ["fine", {"deep": [Odd()]}]}

    app = one_node(saver, odd)
    with pytest.raises(CodecError, match=r"(?s)a wrote: state\['log'\]\[1\]\['deep'\]\[0\].*Odd") as caught:
        await app.invoke({"log": ["in"]}, T)
    assert caught.value.path
    found = await app.state(T)
    assert found is not None
    assert (found.state["log"], found.next) == (["in"], ("a",))


async def test_what_a_send_carries_and_cannot_be_stored_is_told_by_who_sent_it() -> None:
    class Odd:
        pass

    graph: StateGraph[Any] = StateGraph(dict)
    graph.add_node("split", lambda s: Command(goto=[Send("work", {"item": Odd()})]), ends=["work"])
    graph.add_node("work", lambda s: None)
    graph.add_edge(START, "split")
    graph.add_edge("work", END)
    with pytest.raises(CodecError, match=r"what split sent to 'work': state\['item'\].*Odd"):
        await graph.compile(checkpointer=MemorySaver()).invoke({}, T)


class Ticket(msgspec.Struct):
    title: str
    open: bool = True


async def test_types_that_the_state_names_are_stored_and_others_can_be_told_of(saver: Checkpointer) -> None:
    class Tickets(TypedDict):
        tickets: Annotated[list[Ticket], Append()]
        anything: Any

    async def add(state: Tickets) -> dict[str, Any]:
        return {"tickets": [Ticket(f"no. {len(state['tickets'])}")], "anything": {"a": {1, 2}}}

    graph = StateGraph(Tickets)
    graph.add_node("a", add)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    await graph.compile(checkpointer=saver).invoke({}, T)
    result = await graph.compile(checkpointer=saver).invoke({}, T)
    assert result.state == {"tickets": [Ticket("no. 0"), Ticket("no. 1")], "anything": {"a": {1, 2}}}
    plain: StateGraph[Any] = StateGraph(dict)
    plain.add_node("a", lambda s: {"x": Ticket("y")})
    plain.add_edge(START, "a")
    plain.add_edge("a", END)
    with pytest.raises(CodecError, match=r"Ticket"):
        await plain.compile(checkpointer=saver).invoke({}, RunConfig(thread_id="p"))
    told = plain.compile(checkpointer=saver, types=[Ticket])
    await told.invoke({}, RunConfig(thread_id="p"))
    assert (await told.invoke({}, RunConfig(thread_id="p"))).state == {"x": Ticket("y")}


async def test_durability_says_when_a_step_is_stored(saver: Checkpointer) -> None:
    seen: dict[str, list[str]] = {}

    async def look(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        name = str(run.config.thread_id)
        info = await saver.thread(name)
        assert info is not None
        seen.setdefault(name, []).append(str(info.last))
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(Log)
    graph.add_node("look", look)
    graph.add_edge(START, "look")
    graph.add_conditional_edges("look", lambda s: END if s["n"] == 3 else "look", ["look", END])
    app = graph.compile(checkpointer=saver)
    for durability in ("sync", "exit"):
        await app.invoke({}, RunConfig(thread_id=durability, durability=durability))
    assert seen == {"sync": ["1", "2", "3"], "exit": ["0", "0", "0"]}
    ends = [await app.state(RunConfig(thread_id=name)) for name in seen]
    assert [e and e.state["n"] for e in ends] == [3, 3]


async def test_a_reader_is_told_of_checkpoints(saver: Checkpointer) -> None:
    app = one_node(saver)
    async with app.stream({"log": []}, T) as events:
        told = [e.checkpoint_id async for e in events if isinstance(e, CheckpointWritten)]
    assert told == [c.checkpoint_id for c in reversed(await app.history(T))]


@pytest.mark.case("F3")
@pytest.mark.case("F14")
async def test_two_runs_on_a_thread_take_turns_or_the_second_is_refused(saver: Checkpointer) -> None:
    async def mark(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": [run.config.tags[0]]}

    graph = StateGraph(Log)
    graph.add_node("one", mark)
    graph.add_node("two", mark)
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    app = graph.compile(checkpointer=saver)
    both = [app.invoke({}, RunConfig(thread_id="t", tags=(name,))) for name in "ab"]
    await asyncio.gather(*both)
    found = await app.state(T)
    assert found is not None
    assert found.state["log"] in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
    history = await app.history(T)
    results = await asyncio.gather(
        *(app.invoke({}, RunConfig(thread_id="t", tags=(n,), if_busy="refuse")) for n in "cd"), return_exceptions=True
    )
    (refused,) = [r for r in results if isinstance(r, BaseException)]
    assert isinstance(refused, ThreadBusyError)
    assert "thread 't' has a run under way" in str(refused)
    assert len(await app.history(T)) == len(history) + 3


async def test_a_run_on_its_own_thread_inside_itself_is_an_error_and_no_endless_wait(saver: Checkpointer) -> None:
    async def again(state: Log) -> dict[str, Any]:
        await app.invoke({}, T)
        return {}

    app = one_node(saver, again)
    with pytest.raises(ThreadBusyError, match="is that of the run which this code is part of"):
        await app.invoke({}, T)


async def test_update_state_writes_as_a_node_or_beside_the_step_that_comes(saver: Checkpointer) -> None:
    graph = StateGraph(Log)
    graph.add_node("a", once_more)
    graph.add_node("b", once_more)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    app = graph.compile(checkpointer=saver)
    config = await app.update_state(T, {"log": ["by hand"], "n": 7}, as_node="a")
    found = await app.state(T)
    assert found is not None
    assert (found.next, found.checkpoint_id) == (("b",), config.checkpoint_id)
    assert (await app.invoke(None, T)).state["log"] == ["by hand", "turn 8"]
    await app.update_state(T, {"n": 1})
    found = await app.state(T)
    assert found is not None
    assert (found.next, found.state["n"]) == ((), 1)
    with pytest.raises(ResumeError, match="unknown node 'c'"):
        await app.update_state(T, {"n": 1}, as_node="c")
    with pytest.raises(InputError, match="unknown state key 'm'"):
        await app.update_state(T, {"m": 1})


async def test_prune_keeps_the_newest_and_what_is_left_goes_on(saver: Checkpointer) -> None:
    app = one_node(saver)
    for word in "abcde":
        await app.invoke({"log": [word]}, T)
    assert await app.prune("t", keep=3) == 7
    history = await app.history(T)
    assert [c.kind for c in history] == ["step", "input", "step"]
    old = await app.state(RunConfig(thread_id="t", checkpoint_id=history[-1].checkpoint_id))
    assert old is not None
    assert len(old.state["log"]) == 8
    assert (await one_node(saver).invoke({"log": ["f"]}, T)).state["n"] == 6
    assert await app.prune("t", older_than=3600) == 0
    with pytest.raises(ConfigError, match=r"prune\(\) needs keep="):
        await app.prune("t")


async def test_pruning_a_thread_that_is_not_there_does_not_make_it(saver: Checkpointer) -> None:
    assert await one_node(saver).prune("t", keep=1) == 0
    assert await saver.thread("t") is None


async def test_a_thread_that_is_deleted_while_it_is_looked_at_is_one_that_is_not_there() -> None:
    looked = Wrapped(MemorySaver())
    app = one_node(looked)
    await app.invoke({"log": ["a"]}, T)

    async def delete() -> None:
        await looked.inner.delete("t")

    looked.hooks["read"] = delete
    assert await app.state(T) is None


def test_a_checkpointer_that_is_none_is_told_when_the_graph_is_compiled() -> None:
    for wrong in ("runs.db", MemorySaver):
        with pytest.raises(ConfigError, match=r"checkpointer=...\) must be a store of threads, such as .*; found"):
            one_node(cast("Checkpointer", wrong))


async def test_a_deleted_thread_begins_anew(saver: Checkpointer) -> None:
    app = one_node(saver)
    await app.invoke({"log": ["a"]}, T)
    await app.delete("t")
    assert await app.state(T) is None
    assert (await app.invoke({"log": ["b"]}, T)).state == {"log": ["b", "turn 1"], "n": 1}


async def test_what_a_caller_does_to_a_result_does_not_reach_the_thread(saver: Checkpointer) -> None:
    app = one_node(saver)
    result = await app.invoke({"log": ["a"]}, T)
    result.state["log"].append("mine")
    assert (await app.invoke({"log": ["b"]}, T)).state["log"] == ["a", "turn 1", "b", "turn 2"]


async def test_a_dataclass_or_struct_as_input_is_the_whole_state(saver: Checkpointer) -> None:
    class Whole(msgspec.Struct):
        log: Annotated[list[str], Append()] = []
        total: Annotated[int, Reduce(lambda a, b: a + b)] = 0

    graph = StateGraph(Whole)
    graph.add_node("a", lambda s: {"log": [str(s.total)], "total": 1})
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    app = graph.compile(checkpointer=saver)
    await app.invoke({"total": 5}, T)
    assert (await app.invoke(Whole(log=["x"], total=1), T)).state == Whole(log=["x", "1"], total=2)
    found = await graph.compile(checkpointer=saver).state(T)
    assert found is not None
    assert found.state == Whole(log=["x", "1"], total=2)


async def test_a_conversation_is_the_same_read_from_the_store_as_it_was_in_memory(saver: Checkpointer) -> None:
    async def answer(state: Any) -> dict[str, Any]:
        return {"messages": [AssistantMessage(f"answer {len(state['messages'])}")]}

    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    app = graph.compile(checkpointer=saver)
    results = [await app.invoke({"messages": [UserMessage(f"question {k}")]}, T) for k in range(20)]
    found = await graph.compile(checkpointer=saver).state(T)
    assert found is not None
    assert found.state["messages"] == results[-1].state["messages"]
    assert len(found.state["messages"]) == 40


async def test_a_node_that_writes_something_wrong_leaves_the_thread_where_it_was(saver: Checkpointer) -> None:
    async def wrong(state: Log) -> dict[str, Any]:
        return {"nn": 1}

    app = one_node(saver, wrong)
    with pytest.raises(UpdateError, match="unknown state key 'nn'"):
        await app.invoke({"log": ["a"]}, T)
    fixed = one_node(saver)
    assert (await fixed.invoke(None, T)).state == {"log": ["a", "turn 1"], "n": 1}


async def test_two_graphs_at_once_in_one_node_must_be_told_apart(saver: Checkpointer) -> None:
    async def slow(state: Log) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await once_more(state)

    inner = one_node(saver, slow)

    async def both(state: Any, run: RunContext[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner({"log": []}, run))
            group.create_task(inner({"log": []}, run))

    async def parts(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(inner({"log": [], "n": k}, run.part(str(k)))) for k in range(2)]
        return {"log": [str(update["n"]) for t in tasks for update in t.result() if "n" in update]}

    with pytest.raises(ExceptionGroup) as caught:
        await one_node(saver, both).invoke({}, T)
    assert caught.group_contains(CheckpointError, match=r"runs graph 'graph' while another of its graphs runs")
    assert (await one_node(saver, parts).invoke({}, RunConfig(thread_id="u"))).state["log"] == ["1", "2"]


async def test_a_gone_key_is_told_of_once(saver: Checkpointer, caplog: pytest.LogCaptureFixture) -> None:
    graph: StateGraph[Any] = StateGraph(dict)
    graph.add_node("a", lambda s: {"gone": 1})
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    await graph.compile(checkpointer=saver).invoke({}, T)
    with caplog.at_level(logging.WARNING, "agentgraph"):
        app = one_node(saver)
        await app.invoke({}, T)
        await app.invoke({}, T)
    assert [r.getMessage() for r in caplog.records] == [
        "thread 't' has values for 'gone', which the state does not know any more; they are kept aside"
    ]
