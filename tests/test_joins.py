"""Joins (`add_edge([a, b], c)`) and nodes that wait (`wait=True`): what is waited for, and for how long."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import (
    END,
    START,
    Command,
    RecursionLimitError,
    RoutingError,
    RunConfig,
    RunContext,
    Send,
    StateGraph,
)
from agentgraph.strategies import Append


@pytest.fixture(autouse=True, params=[True, False], ids=["short", "long"])
def short_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One active node has a short way through the loop: all that holds must hold without it too."""
    monkeypatch.setattr("agentgraph._engine.run.SHORT_WAY", request.param)


class Log(TypedDict, total=False):
    go: list[str]
    log: Annotated[list[str], Append()]


def say(name: str, turns: int = 0) -> Callable[[Any], Any]:
    async def node(state: Any) -> dict[str, str]:
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"log": name}

    return node


def nodes(names: str, *ends: str) -> StateGraph[Log]:
    """A node for each letter, that logs it; `ends` have an edge to END."""
    graph = StateGraph(Log)
    for name in names:
        graph.add_node(name, say(name))
    for name in ends:
        graph.add_edge(name, END)
    return graph


def routed(state: Log) -> list[str]:
    return state.get("go", [])


async def log(graph: StateGraph[Log], *go: str) -> str:
    return "".join((await graph.compile().invoke({"go": list(go)})).state.get("log", []))


# --- joins ---


async def test_a_join_runs_once_after_all_its_sources() -> None:
    graph = nodes("abcd", "d").add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge(["a", "c"], "d")
    assert await log(graph) == "abcd"


@pytest.mark.case("E1")
@pytest.mark.case("E11")
@pytest.mark.parametrize(("go", "ran"), [("a", "acd"), ("b", "bcd"), ("ab", "abcd")])
async def test_a_source_that_was_routed_around_is_not_waited_for(go: str, ran: str) -> None:
    graph = nodes("abcd", "d").add_conditional_edges(START, routed, ["a", "b"])
    graph.add_edge(["a", "b"], "c").add_edge("c", "d")
    assert await log(graph, *go) == ran


@pytest.mark.case("E11")
@pytest.mark.parametrize("slow", ["a", "b", "e"])
@pytest.mark.parametrize("spelling", ["join", "wait"])
async def test_branches_of_different_length_meet_once_and_both_updates_are_seen(slow: str, spelling: str) -> None:
    seen: list[list[str]] = []

    async def meet(state: Log) -> None:
        seen.append(state.get("log", []))

    graph = StateGraph(Log).add_node("d", meet, wait=spelling == "wait").add_edge("d", END)
    for name in "abe":
        graph.add_node(name, say(name, turns=5 * (name == slow)))
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "e")
    if spelling == "join":
        graph.add_edge(["a", "e"], "d")
    else:
        graph.add_edge("a", "d").add_edge("e", "d")
    await graph.compile().invoke({})
    assert seen == [["a", "b", "e"]]


@pytest.mark.case("E11")
@pytest.mark.parametrize("go", ["", "x"])
async def test_a_join_none_of_whose_sources_ran_does_not_run(go: str) -> None:
    graph = nodes("abcdx", "d", "x").add_conditional_edges(START, routed, ["a", "b", "x"])
    graph.add_edge(["a", "b"], "c").add_edge("c", "d")
    assert await log(graph, *go) == go


@pytest.mark.case("E11")
@pytest.mark.parametrize("spelling", ["join", "wait"])
async def test_a_second_round_of_a_loop_through_the_join_is_like_the_first(spelling: str) -> None:
    def again(state: Log) -> list[str]:
        return ["a", "b"] if state.get("log", []).count("d") < 3 else []

    graph = nodes("abe").add_node("d", say("d"), wait=spelling == "wait")
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "e")
    if spelling == "join":
        graph.add_edge(["a", "e"], "d")
    else:
        graph.add_edge("a", "d").add_edge("e", "d")
    graph.add_conditional_edges("d", again, ["a", "b", END])
    assert await log(graph) == "abed" * 3


