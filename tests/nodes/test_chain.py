"""Interceptors stand round a call like an onion, the first outermost."""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.nodes.chain import compose

Call = Callable[[str], Awaitable[str]]


async def innermost(request: str) -> str:
    return request + "|"


def layer(name: str) -> Callable[[str, Call], Awaitable[str]]:
    async def around(request: str, call: Call) -> str:
        return await call(request + name) + name.upper()

    return around


def test_without_interceptors_the_call_itself_comes_back() -> None:
    none: list[Callable[[str, Call], Awaitable[str]]] = []
    assert compose(none, innermost) is innermost


@settings(max_examples=25)
@given(st.lists(st.sampled_from("abc"), max_size=6))
async def test_the_first_interceptor_is_the_outermost(names: list[str]) -> None:
    answer = await compose([layer(n) for n in names], innermost)("")
    assert answer == "".join(names) + "|" + "".join(reversed(names)).upper()


async def test_an_interceptor_may_answer_itself_and_nothing_further_inside_is_called() -> None:
    async def cached(request: str, call: Call) -> str:
        return "cached"

    async def never(request: str) -> str:
        raise AssertionError("called")

    assert await compose([layer("a"), cached, layer("b")], never)("") == "cachedA"


async def test_an_interceptor_may_call_on_several_times_through_all_that_is_further_inside() -> None:
    async def twice(request: str, call: Call) -> str:
        return await call(request + "1") + " " + await call(request + "2")

    assert await compose([twice, layer("a")], innermost)("") == "1a|A 2a|A"


async def test_an_error_passes_outwards_through_each_and_may_be_answered_by_one() -> None:
    seen: list[str] = []

    def watching(name: str) -> Callable[[str, Call], Awaitable[str]]:
        async def around(request: str, call: Call) -> str:
            try:
                return await call(request)
            finally:
                seen.append(name)

        return around

    async def mending(request: str, call: Call) -> str:
        try:
            return await call(request)
        except ValueError as error:
            return f"mended: {error}"

    async def failing(request: str) -> str:
        raise ValueError("boom")

    assert await compose([watching("a"), mending, watching("b")], failing)("") == "mended: boom"
    with pytest.raises(ValueError, match="boom"):
        await compose([watching("c")], failing)("")
    assert seen == ["b", "a", "c"]


async def test_a_composed_call_may_be_used_again_and_at_once() -> None:
    call = compose([layer("a")], innermost)
    assert [await call("1"), await call("2")] == ["1a|A", "2a|A"]
