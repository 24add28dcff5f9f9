"""Debug mode: it finds nodes that change shared values in place, and tells of nodes that block the event loop."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentgraph import END, START, InPlaceChangeError, Retry, RunContext, Send, StateGraph
from agentgraph.events import NodeFinished
from agentgraph.messages import UserMessage
from agentgraph.strategies import Append


class State(TypedDict, total=False):
    items: Annotated[list[Any], Append()]
    nested: dict[str, Any]
    seen: set[int]
    messages: Annotated[list[UserMessage], Append()]


@dataclass(slots=True)
class Slotted:
    names: list[str] = field(default_factory=list[str])


class Base:
    __slots__ = ("_Base__own", "shared", "unset")

    def __init__(self) -> None:
        self._Base__own = [1]
        self.shared = 1

    def grow(self) -> None:
        self._Base__own.append(2)

    def fill(self) -> None:
        self.unset = "a cache"


class Derived(Base):
    """Has a `__dict__` beside its base's slots."""


@dataclass
class Thing:
    names: list[str] = field(default_factory=list[str])


class Packed(msgspec.Struct):
    names: list[str] = []


def line(*names: str) -> StateGraph[State]:
    """A graph whose nodes, added by the test, run one after the other."""
    graph = StateGraph(State)
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def fresh() -> dict[str, Any]:
    """An input that no other test has."""
    return {
        "items": [1, [2, 3]],
        "nested": {
            "a": {"b": [1]},
            "thing": Thing(),
            "packed": Packed(),
            "slotted": Slotted(),
            "derived": Derived(),
            "queue": deque([1, [2]]),
            "bytes": bytearray(b"ab"),
            "path": Path("a/b"),
        },
        "seen": {1, 2},
        "messages": [UserMessage(content="hi", metadata={"k": "v"})],
    }


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "an item appended": ("items", lambda s: s["items"].append(9)),
    "an item replaced by another": ("items", lambda s: s["items"].__setitem__(0, 9)),
    "an order turned": ("items", lambda s: s["items"].reverse()),
    "a list inside a list": ("items", lambda s: s["items"][1].append(9)),
    "a key added deep inside": ("nested", lambda s: s["nested"]["a"].update(c=1)),
    "a list deep inside": ("nested", lambda s: s["nested"]["a"]["b"].clear()),
    "an object's field": ("nested", lambda s: setattr(s["nested"]["thing"], "names", ["x"])),
    "a list in an object": ("nested", lambda s: s["nested"]["thing"].names.append("x")),
    "a struct's field": ("nested", lambda s: setattr(s["nested"]["packed"], "names", ["x"])),
    "a slot of a dataclass": ("nested", lambda s: setattr(s["nested"]["slotted"], "names", ["x"])),
    "a list in a slot": ("nested", lambda s: s["nested"]["slotted"].names.append("x")),
    "a private slot of a base class": ("nested", lambda s: s["nested"]["derived"].grow()),
    "a slot of a base class": ("nested", lambda s: setattr(s["nested"]["derived"], "shared", 2)),
    "a slot emptied": ("nested", lambda s: delattr(s["nested"]["derived"], "shared")),
    "an attribute beside slots": ("nested", lambda s: setattr(s["nested"]["derived"], "more", 2)),
    "a deque": ("nested", lambda s: s["nested"]["queue"].rotate()),
    "a list in a deque": ("nested", lambda s: s["nested"]["queue"][1].append(3)),
    "a byte": ("nested", lambda s: s["nested"]["bytes"].__setitem__(0, 99)),
    "bytes added": ("nested", lambda s: s["nested"]["bytes"].extend(b"c")),
    "a set": ("seen", lambda s: s["seen"].add(3)),
    "a message's metadata": ("messages", lambda s: s["messages"][0].metadata.update(k="w")),
}


