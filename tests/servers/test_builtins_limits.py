"""Limits, retries, fallback, selection and emulation with a small real model. What it says is not looked at."""

from collections.abc import AsyncIterator

import pytest

from agentgraph import Retry, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import AssistantMessage, Message, ToolResponse, ToolResponseMessage
from agentgraph.models import ModelResponse, OpenAIChat
from agentgraph.nodes import LlmRequest, ModelCall, ReactAgent
from agentgraph.nodes.history import repair
from agentgraph.nodes.hooks import ModelCallLimit, ToolCallLimit
from agentgraph.nodes.interceptors import ModelFallback, ModelRetry, ToolEmulation, ToolRetry, ToolSelection

NAME = "smollm2-135m"
QUESTION = "What is the capital of Norway?"
THREAD = RunConfig(thread_id="t")
AT_ONCE = Retry(delay=0)


@pytest.fixture
async def chat(llm: str) -> AsyncIterator[OpenAIChat]:
    options = {"max_tokens": 60, "temperature": 0}
    async with OpenAIChat(NAME, base_url=llm, api_key="none", options=options) as client:
        yield client


async def find_capital(country: str) -> str:
    """Find the capital of a country."""
    return f"The capital of {country} is Oslo."


async def find_recipe(dish: str) -> str:
    """Find the recipe of a dish."""
    return f"The recipe of {dish}: flour, water."


def answers(messages: list[Message]) -> list[ToolResponse]:
    return [r for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses]


async def test_a_turn_that_a_limit_has_ended_is_followed_by_one_that_the_server_takes(chat: OpenAIChat) -> None:
    agent = ReactAgent("clerk", chat, [find_capital], hooks=[ModelCallLimit(per_run=1)], checkpointer=MemorySaver())
    await agent.run(QUESTION, THREAD)
    result = await agent.run(QUESTION, THREAD)
    limits = [m for m in result.messages if isinstance(m, AssistantMessage) and m.finish_reason == "limit"]
    assert limits
    assert repair(result.messages)[1] == []


@pytest.mark.parametrize("at_limit", ["continue", "end"])
async def test_the_server_takes_a_history_with_refused_calls(chat: OpenAIChat, at_limit: str) -> None:
    limits = [ModelCallLimit(per_run=3), ToolCallLimit(per_run=1, at_limit=at_limit)]  # pyright: ignore[reportArgumentType]
    agent = ReactAgent("clerk", chat, [find_capital], hooks=limits, checkpointer=MemorySaver())
    first = await agent.run(QUESTION, THREAD)
    assert answers(first.messages)
    assert sum(not r.is_error for r in answers(first.messages)) <= 1
    second = await agent.run("Say hello.", THREAD)
    assert second.text
    assert repair(second.messages)[1] == []


async def test_a_retry_and_a_fallback_come_to_the_servers_answer(chat: OpenAIChat) -> None:
    calls: list[int] = []

    async def flaky(request: LlmRequest, call: ModelCall) -> ModelResponse:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("down")
        return await call(request)

    async with OpenAIChat("none", base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0) as nobody:
        agent = ReactAgent("clerk", nobody, interceptors=[ModelFallback(chat), ModelRetry(AT_ONCE), flaky])
        async with agent.stream("Say hello.") as stream:
            _ = [event async for event in stream]
    assert stream.result.text
    assert stream.result.messages[-1].metadata["model"] == chat.name
    assert len(calls) == 4


async def test_a_flaky_tool_is_called_again_for_the_model(chat: OpenAIChat) -> None:
    calls: list[str] = []

    async def find_capital(country: str) -> str:
        """Find the capital of a country."""
        calls.append(country)
        if len(calls) == 1:
            raise ConnectionError("down")
        return f"The capital of {country} is Oslo."

    hooks = [ModelCallLimit(per_run=2)]
    agent = ReactAgent("clerk", chat, [find_capital], hooks=hooks, interceptors=[ToolRetry(retry=AT_ONCE)])
    result = await agent.run(QUESTION)
    assert len(calls) >= 2
    assert calls[0] == calls[1]
    assert not any("down" in r.text for r in answers(result.messages))


async def test_the_small_model_chooses_tools_and_answers_in_their_place(chat: OpenAIChat) -> None:
    short = {"max_tokens": 20}
    interceptors = [ToolSelection(chat, most=1, options=short), ToolEmulation(model=chat, options=short)]
    hooks = [ModelCallLimit(per_run=2)]
    agent = ReactAgent("clerk", chat, [find_capital, find_recipe], hooks=hooks, interceptors=interceptors)
    result = await agent.run(QUESTION)
    assert result.text
    assert result.usage is not None
    assert result.usage.calls > sum(isinstance(m, AssistantMessage) for m in result.messages)
    assert not any("Oslo." in r.text or "flour" in r.text for r in answers(result.messages))
