"""A step: one node that comes back to itself, so that nothing but the run loop is measured."""

from typing import TypedDict

from agentgraph import END, START, RunConfig, StateGraph
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare

STEPS = 1_000


class Count(TypedDict):
    """The state."""

    n: int


async def count(state: Count) -> dict[str, int]:
    return {"n": state["n"] + 1}


def route(state: Count) -> str:
    return "count" if state["n"] < STEPS else "end"


def ours() -> Case:
    graph = StateGraph(Count)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", route, {"count": "count", "end": END})
    app = graph.compile()
    config = RunConfig(recursion_limit=STEPS + 10)

    async def case() -> None:
        result = await app.invoke({"n": 0}, config)
        assert result.state["n"] == STEPS

    return case


async def plain() -> None:
    state: Count = {"n": 0}
    while True:
        update = await count(state)
        state = {**state, **update}  # type: ignore[typeddict-item]
        if route(state) == "end":
            break
    assert state["n"] == STEPS


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    cases: dict[Side, Case] = {"agentgraph": ours(), "LangGraph": peer.self_loop(STEPS), "asyncio": plain}
    return [await compare("a step of a self-loop", cases, units=STEPS, repeats=repeats, loops=3, below=3e-6, times=150)]
