"""LangGraph's side of a thread's turns: its own stores, with the usual reducer and with its DeltaChannel.

It is installed only in the benchmarks' own environment, so types of it are unknown to the checker.
"""

# pyright: basic, reportMissingImports=false

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"  # nothing is sent anywhere, and no time is spent on trying to

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.talk import ANSWER, QUESTION, Talk


class _Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class _DeltaChat(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class _Count(TypedDict):
    n: int


@asynccontextmanager
async def _saver(where: str) -> AsyncIterator[Any]:
    if not where.startswith("postgresql:"):
        async with AsyncSqliteSaver.from_conn_string(where) as saver:
            yield saver
        return
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(where, min_size=1, max_size=10, kwargs=options, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


@asynccontextmanager
async def talk(where: str, state: type = _Chat) -> AsyncIterator[Talk]:
    """See `Talk`; the store is at `where`, a file's path or a database's address."""

    async def answer(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(ANSWER)]}

    async def count(state: _Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    graph = StateGraph(state)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    async with _saver(where) as saver:
        app = graph.compile(checkpointer=saver)

        async def turn(thread: str) -> int:
            found = await app.ainvoke({"messages": [HumanMessage(QUESTION)]}, {"configurable": {"thread_id": thread}})
            return len(found["messages"])

        async def load(thread: str) -> int:
            found = await app.aget_state({"configurable": {"thread_id": thread}})
            return len(found.values["messages"])

        async def steps(thread: str, most: int) -> int:
            loop = StateGraph(_Count)
            loop.add_node("count", count)
            loop.add_edge(START, "count")
            loop.add_conditional_edges("count", lambda s: "count" if s["n"] < most else END, ["count", END])
            config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": most + 10}
            found = await loop.compile(checkpointer=saver).ainvoke({"n": 0}, config, durability="sync")
            return found["n"]

        yield Talk(turn, load, steps)


def delta_talk(where: str) -> Any:
    """The same with the DeltaChannel."""
    return talk(where, _DeltaChat)
