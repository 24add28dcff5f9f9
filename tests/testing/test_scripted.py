"""Models for tests say what they are told to, and take down what they were asked."""

import asyncio
from typing import Any

import pytest

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, UserMessage
from agentgraph.models import ChatModel, Delta, ModelRequest, ModelResponse, RateLimitError
from agentgraph.testing import FunctionModel, ScriptedModel, ScriptError
from agentgraph.testing.scripted import deltas_of

ASK = ModelRequest(messages=[UserMessage("Hi")])
CALL = ToolCall("c1", "add", '{"a": 1, "b": 2}')


async def text(model: ChatModel) -> str:
    return (await model.generate(ASK)).message.text


async def test_a_script_is_answered_in_turn() -> None:
    async with ScriptedModel(["one", [CALL], AssistantMessage("three", usage=Usage(1, 2))]) as model:
        one, two, three = [(await model.generate(ASK)).message for _ in range(3)]
    assert (one.text, one.finish_reason) == ("one", "stop")
    assert (two.tool_calls, two.finish_reason) == ([CALL], "tool_calls")
    assert (three.text, three.usage) == ("three", Usage(1, 2))
    assert model.requests == [ASK] * 3


async def test_a_whole_response_is_given_as_it_is() -> None:
    response = ModelResponse(message=AssistantMessage("x"), raw={"its": "own"})
    async with ScriptedModel([response]) as model:
        assert await model.generate(ASK) is response


@pytest.mark.parametrize("error", [RateLimitError("slow down", status_code=429), KeyError])
async def test_an_exception_in_the_script_is_raised(error: Any) -> None:
    async with ScriptedModel([error, "then"]) as model:
        with pytest.raises(error if isinstance(error, type) else type(error)):
            await text(model)
        assert await text(model) == "then"


async def test_an_exception_in_the_script_is_raised_by_a_stream_too() -> None:
    async with ScriptedModel([ValueError("no")]) as model:
        with pytest.raises(ValueError, match="no"):
            [_ async for _ in model.stream(ASK)]


async def test_a_stream_brings_the_answer_in_pieces_and_then_whole() -> None:
    answer = AssistantMessage("a few  words ", tool_calls=[CALL], reasoning=[ReasoningPart("Hm.")], usage=Usage(1, 2))
    async with ScriptedModel([answer]) as model:
        *deltas, last = [d async for d in model.stream(ASK)]
    assert [d.text for d in deltas if d.text] == ["a", " few", " ", " words", " "]
    assert [d.reasoning for d in deltas if d.reasoning] == ["Hm."]
    assert [d.name for d in deltas if d.index == 0] == ["add", None]
    assert "".join(d.arguments for d in deltas) == CALL.arguments
    assert last == Delta(usage=Usage(1, 2), response=ModelResponse(message=answer))


async def test_the_answer_has_the_id_that_was_asked_for() -> None:
    asked = ModelRequest(messages=[], message_id="the id")
    async with ScriptedModel(["one", [CALL], AssistantMessage("three", id="own")]) as model:
        assert [(await model.generate(asked)).message.id for _ in range(3)] == ["the id"] * 3


async def test_steps_left_over_are_an_error() -> None:
    model = ScriptedModel(["one", "two", "three"])
    with pytest.raises(ScriptError, match="asked 1 times, and 2 of its 3 steps are left over; the next is 'two'"):
        async with model:
            await text(model)
    with pytest.raises(AssertionError):
        model.done()
    assert model.left == 2


async def test_an_error_of_the_test_is_not_hidden_by_steps_left_over() -> None:
    with pytest.raises(KeyError):
        async with ScriptedModel(["one"]):
            raise KeyError


async def test_a_model_asked_too_often_says_so_and_shows_the_request() -> None:
    async with ScriptedModel(["one"], name="small") as model:
        await text(model)
        with pytest.raises(ScriptError, match=r"'small' was asked a 2th time.* has 1 steps.*content='Hi'"):
            await text(model)


async def test_calls_made_at_once_get_their_steps_in_the_order_in_which_they_were_made() -> None:
    async with ScriptedModel(["one", "two", "three"]) as model:
        assert await asyncio.gather(text(model), text(model), text(model)) == ["one", "two", "three"]


async def test_a_step_that_is_none_is_an_error() -> None:
    model = ScriptedModel([["add"]])  # pyright: ignore[reportArgumentType]  # a user without a checker
    with pytest.raises(ScriptError, match="a step must be a message, a text, a list of ToolCall or an exception"):
        await text(model)


def test_a_scripts_repr_says_how_far_it_is() -> None:
    assert repr(ScriptedModel(["one", "two"])) == "<ScriptedModel 'scripted' asked 0 of 2>"


async def test_a_function_answers_sync_or_async() -> None:
    async def later(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return f"{len(request.messages)} messages"

    for model in (FunctionModel(lambda request: f"{len(request.messages)} messages"), FunctionModel(later)):
        assert await text(model) == "1 messages"
        *_, last = [d async for d in model.stream(ASK)]
        assert last.response is not None
        assert last.response.message.text == "1 messages"
        assert model.requests == [ASK, ASK]


async def test_what_a_function_raises_comes_out() -> None:
    def fail(request: ModelRequest) -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await text(FunctionModel(fail))


def test_both_are_models() -> None:
    assert isinstance(ScriptedModel([]), ChatModel)
    assert isinstance(FunctionModel(lambda _: ""), ChatModel)


def test_an_empty_answer_is_the_last_delta_alone() -> None:
    assert len(deltas_of(ModelResponse(message=AssistantMessage("")))) == 1