@pytest.mark.parametrize(("key", "change"), CHANGES.values(), ids=CHANGES)
async def test_a_change_in_place_is_an_error_that_names_node_and_key(key: str, change: Any) -> None:
    async def work(state: State) -> None:
        change(state)

    app = line("work").add_node("work", work).compile(debug=True)
    with pytest.raises(InPlaceChangeError, match=rf"node 'work' changed the value of key '{key}' in place") as caught:
        await app.invoke(fresh())
    assert (caught.value.nodes, caught.value.key) == (("work",), key)
    assert any("node 'work', step 1" in note for note in caught.value.__notes__)


async def test_without_debug_nothing_is_looked_at() -> None:
    async def work(state: State) -> None:
        state.get("items", []).append(9)

    await line("work").add_node("work", work).compile().invoke({"items": [1]})


async def test_what_a_node_may_do_is_no_change_in_place() -> None:
    async def work(state: State) -> dict[str, Any]:
        state["items"] = [*state.get("items", []), 9]
        state["nested"] = {}
        state.pop("seen")
        return {"items": "new", "nested": {"other": state["items"]}}

    result = await line("work").add_node("work", work).compile(debug=True).invoke(fresh())
    assert result.state.get("items") == [1, [2, 3], "new"]
    assert result.state.get("seen") == {1, 2}


async def test_a_slot_that_is_filled_later_is_a_cache_and_no_change() -> None:
    async def work(state: State) -> None:
        nested = state.get("nested", {})
        nested["derived"].fill()
        assert {str(nested["path"]): hash(nested["path"])}

    await line("work").add_node("work", work).compile(debug=True).invoke(fresh())


async def test_a_node_that_fails_after_a_change_in_place_is_told_of_in_a_note_on_its_own_error() -> None:
    async def work(state: State) -> None:
        state.get("items", []).append(9)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone") as caught:
        await line("work").add_node("work", work).compile(debug=True).invoke(fresh())
    assert caught.value.__notes__[0].startswith("node 'work' changed the value of key 'items' in place")


async def test_a_node_that_fails_without_a_change_in_place_has_no_such_note() -> None:
    async def work(state: State) -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone") as caught:
        await line("work").add_node("work", work).compile(debug=True).invoke(fresh())
    assert not any("in place" in note for note in caught.value.__notes__)


async def test_a_thread_is_looked_at_too() -> None:
    def work(state: State) -> None:
        state.get("items", []).append(9)

    with pytest.raises(InPlaceChangeError, match="node 'work'"):
        await line("work").add_node("work", work).compile(debug=True).invoke(fresh())


async def test_of_nodes_beside_each_other_all_that_could_have_done_it_are_named() -> None:
    changed = asyncio.Event()

    async def guilty(state: State) -> None:
        state.get("items", []).append(9)
        changed.set()

    async def innocent(state: State) -> None:
        await changed.wait()

    graph = StateGraph(State).add_node("innocent", innocent).add_node("guilty", guilty)
    for name in ("innocent", "guilty"):
        graph.add_edge(START, name).add_edge(name, END)
    with pytest.raises(InPlaceChangeError, match=r"^one of the nodes 'innocent', 'guilty'") as caught:
        await graph.compile(debug=True).invoke(fresh())
    assert caught.value.nodes == ("innocent", "guilty")


async def test_a_subgraph_that_changes_its_parents_value_is_named() -> None:
    async def work(state: State) -> None:
        state.get("nested", {}).update(x=1)

    inner = line("work").add_node("work", work).compile()
    with pytest.raises(InPlaceChangeError, match="node 'sub' changed the value of key 'nested'"):
        await line("sub").add_node("sub", inner).compile(debug=True).invoke(fresh())
    debugged = line("work").add_node("work", work).compile(debug=True)
    with pytest.raises(InPlaceChangeError, match="node 'work' changed the value of key 'nested'"):
        await line("sub").add_node("sub", debugged).compile().invoke(fresh())


