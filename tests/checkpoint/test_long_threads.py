"""A conversation that grows turn by turn: what was handed out stays as it was, and nothing of a turn is left over."""

import asyncio
import gc
from typing import Annotated, Any, TypedDict

import pytest

from agentgraph import END, START, CompiledGraph, InputError, RunConfig, StateGraph
from agentgraph.checkpoint import Checkpointer, MemorySaver
from agentgraph.messages import AssistantMessage, RemoveMessage, UserMessage
from agentgraph.strategies import Messages

T = RunConfig(thread_id="t")


class Chat(TypedDict):
    messages: Annotated[list[Any], Messages()]


def chat(saver: Checkpointer, seen: list[list[Any]]) -> CompiledGraph[Chat]:
    async def answer(state: Chat) -> dict[str, Any]:
        seen.append(state["messages"])
        return {"messages": [AssistantMessage(f"to {state['messages'][-1].text}")]}

    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


def texts(messages: list[Any]) -> list[str]:
    return [m.text for m in messages]


async def test_what_nodes_and_callers_have_got_stays_as_it_was_while_the_conversation_grows(
    saver: Checkpointer,
) -> None:
    seen: list[list[Any]] = []
    app = chat(saver, seen)
    got = [(await app.invoke({"messages": [UserMessage(f"{k}")]}, T)).state["messages"] for k in range(4)]
    whole = [text for k in range(4) for text in (f"{k}", f"to {k}")]
    assert [texts(messages) for messages in got] == [whole[: 2 * k + 2] for k in range(4)]
    assert [texts(messages) for messages in seen] == [whole[: 2 * k + 1] for k in range(4)]


async def test_a_turn_without_a_new_message_hands_out_a_list_that_later_turns_leave_alone(saver: Checkpointer) -> None:
    seen: list[list[Any]] = []
    app = chat(saver, seen)
    await app.invoke({"messages": [UserMessage("a")]}, T)
    silent = await app.invoke({}, T)
    await app.invoke({"messages": [UserMessage("b")]}, T)
    assert [len(messages) for messages in seen] == [1, 2, 4]
    assert texts(silent.state["messages"]) == ["a", "to a", "to to a"]


async def test_an_input_that_is_refused_leaves_the_conversation_as_it_was(saver: Checkpointer) -> None:
    app = chat(saver, [])
    await app.invoke({"messages": [UserMessage("a")]}, T)
    with pytest.raises(InputError, match="gone"):
        await app.invoke({"messages": [UserMessage("lost"), RemoveMessage("gone")]}, T)
    assert texts((await app.invoke({"messages": [UserMessage("b")]}, T)).state["messages"]) == [
        "a",
        "to a",
        "b",
        "to b",
    ]


async def test_a_turn_leaves_nothing_for_the_garbage_collector() -> None:
    app = chat(MemorySaver(), [])
    for k in range(3):  # what is made once is made
        await app.invoke({"messages": [UserMessage(f"{k}")]}, T)
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    try:
        await app.invoke({"messages": [UserMessage("last")]}, T)
        await asyncio.sleep(0)
        assert gc.collect() == 0
    finally:
        gc.enable()
