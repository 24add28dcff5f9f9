"""A graph as Mermaid and as text."""

import re
import string
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, Retry, StateGraph
from agentgraph.strategies import Append


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


async def work(state: Log) -> None: ...


def in_thread(state: Log) -> None: ...


def route(state: Log) -> str:
    return END


def lines(text: str) -> list[str]:
    return [part.strip() for part in text.strip().splitlines()]


def test_mermaid_draws_nodes_and_edges_from_start_to_end() -> None:
    graph = StateGraph(Log).add_node("plan", work).add_node("search", work)
    graph.add_edge(START, "plan").add_edge("plan", "search").add_edge("search", END)
    assert lines(graph.compile().mermaid()) == [
        "flowchart TD",
        'start(["START"])',
        'n0["plan"]',
        'n1["search"]',
        'end_(["END"])',
        "n0 --> n1",
        "n1 --> end_",
        "start --> n0",
    ]


def test_conditional_ways_are_dotted_and_say_the_routers_answer() -> None:
    graph = StateGraph(Log).add_node("plan", work).add_node("search", work)
    graph.add_edge(START, "plan").add_edge("search", "plan")
    graph.add_conditional_edges("plan", route, {"more": "search", "search": "search", "done": END})
    drawn = lines(graph.compile().mermaid())
    assert 'n0 -.->|"done"| end_' in drawn
    assert [d for d in drawn if d.startswith("n0 -.->") and d.endswith("n1")] == ['n0 -.->|"more"| n1']


def test_targets_given_as_a_list_or_by_a_literal_have_no_label() -> None:
    def by_literal(state: Log) -> Literal["b", "__end__"]:
        return "b"

    graph = StateGraph(Log).add_node("a", work).add_node("b", work).add_edge(START, "a")
    graph.add_conditional_edges("a", by_literal).add_conditional_edges("b", route, ["a", END])
    drawn = lines(graph.compile().mermaid())
    assert {"n0 -.-> n1", "n0 -.-> end_", "n1 -.-> n0", "n1 -.-> end_"} <= set(drawn)


def test_a_router_that_says_nothing_is_drawn_to_everywhere() -> None:
    graph = StateGraph(Log).add_node("a", work).add_node("b", work).add_edge(START, "a").add_edge("b", END)
    graph.add_conditional_edges("a", lambda _: "b")
    drawn = lines(graph.compile().mermaid())
    assert [d for d in drawn if "anywhere" in d] == [f'n0 -.->|"anywhere"| {target}' for target in ("n0", "n1", "end_")]


def test_joins_gotos_and_subgraphs_are_told_apart() -> None:
    async def go(state: Log) -> Command:
        return Command(goto="join")

    inner = StateGraph(Log).add_node("x", work).add_edge(START, "x").add_edge("x", END).compile()
    graph = StateGraph(Log).add_node("a", inner).add_node("b", work).add_node("join", work)
    graph.add_node("go", go, ends=["join", END])
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(START, "go").add_edge(["a", "b"], "join")
    graph.add_edge("join", END)
    drawn = lines(graph.compile().mermaid())
    assert 'n0[["a"]]' in drawn
    assert {'n0 -->|"join"| n2', 'n1 -->|"join"| n2', 'n3 -.->|"goto"| n2', 'n3 -.->|"goto"| end_'} <= set(drawn)


@given(st.lists(st.text(string.printable[:95] + "äß→名", min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
@settings(max_examples=60)
def test_any_name_can_be_drawn(names: list[str]) -> None:
    graph = StateGraph(Log)
    for name in names:
        graph.add_node(name, work).add_edge(START, name).add_conditional_edges(name, route, {f'"{name}': END})
    drawn = graph.compile().mermaid()
    shape = re.compile(
        r'flowchart TD|(start|end_)\(\["(START|END)"\]\)|n\d+\["[^"<>]+"\]|\w+ --> \w+|\w+ -\.->\|"[^"<>]+"\| \w+'
    )
    assert [d for d in drawn.strip("\n").split("\n") if not shape.fullmatch(d.strip(" "))] == []
    assert len(drawn.strip("\n").split("\n")) == 3 + 3 * len(names)


@pytest.mark.parametrize(
    ("name", "shown"), [('say "hi"', "say &quot;hi&quot;"), ("a<b>&c", "a&lt;b&gt;&amp;c"), ("end", "end")]
)
def test_what_mermaid_would_misread_is_escaped(name: str, shown: str) -> None:
    graph = StateGraph(Log).add_node(name, work).add_edge(START, name).add_edge(name, END)
    assert f'n0["{shown}"]' in lines(graph.compile().mermaid())


# text


def test_printing_a_graph_says_its_nodes_with_their_kinds_and_policies_and_its_edges() -> None:
    async def mend(state: Log, error: Exception) -> None: ...

    inner = StateGraph(Log).add_node("x", work).add_edge(START, "x").add_edge("x", END).compile()
    graph = StateGraph(Log).add_node("plan", work, timeout=10, retry=Retry(), on_error=mend)
    graph.add_node("search", in_thread, idle_timeout=5).add_node("sub", inner).add_node("last", work, wait=True)
    graph.add_edge(START, "plan").add_edge("plan", "sub").add_edge("search", "last").add_edge("sub", "last")
    graph.add_conditional_edges("plan", route, {"go": "search", "done": END}).add_edge("last", END)
    assert lines(str(graph.compile(name="demo"))) == [
        "graph 'demo': 4 nodes",
        "node plan [timeout, retry, on_error]",
        "node search (thread) [idle_timeout]",
        "node sub (graph)",
        "node last waits",
        "plan -> sub",
        "plan -?> search (go)",
        "plan -?> END (done)",
        "search -> last",
        "sub -> last",
        "last -> END",
        "START -> plan",
    ]


def test_joins_are_said_for_each_node_that_is_waited_for() -> None:
    graph = StateGraph(Log).add_node("a", work).add_node("b", work).add_node("c", work)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c").add_edge("c", END)
    assert {"a -> c (join)", "b -> c (join)"} <= set(lines(str(graph.compile())))


def test_the_repr_of_an_app_is_short() -> None:
    graph = StateGraph(Log).add_node("a", work).add_node("b", work)
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(name="demo")
    assert repr(app) == "<CompiledGraph demo: ['a', 'b']>"
    assert repr(graph) == "<StateGraph Log: ['a', 'b']>"