async def test_a_loop_that_takes_another_way_in_its_second_round_waits_for_that_one() -> None:
    def again(state: Log) -> list[str]:
        return {1: ["b"], 2: ["a"]}.get(state.get("log", []).count("c"), [])

    graph = nodes("abc").add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")
    graph.add_conditional_edges("c", again, ["a", "b", END])
    assert await log(graph) == "abcbcac"


async def test_a_source_that_may_still_come_by_a_longer_way_is_waited_for() -> None:
    graph = nodes("abcxy", "c").add_edge(START, "a").add_edge(START, "x").add_edge("x", "y")
    graph.add_conditional_edges("y", routed, ["b", END]).add_edge(["a", "b"], "c")
    assert await log(graph, "b") == "axybc"


async def test_a_source_that_turns_out_not_to_come_frees_the_join() -> None:
    graph = nodes("abcxy", "c").add_edge(START, "a").add_edge(START, "x").add_edge("x", "y")
    graph.add_conditional_edges("y", routed, ["b", END]).add_edge(["a", "b"], "c")
    assert await log(graph) == "axyc"


async def test_a_router_that_does_not_say_where_it_goes_is_waited_for() -> None:
    graph = nodes("abcxy", "b", "c").add_edge(START, "a").add_edge(START, "x").add_edge("x", "y")
    graph.add_conditional_edges("y", routed).add_edge(["a", "b"], "c").add_conditional_edges("y", lambda _: [], ["b"])
    assert await log(graph) == "axyc"


async def go_on(state: Log) -> Any:
    return Command(update={"log": "x"}, goto=state.get("go", []))


async def go_on_as_annotated(state: Log) -> Command[Literal["y"]]:
    return await go_on(state)


@pytest.mark.parametrize(
    ("node", "ends", "ran"),
    [
        (go_on, None, "apxcy"),  # may go anywhere: b might still come
        (go_on, ["y"], "apcxy"),  # does not lead to b
        (go_on_as_annotated, None, "apcxy"),
    ],
)
async def test_a_command_counts_as_a_way_to_where_it_may_go(node: Any, ends: Any, ran: str) -> None:
    graph = nodes("abcpy", "y", "c").add_node("x", node, ends=ends).add_edge("p", "x")
    graph.add_conditional_edges(START, lambda _: ["a", "p"], ["a", "b", "p"]).add_edge(["a", "b"], "c")
    assert await log(graph, "y") == ran


async def test_a_source_that_goes_elsewhere_has_not_arrived() -> None:
    async def leave(state: Log) -> Any:
        return Command(update={"log": "b"}, goto="x")

    graph = nodes("acx", "c", "x").add_node("b", leave, ends=["x"])
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")
    assert await log(graph) == "abcx"


async def test_a_goto_into_a_join_runs_it_at_once() -> None:
    async def jump(state: Log) -> Any:
        return Command(update={"log": "x"}, goto="c")

    graph = nodes("abcy", "c").add_node("x", jump, ends=["c"])
    graph.add_edge(START, "x").add_edge(START, "y").add_edge("y", "a").add_edge("y", "b").add_edge(["a", "b"], "c")
    assert await log(graph) == "yxabcc"


async def test_start_may_be_one_of_the_sources() -> None:
    graph = nodes("abc", "c").add_edge(START, "a").add_edge("a", "b").add_edge([START, "b"], "c")
    assert await log(graph) == "abc"


async def test_two_joins_into_one_node_count_for_themselves() -> None:
    graph = nodes("abcde", "e").add_edge(START, "a").add_edge(START, "b").add_edge("a", "c").add_edge("b", "d")
    graph.add_edge(["a", "b"], "e").add_edge(["c", "d"], "e")
    assert await log(graph) == "abcdee"


