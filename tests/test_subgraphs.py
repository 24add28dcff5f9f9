"""A compiled graph as a node of another: which keys go in and come out, and what passes through."""

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentgraph import (
    END,
    START,
    CompiledGraph,
    ConflictError,
    InputError,
    NodeTimeoutError,
    RecursionLimitError,
    Retry,
    RunConfig,
    RunContext,
    RunNote,
    Send,
    StateGraph,
)
from agentgraph.events import Event, NodeStarted, StateUpdate, StepStarted
from agentgraph.messages import Usage
from agentgraph.strategies import Append, LastWrite, Merge, Reduce, Replace


@pytest.fixture(autouse=True, params=[True, False], ids=["short", "long"])
def short_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One active node has a short way through the loop: all that holds must hold without it too."""
    monkeypatch.setattr("agentgraph._engine.run.SHORT_WAY", request.param)


class Talk(TypedDict, total=False):
    messages: Annotated[list[str], Append()]
    n: Annotated[int, Reduce(operator.add)]
    text: str


class Private(Talk, total=False):
    hidden: str


NodeFunction = Callable[[Any], Any] | Callable[[Any, RunContext[Any]], Any]


def line(schema: Any, *steps: tuple[str, NodeFunction], **options: Any) -> StateGraph[Any]:
    """START, the nodes one after the other, END."""
    graph: StateGraph[Any] = StateGraph(schema, **options)
    for name, node in steps:
        graph.add_node(name, node)
    names = [name for name, _ in steps]
    for one, other in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(one, other)
    return graph


def write(**update: Any) -> Any:
    async def node(state: Any) -> dict[str, Any]:
        return update

    return node


async def events_of(app: CompiledGraph[Any], input: Any) -> list[Event]:
    async with app.stream(input) as events:
        return [event async for event in events]


# --- what goes in and what comes out ---


@pytest.mark.case("E5")
async def test_an_appended_key_does_not_double_three_levels_deep() -> None:
    app = line(Talk, ("c", write(messages="c"))).compile()
    for name in "ba":
        app = line(Talk, (name, write(messages=name)), ("sub", app)).compile()
    result = await app.invoke({"messages": ["given"]})
    assert result.state == {"messages": ["given", "a", "b", "c"]}


@pytest.mark.case("E15")
@pytest.mark.parametrize("times", [1, 2])
async def test_a_subgraph_gives_back_what_it_wrote_and_nothing_else(times: int) -> None:
    child = line(Private, ("c", write(messages=["c"], hidden="s"))).compile()
    parent = line(Talk, *((f"sub{i}", child) for i in range(times)))
    result = await parent.compile().invoke({"messages": ["u"], "n": 1})
    assert result.state == {"messages": ["u", *"c" * times], "n": 1}


@pytest.mark.case("E15")
async def test_no_update_event_tells_of_a_key_that_the_subgraph_did_not_write() -> None:
    child = line(Private, ("c", write(messages=["c"], hidden="s"))).compile()
    told = await events_of(line(Talk, ("sub", child)).compile(), {"messages": ["u"], "n": 1})
    assert [(e.path, e.update) for e in told if isinstance(e, StateUpdate)] == [
        (("sub", "c"), {"messages": ["c"], "hidden": "s"}),
        (("sub",), {"messages": ["c"]}),
    ]


@pytest.mark.case("E15")
async def test_a_replaced_key_that_the_subgraph_leaves_alone_does_not_clash_with_a_sibling() -> None:
    child = line(Talk, ("c", write(messages=["c"]))).compile()
    graph = StateGraph(Talk).add_node("sub", child).add_node("beside", write(text="new"))
    for name in ("sub", "beside"):
        graph.add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({"text": "old"})
    assert result.state == {"messages": ["c"], "text": "new"}


async def test_a_replaced_key_that_the_subgraph_writes_does_clash_with_a_sibling() -> None:
    child = line(Talk, ("c", write(text="child"))).compile()
    graph = StateGraph(Talk).add_node("sub", child).add_node("beside", write(text="new"))
    for name in ("sub", "beside"):
        graph.add_edge(START, name).add_edge(name, END)
    with pytest.raises(ConflictError) as caught:
        await graph.compile().invoke({})
    assert caught.value.nodes == ("sub", "beside")


async def test_a_subgraph_may_write_a_replaced_key_in_several_steps() -> None:
    child = line(Talk, ("one", write(text="1", n=1)), ("two", write(text="2", n=1))).compile()
    told = await events_of(line(Talk, ("sub", child)).compile(), {"n": 5})
    assert [e.update for e in told if isinstance(e, StateUpdate) and e.path == ("sub",)] == [
        {"n": 1},
        {"n": 1},
        {"text": "2"},
    ]


async def test_updates_of_a_subgraph_merge_by_the_parents_strategies() -> None:
    child = line(None, ("one", write(found="1")), ("two", write(found="2")), strategies={"found": Append()})
    parent = line(None, ("sub", child.compile()), strategies={"found": Reduce(lambda held, new: f"{new}{held}")})
    assert (await parent.compile().invoke({"found": [0]})).state == {"found": "21[0]"}


async def test_the_keys_that_both_know_go_in() -> None:
    seen: list[Any] = []
    child = line(Talk, ("c", lambda state: seen.append(dict(state)))).compile()
    parent = line(None, ("sub", child), strategies={"text": LastWrite(), "other": LastWrite()})
    await parent.compile().invoke({"text": "t", "other": "o"})
    assert seen == [{"messages": [], "text": "t"}]


async def test_a_subgraph_without_a_schema_gets_every_key() -> None:
    child = line(None, ("c", lambda state: {"text": f"{sorted(state)}"})).compile()
    parent = StateGraph(Private).add_node("sub", child, output={"text": "text"})
    parent.add_edge(START, "sub").add_edge("sub", END)
    result = await parent.compile().invoke({"hidden": "s", "n": 1})
    assert result.state == {"messages": [], "n": 1, "hidden": "s", "text": "['hidden', 'messages', 'n']"}


async def test_input_and_output_mappings_rename_keys() -> None:
    child = line(Private, ("c", lambda state: {"text": state["hidden"] + "!", "n": 3})).compile()
    parent = StateGraph(strategies={"question": LastWrite(), "answer": LastWrite(), "n": Reduce(operator.add)})
    parent.add_node("sub", child, input={"question": "hidden"}, output={"text": "answer"})
    parent.add_edge(START, "sub").add_edge("sub", END)
    result = await parent.compile().invoke({"question": "why", "n": 1})
    assert result.state == {"question": "why", "answer": "why!", "n": 1}


async def test_one_mapping_alone_leaves_the_other_way_to_the_common_keys() -> None:
    child = line(Talk, ("c", lambda state: {"messages": state["text"], "n": 1})).compile()
    parent = StateGraph(Private).add_node("sub", child, input={"hidden": "text"})
    parent.add_node("sub2", child, output={"messages": "hidden"})
    parent.add_edge(START, "sub").add_edge("sub", "sub2").add_edge("sub2", END)
    result = await parent.compile().invoke({"hidden": "s", "text": "t"})
    assert result.state == {"messages": ["s"], "n": 1, "hidden": ["t"], "text": "t"}


async def test_a_replaced_key_gets_all_that_a_subgraph_has_added_to_the_key_that_is_mapped_to_it() -> None:
    child = line(None, ("a", write(log=1)), ("b", write(log=[2, 3])), strategies={"log": Append()}).compile()
    parent = StateGraph(strategies={"log": LastWrite()}).add_node("sub", child, output={"log": "log"})
    parent.add_edge(START, "sub").add_edge("sub", END)
    assert (await parent.compile().invoke({"log": [0]})).state == {"log": [1, 2, 3]}


async def test_a_mapped_key_that_the_parent_has_not_written_is_left_out() -> None:
    child = line(Talk, ("c", lambda state: {"messages": str("text" in state)})).compile()
    parent = StateGraph(Private).add_node("sub", child, input={"hidden": "text"})
    parent.add_edge(START, "sub").add_edge("sub", END)
    assert (await parent.compile().invoke({})).state.get("messages") == ["False"]


async def test_state_classes_of_different_kinds_meet() -> None:
    @dataclass
    class Inner:
        text: str
        messages: Annotated[list[str], Append()]

    class Outer(msgspec.Struct):
        text: str
        messages: Annotated[list[str], Append()]

    def say(state: Inner) -> Any:
        assert type(state) is Inner
        return {"messages": state.text}

    result = await line(Outer, ("sub", line(Inner, ("c", say)).compile())).compile().invoke({"text": "t"})
    assert result.state == Outer(text="t", messages=["t"])


async def test_a_key_that_the_subgraph_needs_and_does_not_get_is_an_error_at_its_node() -> None:
    @dataclass
    class Inner:
        needed: str
        text: str = ""

    child = line(Inner, ("c", write())).compile()
    with pytest.raises(InputError, match="lacks 'needed', which Inner has no default for") as caught:
        await line(Talk, ("sub", child)).compile().invoke({})
    assert [n.path for n in caught.value.__notes__ if isinstance(n, RunNote)] == [("sub",)]


async def test_a_subgraph_that_is_sent_something_gets_that_as_its_state() -> None:
    child = line(Talk, ("c", lambda state: {"messages": [*state["messages"], state["text"]]})).compile()
    parent = StateGraph(Talk).add_node("sub", child).add_edge("sub", END)
    sends = [Send("sub", {"text": "1", "unknown": 0}), Send("sub", {"text": "2", "messages": ["own"]})]
    parent.add_conditional_edges(START, lambda _: sends, ["sub"])
    assert (await parent.compile().invoke({"messages": ["u"]})).state == {"messages": ["u", "1", "own", "2"]}


async def test_one_compiled_graph_may_be_several_nodes_at_once() -> None:
    child = line(Talk, ("c", write(messages="c", n=1))).compile()
    parent = StateGraph(Talk)
    for name in ("x", "y", "z"):
        parent.add_node(name, child).add_edge(START, name).add_edge(name, END)
    assert (await parent.compile().invoke({"n": 1})).state == {"messages": ["c", "c", "c"], "n": 4}


async def test_a_node_may_run_a_graph_by_hand() -> None:
    child = line(Talk, ("c", write(messages="c", n=1))).compile()

    async def by_hand(state: Talk, run: RunContext[None]) -> Any:
        first, second = await child(state, run), await child({"messages": ["own"]}, run)
        return {"messages": str([*first, *second])}

    result = await line(Talk, ("a", by_hand)).compile().invoke({})
    assert result.state == {"messages": [str([{"messages": "c", "n": 1}] * 2)]}
    assert result.steps == 3


async def test_a_subgraph_keeps_nothing_between_two_runs_of_its_node() -> None:
    child = line(Private, ("c", lambda state: {"messages": str("hidden" in state), "hidden": "s"})).compile()
    result = await line(Talk, ("one", child), ("two", child)).compile().invoke({})
    assert result.state.get("messages") == ["False", "False"]


async def test_a_failing_subgraph_gives_back_nothing() -> None:
    async def fail(state: Any) -> None:
        raise KeyError("gone")

    async def told(state: Talk, error: Exception) -> Any:
        return {"messages": f"{type(error).__name__} after {state.get('messages')}"}

    child = line(Talk, ("c", write(messages="half")), ("d", fail)).compile()
    parent = StateGraph(Talk).add_node("sub", child, on_error=told).add_edge(START, "sub").add_edge("sub", END)
    assert (await parent.compile().invoke({})).state == {"messages": ["KeyError after []"]}


# --- what passes through ---


async def test_events_have_the_path_from_the_outermost_graph_inwards() -> None:
    inner = line(Talk, ("c", write(messages="c"))).compile()
    middle = line(Talk, ("b", inner)).compile()
    told = await events_of(line(Talk, ("a", middle)).compile(), {})
    assert [e.path for e in told if isinstance(e, NodeStarted)] == [("a",), ("a", "b"), ("a", "b", "c")]
    assert [(e.path, e.step, e.nodes) for e in told if isinstance(e, StepStarted)] == [
        ((), 1, ["a"]),
        (("a",), 1, ["b"]),
        (("a", "b"), 1, ["c"]),
    ]
    assert [e.seq for e in told] == list(range(1, len(told) + 1))


async def test_an_error_is_noted_with_the_path_of_the_node_that_failed() -> None:
    async def fail(state: Any) -> None:
        raise KeyError("gone")

    middle = line(Talk, ("b", line(Talk, ("x", write()), ("c", fail)).compile())).compile()
    with pytest.raises(KeyError) as caught:
        await line(Talk, ("a", middle)).compile().invoke({})
    notes = [n for n in caught.value.__notes__ if isinstance(n, RunNote)]
    assert [(n.path, n.step) for n in notes] == [(("a", "b", "c"), 2)]


@pytest.mark.case("E12")
async def test_a_subgraph_may_need_many_steps_of_its_parents_limit() -> None:
    child = line(Talk, *((f"c{i}", write(n=1)) for i in range(40))).compile()
    result = await line(Talk, ("sub", child)).compile().invoke({}, RunConfig(recursion_limit=200))
    assert (result.state.get("n"), result.steps) == (40, 41)


@pytest.mark.case("E12")
@pytest.mark.parametrize(("limit", "ends"), [(12, True), (11, False)])
async def test_one_recursion_limit_is_for_the_run_and_all_its_subgraphs(limit: int, ends: bool) -> None:
    inner = line(Talk, *((f"c{i}", write(n=1)) for i in range(5))).compile()
    middle = line(Talk, ("b1", inner), ("b2", write(n=1))).compile()
    parent = line(Talk, ("a1", write(n=1)), ("a2", middle), ("a3", write(n=1)), ("a4", write(n=1)), ("a5", write(n=1)))
    run = parent.compile().invoke({}, RunConfig(recursion_limit=limit))
    if ends:
        assert (await run).steps == limit
    else:
        with pytest.raises(RecursionLimitError, match=f"limit of {limit} steps"):
            await run


@pytest.mark.case("E12")
async def test_a_loop_in_a_subgraph_names_the_path_and_has_the_state_of_the_run() -> None:
    child = StateGraph(Private).add_node("c", write(n=1, hidden="s")).add_edge(START, "c").add_edge("c", "c")
    child.add_conditional_edges("c", lambda _: [], [END])
    with pytest.raises(RecursionLimitError) as caught:
        await (
            line(Talk, ("a", write(messages="a")), ("b", child.compile()))
            .compile()
            .invoke({}, RunConfig(recursion_limit=9))
        )
    assert caught.value.last == ("b/c",) * 5
    assert caught.value.state == {"messages": ["a"]}


async def test_context_config_and_usage_are_those_of_the_run() -> None:
    seen: list[Any] = []

    async def note(state: Any, run: RunContext[str]) -> None:
        run.add_usage(Usage(input_tokens=1, output_tokens=2))
        seen.append((run.context, run.config.tags, run.run_id))

    child = line(Talk, ("c", note), ("d", note)).compile()
    result = await line(Talk, ("a", note), ("sub", child)).compile().invoke({}, RunConfig(tags=("t",)), context="mine")
    assert seen == [("mine", ("t",), result.run_id)] * 3
    assert result.usage == Usage(input_tokens=3, output_tokens=6, calls=3)


async def test_each_run_of_a_subgraph_has_a_scratch_of_its_own() -> None:
    seen: list[Any] = []

    async def note(state: Any, run: RunContext[None]) -> None:
        seen.append((run.node, dict(run.scratch)))
        run.scratch[run.node] = True

    child = line(Talk, ("c", note), ("d", note)).compile()
    await line(Talk, ("a", note), ("sub", child), ("sub2", child)).compile().invoke({})
    assert seen == [("a", {}), ("c", {}), ("d", {"c": True}), ("c", {}), ("d", {"c": True})]


async def test_an_interrupt_in_a_subgraph_ends_the_run_as_interrupted() -> None:
    async def ask(state: Any, run: RunContext[None]) -> None:
        run.interrupt({"sure": True})

    middle = line(Talk, ("b", line(Talk, ("c", ask)).compile())).compile()
    parent = line(Talk, ("a", middle), ("after", write(messages="after")))
    result = await parent.compile().invoke({})
    assert (result.status, result.state) == ("interrupted", {"messages": []})
    assert [(q.node, q.value) for q in result.interrupts] == [(("a", "b", "c"), {"sure": True})]


async def test_cancelling_the_run_ends_a_node_three_levels_down_first() -> None:
    begun, ended = asyncio.Event(), list[str]()
    tokens: list[Any] = []

    async def wait(state: Any, run: RunContext[None]) -> None:
        tokens.append(run.cancellation)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("node")

    app = line(Talk, ("a", line(Talk, ("b", line(Talk, ("c", wait)).compile())).compile())).compile()
    run = asyncio.create_task(app.invoke({}))
    run.add_done_callback(lambda _: ended.append("run"))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.sleep(0)
    assert ended == ["node", "run"]
    assert tokens[0].cancelled


async def test_a_subgraph_whose_sibling_fails_ends_though_its_node_swallows_that() -> None:
    begun, went_on = asyncio.Event(), list[str]()

    async def stubborn(state: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    async def fail(state: Any) -> None:
        await begun.wait()
        raise KeyError("gone")

    child = line(Talk, ("c", stubborn), ("d", lambda _: went_on.append("d"))).compile()
    graph = StateGraph(Talk).add_node("sub", child).add_node("fail", fail)
    for name in ("sub", "fail"):
        graph.add_edge(START, name).add_edge(name, END)
    with pytest.raises(KeyError):
        await graph.compile().invoke({})
    assert not went_on


async def test_a_timeout_of_a_subgraphs_node_holds_for_all_its_steps() -> None:
    async def wait(state: Any) -> None:
        await asyncio.Event().wait()

    child = line(Talk, ("c", write(messages="c")), ("d", wait)).compile()
    graph = StateGraph(Talk).add_node("sub", child, timeout=0.01).add_edge(START, "sub").add_edge("sub", END)
    with pytest.raises(NodeTimeoutError, match=r"node 'sub' reached its timeout of 0.01 s"):
        await graph.compile().invoke({})


async def test_a_retry_of_a_subgraphs_node_runs_it_from_its_start() -> None:
    runs: list[str] = []

    async def fail_once(state: Talk) -> Any:
        runs.append(str(state.get("messages")))
        if len(runs) == 1:
            raise ConnectionError
        return {"messages": "d"}

    child = line(Talk, ("c", write(messages="c")), ("d", fail_once)).compile()
    graph = StateGraph(Talk).add_node("sub", child, retry=Retry(delay=0)).add_edge(START, "sub").add_edge("sub", END)
    assert (await graph.compile().invoke({})).state == {"messages": ["c", "d"]}
    assert runs == ["['c']", "['c']"]


async def test_subgraphs_within_a_concurrency_limit_of_one_do_not_wait_for_themselves() -> None:
    inner = line(Talk, ("c", write(n=1))).compile()
    middle = StateGraph(Talk)
    parent = StateGraph(Talk)
    for name in ("x", "y"):
        middle.add_node(name, inner).add_edge(START, name).add_edge(name, END)
    for name in ("p", "q"):
        parent.add_node(name, middle.compile()).add_edge(START, name).add_edge(name, END)
    result = await parent.compile().invoke({}, RunConfig(max_concurrency=1))
    assert result.state.get("n") == 4


async def test_joins_inside_a_subgraph_count_for_each_of_its_runs() -> None:
    child = StateGraph(Talk)
    for name in "abc":
        child.add_node(name, write(messages=name))
    child.add_conditional_edges(START, lambda state: list(state["text"]), ["a", "b"])
    child.add_edge(["a", "b"], "c").add_edge("c", END)
    parent = StateGraph(Talk).add_node("sub", child.compile()).add_edge("sub", END)
    parent.add_conditional_edges(START, lambda _: [Send("sub", {"text": t}) for t in ("a", "ab", "b")], ["sub"])
    assert "".join((await parent.compile().invoke({})).state.get("messages", [])) == "acabcbc"


async def test_a_merged_key_of_a_subgraph_merges_into_the_parents() -> None:
    child = line(None, ("one", write(files={"b": 2})), ("two", write(files={"c": 3})), strategies={"files": Merge()})
    parent = line(None, ("sub", child.compile()), strategies={"files": Merge()})
    assert (await parent.compile().invoke({"files": {"a": 1}})).state == {"files": {"a": 1, "b": 2, "c": 3}}


async def test_a_long_loop_in_a_subgraph_keeps_nothing_of_keys_that_the_parent_does_not_take() -> None:
    alive: set[int] = set()

    class Big:
        def __init__(self, n: int) -> None:
            self.n = n
            alive.add(n)

        def __del__(self) -> None:
            alive.discard(self.n)

    most = 0

    async def loop(state: dict[str, Any]) -> dict[str, Any]:
        nonlocal most
        most = max(most, len(alive))
        return {"private": Big(state["n"]), "replaced": Big(-1 - state["n"]), "n": state["n"] + 1}

    child = StateGraph(strategies={"private": Replace(), "replaced": Replace(), "n": Replace(), "out": Append()})
    child.add_node("loop", loop).add_edge(START, "loop")
    child.add_conditional_edges("loop", lambda state: "loop" if state["n"] < 60 else END, ["loop", END])
    parent = StateGraph(strategies={"n": Replace(), "replaced": Replace()})
    parent.add_node("child", child.compile()).add_edge(START, "child").add_edge("child", END)
    result = await parent.compile().invoke({"n": 0})
    assert (result.state["n"], result.state["replaced"].n) == (60, -60)
    assert most <= 8
