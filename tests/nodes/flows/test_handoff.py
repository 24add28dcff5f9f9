"""Agents that hand the conversation over to each other."""

import json
from typing import Any

import pytest

from agentgraph import Command, ConfigError, RecursionLimitError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import Message, ToolCall, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import HandoffAgent, handoff
from agentgraph.nodes.history import repair
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def to(name: str, message: str = "", id: str = "c1") -> ToolCall:
    return ToolCall(id, f"transfer_to_{name}", json.dumps({"message": message}))


def agent(name: str, steps: list[Any], *targets: str, **options: Any) -> ReactAgent:
    return ReactAgent(name, ScriptedModel(steps), [*map(handoff, targets), *options.pop("tools", ())], **options)


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_the_conversation_goes_to_another_agent_and_its_history_is_valid() -> None:
    billing = ScriptedModel(["Paid."])
    flow = HandoffAgent(
        "desk", [agent("triage", [[to("billing", "an invoice")]], "billing"), ReactAgent("billing", billing)]
    )
    result = await flow.run("My invoice?")
    assert texts(result.messages) == ["My invoice?", "", "Handed over to billing.", "Paid."]
    assert repair(billing.requests[0].messages) == (billing.requests[0].messages, [])
    assert (result.text, result.output, result.status) == ("Paid.", "Paid.", "done")


async def test_agents_may_hand_it_back_and_forth() -> None:
    a = agent("a", [[to("b")], [to("b")], "Done."], "b")
    b = agent("b", [[to("a")], [to("a")]], "a")
    assert (await HandoffAgent("h", [a, b]).run("go")).text == "Done."


async def test_in_separate_conversations_each_agent_knows_its_own() -> None:
    a_model, b_model = ScriptedModel([[to("b", "do x")], "Bye."]), ScriptedModel([[to("a", "x is done")]])
    agents = [ReactAgent("a", a_model, [handoff("b")]), ReactAgent("b", b_model, [handoff("a")])]
    result = await HandoffAgent("h", agents, conversation="separate").run("go")
    assert texts(b_model.requests[0].messages) == ["do x"]
    assert texts(a_model.requests[1].messages) == ["go", "", "Handed over to b.", "x is done"]
    assert texts(result.messages) == ["go", "Bye."]


async def test_separate_conversations_go_on_in_the_next_turn_of_a_thread() -> None:
    b_model = ScriptedModel(["One.", "Two."])
    agents = [agent("a", [[to("b")]], "b"), ReactAgent("b", b_model)]
    flow = HandoffAgent("h", agents, conversation="separate", checkpointer=MemorySaver())
    await flow.run("go", T)
    result = await flow.run("more", T)
    assert texts(b_model.requests[1].messages) == ["go", "One.", "more"]
    assert texts(result.messages) == ["go", "One.", "more", "Two."]


@pytest.mark.parametrize("conversation", ["shared", "separate"])
@pytest.mark.parametrize(("stay", "answer"), [(True, "b again"), (False, "a again")])
async def test_the_next_turn_goes_to_whoever_had_it_last_or_to_the_first(
    conversation: Any, stay: bool, answer: str
) -> None:
    agents = [agent("a", [[to("b")], "a again"], "b"), agent("b", ["b", "b again"])]
    flow = HandoffAgent("h", agents, stay=stay, conversation=conversation, checkpointer=MemorySaver())
    await flow.run("go", T)
    assert (await flow.run("more", T)).text == answer


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_after_a_failed_turn_the_new_question_is_answered(conversation: Any) -> None:
    b_model = ScriptedModel([ValueError("boom"), "Fine."])
    agents = [agent("a", [[to("b", "old")]], "b"), ReactAgent("b", b_model)]
    flow = HandoffAgent("h", agents, conversation=conversation, checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run("new", T)).text == "Fine."
    assert b_model.requests[1].messages[-1].text == "new"
    assert repair(b_model.requests[1].messages) == (b_model.requests[1].messages, [])


