"""Another model that is asked where one has failed."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from agentgraph import ConfigError, Retry, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, Usage
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    Delta,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    StreamCutError,
)
from agentgraph.nodes import LlmRequest, ModelCall, ReactAgent
from agentgraph.nodes.interceptors import ModelFallback, ModelRetry
from agentgraph.testing import ScriptedModel


def overloaded() -> OverloadedError:
    return OverloadedError("overloaded", status_code=503, retried=True)


class Cut:
    """A model whose stream is cut after a piece."""

    name = "cut"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("Hel")
        raise StreamCutError("cut", partial="Hel", retried=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_next_model_is_asked_where_one_fails(stream: bool) -> None:
    second = AssistantMessage("from the second", usage=Usage(3, 2), metadata={"model": "second-2026"})
    async with ScriptedModel([overloaded()], name="first") as first, ScriptedModel([second], name="second") as other:
        agent = ReactAgent("clerk", first, interceptors=[ModelFallback(other)], stream=stream)
        result = await agent.run("go")
    assert (result.text, result.usage) == ("from the second", Usage(3, 2))
    assert result.messages[-1].metadata == {"model": "second", "response_model": "second-2026"}


async def test_the_first_model_is_asked_anew_in_each_turn() -> None:
    async with ScriptedModel([overloaded(), "first"]) as first, ScriptedModel(["second"]) as other:
        agent = ReactAgent("clerk", first, interceptors=[ModelFallback(other)], checkpointer=MemorySaver())
        said = [(await agent.run("go", RunConfig(thread_id="t"))).text for _ in range(2)]
    assert said == ["second", "first"]


async def test_where_all_fail_the_last_error_tells_of_the_others() -> None:
    async with (
        ScriptedModel([overloaded()], name="a") as a,
        ScriptedModel([ConnectionError("down")], name="b") as b,
        ScriptedModel([TimeoutError("late")], name="c") as c,
    ):
        with pytest.raises(TimeoutError, match="late") as raised:
            await ReactAgent("clerk", a, interceptors=[ModelFallback(b, c)]).run("go")
    assert raised.value.__notes__[:2] == [
        "before it, model 'a' failed: OverloadedError: overloaded",
        "before it, model 'b' failed: ConnectionError: down",
    ]


@pytest.mark.parametrize(
    "error", [BadRequestError("wrong", status_code=400), AuthenticationError("no", status_code=401), ValueError("odd")]
)
async def test_what_another_provider_would_not_do_better_comes_out(error: Exception) -> None:
    async with ScriptedModel([error]) as first, ScriptedModel([]) as other:
        with pytest.raises(type(error)):
            await ReactAgent("clerk", first, interceptors=[ModelFallback(other)]).run("go")


async def test_on_says_after_which_errors() -> None:
    async with ScriptedModel([ValueError("odd")]) as first, ScriptedModel(["second"]) as other:
        agent = ReactAgent("clerk", first, interceptors=[ModelFallback(other, on=ValueError)])
        assert (await agent.run("go")).text == "second"


@pytest.mark.case("I6")
async def test_what_an_answer_says_is_never_a_reason() -> None:
    async with ScriptedModel(["Exception: handle it with care"]) as first, ScriptedModel([]) as other:
        result = await ReactAgent("clerk", first, interceptors=[ModelFallback(other)]).run("go")
    assert result.text == "Exception: handle it with care"


@pytest.mark.case("I12")
async def test_no_other_model_is_asked_once_readers_have_seen_a_part() -> None:
    agent = ReactAgent("clerk", Cut(), interceptors=[ModelFallback(other := ScriptedModel([]))])
    async with agent.stream("go") as stream:
        with pytest.raises(StreamCutError) as raised:
            _ = [event async for event in stream]
    assert (raised.value.partial, other.requests) == ("Hel", [])


@pytest.mark.case("I12")
async def test_with_restart_the_other_models_answer_has_a_message_id_of_its_own() -> None:
    async with ScriptedModel(["Hello"]) as other:
        agent = ReactAgent("clerk", Cut(), interceptors=[ModelFallback(other, restart=True)])
        async with agent.stream("go") as stream:
            told = [(e.message_id, e.text) async for e in stream if isinstance(e, ModelDelta)]
    final = stream.result.messages[-1]
    assert [text for id, text in told if id == final.id] == ["Hello"]
    assert [text for id, text in told if id != final.id] == ["Hel"]


async def test_where_nobody_reads_the_other_model_answers_after_a_cut() -> None:
    async with ScriptedModel(["Hello"]) as other:
        assert (await ReactAgent("clerk", Cut(), interceptors=[ModelFallback(other)]).run("go")).text == "Hello"


async def test_it_begins_with_the_model_that_an_outer_interceptor_has_chosen() -> None:
    chosen, other = ScriptedModel([overloaded()], name="chosen"), ScriptedModel(["from the other"])

    async def choose(request: LlmRequest, call: ModelCall) -> ModelResponse:
        return await call(msgspec.structs.replace(request, model=chosen))

    agent = ReactAgent("clerk", ScriptedModel([]), interceptors=[choose, ModelFallback(chosen, other)])
    assert (await agent.run("go")).text == "from the other"
    assert (len(chosen.requests), len(other.requests)) == (1, 1)


async def test_a_retry_further_inside_tries_each_of_the_models() -> None:
    down = [ConnectionError("down")] * 2
    async with ScriptedModel(down) as first, ScriptedModel([*down[:1], "done"]) as other:
        interceptors = [ModelFallback(other), ModelRetry(Retry(attempts=2, delay=0))]
        assert (await ReactAgent("clerk", first, interceptors=interceptors).run("go")).text == "done"


class Native(ScriptedModel):
    native_output_schema = True


async def test_a_model_that_takes_no_schema_is_asked_for_the_form_in_words() -> None:
    class Person(msgspec.Struct):
        name: str

    async with Native([overloaded()]) as first, ScriptedModel(['{"name": "Ada"}']) as other:
        agent = ReactAgent("clerk", first, interceptors=[ModelFallback(other)], output_type=Person)
        assert (await agent.run("Who?")).output == Person("Ada")
    assert first.requests[0].output_schema is not None
    assert other.requests[0].output_schema is None
    assert "JSON schema" in other.requests[0].messages[-1].text


@pytest.mark.parametrize(
    ("models", "options", "told"),
    [
        ((), {}, "needs the models to ask"),
        ((3,), {}, "found 3"),
        (("openai",), {}, "names a provider"),
        ((ScriptedModel([]),), {"on": 3}, r"ModelFallback\(on=...\) must be exception types"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(models: Any, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ModelFallback(*models, **options)