async def test_one_node_may_be_a_source_of_several_joins() -> None:
    graph = nodes("abcde", "d", "e").add_edge(START, "a").add_edge(START, "b").add_edge("b", "c")
    graph.add_edge(["a", "b"], "d").add_edge(["a", "c"], "e")
    assert await log(graph) == "abcde"


async def test_a_join_into_end_is_a_way_to_end() -> None:
    graph = nodes("ab").add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], END)
    assert await log(graph) == "ab"
    assert "a -> END" in str(graph.compile())


async def test_a_join_of_sends_waits_for_all_of_them() -> None:
    graph = nodes("abc", "c").add_node("w", lambda state: {"log": state})
    graph.add_conditional_edges(START, lambda _: ["a", Send("w", "1"), Send("w", "2")], ["a", "w"])
    graph.add_edge("a", "b").add_edge(["w", "b"], "c")
    assert await log(graph) == "a12bc"


async def test_arrivals_do_not_linger_into_the_next_turn() -> None:
    graph = nodes("abcx", "c").add_conditional_edges(START, routed, ["a", "b", "x"]).add_edge(["a", "b"], "c")
    graph.add_conditional_edges("x", lambda _: [], ["b"])
    app = graph.compile()
    config = RunConfig(recursion_limit=1)
    for go in (["a", "x"], ["b", "x"]):
        with pytest.raises(RecursionLimitError):
            await app.invoke({"go": go}, config)
    assert (await app.invoke({"go": ["b"]})).state.get("log") == ["b", "c"]


async def test_a_chain_of_joins_is_freed_one_after_the_other() -> None:
    graph = nodes("abcdef", "f").add_conditional_edges(START, routed, ["a", "b", "d"])
    graph.add_edge(["a", "b"], "c").add_edge(["c", "d"], "e").add_edge(["e", "a"], "f")
    assert await log(graph, "a") == "acef"


# --- nodes that wait ---


async def test_a_waiting_node_runs_once_after_all_that_can_reach_it() -> None:
    graph = nodes("abcd").add_node("w", say("w"), wait=True).add_edge("w", END)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge("c", "d")
    for name in "abcd":
        graph.add_edge(name, "w")
    assert await log(graph) == "abcdw"


async def test_a_waiting_node_that_nothing_hits_does_not_run() -> None:
    graph = nodes("ab", "a", "b").add_node("w", say("w"), wait=True).add_edge("w", END)
    graph.add_edge(START, "a").add_conditional_edges("a", routed, ["b", "w"])
    assert await log(graph, "b") == "ab"


async def test_a_waiting_node_does_not_wait_for_what_cannot_reach_it() -> None:
    graph = nodes("abcd", "d").add_node("w", say("w"), wait=True).add_edge("w", END)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "w").add_edge("b", "c").add_edge("c", "d")
    assert await log(graph) == "abcwd"


async def test_the_way_through_the_waiting_node_itself_does_not_count() -> None:
    def again(state: Log) -> list[str]:
        return ["a"] if state.get("log", []).count("w") < 2 else []

    graph = nodes("ab").add_node("w", say("w"), wait=True)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "w").add_conditional_edges("w", again, ["a", END])
    assert await log(graph) == "abwabw"


async def test_of_waiting_nodes_those_go_first_that_no_other_can_reach() -> None:
    graph = nodes("ab").add_edge(START, "a").add_edge(START, "b")
    graph.add_node("late", say("late"), wait=True).add_node("early", say("early"), wait=True)
    graph.add_edge("a", "late").add_edge("b", "early").add_edge("early", "late").add_edge("late", END)
    assert await log(graph) == "abearlylate"


