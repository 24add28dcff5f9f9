"""Events: immutable, JSON as they are, and told by a run with its id, a number, a path and a time."""

import enum
import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, Retry, RunConfig, RunContext, StateGraph
from agentgraph.events import (
    CheckpointWritten,
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
    ("checkpoint", CheckpointWritten(checkpoint_id="0.2", step=1)),
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


class Odd:
    def __repr__(self) -> str:
        return "<odd \ud800>"


class Mute:
    def __repr__(self) -> str:
        raise KeyError("mute")

    def __str__(self) -> str:
        raise KeyError("mute")


class Words(str):
    __slots__ = ()


@dataclass
class Holder:
    held: Any = None


class Level(enum.Enum):
    ODD = Odd()


def cyclic() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def looped() -> Holder:
    made = Holder()
    made.held = {"self": made}
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


ODD_VALUES: dict[str, tuple[Any, Any]] = {
    "a list that holds itself": (cyclic(), "[1, [...]]"),
    "an object that holds itself": (looped(), "Holder(held={'self': ...})"),
    "an object that cannot be shown": ([1, Mute()], [1, "<Mute that cannot be shown>"]),
    "a key that is a tuple": ({(1, 2): "v", Words("w"): 1}, {"(1, 2)": "v", "w": 1}),
    "a key that cannot be shown": ({Mute(): [Odd()]}, {"<Mute that cannot be shown>": ["<odd \ufffd>"]}),
    "a key that is a number": ({1: Odd()}, {"1": "<odd \ufffd>"}),
    "half a surrogate pair": ({"\udc00": ["\ud83d\ude00", "\ud800"]}, {"\ufffd": ["\U0001f600", "\ufffd"]}),
    "a number of 5000 digits": ([10**5000], ["<int that cannot be shown>"]),
    "a member of an enum that is an object": ([Level.ODD], ["<Level.ODD: <odd \ufffd>>"]),
    "a text of another class": ([Words("w")], ["w"]),
    "a message that holds an object": (
        UserMessage(content="\ud800", id="m", metadata={"k": Odd()}),
        {"role": "user", "id": "m", "metadata": {"k": "<odd \ufffd>"}, "content": "\ufffd"},
    ),
    "a set of objects": ({Odd}, [repr(Odd)]),
}


@pytest.mark.parametrize(("value", "expected"), ODD_VALUES.values(), ids=ODD_VALUES)
async def test_an_update_of_whatever_value_is_told_and_encodes(value: Any, expected: Any) -> None:
    graph = StateGraph().add_node("write", lambda _: {"key": value, "fine": {"k": [1]}})
    graph.add_edge(START, "write").add_edge("write", END)
    async with graph.compile().stream({}) as events:
        (update,) = [e async for e in events if isinstance(e, StateUpdate)]
    assert update.update == {"key": expected, "fine": {"k": [1]}}
    assert json.loads(msgspec.json.encode(update))["update"]["key"] == expected
    assert events.result.state["key"] is value


async def test_a_value_that_is_too_deep_to_encode_is_told_as_one_that_cannot_be_shown() -> None:
    value = deep()
    graph = StateGraph().add_node("write", lambda _: {"key": value, "\ud800": 1})
    graph.add_edge(START, "write").add_edge("write", END)
    (update,) = [e for e in await told(graph) if isinstance(e, StateUpdate)]
    assert decode(encode(update)) == update
    assert update.update == {"key": "<list that cannot be shown>", "\ufffd": 1}


@pytest.mark.parametrize(
    ("value", "asked"), [({"q": Odd()}, {"q": "<odd \ufffd>"}), (Mute(), "<Mute that cannot be shown>")]
)
async def test_a_question_of_whatever_value_is_told_and_encodes(value: Any, asked: Any) -> None:
    async def ask(state: Any, run: RunContext[None]) -> None:
        run.interrupt(value)

    graph = StateGraph(strategies={}).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    async with graph.compile().stream({}) as events:
        (question,) = [e async for e in events if isinstance(e, InterruptRaised)]
    assert json.loads(encode(question))["value"] == asked
    assert events.result.interrupts[0].value is value


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("\ud800"), "\ufffd"), (ValueError(Mute()), "<ValueError that cannot be shown>")],
    ids=["half a pair", "no text"],
)
async def test_an_error_of_whatever_text_is_told_and_encodes(error: Exception, text: str) -> None:
    async def flaky(state: Any, run: RunContext[None]) -> None:
        if run.attempt < 3:
            raise error

    graph = StateGraph(strategies={})
    graph.add_node("flaky", flaky, retry=Retry(attempts=2, delay=0, on=ValueError))
    graph.add_edge(START, "flaky").add_edge("flaky", END)
    seen: list[Event] = []

    async def read() -> None:
        async with graph.compile().stream({}) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401  # a list made at once would be lost with the error

    with pytest.raises(type(error)) as caught:
        await read()
    assert caught.value is error
    assert [decode(encode(e)) for e in seen] == seen
    assert [e.error for e in seen if isinstance(e, NodeFinished)] == [f"ValueError: {text}"] * 2
    assert [e.message for e in seen if isinstance(e, RunFailed)] == [text]


@pytest.mark.parametrize("value", [object(), {"k": object()}, {("a", "b"): 1}, float, "\ud800"], ids=ascii)
async def test_what_has_no_json_form_is_told_by_its_repr_and_fails_no_run(value: Any) -> None:
    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit(value)
        await run.emit(ToolProgress(call_id="c", name="t", data=value))

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    seen = await told(graph)
    assert [decode(encode(e)) for e in seen] == seen
    assert [type(e) for e in seen if isinstance(e, (Custom, ToolProgress))] == [Custom, ToolProgress]


async def test_a_value_that_holds_itself_is_told_and_fails_no_run() -> None:
    value: list[Any] = []
    value.append(value)

    async def work(state: Any, run: RunContext[None]) -> None:
        await run.emit(value)

    graph = StateGraph(strategies={})
    graph.add_node("work", work).add_edge(START, "work").add_edge("work", END)
    assert [e.data for e in await told(graph) if isinstance(e, Custom)] == ["[[...]]"]


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
