"""RateLimit: requests and tokens a minute and calls at once, whoever shares it, in whatever event loop and thread."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import ChatModel, Delta, Limited, ModelRequest, ModelResponse, OpenAIChat, RateLimit, ToolSpec
from agentgraph.models.rate_limit import estimate
from agentgraph.nodes import ReactAgent
from agentgraph.testing import FunctionModel, ScriptedModel, run_with_clock, with_clock

ASK = ModelRequest(messages=[UserMessage("Hi")])


def now() -> float:
    return asyncio.get_running_loop().time()


def talker(tokens: int | None = None) -> FunctionModel:
    """Answers at once, and tells what that took."""
    return FunctionModel(lambda _: AssistantMessage("Hello", usage=None if tokens is None else Usage(tokens, 0)))


async def times(model: ChatModel, count: int) -> list[float]:
    """When each of `count` calls that are made at once had its answer."""

    async def call() -> float:
        await model.generate(ASK)
        return now()

    return await asyncio.gather(*(call() for _ in range(count)))


# -- requests


@with_clock
async def test_a_minutes_worth_goes_at_once_and_then_comes_back_evenly() -> None:
    model = Limited(talker(), RateLimit(requests_per_minute=3))
    assert await times(model, 6) == pytest.approx([0, 0, 0, 20, 40, 60])
    await asyncio.sleep(600)
    assert await times(model, 4) == pytest.approx([660, 660, 660, 680])


@with_clock
async def test_all_models_that_hold_the_same_limit_share_it() -> None:
    limit = RateLimit(requests_per_minute=2)
    first, second = Limited(talker(), limit), Limited(talker(), limit)
    await first.generate(ASK)
    assert await times(second, 2) == pytest.approx([0, 30])


@with_clock
async def test_agents_keep_to_the_limit_of_their_model() -> None:
    model = Limited(talker(), RateLimit(requests_per_minute=1))
    await ReactAgent("one", model).run("Hi")
    await ReactAgent("two", model, stream=False).run("Hi")
    assert now() == pytest.approx(60)


def test_one_event_loop_after_the_other_is_counted_as_one() -> None:
    model = Limited(talker(), RateLimit(requests_per_minute=3))
    assert run_with_clock(times(model, 2)) == [0, 0]
    assert run_with_clock(times(model, 2)) == pytest.approx([0, 20])
    assert run_with_clock(times(model, 1)) == pytest.approx([20])  # its clock is behind: nothing is added for that


@with_clock
async def test_without_limits_nothing_waits() -> None:
    assert await times(Limited(talker(), RateLimit()), 100) == [0] * 100


@with_clock
async def test_a_call_that_is_cancelled_while_it_waits_is_not_counted() -> None:
    model = Limited(talker(), RateLimit(requests_per_minute=1))
    await model.generate(ASK)
    waiting = [asyncio.create_task(model.generate(ASK)) for _ in range(3)]
    await asyncio.sleep(1)
    for task in waiting[:2]:
        task.cancel()
    await waiting[2]
    assert now() == pytest.approx(60)
    assert [task.cancelled() for task in waiting] == [True, True, False]


# -- tokens


@with_clock
async def test_tokens_are_reserved_before_the_call_and_corrected_by_what_it_took() -> None:
    limit = RateLimit(tokens_per_minute=1000)
    request = msgspec.structs.replace(ASK, options={"max_tokens": 600})
    dear, cheap, silent = (Limited(talker(n), limit) for n in (900, 10, None))
    await cheap.generate(request)
    await cheap.generate(request)
    assert now() == 0  # 20 of 1000 are used up
    await dear.generate(request)
    assert now() == 0  # 920
    await silent.generate(request)
    assert now() == pytest.approx(0.52 * 60)  # 600 more would have been 1520
    await cheap.generate(request)
    assert now() == pytest.approx(1.12 * 60)  # a call that tells nothing keeps its estimate


@with_clock
async def test_a_stream_is_corrected_by_the_usage_at_its_end() -> None:
    model = Limited(talker(10), RateLimit(tokens_per_minute=1000))
    request = msgspec.structs.replace(ASK, options={"max_tokens": 900})
    for _ in range(10):
        [_ async for _ in model.stream(request)]
    assert now() == 0


@with_clock
async def test_a_permit_that_is_told_twice_counts_the_last() -> None:
    limit = RateLimit(tokens_per_minute=100)
    async with limit.permit(100) as permit:
        permit.used(10)
        permit.used(60)
        permit.used(None)
    async with limit.permit(40):
        assert now() == 0
    async with limit.permit(1):
        assert now() == pytest.approx(0.6)


@with_clock
async def test_tokens_that_come_back_let_who_waits_go_at_once() -> None:
    model = Limited(talker(), limit := RateLimit(tokens_per_minute=1000))
    async with limit.permit(900) as permit:
        waiting = asyncio.create_task(model.generate(msgspec.structs.replace(ASK, options={"max_tokens": 500})))
        await asyncio.sleep(1)
        permit.used(20)
    await waiting
    assert now() == 1


@with_clock
async def test_a_call_of_more_than_a_minutes_worth_waits_for_all_of_it_and_is_paid_off() -> None:
    limit = RateLimit(tokens_per_minute=100)
    async with limit.permit(50):
        pass
    async with limit.permit(250):
        assert now() == pytest.approx(30)
    async with limit.permit(100):
        assert now() == pytest.approx(30 + 150)


@with_clock
async def test_a_large_call_is_not_passed_by_small_ones() -> None:
    limit, order = RateLimit(tokens_per_minute=100), list[int]()

    async def call(tokens: int) -> None:
        async with limit.permit(tokens):
            order.append(tokens)

    await asyncio.gather(*(call(n) for n in (90, 80, 1, 2, 3)))
    assert order == [90, 80, 1, 2, 3]


@with_clock
async def test_a_request_whose_wait_for_tokens_is_cancelled_is_given_back() -> None:
    limit = RateLimit(requests_per_minute=2, tokens_per_minute=100)
    async with limit.permit(100):
        pass
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001), limit.permit(100):
            pass
    async with limit.permit(0):
        assert now() == pytest.approx(0.001)


def test_an_estimate_is_a_quarter_of_the_characters_and_what_may_be_answered() -> None:
    spec = ToolSpec("tool", "1234", {})
    request = ModelRequest(
        system=SystemMessage("s" * 100),
        messages=[
            UserMessage([TextPart("u" * 40), ImagePart(url="http://x")]),
            AssistantMessage("", tool_calls=[ToolCall("c", "tool", "a" * 16)]),
            ToolResponseMessage(responses=[ToolResponse("c", "tool", [ImagePart(data=b"1")])]),
        ],
        tools=[spec],
    )
    assert estimate(request) == (100 + 40 + 4 + 16 + 4 + 4 + len("{}")) // 4 + 2 * 1000 + 500
    bounded = msgspec.structs.replace(ASK, options={"max_output_tokens": 7})
    assert estimate(bounded) == 7


# -- at once


class Held:
    """Says a word a time, whenever `go` lets it; fails at the end where told to."""

    name = "held"

    def __init__(self, error: Exception | None = None) -> None:
        self.go = asyncio.Semaphore(0)
        self.error = error
        self.running = self.most = 0

    async def generate(self, request: ModelRequest) -> ModelResponse:
        *_, last = [delta async for delta in self.stream(request)]
        assert last.response is not None
        return last.response

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield Delta(request.messages[0].text)
            await self.go.acquire()
            if self.error is not None:
                raise self.error
            yield Delta(response=ModelResponse(message=AssistantMessage("Hi")))
        finally:
            self.running -= 1


async def is_free(limit: RateLimit) -> bool:
    """Whether a call could be made now."""
    try:
        async with asyncio.timeout(0), limit.permit():
            return True
    except TimeoutError:
        return False


async def test_a_call_counts_until_its_stream_has_ended() -> None:
    model, limit = Held(), RateLimit(max_concurrent=1)
    async with aclosing(Limited(model, limit).stream(ASK)) as deltas:
        assert (await anext(deltas)).text == "Hi"
        assert not await is_free(limit)
        model.go.release()
        await anext(deltas)
        assert not await is_free(limit)
        assert await anext(deltas, None) is None
        assert await is_free(limit)


async def leaves(model: Limited) -> None:
    async with aclosing(model.stream(ASK)) as deltas:
        await anext(deltas)


async def fails(model: Limited) -> None:
    with pytest.raises(OSError, match="broken"):
        [_ async for _ in model.stream(ASK)]


async def fails_whole(model: Limited) -> None:
    with pytest.raises(OSError, match="broken"):
        await model.generate(ASK)


async def is_cancelled(model: Limited) -> None:
    async def read() -> None:
        async for _ in model.stream(ASK):
            asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]

    with suppress(asyncio.CancelledError):
        await asyncio.create_task(read())


@pytest.mark.parametrize("way_out", [leaves, fails, fails_whole, is_cancelled])
async def test_a_permit_is_given_back_on_any_way_out(way_out: Callable[[Limited], Any]) -> None:
    held, limit = Held(OSError("broken")), RateLimit(max_concurrent=1)
    if way_out in (fails, fails_whole):
        held.go.release()
    await way_out(Limited(held, limit))
    assert held.running == 0
    assert await is_free(limit)
    assert repr(limit) == "<RateLimit(max_concurrent=1) 0 at once, 0 waiting>"


async def test_a_stream_that_is_dropped_gives_its_permit_back() -> None:
    limit = RateLimit(max_concurrent=1)
    deltas = Limited(Held(), limit).stream(ASK)
    await anext(deltas)
    del deltas
    gc.collect()
    async with limit.permit():  # asyncio closes a dropped generator a moment later
        pass


@with_clock
async def test_no_more_than_so_many_are_under_way_and_they_go_in_their_order() -> None:
    model = Held()
    limited = Limited(model, limit := RateLimit(max_concurrent=2))
    order: list[int] = []

    async def call(number: int) -> None:
        await limited.generate(ASK)
        order.append(number)

    calls = [asyncio.create_task(call(n)) for n in range(5)]
    await asyncio.sleep(1)
    assert repr(limit) == "<RateLimit(max_concurrent=2) 2 at once, 3 waiting>"
    for _ in calls:
        model.go.release()
    await asyncio.gather(*calls)
    assert (order, model.most) == ([0, 1, 2, 3, 4], 2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.none() | st.integers(0, 8)), max_size=8),
)
def test_whoever_is_cancelled_when_no_permit_is_lost_or_given_twice(
    most: int, calls: list[tuple[int, int, int | None]]
) -> None:
    limit = RateLimit(requests_per_minute=60, tokens_per_minute=60, max_concurrent=most)
    running: list[int] = []

    async def call(number: int, comes: int, stays: int) -> None:
        await asyncio.sleep(comes)
        async with limit.permit(20):
            running.append(number)
            assert len(running) <= most
            try:
                await asyncio.sleep(stays)
            finally:
                running.remove(number)

    async def main() -> None:
        tasks = [asyncio.create_task(call(n, comes, stays)) for n, (comes, stays, _) in enumerate(calls)]
        for task, (*_, cancelled) in zip(tasks, calls, strict=True):
            if cancelled is not None:
                asyncio.get_running_loop().call_later(cancelled, task.cancel)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
        await asyncio.sleep(600)
        async with asyncio.timeout(0.5):  # all of it is there again
            for _ in range(3):
                async with limit.permit(20):
                    pass
        assert repr(limit).endswith(" 0 at once, 0 waiting>")

    run_with_clock(main())


async def test_who_is_cancelled_when_the_permit_has_just_come_passes_it_on() -> None:
    limit = RateLimit(max_concurrent=1)
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def take() -> None:
        async with limit.permit():
            pass

    async with limit.permit():
        first, second = asyncio.create_task(take()), asyncio.create_task(take())
        await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    assert told == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 90)), max_size=8))
def test_no_rounding_makes_a_call_wait_for_ever_or_go_too_soon(worth: int, calls: list[tuple[int, int]]) -> None:
    limit = RateLimit(tokens_per_minute=worth)
    level = Fraction(0)

    async def main() -> None:
        nonlocal level
        for tokens, pause in calls:
            level = max(level - (pause * worth) / Fraction(60), Fraction(0))
            await asyncio.sleep(pause)
            over = max(level + min(tokens, worth) - worth, Fraction(0))
            due = now() + float(over / worth * 60)
            async with limit.permit(tokens):
                assert now() == pytest.approx(due, abs=1e-4)
            level += tokens - over

    run_with_clock(main())


# -- threads


def in_threads(*mains: Callable[[], Any]) -> None:
    """Run each in an event loop and a thread of its own, all at once."""
    errors: list[BaseException] = []

    def run(main: Callable[[], Any]) -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(main,)) for main in mains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_threads_with_a_loop_each_keep_to_one_limit() -> None:
    limit = RateLimit(requests_per_minute=100_000, tokens_per_minute=10_000_000, max_concurrent=2)
    running, most, done = set[object](), list[int](), list[int]()

    async def one() -> None:
        async with limit.permit(100) as permit:
            running.add(me := object())
            most.append(len(running))
            await asyncio.sleep(0)
            running.discard(me)
            permit.used(50)
        done.append(1)

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(50)))

    in_threads(main, main, main)
    assert len(done) == 150
    assert max(most) <= 2


def test_a_thread_that_ends_lets_the_one_that_waits_in_another_go() -> None:
    limit = RateLimit(max_concurrent=1)
    held, waits = threading.Event(), threading.Event()

    async def holds() -> None:
        async with limit.permit():
            held.set()
            await asyncio.to_thread(waits.wait, 10)

    async def comes() -> None:
        await asyncio.to_thread(held.wait, 10)
        asyncio.get_running_loop().call_soon(waits.set)  # once the next line waits
        async with limit.permit():
            pass

    in_threads(holds, comes)


def test_what_a_closed_loop_left_waiting_does_not_get_the_permit() -> None:
    limit = RateLimit(max_concurrent=1)

    async def main() -> None:
        async with limit.permit():
            await asyncio.to_thread(leave_one_waiting)
        async with asyncio.timeout(5), limit.permit():
            pass

    def leave_one_waiting() -> None:
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(take())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        left.append(waiting)

    async def take() -> None:
        async with limit.permit():
            pytest.fail("nobody runs this loop")

    left: list[Any] = []
    asyncio.run(main())
    left.pop()._log_destroy_pending = False


# -- the wrapper


async def test_a_limited_model_is_the_same_model_in_all_else() -> None:
    async with Limited(OpenAIChat("m", base_url="http://127.0.0.1:1/v1"), RateLimit()) as model:
        assert isinstance(model, ChatModel)
        assert (model.name, model.provider, model.base_url) == ("m", "openai", "http://127.0.0.1:1/v1")
        assert model.native_output_schema is False
    own = Limited(ScriptedModel([], name="s"), RateLimit())
    assert (own.provider, own.base_url, own.native_output_schema) == ("scriptedmodel", None, False)


async def test_closing_it_closes_the_model() -> None:
    class Closing(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    model = Closing([])
    async with Limited(model, RateLimit()):
        pass
    assert model.closed == 1


def test_a_model_may_be_given_by_its_name() -> None:
    assert isinstance(Limited("openai:gpt-x", RateLimit()).model, OpenAIChat)


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "max_concurrent"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_that_cannot_be_meant_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        RateLimit(**{name: value})


def test_what_is_no_model_and_no_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        Limited(object(), RateLimit())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="needs a RateLimit"):
        Limited(talker(), 3)  # pyright: ignore[reportArgumentType]
