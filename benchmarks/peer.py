"""LangGraph's side of every topic, as its documentation has it.

It is installed only in the benchmarks' own environment, so types of it are unknown to the checker.
"""

# pyright: basic, reportMissingImports=false

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import add
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"  # nothing is sent anywhere, and no time is spent on trying to

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.types import Send

from benchmarks.measure import Case


class _Count(TypedDict):
    n: int


class _Items(TypedDict):
    items: Annotated[list[int], add]


@tool
async def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool("plus")
def plus_sync(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _calls(count: int, round_: int = 0) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": "plus", "args": {"a": i, "b": 1}, "id": f"call_{round_}_{i}"} for i in range(count)]
    )


def self_loop(steps: int) -> Case:
    """One node that comes back to itself `steps` times."""

    async def count(state: _Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    def route(state: _Count) -> str:
        return "count" if state["n"] < steps else END

    graph = StateGraph(_Count)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", route, ["count", END])
    app = graph.compile()

    async def case() -> None:
        result = await app.ainvoke({"n": 0}, {"recursion_limit": steps + 10})
        assert result["n"] == steps

    return case


def fan_out(branches: int) -> Case:
    """`branches` Sends to one node, all at once."""

    async def branch(state: dict[str, int]) -> dict[str, list[int]]:
        return {"items": [state["i"]]}

    def spread(state: _Items) -> list[Send]:
        return [Send("branch", {"i": i}) for i in range(branches)]

    graph = StateGraph(_Items)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, spread, ["branch"])
    graph.add_edge("branch", END)
    app = graph.compile()

    async def case() -> None:
        result = await app.ainvoke({"items": []})
        assert result["items"] == list(range(branches))

    return case


def tools(count: int, kind: str = "async") -> Case:
    """A graph of one tool node that answers `count` calls, of an async or a sync tool."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([plus if kind == "async" else plus_sync]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    app = graph.compile()

    async def case() -> None:
        result = await app.ainvoke({"messages": [_calls(count)]})
        assert len(result["messages"]) == count + 1

    return case


class _Model(BaseChatModel):
    """Calls `count` tools in each of `rounds` rounds, then answers; streams `tokens` words."""

    rounds: int = 0
    count: int = 0
    tokens: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> "_Model":
        return self

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        done = sum(isinstance(message, AIMessage) for message in messages)
        answer = _calls(self.count, done) if done < self.rounds else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=answer)])


class _Streaming(_Model):
    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.tokens):
            chunk = ChatGenerationChunk(message=AIMessageChunk("word "))
            if run_manager:
                await run_manager.on_llm_new_token("word ", chunk=chunk)
            yield chunk


def _react(model: BaseChatModel) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the successor lives in another distribution, and is built on the same loop
        return create_react_agent(model, [plus])


def agent(rounds: int, calls: int) -> Case:
    """A ReAct agent: `rounds` rounds of `calls` tool calls, then an answer."""
    app = _react(_Model(rounds=rounds, count=calls))

    async def case() -> None:
        result = await app.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 2 * rounds + 10})
        assert len(result["messages"]) == 2 + rounds * (calls + 1)

    return case


def tokens(count: int) -> Case:
    """An agent's answer of `count` tokens, read from its stream."""
    app = _react(_Streaming(tokens=count))

    async def case() -> None:
        seen = 0
        async for message, _ in app.astream({"messages": [("user", "go")]}, stream_mode="messages"):
            seen += bool(message.content)
        assert seen >= count

    return case


def streamed(url: str) -> Callable[[Callable[[], object]], Awaitable[object]]:
    """An agent's answer from the server of that URL, read from its stream: calls what it is given for each token."""
    app = _react(ChatOpenAI(model="m", base_url=url, api_key="none", streaming=True))

    async def ask(word: Callable[[], object]) -> None:
        async for message, _ in app.astream({"messages": [("user", "go")]}, stream_mode="messages"):
            if message.content:
                word()

    return ask


def run(wait: Callable[[], Awaitable[object]]) -> Case:
    """One run of a graph of three nodes in a row, each of which waits once."""

    async def node(state: _Count) -> dict[str, int]:
        await wait()
        return {"n": state["n"] + 1}

    graph = StateGraph(_Count)
    for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    graph.add_edge("c", END)
    app = graph.compile()

    async def case() -> None:
        assert (await app.ainvoke({"n": 0}))["n"] == 3

    return case


async def _try_all() -> None:
    for case in (
        self_loop(50),
        fan_out(100),
        tools(8),
        tools(8, "sync"),
        agent(10, 8),
        tokens(100),
        run(lambda: asyncio.sleep(0)),
    ):
        await case()


if __name__ == "__main__":  # on its own: whether this side works
    asyncio.run(_try_all())