async def test_a_handoff_beside_other_calls_is_answered_that_it_must_stand_alone() -> None:
    model = ScriptedModel([[ToolCall("c0", "look"), to("b")], [to("b", id="c2")]])
    agents = [ReactAgent("a", model, [look, handoff("b")]), agent("b", ["Done."])]
    result = await HandoffAgent("h", agents).run("go")
    assert (
        texts(result.messages)[2]
        == "seen\nNot done: call transfer_to_b alone, when you have the answers of the other tools."
    )
    assert result.text == "Done."


async def test_of_several_handoffs_in_one_message_the_first_counts() -> None:
    agents = [agent("a", [[to("c"), to("b", id="c2")]], "b", "c"), agent("b", []), agent("c", ["I am c."])]
    result = await HandoffAgent("h", agents).run("go")
    assert texts(result.messages)[2:] == [
        "Handed over to c.\nNot done: transfer_to_c was called before, and holds.",
        "I am c.",
    ]


async def test_a_tool_that_returns_directly_is_no_handoff() -> None:
    @tool(return_direct=True)
    async def form() -> str:
        """Fill in."""
        return "the form"

    flow = HandoffAgent("h", [agent("a", [[ToolCall("c1", "form")]], "b", tools=[form]), agent("b", [])])
    result = await flow.run("go")
    assert (result.text, result.output) == ("the form", "the form")


async def test_a_message_that_a_hook_adds_at_the_end_does_not_hide_a_handoff() -> None:
    async def after_agent(_: Any) -> dict[str, Any]:
        return {"messages": UserMessage("noted")}

    flow = HandoffAgent("h", [agent("a", [[to("b")]], "b", hooks=[after_agent]), agent("b", ["Done."])])
    assert (await flow.run("go")).text == "Done."


async def test_a_question_after_a_handoff_is_answered_by_its_id() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("well?"))

    def made(first: list[Any], second: list[Any]) -> HandoffAgent:
        agents = [agent("a", first, "b"), agent("b", second, tools=[ask])]
        return HandoffAgent("h", agents, conversation="separate", checkpointer=saver)

    saver = MemorySaver()
    (asked,) = (await made([[to("b")]], [[ToolCall("c9", "ask")]]).run("go", T)).interrupts
    assert asked.node == ("b", "tools")
    assert (await made([], ["Done."]).run(Command(resume={asked.id: "yes"}), T)).text == "Done."


async def test_agents_that_hand_over_for_ever_reach_the_runs_limit() -> None:
    def always(name: str, other: str) -> ReactAgent:
        def answer(request: ModelRequest) -> list[ToolCall]:
            return [to(other, id=f"c{len(request.messages)}")]

        return ReactAgent(name, FunctionModel(answer), [handoff(other)])

    with pytest.raises(RecursionLimitError):
        await HandoffAgent("h", [always("a", "b"), always("b", "a")]).run("go")


async def test_a_handoff_may_have_a_name_and_a_description_of_its_own() -> None:
    billing = ReactAgent("billing desk", ScriptedModel(["Paid."]), description="Knows invoices.")
    assert handoff(billing).name == "transfer_to_billing_desk"
    assert handoff(billing).description.endswith("who goes on with it. Knows invoices.")
    named = handoff(billing, name="escalate", description="For money.")
    triage = ReactAgent("triage", ScriptedModel([[ToolCall("c1", "escalate", "{}")]]), [named])
    assert (await HandoffAgent("h", [triage, billing]).run([UserMessage("go")])).text == "Paid."


def test_faults_are_told_where_they_are_made() -> None:
    with pytest.raises(ConfigError, match="'a' hands over to an unknown agent 'bb'; did you mean 'b'"):
        HandoffAgent("h", [agent("a", [], "bb"), agent("b", [])])
    with pytest.raises(ConfigError, match="unknown agent 'x'"):
        HandoffAgent("h", [agent("a", [])], start="x")
    with pytest.raises(ConfigError, match="an agent or its name"):
        handoff(3)


def test_it_is_drawn_with_the_ways_that_the_agents_may_take() -> None:
    drawn = HandoffAgent("h", [agent("a", [], "b"), agent("b", [])], start="b").app.mermaid()
    assert "n0 -.-> n1" in drawn
    assert "n1 -.-> n0" not in drawn
    assert "n1 -.-> end_" in drawn
