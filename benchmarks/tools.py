"""A tool call: a graph of one tool node, given one message with one call, with a few, and with many."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from agentgraph import END, START, StateGraph
from agentgraph.messages import AssistantMessage
from agentgraph.nodes import ToolNode, tool
from agentgraph.strategies import Messages
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.models import calls

COUNTS = (1, 8, 100)
MOST = 5
"""Calls at once: the tool node's own default."""
SECONDS = 300.0
"""A call's timeout: as well."""

Kind = Literal["async", "sync"]


@tool
async def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="plus")
def plus_sync(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ours(count: int, kind: Kind) -> Case:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode([plus if kind == "async" else plus_sync]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    app = graph.compile()

    async def case() -> None:
        result = await app.invoke({"messages": [AssistantMessage("", tool_calls=calls(count))]})
        assert len(result.state["messages"][-1].responses) == count

    return case


async def _plus(a: int, b: int) -> int:
    return a + b


async def _plus_in_thread(a: int, b: int) -> int:
    return await asyncio.to_thread(lambda: a + b)


async def call_all(count: int, fn: Callable[[int, int], Awaitable[int]] = _plus, most: int | None = None) -> list[str]:
    """What a tool node does at least: arguments, permits, a time limit, errors that are told, answers in order."""
    permits = asyncio.Semaphore(most or count)

    async def call(arguments: str) -> str:
        async with permits:
            try:
                given = json.loads(arguments)
                async with asyncio.timeout(SECONDS):
                    return str(await fn(given["a"], given["b"]))
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(asked.arguments)) for asked in calls(count)]
    return [task.result() for task in tasks]


def plain(count: int, kind: Kind) -> Case:
    async def case() -> None:
        answers = await call_all(count, _plus if kind == "async" else _plus_in_thread, MOST)
        assert answers[-1] == str(count)

    return case


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    result: list[Row] = []
    kinds: tuple[Kind, ...] = ("async", "sync")
    for kind in kinds:
        for count in COUNTS:
            cases: dict[Side, Case] = {
                "agentgraph": ours(count, kind),
                "LangGraph": peer.tools(count, kind),
                "asyncio": plain(count, kind),
            }
            what = f"a tool call, {kind}, of {count}"
            row = await compare(what, cases, units=count, repeats=repeats, loops=max(4, 200 // count), times=20)
            result.append(replace(row, below=2 * row.values["asyncio"]))
    return result