async def test_of_waiting_nodes_that_reach_each_other_the_first_in_node_order_goes() -> None:
    def other(state: Log, run: RunContext[None]) -> list[str]:
        return ["p" if run.node == "q" else "q"] if len(state.get("log", [])) < 5 else []

    graph = nodes("ab").add_node("p", say("p"), wait=True).add_node("q", say("q"), wait=True)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "q").add_edge("b", "p")
    graph.add_conditional_edges("p", other, ["q", END]).add_conditional_edges("q", other, ["p", END])
    assert await log(graph) == "abpqp"


async def test_joins_that_wait_for_each_other_do_not_stop_the_run() -> None:
    graph = nodes("abcdefg").add_conditional_edges(START, lambda _: ["a", "b"], ["a", "b", "c", "d"])
    graph.add_edge(["a", "c"], "e").add_edge(["b", "d"], "f")
    graph.add_conditional_edges("e", lambda _: [], ["d", END]).add_conditional_edges("f", lambda _: [], ["c", END])
    graph.add_conditional_edges("e", lambda _: "g", ["g"]).add_edge("g", END)
    assert await log(graph) == "abefg"


async def test_an_undeclared_router_holds_a_waiting_node_until_nothing_is_active() -> None:
    graph = nodes("abcd", "a", "b", "c", "d").add_node("w", say("w"), wait=True).add_edge("w", END)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "w").add_edge("b", "c").add_edge("c", "d")
    graph.add_conditional_edges("d", lambda _: [])
    assert await log(graph) == "abcdw"


async def test_a_send_does_not_wait() -> None:
    graph = nodes("ab", "b").add_node("w", lambda state: {"log": f"w{state}"}, wait=True).add_edge("w", END)
    graph.add_conditional_edges(START, lambda _: ["a", Send("w", 1)], ["a", "w"]).add_edge("a", "b")
    assert await log(graph) == "aw1b"


async def test_a_join_into_a_waiting_node_waits_too() -> None:
    graph = nodes("abcd").add_node("w", say("w"), wait=True).add_edge("w", END)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "w")
    graph.add_edge(START, "c").add_edge("c", "d").add_edge("d", "w")
    assert await log(graph) == "abcdw"


# --- against a model ---


@dataclass(frozen=True)
class Shape:
    """A graph over the nodes "0", "1", ... Each has a router, which gives its answers one visit after the other."""

    names: tuple[str, ...]
    edges: frozenset[tuple[str, str]]
    joins: tuple[tuple[frozenset[str], str], ...]
    waits: frozenset[str]
    targets: dict[str, frozenset[str]]
    answers: dict[str, tuple[frozenset[str], ...]]

    def after(self, node: str) -> set[str]:
        joined = {target for sources, target in self.joins if node in sources}
        return {t for s, t in self.edges if s == node} | joined | set(self.targets[node])

    def leads(self, source: str, target: str, without: str = "") -> bool:
        """Whether there is a way from source to target (of no length where they are one) that avoids a node."""
        if source == without:
            return False
        seen, fresh = {source}, [source]
        while fresh:
            for node in self.after(fresh.pop()) - seen - {without}:
                seen.add(node)
                fresh.append(node)
        return target in seen

    def graph(self, visit: Callable[[str, int], None]) -> StateGraph[Any]:
        visits = Counter[str]()

        def route(state: Any, run: RunContext[None]) -> list[str]:
            visits[run.node] += 1
            given = self.answers[run.node]
            return sorted(given[visits[run.node] - 1]) if visits[run.node] <= len(given) else []

        async def node(state: Any, run: RunContext[None]) -> None:
            visit(run.node, run.step)

        graph = StateGraph()
        for name in self.names:
            graph.add_node(name, node, wait=name in self.waits)
        for name in (START, *self.names):
            graph.add_conditional_edges(name, route, [*sorted(self.targets[name]), END])
        for source, target in sorted(self.edges):
            graph.add_edge(source, target)
        for sources, target in self.joins:
            graph.add_edge(sorted(sources), target)
        return graph


