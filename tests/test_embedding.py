"""One compiled graph in many hands: event loops one after the other, threads, a notebook, many runs at once."""

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest

from agentgraph import END, START, RunConfig, RunContext, StateGraph, SyncInLoopError
from agentgraph.events import Custom
from agentgraph.strategies import Append


class Log(TypedDict):
    log: Annotated[list[Any], Append()]


async def work(state: Log, run: RunContext[Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    await run.emit(run.context)
    return {"log": [run.node, run.context]}


def in_thread(state: Log, run: RunContext[Any]) -> dict[str, Any]:
    run.emit(run.context)
    return {"log": [run.node, run.context]}


def app_of_all_kinds() -> Any:
    """An app with nodes in the loop and in threads, beside each other and in a subgraph."""
    inner = StateGraph(Log)
    inner.add_node("inner", work).add_edge(START, "inner").add_edge("inner", END)
    graph = StateGraph(Log)
    graph.add_node("one", work).add_node("thread", in_thread).add_node("sub", inner.compile())
    graph.add_node("last", work, timeout=60).add_edge(START, "one").add_edge(START, "thread").add_edge(START, "sub")
    graph.add_edge(["one", "thread", "sub"], "last").add_edge("last", END)
    return graph.compile()


def log_of(context: Any) -> list[Any]:
    return [part for node in ("one", "thread", "inner", "last") for part in (node, context)]


LIMITED = RunConfig(max_concurrency=2, timeout=60)


@pytest.mark.case("J1")
def test_one_app_runs_in_one_event_loop_after_another() -> None:
    app = app_of_all_kinds()
    for number in range(3):
        assert asyncio.run(app.invoke({}, LIMITED, context=number)).state["log"] == log_of(number)


@pytest.mark.case("J1")
def test_one_app_is_streamed_in_one_event_loop_after_another() -> None:
    app = app_of_all_kinds()

    async def read(context: Any) -> list[Any]:
        async with app.stream({}, LIMITED, context=context, buffer=2) as events:
            return [event.data async for event in events if isinstance(event, Custom)]

    for number in range(3):
        assert asyncio.run(read(number)) == [number] * 4


def test_one_app_runs_in_several_threads_with_a_loop_each_at_once() -> None:
    app, count = app_of_all_kinds(), 4
    all_there = threading.Barrier(count, timeout=10)

    def run(context: int) -> list[Any]:
        all_there.wait()
        return app.invoke_sync({}, LIMITED, context=context).state["log"]

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(run, range(count))) == [log_of(n) for n in range(count)]


# the form for code without an event loop


def test_the_blocking_form_gives_what_the_other_one_does() -> None:
    app = app_of_all_kinds()
    config = RunConfig(run_id="r")
    assert app.invoke_sync({}, config, context="c") == asyncio.run(app.invoke({}, config, context="c"))


@pytest.mark.case("J2")
@pytest.mark.case("J12")
async def test_the_blocking_form_refuses_at_once_where_a_loop_runs_and_says_what_to_write() -> None:
    app = app_of_all_kinds()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(SyncInLoopError, match=r"write `await app.invoke\(...\)` instead"):
            app.invoke_sync({})
        gc.collect()
    assert [str(w.message) for w in warned] == []


@pytest.mark.case("J12")
def test_cells_of_a_notebook_await_one_after_the_other_in_the_same_loop() -> None:
    app = app_of_all_kinds()
    with asyncio.Runner() as notebook:

        async def cell(context: str) -> list[Any]:
            with pytest.raises(SyncInLoopError):
                app.invoke_sync({}, context=context)
            return (await app.invoke({}, context=context)).state["log"]

        assert notebook.run(cell("first")) == log_of("first")
        assert notebook.run(cell("second")) == log_of("second")


@pytest.mark.case("J12")
async def test_the_blocking_form_works_in_a_thread_beside_a_running_loop() -> None:
    app = app_of_all_kinds()
    result = await asyncio.to_thread(app.invoke_sync, {}, None, context="thread")
    assert result.state["log"] == log_of("thread")


def test_an_error_comes_out_of_the_blocking_form_as_itself() -> None:
    async def fail(state: Log) -> None:
        raise KeyError("mine")

    graph = StateGraph(Log).add_node("fail", fail).add_edge(START, "fail").add_edge("fail", END)
    with pytest.raises(KeyError, match="mine"):
        graph.compile().invoke_sync({})


# many runs at once


@pytest.mark.case("J3")
async def test_a_thousand_runs_at_once_each_come_to_their_own_result() -> None:
    async def double(state: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": state["n"] * 2}

    async def look(state: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"seen": state["n"]}

    graph = StateGraph().add_node("a", double).add_node("b", double).add_node("look", look).add_node("last", double)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "look")
    graph.add_edge(["b", "look"], "last").add_edge("last", END)
    app = graph.compile()
    results = await asyncio.gather(*[app.invoke({"n": n}) for n in range(1000)])
    assert [(r.state["n"], r.state["seen"]) for r in results] == [(n * 8, n * 2) for n in range(1000)]
    assert len({r.run_id for r in results}) == 1000


@pytest.mark.case("J13")
async def test_no_run_sees_anything_of_another() -> None:
    wrong: list[str] = []

    async def look(state: Log, run: RunContext[dict[str, int]]) -> dict[str, Any]:
        me = run.context["number"]
        for _ in range(3):
            await asyncio.sleep(0)
            seen = (run.config.thread_id, run.config.tags, run.config.metadata, run.run_id, state["log"][:1])
            if seen != (f"t{me}", (f"tag{me}",), {"tools": [me]}, f"r{me}", [me]):
                wrong.append(repr(seen))
            run.scratch.setdefault("seen", []).append(me)
            run.next_iteration()
        await run.emit(me)
        return {"log": [run.scratch["seen"], run.iterations]}

    graph = StateGraph(Log).add_node("a", look).add_node("b", look)
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()

    async def one(me: int) -> Any:
        config = RunConfig(thread_id=f"t{me}", tags=(f"tag{me}",), metadata={"tools": [me]}, run_id=f"r{me}")
        async with app.stream({"log": me}, config, context={"number": me}) as events:
            told = [e async for e in events]
        assert {e.run_id for e in told} == {f"r{me}"}
        assert [e.data for e in told if isinstance(e, Custom)] == [me, me]
        return events.result.state["log"]

    logs = await asyncio.gather(*map(one, range(500)))
    assert wrong == []
    assert logs == [[n, [n] * 6, 2, [n] * 6, 2] for n in range(500)]


async def test_the_context_object_reaches_the_nodes_as_it_is() -> None:
    mine = object()

    async def look(state: Log, run: RunContext[object]) -> dict[str, Any]:
        return {"log": run.context is mine}

    graph = StateGraph(Log).add_node("look", look).add_edge(START, "look").add_edge("look", END)
    assert (await graph.compile().invoke({}, context=mine)).state["log"] == [True]


async def test_the_input_is_left_as_it_was() -> None:
    graph = StateGraph(Log).add_node("work", work).add_edge(START, "work").add_edge("work", END)
    given = {"log": ["mine"]}
    app = graph.compile()
    first, second = await app.invoke(given, context=1), await app.invoke(given, context=2)
    assert given == {"log": ["mine"]}
    assert (first.state["log"], second.state["log"]) == (["mine", "work", 1], ["mine", "work", 2])


# what cannot be changed


@pytest.mark.case("J13")
@pytest.mark.parametrize("name", ["tools", "plan", "name", "invoke"])
def test_a_compiled_graph_cannot_be_changed_and_the_error_says_what_to_do_instead(name: str) -> None:
    app = app_of_all_kinds()
    before = str(app)
    with pytest.raises(AttributeError, match="shared between runs and cannot be changed"):
        setattr(app, name, "mine")
    assert str(app) == before


def test_a_builder_may_go_on_to_change_without_touching_what_it_compiled() -> None:
    graph = StateGraph(Log).add_node("a", work).add_edge(START, "a").add_edge("a", END)
    app = graph.compile()
    before = str(app)
    graph.add_node("b", work).add_edge("a", "b").add_edge("b", END)
    assert str(app) == before
    assert app.invoke_sync({}, context=1).state["log"] == ["a", 1]
    assert graph.compile().invoke_sync({}, context=1).state["log"] == ["a", 1, "b", 1]
