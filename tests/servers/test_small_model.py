"""A small real model behind llama.cpp's server, in its three protocols. What the model says is not looked at."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest

from agentgraph.messages import AssistantMessage, ToolResponseMessage, UserMessage
from agentgraph.models import (
    ConnectionFailedError,
    ContextLengthError,
    ModelClient,
    ModelRequest,
    OpenAIChat,
    OpenAIResponses,
    StreamCutError,
    model,
)
from agentgraph.nodes import AgentResult, ReactAgent

NAME = "smollm2-135m"
COUNT = ModelRequest(messages=[UserMessage("Count from one to fifty in words.")])


Client = Callable[[int], ModelClient]


@pytest.fixture(params=["openai", "openai-responses", "anthropic"])
def client(request: pytest.FixtureRequest, llm: str) -> Client:
    """Makes a client whose answers have that many tokens at most."""

    def make(max_tokens: int) -> ModelClient:
        options = {"max_tokens": max_tokens, "temperature": 0}
        return model(f"{request.param}:{NAME}", base_url=llm, api_key="none", options=options)

    return make


def chat(url: str, max_tokens: int, **options: Any) -> OpenAIChat:
    return OpenAIChat(
        NAME, base_url=url, api_key="none", options={"max_tokens": max_tokens, "temperature": 0}, **options
    )


async def find_capital(country: str) -> str:
    """Find the capital of a country."""
    return f"The capital of {country} is Oslo."


async def find_recipe(dish: str) -> str:
    """Find the recipe of a dish."""
    return f"The recipe of {dish}: flour, water."


def check_loop(result: AgentResult) -> None:
    """The model called tools, each call has its answer, and the loop ended by an answer in words."""
    question, *talk, last = result.messages
    assert isinstance(question, UserMessage)
    assert isinstance(last, AssistantMessage)
    assert last.text
    assert not last.tool_calls
    assert talk
    for said, answers in zip(talk[::2], talk[1::2], strict=True):
        assert isinstance(said, AssistantMessage)
        assert isinstance(answers, ToolResponseMessage)
        assert said.finish_reason == "tool_calls"
        assert {c.name for c in said.tool_calls} <= {"find_capital", "find_recipe"}
        assert [(c.id, c.name) for c in said.tool_calls] == [(r.id, r.name) for r in answers.responses]
        assert not any(r.is_error for r in answers.responses)
    spoken = [m for m in result.messages if isinstance(m, AssistantMessage)]
    assert result.usage is not None
    assert result.usage.calls == len(spoken)
    assert result.usage.output_tokens == sum(m.usage.output_tokens or 0 for m in spoken if m.usage)


async def test_a_stream_adds_up_to_what_comes_in_one_piece(client: Client) -> None:
    async with client(8) as asked:
        whole = (await asked.generate(COUNT)).message
        *pieces, last = [delta async for delta in asked.stream(COUNT)]
    assert last.response is not None
    streamed = last.response.message
    assert len([p for p in pieces if p.text]) > 1
    assert "".join(p.text for p in pieces) == streamed.text
    # llama.cpp says "completed" of responses that the limit has cut, where OpenAI says "incomplete"
    finish = "stop" if isinstance(asked, OpenAIResponses) else "length"
    for message in (whole, streamed):
        assert message.text
        assert message.finish_reason == finish
        assert message.metadata["model"] == NAME
        assert message.usage is not None
        assert message.usage.output_tokens == 8
    assert whole.usage is not None
    assert streamed.usage is not None
    assert whole.usage.input_tokens == streamed.usage.input_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_the_model_ends_itself_is_whole(llm: str, stream: bool) -> None:
    async with chat(llm, 100) as asked:
        result = await ReactAgent("clerk", asked, stream=stream).run("Say hello.")
    assert isinstance(result.message, AssistantMessage)
    assert result.message.finish_reason == "stop"
    assert result.text == result.message.text != ""
    assert result.usage == result.message.usage


class Person(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=20)]
    age: Annotated[int, msgspec.Meta(ge=0, le=120)]
    kind: Literal["child", "adult"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_output_type_is_what_the_server_holds_the_model_to(llm: str, stream: bool) -> None:
    async with chat(llm, 100, native_output_schema=True) as asked:
        result = await ReactAgent("clerk", asked, output_type=Person, stream=stream).run("Anna is 36 years old.")
    assert isinstance(result.output, Person)
    assert result.output == msgspec.json.decode(result.text, type=Person)


async def test_json_mode_drives_an_agents_loop(llm: str) -> None:
    async with chat(llm, 100, tool_mode="json") as asked:
        agent = ReactAgent("clerk", asked, [find_capital, find_recipe])
        check_loop(await agent.run("What is the capital of Norway, and what is the recipe of bread?"))


async def test_the_servers_own_tool_calls_drive_an_agents_loop(client: Client) -> None:
    async with client(200) as asked:
        agent = ReactAgent("clerk", asked, [find_capital, find_recipe])
        check_loop(await agent.run("What is the capital of Norway and what is the recipe of bread?"))


async def test_a_conversation_longer_than_the_context_is_an_error_of_its_own(client: Client) -> None:
    long = ModelRequest(messages=[UserMessage("word " * 6000)])
    async with client(8) as asked:
        with pytest.raises(ContextLengthError, match="4096 tokens"):
            await asked.generate(long)
        with pytest.raises(ContextLengthError) as error:
            _ = [delta async for delta in asked.stream(long)]
    assert (error.value.status_code, error.value.retried) == (400, False)


async def test_requests_at_once_do_not_mix(llm: str) -> None:
    lengths = (3, 5, 7, 9)
    async with chat(llm, 1) as asked:

        async def ask(tokens: int) -> AssistantMessage:
            request = msgspec.structs.replace(COUNT, options={"max_tokens": tokens})
            *pieces, last = [delta async for delta in asked.stream(request)]
            assert last.response is not None
            assert "".join(p.text for p in pieces) == last.response.message.text
            return last.response.message

        answers = await asyncio.gather(*map(ask, lengths))
    assert [a.usage.output_tokens for a in answers if a.usage] == [*lengths]


async def test_a_server_that_is_killed_in_mid_stream_leaves_the_partial_text(
    mortal_llm: tuple[str, Callable[[], None]],
) -> None:
    url, kill = mortal_llm
    seen: list[str] = []

    async def read() -> None:
        async for delta in asked.stream(COUNT):
            seen.append(delta.text)
            if len(seen) == 3:
                kill()

    async with chat(url, 500, max_retries=0) as asked:
        with pytest.raises(StreamCutError) as error:
            await read()
        assert error.value.partial == "".join(seen) != ""
        assert error.value.retried
        with pytest.raises(ConnectionFailedError):
            await asked.generate(COUNT)