@st.composite
def shapes(draw: st.DrawFn, *, loops: bool) -> Shape:
    """A sound graph: a node's way in comes from earlier ones, and its router may always end the branch."""
    names = [str(i) for i in range(draw(st.integers(2, 8)))]
    edges: set[tuple[str, str]] = set()
    entries: list[tuple[frozenset[str], str]] = []
    others: list[tuple[frozenset[str], str]] = []
    targets: dict[str, set[str]] = {name: set() for name in (START, *names)}

    def some(of: list[str], most: int) -> frozenset[str]:
        return draw(st.frozensets(st.sampled_from(of), max_size=most)) if of else frozenset()

    for i, name in enumerate(names):
        before = names[:i]
        way = draw(st.sampled_from(["edge", "route", "join"]))
        if way == "join" and i >= 2:
            entries.append((draw(st.frozensets(st.sampled_from(before), min_size=2, max_size=3)), name))
        elif way == "edge":
            edges.add((draw(st.sampled_from([START, *before])), name))
        else:
            targets[draw(st.sampled_from([START, *before]))].add(name)
        edges.update((source, name) for source in some(before, 1))
        others.append((some(names if loops else before, 3) - {name}, name))
    for i, name in enumerate((START, *names)):
        targets[name] |= some(names if loops else names[i:], 2)
    answers = {
        name: tuple(draw(st.lists(st.frozensets(st.sampled_from(sorted(to))), max_size=3))) if to else ()
        for name, to in targets.items()
    }
    waits, declared = some(names, 3), {name: frozenset(to) for name, to in targets.items()}
    shape = Shape(tuple(names), frozenset(edges), tuple(entries), waits, declared, answers)
    sound = [j for j in others if len(j[0]) > 1 and all(shape.leads(START, source, without=j[1]) for source in j[0])]
    return replace(shape, joins=(*entries, *sound))


def expected(shape: Shape, most: int) -> list[list[str]]:
    """Which nodes run in which step, by the rules of docs/graph.md, in the plainest way."""
    arrived: list[set[str]] = [set() for _ in shape.joins]
    waiting: set[str] = set()
    visits = Counter[str]()
    steps: list[list[str]] = []
    ran = {START}
    while len(steps) < most:
        hit = {target for source, target in shape.edges if source in ran}
        for node in ran:
            hit |= dict(enumerate(shape.answers[node])).get(visits[node], frozenset())
            visits[node] += 1
        for k, (sources, target) in enumerate(shape.joins):
            arrived[k] |= ran & sources
            if not sources - arrived[k]:
                arrived[k] = set()
                hit.add(target)
        active = hit - shape.waits
        waiting |= hit & shape.waits
        while True:
            held = waiting | {target for (_, target), some in zip(shape.joins, arrived, strict=True) if some}
            near = active | held
            free = {w for w in waiting if not any(shape.leads(n, w) for n in near - {w})}
            ready = {
                k: target
                for k, (sources, target) in enumerate(shape.joins)
                if arrived[k] and not any(shape.leads(n, s, without=target) for n in near for s in sources - arrived[k])
            }
            if not free and not ready:
                break
            for k, target in ready.items():
                arrived[k] = set()
                (waiting if target in shape.waits - free else active).add(target)
            waiting -= free
            active |= free
        if not active and held:
            first = min(held)
            waiting.discard(first)
            arrived = [
                some if target != first else set() for (_, target), some in zip(shape.joins, arrived, strict=True)
            ]
            active = {first}
        if not active:
            break
        steps.append(sorted(active))
        ran = active
    return steps


async def steps_of(shape: Shape, most: int) -> list[list[str]]:
    ran: list[list[str]] = []

    def visit(name: str, step: int) -> None:
        while len(ran) < step:
            ran.append([])
        ran[-1].append(name)

    try:
        await shape.graph(visit).compile().invoke({}, RunConfig(recursion_limit=most))
    except RecursionLimitError:
        assert len(ran) == most
    return [sorted(names) for names in ran]


