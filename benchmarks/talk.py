"""A conversation that is kept: our side of it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from agentgraph import END, START, RunConfig, StateGraph
from agentgraph.checkpoint import Checkpointer, PostgresSaver, SqliteSaver
from agentgraph.messages import AssistantMessage, UserMessage
from agentgraph.strategies import Messages

QUESTION = "q" * 200
ANSWER = "a" * 200


@dataclass(frozen=True)
class Talk:
    """What is done with an open store."""

    turn: Callable[[str], Awaitable[int]]
    """Ask on a thread: one node answers. Returns how many messages the thread has."""
    load: Callable[[str], Awaitable[int]]
    """Read a thread. Returns the same."""
    steps: Callable[[str, int], Awaitable[int]]
    """Run so many steps of one node on a thread, each stored before the next one begins. Returns how many."""


class Chat(TypedDict):
    """The state."""

    messages: Annotated[list[Any], Messages()]


class Count(TypedDict):
    """The state of the steps."""

    n: int


def saver_at(where: str) -> Checkpointer:
    """The store in a file, or in the database of an address."""
    return PostgresSaver(where) if where.startswith("postgresql:") else SqliteSaver(where)


@asynccontextmanager
async def talk(where: str) -> AsyncGenerator[Talk]:
    """A store that was just opened."""

    async def answer(_: Chat) -> dict[str, Any]:
        return {"messages": [AssistantMessage(ANSWER)]}

    async def count(state: Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    async with saver_at(where) as saver:
        app = graph.compile(checkpointer=saver)

        async def turn(thread: str) -> int:
            found = await app.invoke({"messages": [UserMessage(QUESTION)]}, RunConfig(thread_id=thread))
            return len(found.state["messages"])

        async def load(thread: str) -> int:
            found = await app.state(RunConfig(thread_id=thread))
            return len(found.state["messages"]) if found is not None else 0

        async def steps(thread: str, most: int) -> int:
            loop = StateGraph(Count)
            loop.add_node("count", count)
            loop.add_edge(START, "count")
            loop.add_conditional_edges(
                "count", lambda s: "count" if s["n"] < most else END, {"count": "count", END: END}
            )
            config = RunConfig(thread_id=thread, recursion_limit=most + 10, durability="sync")
            found = await loop.compile(name="loop", checkpointer=saver).invoke({"n": 0}, config)
            return found.state["n"]

        yield Talk(turn, load, steps)
