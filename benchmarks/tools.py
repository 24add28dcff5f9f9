"""A tool call: a graph of one tool node, given one message with many calls."""

import asyncio
import json

from agentgraph import END, START, StateGraph
from agentgraph.messages import AssistantMessage
from agentgraph.nodes import ToolNode, tool
from agentgraph.strategies import Messages
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.models import calls

COUNTS = (8, 100)


@tool
async def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ours(count: int) -> Case:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode([plus], max_parallel=count))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    app = graph.compile()

    async def case() -> None:
        result = await app.invoke({"messages": [AssistantMessage("", tool_calls=calls(count))]})
        assert len(result.state["messages"][-1].responses) == count

    return case


async def _plus(a: int, b: int) -> int:
    return a + b


async def _call(arguments: str) -> str:
    async with asyncio.timeout(300):
        return str(await _plus(**json.loads(arguments)))


async def call_all(count: int) -> list[str]:
    """What the tool node does at least: decode, a task and a timeout a call, answers in order."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_call(call.arguments)) for call in calls(count)]
    return [task.result() for task in tasks]


def plain(count: int) -> Case:
    async def case() -> None:
        assert len(await call_all(count)) == count

    return case


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    result: list[Row] = []
    for count in COUNTS:
        cases: dict[Side, Case] = {"agentgraph": ours(count), "LangGraph": peer.tools(count), "asyncio": plain(count)}
        what = f"a tool call, of {count}"
        result.append(await compare(what, cases, units=count, repeats=repeats, loops=400 // count, times=20))
    return result