@settings(max_examples=60, deadline=None)
@given(shapes(loops=True))
async def test_each_step_runs_what_a_plain_model_of_the_rules_runs(shape: Shape) -> None:
    assert await steps_of(shape, 25) == expected(shape, 25)


@settings(max_examples=60, deadline=None)
@given(shapes(loops=False))
async def test_without_loops_nothing_that_waits_runs_before_what_it_waits_for(shape: Shape) -> None:
    at: dict[str, list[int]] = {name: [] for name in shape.names}
    for step, names in enumerate(await steps_of(shape, 100)):
        for name in names:
            at[name].append(step)
    for sources, target in shape.joins:
        came = [at[source] for source in sources if at[source]]
        if came and target not in shape.waits:
            assert any(max(steps[0] for steps in came) < step for step in at[target])
            assert max(steps[-1] for steps in came) < at[target][-1]
    for target in shape.waits:
        assert len(at[target]) <= 1
        before = [at[name] for name in shape.names if name != target and at[name] and shape.leads(name, target)]
        if at[target]:
            assert all(steps[-1] < at[target][0] for steps in before)


# --- gotos that nothing spoke of ---


def jump(goto: Any) -> Any:
    return Command(goto=goto)


def plain(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that does not say what it wraps."""

    async def inner(state: Any) -> Any:
        return await fn(state)

    return inner


async def in_a_helper(state: Log) -> Any:
    return jump("b")


@plain
async def in_a_decorated_one(state: Log) -> Any:
    return Command(goto="b")


async def by_a_send(state: Log) -> Any:
    return jump(Send("b", {}))


async def fails(state: Log) -> Any:
    raise KeyError("gone")


async def handles(state: Log, error: Exception) -> Any:
    return jump(["b"])


HIDDEN: dict[str, dict[str, Any]] = {
    "in a helper": {"node": in_a_helper},
    "in a decorated one": {"node": in_a_decorated_one},
    "by a Send": {"node": by_a_send},
    "in an error handler": {"node": fails, "on_error": handles},
}


@pytest.mark.parametrize("node", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("spelling", ["join", "wait"])
async def test_a_goto_that_nothing_spoke_of_is_refused_where_nodes_wait(node: dict[str, Any], spelling: str) -> None:
    graph = nodes("bcd", "d").add_node("x", **node).add_edge(START, "x").add_edge(START, "c").add_edge("x", END)
    if spelling == "join":
        graph.add_edge("c", "b").add_edge(["b", "c"], "d")
    else:
        graph.add_node("w", say("w"), wait=True).add_edge("c", "b").add_edge(["b"], "d").add_edge("d", "w")
        graph.add_edge("w", END)
    told = r"Command\(goto=...\) of node 'x' gave 'b', .*; say where it may go: add_node\('x', ..., ends=\[...\]\)"
    with pytest.raises(RoutingError, match=told) as caught:
        await log(graph)
    assert (caught.value.node, caught.value.value, caught.value.allowed) == ("x", "b", (END,))


@pytest.mark.parametrize("goto", [END, [], [END]])
async def test_a_node_may_end_its_branch_unspoken_of_where_nodes_wait(goto: Any) -> None:
    async def stop(state: Log) -> Any:
        return jump(goto)

    graph = nodes("bcd", "d").add_node("x", stop).add_edge(START, "x").add_edge(START, "c").add_edge("x", "b")
    assert await log(graph.add_edge(["b", "c"], "d")) == "cd"


async def test_a_goto_that_nothing_spoke_of_is_followed_where_it_is_declared_or_nothing_waits() -> None:
    free = nodes("b", "b").add_node("x", in_a_helper).add_edge(START, "x").add_edge("x", END).add_edge(START, "b")
    assert await log(free) == "bb"
    waits = nodes("bc", "c").add_node("x", in_a_helper, ends=["b"]).add_edge(START, "x").add_edge(["x", "b"], "c")
    assert await log(waits) == "bc"
