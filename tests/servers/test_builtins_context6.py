"""What keeps a conversation short, on a small real model of 4,096 tokens. What it says is not looked at."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentgraph import RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import AssistantMessage, Message, ToolCall, ToolResponse, ToolResponseMessage, UserMessage
from agentgraph.models import ContextLengthError, ModelRequest, ModelResponse, OpenAIChat
from agentgraph.nodes import LlmRequest, ModelCall, ReactAgent
from agentgraph.nodes.hooks import LargeResults, Summarization
from agentgraph.nodes.interceptors import ContextEditing
from agentgraph.nodes.tokens import approximate_tokens

NAME = "smollm2-135m"
PAGE = "The lamp in the hall is green, and whoever comes in sees it first. " * 60


def chat(url: str, max_tokens: int = 20, **options: Any) -> OpenAIChat:
    return OpenAIChat(
        NAME, base_url=url, api_key="none", options={"max_tokens": max_tokens, "temperature": 0}, **options
    )


def history(pages: int, text: str) -> list[Message]:
    messages: list[Message] = [UserMessage("Read the pages.")]
    for page in range(pages):
        messages.append(AssistantMessage(tool_calls=[ToolCall(f"c{page}", "read", f'{{"page": {page}}}')]))
        messages.append(ToolResponseMessage([ToolResponse(f"c{page}", "read", text)]))
    return [*messages, AssistantMessage("Read."), UserMessage("Which colour has the lamp?")]


async def read(page: int) -> str:
    """Read a page."""
    return PAGE * 2


async def first_a_call(request: LlmRequest, call: ModelCall) -> ModelResponse:
    """Have the model read a page before it answers."""
    asks = len(request.messages) == 1
    return await call(msgspec.structs.replace(request, tool_choice="read") if asks else request)


async def test_a_summary_of_the_models_own_takes_the_place_of_old_messages(llm: str) -> None:
    async with chat(llm) as model:
        hook = Summarization(when=("share", 0.7), keep=("messages", 2), window=500, most=250)
        agent = ReactAgent("reader", model, hooks=[hook], checkpointer=MemorySaver())
        first = await agent.run(history(4, PAGE[:500]), RunConfig(thread_id="t"))
        second = await agent.run("And the door?", RunConfig(thread_id="t"))
    assert first.messages[1].metadata["summary_of"] == 8
    assert first.usage is not None
    assert first.usage.calls >= 3
    assert isinstance(second.message, AssistantMessage)
    assert second.messages[: len(first.messages)] == first.messages


async def test_a_request_that_is_too_long_for_the_model_is_shortened(llm: str) -> None:
    async with chat(llm) as model:
        with pytest.raises(ContextLengthError):
            await ReactAgent("reader", model).run(history(8, PAGE))
        result = await ReactAgent("reader", model, interceptors=[ContextEditing(over=400)]).run(history(8, PAGE))
    assert isinstance(result.message, AssistantMessage)
    assert result.message.usage is not None
    assert (result.message.usage.input_tokens or 0) < 1_000
    assert len(result.messages[2].text) == len(PAGE)


async def test_a_large_answer_is_kept_in_a_file_and_the_model_goes_on(llm: str, tmp_path: Path) -> None:
    async with chat(llm, 40, tool_mode="json") as model:
        hook = LargeResults(tmp_path, over=5_000, head=200)
        agent = ReactAgent("reader", model, [read], hooks=[hook], interceptors=[first_a_call])
        result = await agent.run("Read page 1.", RunConfig(recursion_limit=30))
    answers = [m for m in result.messages if isinstance(m, ToolResponseMessage)]
    assert answers
    files = sorted(tmp_path.rglob("*.txt"))  # noqa: ASYNC240  # the test's own look
    assert files
    assert all(file.read_text() == PAGE * 2 for file in files)
    assert max(len(m.text) for m in answers) < 5_000


async def test_the_approximation_is_near_what_the_server_counts(llm: str) -> None:
    messages: list[Message] = [UserMessage(PAGE[:1500]), AssistantMessage("Read."), UserMessage("And now?")]
    async with chat(llm, 1) as model:
        usage = (await model.generate(ModelRequest(messages=messages))).message.usage
    assert usage is not None
    assert usage.input_tokens is not None
    assert 0.75 <= approximate_tokens(messages) / usage.input_tokens <= 1.25
