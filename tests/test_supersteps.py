"""Steps: snapshots, merge order, Sends, routers, Commands, worker threads, limits."""

import asyncio
import contextvars
import functools
import gc
import operator
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
import pytest

from agentgraph import (
    END,
    START,
    AgentGraphError,
    Command,
    ConflictError,
    RecursionLimitError,
    Retry,
    RoutingError,
    RunConfig,
    RunContext,
    RunEndedError,
    RunNote,
    Send,
    StateGraph,
)
from agentgraph.strategies import Append, LastWrite, Reduce


@pytest.fixture(autouse=True, params=[True, False], ids=["short", "long"])
def short_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One active node has a short way through the loop: all that holds must hold without it too."""
    monkeypatch.setattr("agentgraph._engine.run.SHORT_WAY", request.param)


class Log(TypedDict, total=False):
    n: int
    log: Annotated[list[str], Append()]


def say(name: str) -> Callable[[Any], Any]:
    async def node(state: Any) -> dict[str, str]:
        return {"log": name}

    return node


async def idle(state: Any) -> None:
    return None


# --- snapshots ---


async def test_all_nodes_of_a_step_see_the_same_snapshot() -> None:
    async def first(state: Log) -> Any:
        return {"log": f"first saw {state.get('log')}"}

    async def second(state: Log) -> Any:
        await asyncio.sleep(0)
        return {"log": f"second saw {state.get('log')}"}

    graph = StateGraph(Log).add_node("first", first).add_node("second", second)
    for name in ("first", "second"):
        graph.add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({"log": ["given"]})
    assert result.state.get("log") == ["given", "first saw ['given']", "second saw ['given']"]


async def test_keys_that_a_node_adds_to_its_snapshot_reach_nobody() -> None:
    async def scribble(state: Log) -> None:
        state["n"] = 7

    async def read(state: Log) -> Any:
        return {"log": str("n" in state)}

    graph = StateGraph(Log).add_node("scribble", scribble).add_node("beside", read).add_node("after", read)
    graph.add_edge(START, "scribble").add_edge(START, "beside").add_edge(["scribble", "beside"], "after")
    graph.add_edge("after", END)
    assert (await graph.compile().invoke({})).state == {"log": ["False", "False"]}


async def test_the_input_is_not_changed() -> None:
    given: Log = {"log": ["given"], "n": 1}
    graph = StateGraph(Log).add_node("a", say("a")).add_edge(START, "a").add_edge("a", END)
    result = await graph.compile().invoke(given)
    assert given == {"log": ["given"], "n": 1}
    assert result.state == {"log": ["given", "a"], "n": 1}


# --- merging ---


async def test_updates_merge_in_node_order_whatever_finishes_first() -> None:
    done = {name: asyncio.Event() for name in "abc"}

    def after(name: str, other: str | None) -> Any:
        async def node(state: Log) -> Any:
            if other is not None:
                await done[other].wait()
            done[name].set()
            return {"log": name}

        return node

    graph = (
        StateGraph(Log).add_node("a", after("a", "b")).add_node("b", after("b", "c")).add_node("c", after("c", None))
    )
    for name in ("c", "a", "b"):
        graph.add_edge(START, name).add_edge(name, END)
    assert (await graph.compile().invoke({})).state.get("log") == ["a", "b", "c"]


async def test_two_writers_of_a_replaced_key_in_one_step_are_an_error_that_names_both() -> None:
    async def write(state: Log) -> Any:
        return {"n": 1}

    graph = StateGraph(Log).add_node("left", write).add_node("right", write)
    for name in ("left", "right"):
        graph.add_edge(START, name).add_edge(name, END)
    with pytest.raises(ConflictError) as caught:
        await graph.compile().invoke({})
    assert (caught.value.nodes, caught.value.key) == (("left", "right"), "n")
    told = str(caught.value)
    assert "nodes 'left' and 'right' both wrote key 'n'" in told
    assert all(remedy in told for remedy in ("Append", "LastWrite", "one after the other"))


async def test_two_sends_that_write_a_replaced_key_are_an_error_too() -> None:
    graph = StateGraph(Log).add_node("work", lambda _: {"n": 1}).add_edge("work", END)
    graph.add_conditional_edges(START, lambda _: [Send("work", {}), Send("work", {})], ["work"])
    with pytest.raises(ConflictError, match="two calls of node 'work' both wrote key 'n'"):
        await graph.compile().invoke({})


async def test_writers_of_a_replaced_key_in_different_steps_do_not_clash() -> None:
    graph = StateGraph(Log).add_node("a", lambda _: {"n": 1}).add_node("b", lambda _: {"n": 2})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    assert (await graph.compile().invoke({})).state.get("n") == 2


async def test_of_several_last_writes_the_later_in_node_order_wins() -> None:
    first_may_end = asyncio.Event()

    async def first(state: Any) -> Any:
        await first_may_end.wait()
        return {"winner": "first"}

    async def second(state: Any) -> Any:
        first_may_end.set()
        return {"winner": "second"}

    graph = StateGraph(strategies={"winner": LastWrite()}).add_node("first", first).add_node("second", second)
    for name in ("first", "second"):
        graph.add_edge(START, name).add_edge(name, END)
    assert (await graph.compile().invoke({})).state == {"winner": "second"}


# --- Sends ---


async def test_sends_merge_in_the_order_in_which_they_were_sent() -> None:
    turns = {"x": 3, "y": 1, "z": 2}

    async def work(state: dict[str, str]) -> Any:
        for _ in range(turns[state["item"]]):
            await asyncio.sleep(0)
        return {"log": state["item"]}

    graph = StateGraph(Log).add_node("work", work).add_edge("work", END)
    graph.add_conditional_edges(START, lambda _: [Send("work", {"item": i}) for i in "zxy"], ["work"])
    assert (await graph.compile().invoke({})).state.get("log") == ["z", "x", "y"]


async def test_sends_of_several_routers_come_in_node_order_and_after_the_nodes_of_the_step() -> None:
    def send(state: Log, run: RunContext[None]) -> list[Any]:
        return ["plain", Send("work", {"item": f"{run.node}1"}), Send("work", {"item": f"{run.node}2"})]

    graph = StateGraph(Log).add_node("work", lambda state: {"log": state["item"]}).add_edge("work", END)
    for name in ("a", "b"):
        graph.add_node(name, idle).add_edge(START, name).add_conditional_edges(name, send, ["work", "plain"])
    graph.add_node("plain", say("plain")).add_edge("plain", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["plain", "a1", "a2", "b1", "b2"]


async def test_a_sent_node_sees_only_what_it_was_sent() -> None:
    seen: list[Any] = []
    graph = StateGraph(Log).add_node("work", seen.append).add_edge("work", END)
    graph.add_conditional_edges(START, lambda _: [Send("work", {"item": 1}), Send("work", "text")], ["work"])
    await graph.compile().invoke({"n": 3})
    assert sorted(seen, key=str) == ["text", {"item": 1}]


async def test_the_edges_of_a_node_that_ran_by_several_sends_hold_once() -> None:
    asked: list[None] = []
    graph = StateGraph(Log).add_node("work", idle).add_node("next", say("next")).add_edge("next", END)
    graph.add_conditional_edges(START, lambda _: [Send("work", i) for i in range(3)], ["work"])
    graph.add_conditional_edges("work", lambda _: asked.append(None) or "next", ["next"])
    assert (await graph.compile().invoke({})).state.get("log") == ["next"]
    assert len(asked) == 1


async def test_a_send_to_an_unknown_node_names_the_nearest() -> None:
    graph = StateGraph(Log).add_node("work", idle).add_edge("work", END)
    graph.add_conditional_edges(START, lambda _: [Send("wrok", {})], ["work"])
    with pytest.raises(RoutingError, match="gave 'wrok', which is no target; did you mean 'work'"):
        await graph.compile().invoke({})


# --- routers ---


def route_sync(state: Log) -> str:
    return "yes" if state.get("n") else "no"


async def route_async(state: Log) -> str:
    await asyncio.sleep(0)
    return route_sync(state)


def route_with_run(state: Log, run: RunContext[str]) -> str:
    return run.context if state.get("n") else "no"


def route_literal(state: Log) -> Literal["yes", "no"]:
    return "yes" if state.get("n") else "no"


class Router:
    async def __call__(self, state: Log) -> list[str]:
        return [route_sync(state)]


@pytest.mark.parametrize("router", [route_sync, route_async, route_with_run, route_literal, Router()])
@pytest.mark.parametrize("targets", [None, ["yes", "no"], {"yes": "yes", "no": "no"}])
@pytest.mark.parametrize(("n", "went"), [(1, "yes"), (0, "no")])
async def test_routers_of_every_form(router: Any, targets: Any, n: int, went: str) -> None:
    graph = StateGraph(Log).add_node("ask", idle).add_node("yes", say("yes")).add_node("no", say("no"))
    graph.add_edge(START, "ask").add_conditional_edges("ask", router, targets)
    graph.add_edge("yes", END).add_edge("no", END)
    result = await graph.compile().invoke({"n": n}, context="yes")
    assert result.state.get("log") == [went]


async def test_a_mapping_translates_answers_of_any_kind() -> None:
    def small(state: Log) -> bool:
        return state.get("n", 0) < 3

    graph = StateGraph(Log).add_node("grow", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "grow").add_conditional_edges("grow", small, {True: "grow", False: END})
    assert (await graph.compile().invoke({"n": 0})).state.get("n") == 3


async def test_a_router_sees_the_merged_state() -> None:
    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b")).add_node("both", say("both"))
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", END).add_edge("both", END)
    graph.add_conditional_edges("a", lambda state: "both" if state["log"] == ["a", "b"] else END, ["both", END])
    assert (await graph.compile().invoke({})).state.get("log") == ["a", "b", "both"]


@pytest.mark.parametrize("empty", [list[str](), (), END, [END], set[str]()])
async def test_an_empty_list_and_end_both_end_the_branch(empty: Any) -> None:
    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b")).add_edge(START, "a").add_edge("b", END)
    graph.add_conditional_edges("a", lambda _: empty, ["b"])
    result = await graph.compile().invoke({})
    assert (result.state.get("log"), result.steps) == (["a"], 1)


async def test_an_ended_branch_leaves_the_others_alone() -> None:
    graph = StateGraph(Log).add_node("a", idle).add_node("b", idle).add_node("c", say("c"))
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge("c", END)
    graph.add_conditional_edges("a", lambda _: [], ["c"])
    assert (await graph.compile().invoke({})).state.get("log") == ["c"]


async def test_a_router_and_plain_edges_of_one_node_both_hold() -> None:
    graph = StateGraph(Log).add_node("a", idle)
    for name in ("b", "c", "d"):
        graph.add_node(name, say(name)).add_edge(name, END)
    graph.add_edge(START, "a").add_edge("a", "d")
    graph.add_conditional_edges("a", lambda _: "c", ["c"]).add_conditional_edges("a", lambda _: "b", ["b"])
    assert (await graph.compile().invoke({})).state.get("log") == ["b", "c", "d"]


@pytest.mark.case("E6")
async def test_a_misspelt_answer_names_node_value_options_and_the_likely_one() -> None:
    graph = StateGraph(Log).add_node("plan", idle).add_node("search", idle).add_edge("search", END)
    graph.add_edge(START, "plan").add_conditional_edges("plan", lambda _: "serach", ["search", END])
    with pytest.raises(RoutingError) as caught:
        await graph.compile().invoke({})
    assert (caught.value.node, caught.value.value) == ("plan", "serach")
    assert caught.value.allowed == ("search", END)
    assert "did you mean 'search'?" in str(caught.value)
    assert "'plan' gave 'serach'" in str(caught.value)


@pytest.mark.case("E13")
@pytest.mark.parametrize("targets", [{"again": "a", "on": "b"}, ["a", "b"], None])
async def test_end_always_works(targets: Any) -> None:
    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b")).add_edge(START, "a").add_edge("b", END)
    graph.add_conditional_edges("a", lambda _: END, targets)
    assert (await graph.compile().invoke({})).state.get("log") == ["a"]


@pytest.mark.case("E13")
@pytest.mark.parametrize("targets", [{"left": "left", "right": "right"}, ["left", "right"], None])
@pytest.mark.parametrize("answer", [None, "", "rihgt", 7, ["left", "rihgt"], [None], {"left": 1}])
async def test_what_is_no_target_is_an_error_that_names_all(targets: Any, answer: Any) -> None:
    graph = StateGraph(Log).add_node("ask", idle).add_node("left", idle).add_node("right", idle)
    graph.add_edge(START, "ask").add_conditional_edges("ask", lambda _: answer, targets)
    graph.add_edge("left", END).add_edge("right", END)
    with pytest.raises(RoutingError) as caught:
        await graph.compile().invoke({})
    wrong = cast("list[Any]", answer)[-1] if isinstance(answer, list) else answer
    assert (caught.value.node, caught.value.value) == ("ask", wrong)
    assert {"left", "right", END} <= set(caught.value.allowed)
    assert ("did you mean 'right'?" in str(caught.value)) == (wrong == "rihgt")
    assert [n.path for n in caught.value.__notes__ if isinstance(n, RunNote)] == [("ask",)]


@pytest.mark.case("E13")
async def test_a_node_that_is_named_twice_runs_once() -> None:
    graph = StateGraph(Log).add_node("ask", idle).add_node("a", say("a")).add_edge("a", END).add_edge("ask", "a")
    graph.add_edge(START, "ask").add_conditional_edges("ask", lambda _: ["a", "a"], ["a"])
    assert (await graph.compile().invoke({})).state.get("log") == ["a"]


async def test_a_name_that_is_not_among_the_targets_is_refused_though_it_is_a_node() -> None:
    graph = StateGraph(Log).add_node("a", idle).add_node("b", idle).add_node("c", idle)
    graph.add_edge(START, "a").add_edge("a", "c").add_edge("b", END).add_edge("c", END)
    graph.add_conditional_edges("a", lambda _: "c", ["b"])
    with pytest.raises(RoutingError, match="gave 'c', which is no target"):
        await graph.compile().invoke({})


async def test_a_failing_router_comes_out_as_itself_with_a_note() -> None:
    def broken(state: Any) -> str:
        raise KeyError("gone")

    graph = StateGraph(Log).add_node("a", idle).add_edge(START, "a").add_conditional_edges("a", broken)
    with pytest.raises(KeyError, match="gone") as caught:
        await graph.compile().invoke({}, RunConfig(thread_id="7"))
    assert caught.value.__notes__ == ["in node 'a', step 1, thread '7'"]


async def test_a_router_that_asks_is_an_error_that_says_so() -> None:
    def ask(state: Any, run: RunContext[None]) -> str:
        return run.interrupt("where?")

    graph = StateGraph(Log).add_node("a", idle).add_edge(START, "a").add_conditional_edges("a", ask)
    with pytest.raises(AgentGraphError, match=r"the router of node 'a' called run\.interrupt"):
        await graph.compile().invoke({})


async def test_what_a_router_was_told_of_its_run_ends_with_it() -> None:
    kept: list[RunContext[None]] = []

    def keep(state: Any, run: RunContext[None]) -> str:
        kept.append(run)
        return END

    graph = StateGraph(Log).add_node("a", idle).add_edge(START, "a").add_conditional_edges("a", keep)
    await graph.compile().invoke({})
    with pytest.raises(RunEndedError):
        kept[0].emit("late")


async def test_a_router_from_start_chooses_the_first_nodes() -> None:
    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, say(name)).add_edge(name, END)
    graph.add_conditional_edges(START, lambda _: ["c", "a"], list("abc"))
    assert (await graph.compile().invoke({})).state.get("log") == ["a", "c"]


async def test_a_run_may_end_before_any_node() -> None:
    graph = StateGraph(Log).add_node("a", say("a")).add_edge("a", END)
    graph.add_conditional_edges(START, lambda _: END, ["a"])
    result = await graph.compile().invoke({"n": 1})
    assert (result.state, result.steps) == ({"n": 1, "log": []}, 0)


# --- Commands ---


async def test_a_goto_takes_the_place_of_the_edges() -> None:
    async def go(state: Log) -> Any:
        return Command(update={"log": "go"}, goto="aside")

    graph = StateGraph(Log).add_node("go", go, ends=["aside"]).add_node("on", say("on"))
    graph.add_node("aside", say("aside")).add_edge(START, "go").add_edge("go", "on")
    graph.add_conditional_edges("go", lambda _: "on", ["on"]).add_edge("on", END).add_edge("aside", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["go", "aside"]


async def test_a_command_without_a_goto_leaves_the_edges() -> None:
    graph = StateGraph(Log).add_node("a", lambda _: Command(update={"log": "a"})).add_node("b", say("b"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["a", "b"]


@pytest.mark.parametrize("goto", [END, [], ()])
async def test_a_goto_of_end_or_nothing_ends_the_branch(goto: Any) -> None:
    graph = StateGraph(Log).add_node("a", lambda _: Command(goto=goto)).add_node("b", say("b"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    result = await graph.compile().invoke({})
    assert (result.state, result.steps) == ({"log": []}, 1)


async def test_a_goto_may_mix_names_and_sends() -> None:
    async def go(state: Log) -> Any:
        return Command(goto=[Send("work", {"item": "1"}), "plain", Send("work", {"item": "2"})])

    graph = StateGraph(Log).add_node("go", go).add_node("work", lambda state: {"log": state["item"]})
    graph.add_node("plain", say("plain")).add_edge(START, "go").add_edge("work", END).add_edge("plain", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["plain", "1", "2"]


@pytest.mark.case("E13")
@pytest.mark.parametrize("goto", ["serach", ["search", "serach"], Send("serach", {})])
async def test_a_misspelt_goto_names_node_value_and_the_likely_one(goto: Any) -> None:
    graph = StateGraph(Log).add_node("plan", lambda _: Command(goto=goto)).add_node("search", idle)
    graph.add_edge(START, "plan").add_edge("search", END)
    with pytest.raises(RoutingError) as caught:
        await graph.compile().invoke({})
    assert (caught.value.node, caught.value.value) == ("plan", "serach")
    assert "did you mean 'search'?" in str(caught.value)
    assert caught.value.allowed == ("plan", "search", END)


def declared_by_ends(state: Log) -> Any:
    return Command(goto="c")


def declared_by_annotation(state: Log) -> Command[Literal["b"]]:
    return Command(goto="c")


@pytest.mark.parametrize(("node", "ends"), [(declared_by_ends, ["b"]), (declared_by_annotation, None)])
async def test_a_goto_that_was_not_declared_is_refused(node: Any, ends: list[str] | None) -> None:
    graph = StateGraph(Log).add_node("a", node, ends=ends).add_node("b", idle).add_node("c", idle)
    graph.add_edge(START, "a").add_edge("b", "c").add_edge("c", END)
    with pytest.raises(RoutingError) as caught:
        await graph.compile().invoke({})
    assert (caught.value.value, caught.value.allowed) == ("c", (END, "b"))


@pytest.mark.parametrize("goto", [7, [None], {"b": 1}, [["b"]]])
async def test_a_goto_that_is_no_name_is_refused(goto: Any) -> None:
    graph = StateGraph(Log).add_node("a", lambda _: Command(goto=goto)).add_node("b", idle)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    with pytest.raises(RoutingError) as caught:
        await graph.compile().invoke({})
    assert (caught.value.node, caught.value.value) == (
        "a",
        cast("list[Any]", goto)[0] if isinstance(goto, list) else goto,
    )


async def test_gotos_and_answers_in_a_set_have_a_fixed_order() -> None:
    sends = frozenset(Send("work", f"{i}") for i in range(10))
    graph = StateGraph(Log).add_node("work", lambda state: {"log": state}).add_edge("work", END)
    graph.add_node("go", lambda _: Command(goto=cast("Any", sends)), ends=["work"])
    graph.add_conditional_edges(START, lambda _: sends, ["work", "go"]).add_edge("work", "go")
    graph.add_conditional_edges("go", lambda _: [], [END])
    with pytest.raises(RecursionLimitError) as caught:
        await graph.compile().invoke({}, RunConfig(recursion_limit=3))
    assert caught.value.state["log"] == list("0123456789") * 2


async def test_some_calls_of_a_sent_node_may_go_elsewhere_while_the_edges_of_the_rest_hold() -> None:
    async def work(state: int) -> Any:
        return Command(goto="odd") if state % 2 else None

    graph = StateGraph(Log).add_node("work", work, ends=["odd"]).add_node("odd", say("odd"))
    graph.add_node("even", say("even")).add_edge("work", "even").add_edge("odd", END).add_edge("even", END)
    graph.add_conditional_edges(START, lambda _: [Send("work", i) for i in range(4)], ["work"])
    assert (await graph.compile().invoke({})).state.get("log") == ["odd", "even"]


# --- where nodes run ---


async def test_one_active_node_is_awaited_in_place_and_several_have_tasks_of_their_own() -> None:
    tasks: dict[str, Any] = {}

    async def note(state: Any, run: RunContext[None]) -> None:
        tasks[run.node] = asyncio.current_task()

    graph = StateGraph(Log)
    for name in ("alone", "left", "right", "last"):
        graph.add_node(name, note)
    graph.add_edge(START, "alone").add_edge("alone", "left").add_edge("alone", "right")
    graph.add_edge(["left", "right"], "last").add_edge("last", END)
    await graph.compile().invoke({})
    here = asyncio.current_task()
    assert tasks["alone"] is here
    assert tasks["last"] is here
    assert len({here, tasks["left"], tasks["right"]}) == 3


async def test_a_plain_def_runs_in_a_worker_thread_with_its_contextvars() -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")

    def work(state: Any) -> Any:
        told = var.get()
        var.set("changed in the thread")
        return {"log": f"{told} {threading.current_thread() is threading.main_thread()}"}

    graph = StateGraph(Log).add_node("work", work).add_edge(START, "work").add_edge("work", END)
    var.set("told")
    result = await graph.compile().invoke({})
    assert result.state.get("log") == ["told False"]
    assert var.get() == "told"


async def test_several_plain_defs_run_at_once() -> None:
    meet = threading.Barrier(3)

    def work(state: Any) -> Any:
        meet.wait(timeout=10)
        return {"log": "met"}

    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, work).add_edge(START, name).add_edge(name, END)
    assert (await graph.compile().invoke({})).state.get("log") == ["met"] * 3


async def test_a_plain_def_may_return_a_coroutine() -> None:
    def node(state: Log) -> Any:
        return say("a")(state)

    graph = StateGraph(Log).add_node("a", node).add_edge(START, "a").add_edge("a", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["a"]


async def test_partials_and_methods_are_nodes() -> None:
    class Teller:
        async def tell(self, word: str, state: Log, run: RunContext[None]) -> Any:
            return Command(update={"log": f"{word} {run.node} {state.get('log')}"}, goto=END)

    class Loud(Teller):
        async def shout(self, state: Log) -> Any:
            return {"log": "!" * len(state.get("log", []))}

    graph = StateGraph(Log).add_node("p", functools.partial(Teller().tell, "told")).add_node("m", Loud().shout)
    graph.add_edge(START, "p").add_edge(START, "m").add_edge("m", END)
    assert (await graph.compile().invoke({"log": ["x"]})).state.get("log") == ["x", "told p ['x']", "!"]


async def test_an_object_with_an_async_call_is_a_node() -> None:
    class Echo:
        async def __call__(self, state: Log, run: RunContext[None]) -> Any:
            return {"log": [*state.get("log", ()), f"{run.node} in step {run.step}, path {run.path}"]}

    graph = StateGraph(Log).add_node("echo", Echo()).add_edge(START, "echo").add_edge("echo", END)
    assert (await graph.compile().invoke({})).state.get("log") == ["echo in step 1, path ('echo',)"]


@pytest.mark.parametrize("beside", [False, True])
async def test_a_cancel_that_nobody_asked_for_is_an_error_of_the_node(beside: bool) -> None:
    never = asyncio.Event()

    async def stray(state: Any) -> None:
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost

    async def wait(state: Any) -> None:
        await never.wait()

    graph = StateGraph(Log).add_node("stray", stray).add_edge(START, "stray").add_edge("stray", END)
    if beside:
        graph.add_node("wait", wait).add_edge(START, "wait").add_edge("wait", END)
    with pytest.raises(
        AgentGraphError, match="node 'stray' raised CancelledError, and nothing had cancelled"
    ) as caught:
        await graph.compile().invoke({})
    assert [n.path for n in caught.value.__notes__ if isinstance(n, RunNote)] == [("stray",)]


async def test_a_cancel_that_nobody_asked_for_in_a_router_is_an_error_too() -> None:
    async def stray(state: Any) -> str:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        lost.cancel()
        return await lost

    graph = StateGraph(Log).add_node("a", idle).add_edge(START, "a").add_conditional_edges("a", stray)
    with pytest.raises(AgentGraphError, match="node 'a' raised CancelledError"):
        await graph.compile().invoke({})


@pytest.mark.parametrize("beside", [False, True])
async def test_a_node_that_handles_the_error_of_its_own_task_group_goes_on(beside: bool) -> None:
    async def fail() -> None:
        raise ValueError("handled")

    async def handle(state: Any) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.Event().wait())
        except* ValueError:
            pass
        return {"log": "handled"}

    graph = StateGraph(Log).add_node("a", handle, timeout=60).add_node("b", handle).add_node("c", say("c"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END)
    if beside:
        graph.add_node("d", say("d")).add_edge(START, "d").add_edge("d", "b")
    assert (await graph.compile().invoke({})).state.get("log") == ["handled", *"d" * beside, "handled", "c"]


@pytest.mark.parametrize("beside", [False, True])
async def test_a_task_group_of_the_nodes_own_does_not_stand_in_the_way_of_its_policies(beside: bool) -> None:
    tries: list[int] = []

    async def fail() -> None:
        raise ValueError("handled")

    async def handle(state: Any) -> Any:
        tries.append(len(tries))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.Event().wait())
        except* ValueError:
            pass
        if len(tries) == 1:
            raise ConnectionError
        if len(tries) == 2:
            await asyncio.Event().wait()
        return {"log": "handled"}

    graph = StateGraph(Log).add_node("a", handle, timeout=0.02, retry=Retry(delay=0)).add_node("b", idle)
    graph.add_edge(START, "a").add_edge("a", END).add_edge("b", END)
    graph.add_conditional_edges(START, lambda _: "b" if beside else [], ["b"])
    assert (await graph.compile().invoke({})).state.get("log") == ["handled"]
    assert tries == [0, 1, 2]


async def test_a_node_that_swallows_the_cancellation_does_not_keep_the_run_going() -> None:
    begun, went_on = asyncio.Event(), False

    async def stubborn(state: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"log": "stopped"}

    async def after(state: Any) -> None:
        nonlocal went_on
        went_on = True

    graph = StateGraph(Log).add_node("stubborn", stubborn).add_node("after", after)
    graph.add_edge(START, "stubborn").add_edge("stubborn", "after").add_edge("after", END)
    run = asyncio.create_task(graph.compile().invoke({}))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not went_on


@pytest.mark.parametrize("policy", ["none", "retry", "on_error"])
async def test_what_a_node_makes_of_its_cancellation_is_neither_tried_again_nor_handled(policy: str) -> None:
    begun, did = asyncio.Event(), list[str]()

    async def clumsy(state: Any) -> None:
        did.append("begun")
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("lost") from None

    async def handle(state: Any, error: Exception) -> None:
        did.append("handled")

    policies: dict[str, Any] = {
        "none": {},
        "retry": {"retry": Retry(delay=0)},
        "on_error": {"on_error": handle},
    }
    graph = StateGraph(Log).add_node("a", clumsy, **policies[policy]).add_edge(START, "a").add_edge("a", END)
    run = asyncio.create_task(graph.compile().invoke({}))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert did == ["begun"]


async def test_a_router_that_swallows_the_cancellation_does_not_keep_the_run_going() -> None:
    begun, went_on = asyncio.Event(), list[str]()

    async def stubborn(state: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "b"

    graph = StateGraph(Log).add_node("a", idle).add_node("b", lambda _: went_on.append("b")).add_edge("b", END)
    graph.add_edge(START, "a").add_conditional_edges("a", stubborn, ["b"])
    run = asyncio.create_task(graph.compile().invoke({}))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not went_on


async def test_a_cancel_that_comes_while_a_nodes_own_task_group_fails_is_not_lost() -> None:
    begun = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def fail() -> None:
        raise ValueError("handled")

    async def handle(state: Any) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn())
                group.create_task(fail())
        except* ValueError:
            pass
        return {"log": "handled"}

    graph = StateGraph(Log).add_node("a", handle).add_node("b", say("b"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    run = asyncio.create_task(graph.compile().invoke({}))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


@pytest.mark.parametrize("beside", [False, True])
async def test_what_cannot_make_a_snapshot_is_an_error_of_the_node(beside: bool) -> None:
    import msgspec

    class Positive(msgspec.Struct):
        n: int = 1

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("negative")

    graph = StateGraph(Positive).add_node("sink", lambda _: {"n": -1}).add_node("a", idle).add_node("b", idle)
    graph.add_edge(START, "sink").add_edge("sink", "a").add_edge("a", END).add_edge("b", END)
    graph.add_conditional_edges(START, lambda _: [], ["b"])
    if beside:
        graph.add_edge("sink", "b")
    with pytest.raises(ValueError, match="negative") as caught:
        await graph.compile().invoke({})
    assert [n.path for n in caught.value.__notes__ if isinstance(n, RunNote)] == [("a",)]


# --- limits ---


def loop(limit: int | None = None) -> StateGraph[Any]:
    """One node that counts, until `limit` or for ever."""
    graph = StateGraph(strategies={"n": Reduce(operator.add)})
    graph.add_node("count", say_one).add_edge(START, "count")
    graph.add_conditional_edges(
        "count", lambda state: "end" if state["n"] == limit else "go", {"go": "count", "end": END}
    )
    return graph


async def say_one(state: Any) -> dict[str, int]:
    return {"n": 1}


@pytest.mark.case("E12")
async def test_as_many_steps_as_the_limit_are_allowed() -> None:
    result = await loop(10).compile().invoke({}, RunConfig(recursion_limit=10))
    assert (result.state["n"], result.steps) == (10, 10)


@pytest.mark.case("E12")
async def test_one_step_more_than_the_limit_is_not() -> None:
    with pytest.raises(RecursionLimitError) as caught:
        await loop(10).compile().invoke({}, RunConfig(recursion_limit=9))
    assert caught.value.state["n"] == 9


@pytest.mark.case("E12")
async def test_a_loop_without_end_says_its_limit_its_last_nodes_and_how_to_raise_it() -> None:
    graph = StateGraph(strategies={"log": Append()})
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        graph.add_node(name, say(name)).add_edge(name, other)
    graph.add_edge(START, "a").add_conditional_edges("a", lambda _: [], [END])
    with pytest.raises(RecursionLimitError) as caught:
        await graph.compile().invoke({}, RunConfig(recursion_limit=10))
    error = caught.value
    assert (error.limit, error.last) == (10, ("c", "a", "b", "c", "a"))
    assert error.state == {"log": ["a", "b", "c", "a", "b", "c", "a", "b", "c", "a"]}
    assert "limit of 10 steps" in str(error)
    assert "RunConfig(recursion_limit=20)" in str(error)


@pytest.mark.case("E12")
async def test_the_default_limit_is_a_hundred_steps() -> None:
    with pytest.raises(RecursionLimitError, match="limit of 100 steps"):
        await loop().compile().invoke({})


@pytest.mark.case("E3")
async def test_a_loop_of_a_hundred_thousand_steps_ends_and_its_memory_does_not_grow() -> None:
    steps, held = 100_000, dict[int, int]()

    async def count(state: dict[str, int]) -> dict[str, int]:
        n = state["n"] + 1
        if n in (1_000, steps):
            gc.collect()
            held[n] = sys.getallocatedblocks()
        return {"n": n}

    graph = StateGraph(strategies={"n": LastWrite()}).add_node("count", count).add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: state["n"] < steps, {True: "count", False: END})
    result = await graph.compile().invoke({"n": 0}, RunConfig(recursion_limit=steps))
    assert result.state == {"n": steps}
    assert held[steps] - held[1_000] < 1_000


async def test_a_loop_whose_nodes_never_wait_lets_the_event_loop_turn() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    await loop(1_000).compile().invoke({}, RunConfig(recursion_limit=1_000))
    other.cancel()
    await asyncio.wait([other])
    assert turns >= 10


async def test_a_compiled_graph_cannot_be_changed() -> None:
    app = loop(1).compile()
    with pytest.raises(AttributeError, match="cannot be changed"):
        app.context = 1


async def test_a_compiled_graph_serves_many_runs_at_once() -> None:
    app = loop(20).compile()
    results = await asyncio.gather(*(app.invoke({"n": n}) for n in range(20)))
    assert [r.state["n"] for r in results] == [20] * 20
    assert [r.steps for r in results] == [20 - n for n in range(20)]


@pytest.mark.parametrize("kind", [dict, "dataclass", "struct"], ids=str)
async def test_each_send_gets_a_copy_of_its_own_of_what_was_sent(kind: Any) -> None:
    given: Any = {"n": 0} if kind is dict else Sent(0) if kind == "dataclass" else SentStruct(0)

    async def work(sent: Any) -> dict[str, Any]:
        if isinstance(sent, dict):
            sent["n"] += 1
        else:
            sent.n += 1
        await asyncio.sleep(0)
        return {"seen": [sent["n"] if isinstance(sent, dict) else sent.n]}

    graph = StateGraph(strategies={"seen": Append()})
    graph.add_node("work", work).add_edge("work", END)
    graph.add_conditional_edges(START, lambda state: [Send("work", given) for _ in range(3)], ["work"])
    assert (await graph.compile().invoke({})).state["seen"] == [1, 1, 1]
    assert given in ({"n": 0}, Sent(0), SentStruct(0))


@dataclass
class Sent:
    n: int


class SentStruct(msgspec.Struct):
    n: int
