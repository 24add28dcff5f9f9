"""Threads that outlive the code that began them: what a later version, or another process, makes of them."""

import enum
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentgraph import END, START, Command, CompiledGraph, ConflictError, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer
from agentgraph.errors import CodecError, UpdateError
from agentgraph.strategies import Append

T = RunConfig(thread_id="t")


class Log(TypedDict):
    log: Annotated[list[str], Append()]
    n: int


async def nothing(state: Any) -> None: ...


async def good(state: Any) -> dict[str, Any]:
    return {"log": ["good"]}


def beside(saver: Checkpointer, state: Any = Log, **nodes: Any) -> CompiledGraph[Any]:
    """A graph of these nodes beside each other."""
    graph = StateGraph(state)
    for name, fn in nodes.items():
        graph.add_node(name, fn)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("given", [None, {}])
async def test_a_wrong_update_beside_a_good_one_is_made_anew_when_its_node_has_been_mended(
    saver: Checkpointer, given: Any
) -> None:
    async def wrong(state: Any) -> dict[str, Any]:
        return {"lgo": ["wrong"]}

    async def mended(state: Any) -> dict[str, Any]:
        return {"log": ["mended"]}

    with pytest.raises(UpdateError, match="'b' returned an update with an unknown state key 'lgo'"):
        await beside(saver, a=good, b=wrong).invoke({}, T)
    result = await beside(saver, a=good, b=mended).invoke(given, T)
    assert result.state["log"] == (["good", "mended"] if given is None else ["good", "good", "mended"])


async def test_of_two_that_wrote_one_key_both_run_again_when_one_has_been_mended(saver: Checkpointer) -> None:
    async def one(state: Any) -> dict[str, Any]:
        return {"n": 1}

    async def two(state: Any) -> dict[str, Any]:
        return {"n": 2}

    with pytest.raises(ConflictError):
        await beside(saver, a=one, b=two).invoke({}, T)
    assert (await beside(saver, a=good, b=two).invoke(None, T)).state == {"log": ["good"], "n": 2}


class Older(TypedDict):
    log: Annotated[list[str], Append()]
    gone: str


async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
    return {"log": [run.interrupt("?")]}


async def both(state: Any) -> dict[str, Any]:
    return {"log": ["both"], "gone": "kept"}


@pytest.mark.case("F12")
@pytest.mark.parametrize("given", [Command(resume="yes"), {}])
async def test_a_key_that_is_gone_from_what_a_node_beside_a_question_wrote_is_kept_aside(
    saver: Checkpointer, given: Any
) -> None:
    await beside(saver, Older, a=both, b=ask).invoke({}, T)
    result = await beside(saver, Log, a=nothing, b=ask).invoke(given, T)
    assert result.state["log"] == ["both", *(["yes"] if isinstance(given, Command) else [])]
    found = await beside(saver, Older, a=both, b=ask).state(T)
    assert found is not None
    assert found.state["gone"] == "kept"


async def test_a_key_that_is_gone_from_the_steps_of_a_paused_subgraph_does_not_stop_it(saver: Checkpointer) -> None:
    def build(state: Any) -> CompiledGraph[Any]:
        inner = StateGraph(state)
        inner.add_node("first", both)
        inner.add_node("ask", ask)
        inner.add_edge(START, "first")
        inner.add_edge("first", "ask")
        inner.add_edge("ask", END)
        return beside(saver, Log, sub=inner.compile(name="inner"))

    await build(Older).invoke({}, T)
    assert (await build(Log).invoke(Command(resume="yes"), T)).state["log"] == ["both", "yes"]


async def test_what_a_key_took_in_one_process_it_takes_in_the_next(saver: Checkpointer) -> None:
    async def clear(state: Any) -> dict[str, Any]:
        return {"n": None}

    await beside(saver, a=clear).invoke({"n": 1}, T)
    assert (await beside(saver, a=good).invoke({}, T)).state == {"log": ["good"], "n": None}


async def test_update_state_mends_a_value_whose_type_no_longer_fits(saver: Checkpointer) -> None:
    class Texts(TypedDict):
        n: str

    await beside(saver, a=nothing).invoke({"n": 1}, T)
    app = beside(saver, Texts, a=nothing)
    with pytest.raises(CodecError, match=r"state\['n'\] does not fit its type any more.*by update_state\(\)"):
        await app.invoke({}, T)
    await app.update_state(T, {"n": "one"})
    assert (await beside(saver, Texts, a=nothing).invoke({}, T)).state == {"n": "one"}


class Colour(enum.Enum):
    RED = 1


async def test_an_enums_members_fit_their_key_after_another_key_came(saver: Checkpointer) -> None:
    class Colours(TypedDict):
        one: Colour
        several: dict[Colour, list[Colour]]

    class More(Colours):
        n: int

    given = {"one": Colour.RED, "several": {Colour.RED: [Colour.RED]}}
    await beside(saver, Colours, a=nothing).invoke(given, T)
    assert (await beside(saver, More, a=nothing).invoke({}, T)).state == given


class Point(msgspec.Struct):
    x: int


async def test_what_validation_made_of_a_value_is_the_same_read_from_the_store(saver: Checkpointer) -> None:
    class Points(TypedDict):
        one: Point
        more: Annotated[list[Point], Append()]
        colour: Colour

    def build() -> CompiledGraph[Points]:
        graph = StateGraph(Points, validate=True)
        graph.add_node("a", lambda s: {"more": [{"x": 2}], "colour": Colour.RED})
        graph.add_edge(START, "a")
        graph.add_edge("a", END)
        return graph.compile(checkpointer=saver)

    result = await build().invoke({"one": {"x": 1}}, T)
    assert result.state == {"one": Point(1), "more": [Point(2)], "colour": Colour.RED}
    assert (await build().invoke({}, T)).state["more"] == [Point(2), Point(2)]
    found = await build().state(T)
    assert found is not None
    assert found.state["one"] == Point(1)


async def test_what_an_older_version_has_pruned_is_checked_by_the_newer(saver: Checkpointer) -> None:
    class Texts(TypedDict):
        n: Annotated[list[int], Append()]

    older = beside(saver, a=nothing)
    await older.invoke({"n": 1}, T)
    await beside(saver, Texts, a=nothing).invoke({}, T)  # reads the log's updates as those of a list
    await older.prune("t", keep=1)
    with pytest.raises(CodecError, match=r"state\['n'\] does not fit its type any more: Expected `array`, got `int`"):
        await beside(saver, Texts, a=nothing).invoke({"n": 2}, T)
