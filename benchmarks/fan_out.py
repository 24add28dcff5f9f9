"""A branch: many Sends to one node, whose updates are appended to one list."""

import asyncio
from typing import Annotated, Any, TypedDict

from agentgraph import END, START, Send, StateGraph
from agentgraph.strategies import Append
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare

BRANCHES = 100


class Items(TypedDict):
    """The state."""

    items: Annotated[list[int], Append()]


async def branch(state: Any) -> dict[str, list[int]]:
    return {"items": [state["i"]]}


def spread(state: Items) -> list[Send]:
    return [Send("branch", {"i": i}) for i in range(BRANCHES)]


def ours() -> Case:
    graph = StateGraph(Items)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, spread, ["branch"])
    graph.add_edge("branch", END)
    app = graph.compile()

    async def case() -> None:
        result = await app.invoke({"items": []})
        assert result.state["items"] == list(range(BRANCHES))

    return case


async def plain() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch({"i": i})) for i in range(BRANCHES)]
    items: list[int] = []
    for task in tasks:
        items += task.result()["items"]
    assert items == list(range(BRANCHES))


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    cases: dict[Side, Case] = {"agentgraph": ours(), "LangGraph": peer.fan_out(BRANCHES), "asyncio": plain}
    return [await compare(f"a branch of {BRANCHES}", cases, units=BRANCHES, repeats=repeats, loops=20, times=30)]