async def test_what_a_send_carries_is_looked_at_where_it_is_a_dict_and_may_be_anything() -> None:
    async def work(item: Any) -> dict[str, Any]:
        if item != 7:
            item["list"].append(1)
        return {"items": "done"}

    def send(item: Any) -> Any:
        graph = StateGraph(State).add_node("work", work).add_edge("work", END)
        return graph.add_conditional_edges(START, lambda _: [Send("work", item)], ["work"]).compile(debug=True)

    assert (await send(7).invoke({})).state["items"] == ["done"]
    with pytest.raises(InPlaceChangeError, match="node 'work' changed the value of key 'list'"):
        await send({"list": []}).invoke({})


async def test_a_change_is_no_error_that_a_further_attempt_could_mend() -> None:
    attempts: list[int] = []

    async def work(state: State, run: RunContext[None]) -> None:
        attempts.append(run.attempt)
        state.get("items", []).append(9)

    app = line("work").add_node("work", work, retry=Retry(delay=0)).compile(debug=True)
    with pytest.raises(InPlaceChangeError):
        await app.invoke(fresh())
    assert attempts == [1]


async def test_a_failing_nodes_error_is_not_hidden() -> None:
    async def work(state: State) -> None:
        state.get("items", []).append(9)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await line("work").add_node("work", work).compile(debug=True).invoke(fresh())


async def test_events_policies_and_results_are_those_of_a_run_without_debug() -> None:
    async def flaky(state: State, run: RunContext[None]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if run.attempt == 1:
            raise ConnectionError("gone")
        return {"items": run.attempt}

    told: list[Any] = []
    for debug in (True, False):
        app = line("flaky").add_node("flaky", flaky, retry=Retry(delay=0), timeout=60).compile(debug=debug)
        async with app.stream({}) as events:
            told.append([type(event) async for event in events])
        assert events.result.state.get("items") == [2]
    assert told[0] == told[1]
    assert told[0].count(NodeFinished) == 2


async def test_a_run_in_debug_mode_is_cancelled_like_any_other() -> None:
    started, ended = asyncio.Event(), list[str]()

    async def wait(state: State) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("node")

    running = asyncio.create_task(line("wait").add_node("wait", wait).compile(debug=True).invoke({}))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["node"]


# blocking the loop


@pytest.mark.may_block
async def test_a_node_that_keeps_the_loop_from_turning_is_told_with_how_long(caplog: pytest.LogCaptureFixture) -> None:
    async def block(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        time.sleep(0.12)  # noqa: ASYNC251  # what it is about
        await asyncio.sleep(0)
        return {"items": "done"}

    app = line("block").add_node("block", block).compile(debug=True)
    with caplog.at_level(logging.WARNING, logger="agentgraph"):
        result = await app.invoke({})
    (record,) = caplog.records
    assert "node 'block' kept the event loop from turning for 0.1" in record.getMessage()
    assert "make it a plain def, which runs in a worker thread" in record.getMessage()
    assert result.state.get("items") == ["done"]


@pytest.mark.may_block
async def test_only_the_node_that_blocks_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def block(state: State) -> None:
        time.sleep(0.12)  # noqa: ASYNC251  # what it is about

    async def wait(state: State) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    inner = line("block").add_node("block", block).compile(debug=True)
    graph = StateGraph(State).add_node("wait", wait).add_node("sub", inner)
    for name in ("wait", "sub"):
        graph.add_edge(START, name).add_edge(name, END)
    with caplog.at_level(logging.WARNING, logger="agentgraph"):
        await graph.compile(debug=True).invoke({})
    assert [record.getMessage()[:13] for record in caplog.records] == ["node 'block' "]


async def test_waiting_and_threads_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def wait(state: State) -> None:
        await asyncio.sleep(0.12)

    def thread(state: State) -> None:
        time.sleep(0.12)

    graph = StateGraph(State).add_node("wait", wait).add_node("thread", thread)
    for name in ("wait", "thread"):
        graph.add_edge(START, name).add_edge(name, END)
    with caplog.at_level(logging.WARNING, logger="agentgraph"):
        await graph.compile(debug=True).invoke({})
    assert caplog.records == []
