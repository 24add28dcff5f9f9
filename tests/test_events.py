"""Events: immutable, JSON as they are, and told by a run with its id, a number, a path and a time."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, Retry, RunConfig, RunContext, StateGraph, UpdateError
from agentgraph.events import (
    Custom,
    Event,
    HistoryRepaired,
    InterruptRaised,
    ModelDelta,
    NodeFinished,
    NodeStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    StateUpdate,
    StepStarted,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    decode,
    encode,
)
from agentgraph.messages import Usage, UserMessage
from agentgraph.strategies import Append

ONE_OF_EACH: list[tuple[str, Event]] = [
    ("run_started", RunStarted(thread_id="t")),
    ("run_finished", RunFinished(status="done", steps=3, usage=Usage(1, 2))),
    ("run_failed", RunFailed(error_type="ValueError", message="no")),
    ("step_started", StepStarted(step=1, nodes=["a", "b"])),
    ("node_started", NodeStarted(step=1, attempt=2)),
    ("node_finished", NodeFinished(step=1, error="ValueError: no")),
    ("state_update", StateUpdate(update={"k": [1]})),
    ("model_delta", ModelDelta(message_id="m", index=0, call_id="c", name="f", arguments="{")),
    ("tool_started", ToolStarted(call_id="c", name="f", arguments="{}")),
    ("tool_progress", ToolProgress(call_id="c", name="f", progress=0.5, total=1.0, text="half", data=[1])),
    ("tool_finished", ToolFinished(call_id="c", name="f", outcome="ok", content="3", seconds=0.1)),
    ("history_repaired", HistoryRepaired(repairs=["one"])),
    ("interrupt", InterruptRaised(id="i", value="really?")),
    ("custom", Custom(data={"share": 0.5})),
]


async def told(graph: StateGraph[Any], input: dict[str, Any] | None = None, config: RunConfig | None = None) -> Any:
    """All events of a run."""
    async with graph.compile().stream(input or {}, config) as events:
        return [event async for event in events]


@pytest.mark.parametrize(("type_", "event"), ONE_OF_EACH)
def test_the_type_tells_the_events_apart_in_json(type_: str, event: Event) -> None:
    assert json.loads(encode(event))["type"] == type_
    assert decode(encode(event)) == event
    assert encode(event) == msgspec.json.encode(event)


def test_one_of_each_is_one_of_each() -> None:
    assert {type(event) for _, event in ONE_OF_EACH} == set(Event.__args__)


@pytest.mark.parametrize(("type_", "event"), ONE_OF_EACH)
def test_an_event_cannot_be_changed(type_: str, event: Any) -> None:
    with pytest.raises(AttributeError):
        event.seq = 7


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ('{"type": "party"}', "$.type"),
        ('{"type": "custom"}', "data"),
        ('{"type": "step_started", "step": "one", "nodes": []}', "$.step"),
        ('{"type": "run_started", "path": [7]}', "$.path[0]"),
    ],
)
def test_what_is_no_event_is_an_error_that_names_the_path(data: str, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        decode(data)
    assert path in str(caught.value)


async def test_each_event_of_a_run_has_its_id_a_number_a_path_and_a_time() -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit({"half": True})

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    events = await told(graph, config=RunConfig(run_id="r1"))
    assert {e.run_id for e in events} == {"r1"}
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.time for e in events] == sorted(e.time for e in events)
    assert events[0].time > 1_600_000_000
    assert [(type(e).__name__, e.path) for e in events] == [
        ("RunStarted", ()),
        ("StepStarted", ()),
        ("NodeStarted", ("work",)),
        ("Custom", ("work",)),
        ("NodeFinished", ("work",)),
        ("RunFinished", ()),
    ]


async def test_a_step_tells_its_nodes_and_then_their_updates_in_node_order() -> None:
    def writer(text: str) -> Any:
        async def write(state: Any) -> dict[str, str]:
            return {"log": text}

        return write

    graph = StateGraph(strategies={"log": Append()})
    for name in ("b", "a"):
        graph.add_node(name, writer(name)).add_edge(START, name).add_edge(name, END)
    events = await told(graph)
    assert [e.nodes for e in events if isinstance(e, StepStarted)] == [["b", "a"]]
    assert [(e.path, e.update) for e in events if isinstance(e, StateUpdate)] == [
        (("b",), {"log": "b"}),
        (("a",), {"log": "a"}),
    ]


async def test_what_a_node_did_not_write_is_not_told() -> None:
    async def nothing(state: Any) -> None: ...

    async def away(state: Any) -> Command:
        return Command(goto=END)

    graph = StateGraph(strategies={"log": Append()})
    graph.add_node("nothing", nothing).add_node("away", away, ends=[END])
    graph.add_edge(START, "nothing").add_edge("nothing", "away")
    assert [e for e in await told(graph, {"log": "x"}) if isinstance(e, StateUpdate)] == []


async def test_a_subgraphs_events_carry_the_whole_path() -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit("deep")

    inner = StateGraph(strategies={})
    inner.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    middle = StateGraph(strategies={})
    middle.add_node("inner", inner.compile()).add_edge(START, "inner").add_edge("inner", END)
    outer = StateGraph(strategies={})
    outer.add_node("middle", middle.compile()).add_edge(START, "middle").add_edge("middle", END)
    events = await told(outer)
    assert [e.path for e in events if isinstance(e, Custom)] == [("middle", "inner", "work")]
    assert [e.path for e in events if isinstance(e, StepStarted)] == [(), ("middle",), ("middle", "inner")]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.path for e in events if isinstance(e, (RunStarted, RunFinished))] == [(), ()]


async def test_each_attempt_is_told_with_its_number_and_how_it_failed() -> None:
    async def flaky(state: Any, run: RunContext[None]) -> None:
        if run.attempt == 1:
            raise ConnectionError("gone")

    graph = StateGraph(strategies={})
    graph.add_node("flaky", flaky, retry=Retry(attempts=2, delay=0)).add_edge(START, "flaky").add_edge("flaky", END)
    events = await told(graph)
    assert [e.attempt for e in events if isinstance(e, NodeStarted)] == [1, 2]
    assert [e.error for e in events if isinstance(e, NodeFinished)] == ["ConnectionError: gone", None]


async def test_the_last_event_says_how_the_run_ended() -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        run.add_usage(Usage(3, 4))

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    last = (await told(graph))[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.steps, last.usage) == ("done", 1, Usage(3, 4))


async def test_an_interrupt_is_told_once_with_the_path_of_who_asks() -> None:
    async def ask(state: Any, run: RunContext[None]) -> None:
        run.interrupt({"really": True})

    inner = StateGraph(strategies={})
    inner.add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    outer = StateGraph(strategies={})
    outer.add_node("inner", inner.compile()).add_edge(START, "inner").add_edge("inner", END)
    events = await told(outer)
    assert [(e.path, e.value) for e in events if isinstance(e, InterruptRaised)] == [
        (("inner", "ask"), {"really": True})
    ]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "interrupted"


async def test_values_of_an_update_with_no_json_form_stand_as_their_repr() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    async def write(state: Any) -> dict[str, Any]:
        return {"odd": Odd(), "list": [1, Odd()], "message": UserMessage(content="hi", id="m1")}

    graph = StateGraph()
    graph.add_node("write", write).add_edge(START, "write").add_edge("write", END)
    (update,) = [e for e in await told(graph) if isinstance(e, StateUpdate)]
    assert (update.update["odd"], update.update["list"]) == ("<odd>", [1, "<odd>"])
    assert json.loads(encode(update))["update"]["message"]["content"] == "hi"


@pytest.mark.parametrize("value", [object(), {"k": object()}, {("a", "b"): 1}, float, "\ud800"], ids=ascii)
async def test_emitting_what_has_no_json_form_is_an_error_that_names_the_node(value: Any) -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit(value)

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    with pytest.raises(UpdateError, match="node 'work' emits a value with no JSON form"):
        await told(graph)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    )
)
@settings(max_examples=30)
async def test_any_json_value_can_be_emitted_and_comes_out_as_it_was(value: Any) -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit(value)

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    (custom,) = [e for e in await told(graph) if isinstance(e, Custom)]
    assert custom.data == value
    assert decode(encode(custom)) == custom


async def test_an_event_that_is_emitted_twice_is_told_twice_and_stays_the_callers_own() -> None:
    mine = ToolProgress(call_id="c", name="f", text="on")

    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit(mine)
        await run.emit(mine)

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    first, second = [e for e in await told(graph) if isinstance(e, ToolProgress)]
    assert second.seq == first.seq + 1
    assert (mine.seq, mine.run_id, first.text) == (0, "", "on")
