"""A model that is asked again where the call has failed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from agentgraph import ConfigError, Retry, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage
from agentgraph.models import Delta, ModelError, ModelRequest, ModelResponse, RateLimitError, StreamCutError
from agentgraph.nodes import ReactAgent
from agentgraph.nodes.interceptors import ModelRetry
from agentgraph.testing import ScriptedModel, with_clock

AT_ONCE = Retry(delay=0)


def overloaded(retried: bool = False) -> ModelError:
    return ModelError("overloaded", status_code=503, retried=retried)


class Cut:
    """A model whose first stream is cut after a piece, and whose second one is whole."""

    name = "cut"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self.asked += 1
        yield Delta("Hel")
        if self.asked == 1:
            raise self.error
        yield Delta("lo")
        yield Delta(response=ModelResponse(message=AssistantMessage("Hello", finish_reason="stop")))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_may_pass_is_tried_again(stream: bool) -> None:
    async with ScriptedModel([overloaded(), ConnectionError("down"), "done"]) as model:
        agent = ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)], stream=stream)
        assert (await agent.run("go")).text == "done"


async def test_the_last_error_comes_out_as_itself() -> None:
    errors = [overloaded() for _ in range(3)]
    async with ScriptedModel(errors) as model:
        with pytest.raises(ModelError) as raised:
            await ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)]).run("go")
    assert raised.value is errors[2]
    assert "attempt 3 of 3" in raised.value.__notes__


@pytest.mark.parametrize("error", [ModelError("no such page", status_code=404), ValueError("odd"), overloaded(True)])
async def test_what_will_not_pass_or_was_tried_by_the_client_is_not_tried_again(error: Exception) -> None:
    async with ScriptedModel([error]) as model:
        with pytest.raises(type(error)) as raised:
            await ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)]).run("go")
    assert raised.value is error


async def test_what_the_client_has_given_up_on_is_tried_again_where_it_is_told_to() -> None:
    async with ScriptedModel([overloaded(retried=True), "done"]) as model:
        retry = ModelRetry(Retry(delay=0, on=ModelError))
        assert (await ReactAgent("clerk", model, interceptors=[retry]).run("go")).text == "done"


@pytest.mark.case("I6")
async def test_an_answer_that_looks_like_an_error_is_an_answer() -> None:
    async with ScriptedModel(["Exception: handle it with care"]) as model:
        result = await ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)]).run("go")
    assert result.text == "Exception: handle it with care"


async def test_at_the_end_the_error_may_be_told_as_a_message() -> None:
    async with ScriptedModel([overloaded(), overloaded(), "fine again"]) as model:
        retry = ModelRetry(Retry(attempts=2, delay=0), at_end="message")
        agent = ReactAgent("clerk", model, interceptors=[retry], checkpointer=MemorySaver())
        first = await agent.run("go", RunConfig(thread_id="t"))
        assert isinstance(first.message, AssistantMessage)
        assert (first.text, first.message.finish_reason, first.status) == ("Exception: overloaded", "error", "done")
        assert (await agent.run("again", RunConfig(thread_id="t"))).text == "fine again"


async def test_an_error_that_is_told_as_a_message_needs_no_form() -> None:
    class Person(msgspec.Struct):
        name: str

    async with ScriptedModel([overloaded(), overloaded()]) as model:
        retry = ModelRetry(Retry(attempts=2, delay=0), at_end="message")
        result = await ReactAgent("clerk", model, interceptors=[retry], output_type=Person).run("go")
    assert result.output == "Exception: overloaded"


@pytest.mark.case("I12")
@pytest.mark.parametrize("retried", [True, False])
async def test_an_answer_of_which_readers_have_seen_a_part_is_not_begun_anew(retried: bool) -> None:
    model = Cut(StreamCutError("cut", partial="Hel", retried=retried))
    async with ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)]).stream("go") as stream:
        with pytest.raises(StreamCutError):
            _ = [e async for e in stream]
    assert model.asked == 1


@pytest.mark.case("I12")
async def test_with_restart_the_new_answer_has_a_message_id_of_its_own() -> None:
    model = Cut(StreamCutError("cut", partial="Hel", retried=True))
    agent = ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE, restart=True)])
    async with agent.stream("go") as stream:
        told = [(e.message_id, e.text) async for e in stream if isinstance(e, ModelDelta)]
    final = stream.result.messages[-1]
    assert final.text == "Hello"
    assert [text for id, text in told if id == final.id] == ["Hel", "lo"]
    assert [text for id, text in told if id != final.id] == ["Hel"]


@pytest.mark.parametrize("retried", [True, False])
async def test_where_nobody_reads_a_cut_stream_is_begun_anew(retried: bool) -> None:
    model = Cut(StreamCutError("cut", partial="Hel", retried=retried))
    assert (await ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)]).run("go")).text == "Hello"


@pytest.mark.case("I11")
@with_clock
async def test_a_wait_that_the_provider_asks_for_is_kept() -> None:
    limited = RateLimitError("slow down", status_code=429, retry_after=20.0)
    async with ScriptedModel([limited, "done"]) as model:
        await ReactAgent("clerk", model, interceptors=[ModelRetry()]).run("go")
    assert 20 <= asyncio.get_running_loop().time() < 21


@pytest.mark.case("I11")
async def test_a_wait_longer_than_the_longest_ends_it_at_once() -> None:
    limited = RateLimitError("slow down", status_code=429, retry_after=3600.0)
    async with ScriptedModel([limited]) as model:
        with pytest.raises(RateLimitError):
            await ReactAgent("clerk", model, interceptors=[ModelRetry()]).run("go")


@pytest.mark.case("I4")
@with_clock
async def test_a_cancelled_run_ends_during_the_wait() -> None:
    async with ScriptedModel([overloaded()]) as model:
        retry = ModelRetry(Retry(delay=60, max_delay=60))
        running = asyncio.create_task(ReactAgent("clerk", model, interceptors=[retry]).run("go"))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert asyncio.get_running_loop().time() == 1


async def test_a_failed_attempt_costs_nothing_and_the_answer_is_recorded_once() -> None:
    async with ScriptedModel([overloaded(), "done"]) as model:
        agent = ReactAgent("clerk", model, interceptors=[ModelRetry(AT_ONCE)], checkpointer=MemorySaver())
        result = await agent.run("go", RunConfig(thread_id="t"))
    assert [m.text for m in result.messages] == ["go", "done"]


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [(5, {}, "ModelRetry takes a Retry"), (None, {"at_end": "stop"}, "unknown choice 'stop'")],
)
def test_options_that_cannot_be_meant_are_refused(given: Any, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ModelRetry(given, **options)
