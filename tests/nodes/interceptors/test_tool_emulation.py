"""A model that answers in the place of tools."""

from typing import Any

import pytest

from agentgraph import END, START, ConfigError, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage, Usage
from agentgraph.models import ModelError
from agentgraph.nodes import ReactAgent, ToolNode, tool
from agentgraph.nodes.interceptors import ToolEmulation
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel

THREAD = RunConfig(thread_id="t")


@tool
async def book(seat: int) -> str:
    """Book a seat."""
    raise AssertionError("must not run")


@tool
async def look() -> str:
    """Look."""
    return "seen"


def booking(id: str, seat: Any = 7) -> ToolCall:
    return ToolCall(id, "book", f'{{"seat": {seat}}}')


def answers(messages: list[Any]) -> list[ToolResponse]:
    return [r for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses]


@pytest.mark.parametrize("parallel", [True, False])
async def test_the_model_answers_and_the_tool_does_not_run(parallel: bool) -> None:
    turns = [[booking("c1"), ToolCall("c2", "look")], "done"]
    async with ScriptedModel(["Seat 7 is booked."]) as actor, ScriptedModel(turns) as model:
        emulation = ToolEmulation([book], actor)
        result = await ReactAgent("clerk", model, [book, look], interceptors=[emulation], parallel=parallel).run("go")
    assert [r.content for r in answers(result.messages)] == ["Seat 7 is booked.", "seen"]
    told = actor.requests[0].messages[0].text
    assert "Tool: book\nWhat it does: Book a seat.\n" in told
    assert '"seat":{"type":"integer"}' in told
    assert told.endswith('Call to answer: book({"seat": 7})')


async def test_without_names_and_without_a_model_the_agents_own_answers_for_all() -> None:
    steps = [
        [ToolCall("c1", "look")],
        AssistantMessage("a cat", usage=Usage(3, 1)),
        AssistantMessage("A cat!", usage=Usage(5, 1)),
    ]
    async with ScriptedModel(steps) as model:
        result = await ReactAgent("clerk", model, [book, look], interceptors=[ToolEmulation()]).run("go")
    assert (answers(result.messages)[0].content, result.text, result.usage) == ("a cat", "A cat!", Usage(8, 2, calls=2))


async def test_earlier_answers_are_shown_so_that_it_does_not_contradict_them() -> None:
    turns = [[booking("c1")], "done", [booking("c2", 8)], "done"]
    async with ScriptedModel(["Booked.", "Booked too."]) as actor, ScriptedModel(turns) as model:
        interceptors = [ToolEmulation(["book"], actor)]
        agent = ReactAgent("clerk", model, [book], interceptors=interceptors, checkpointer=MemorySaver())
        await agent.run("go", THREAD)
        await agent.run("go on", THREAD)
    assert "Earlier calls" not in actor.requests[0].messages[0].text
    assert 'Earlier calls:\nbook({"seat": 7}) returned: Booked.\n' in actor.requests[1].messages[0].text


async def test_wrong_arguments_and_unknown_names_are_answered_as_ever() -> None:
    turns = [[booking("c1", '"front"'), ToolCall("c2", "boook")], "done"]
    async with ScriptedModel([]) as actor, ScriptedModel(turns) as model:
        result = await ReactAgent("clerk", model, [book], interceptors=[ToolEmulation(model=actor)]).run("go")
    wrong, unknown = answers(result.messages)
    assert (wrong.is_error, unknown.is_error) == (True, True)
    assert "Expected `int`" in wrong.text
    assert "did you mean 'book'?" in unknown.text


async def test_where_the_model_fails_that_is_the_calls_answer() -> None:
    async with ScriptedModel([ModelError("down")]) as actor, ScriptedModel([[booking("c1")], "done"]) as model:
        result = await ReactAgent("clerk", model, [book], interceptors=[ToolEmulation(model=actor)]).run("go")
    assert answers(result.messages) == [ToolResponse("c1", "book", "ModelError: down", is_error=True)]


async def test_a_tool_that_ends_the_turn_ends_it_emulated_too() -> None:
    @tool(return_direct=True)
    async def form() -> str:
        """Fill in."""
        raise AssertionError("must not run")

    async with ScriptedModel(["Filled in."]) as actor, ScriptedModel([[ToolCall("c1", "form")]]) as model:
        result = await ReactAgent("clerk", model, [form], interceptors=[ToolEmulation(model=actor)]).run("go")
    assert result.text == "Filled in."


async def test_one_emulation_serves_several_agents_each_with_its_own_model() -> None:
    emulation = ToolEmulation()
    for name in ("a", "b"):
        async with ScriptedModel([[ToolCall("c1", "look")], f"seen by {name}", "done"]) as model:
            result = await ReactAgent(name, model, [look], interceptors=[emulation]).run("go")
        assert answers(result.messages)[0].content == f"seen by {name}"


async def test_on_a_tool_node_alone_it_needs_a_model() -> None:
    node = ToolNode([look], interceptors=[ToolEmulation().wrap_tool])

    graph = StateGraph[dict[str, Any]](strategies={"messages": Messages()})
    graph.add_node("tools", node).add_edge(START, "tools").add_edge("tools", END)
    asked = AssistantMessage(tool_calls=[ToolCall("c1", "look")])
    state = (await graph.compile().invoke({"messages": [asked]})).state
    assert "has no model to ask; give it one" in answers(state["messages"])[0].text


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="tools come in a list"):
        ToolEmulation("look")
