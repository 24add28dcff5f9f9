"""A supervisor, and the agents that it lets work."""

import json
from typing import Any

import msgspec
import pytest

from agentgraph import Command, ConfigError, RecursionLimitError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import AssistantMessage, Message, ToolCall, Usage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import SequentialAgent, SupervisorAgent
from agentgraph.nodes.history import repair
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def give(name: str, task: str, id: str = "c1") -> ToolCall:
    return ToolCall(id, name, json.dumps({"task": task}))


def over(name: str, id: str = "c1") -> ToolCall:
    return ToolCall(id, f"transfer_to_{name}", '{"message": "do it"}')


def does(request: ModelRequest) -> str:
    return f"did {request.messages[-1].text}"


async def test_agents_do_tasks_at_once_each_in_a_conversation_of_its_own() -> None:
    worker = FunctionModel(does)
    model = ScriptedModel([[give("w", "A"), give("w", "B", "c2")], "All done."])
    team = SupervisorAgent("team", model, [ReactAgent("w", worker, description="Works.")], system_prompt="Lead.")
    result = await team.run("go")
    assert [texts(r.messages) for r in worker.requests] == [["A"], ["B"]]
    assert texts(result.messages) == ["go", "", "did A\ndid B", "All done."]
    assert (model.requests[0].tools[0].name, model.requests[0].tools[0].description) == ("w", "Works.")


async def test_in_a_shared_conversation_agents_see_all_and_it_comes_back_to_the_supervisor() -> None:
    worker = ScriptedModel(["Found it.", "Written."])
    model = ScriptedModel([[over("w")], [over("w", "c2")], "All done."])
    team = SupervisorAgent("team", model, [ReactAgent("w", worker)], conversation="shared", output_key="answer")
    result = await team.run("go")
    back = "team, go on: give the work to another one, or answer."
    told = ["go", "", "Handed over to w.", "Found it.", back]
    assert texts(worker.requests[1].messages) == [*told, "", "Handed over to w."]
    assert texts(result.messages) == [*told, "", "Handed over to w.", "Written.", back, "All done."]
    assert result.state["answer"] == result.output == "All done."
    for request in (*worker.requests, *model.requests):
        assert repair(request.messages) == (request.messages, [])


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_the_next_turn_of_a_thread_begins_with_the_supervisor(conversation: Any) -> None:
    call = over("w") if conversation == "shared" else give("w", "x")
    model = ScriptedModel([[call], "One.", "Two."])
    team = SupervisorAgent(
        "team", model, [ReactAgent("w", FunctionModel(does))], conversation=conversation, checkpointer=MemorySaver()
    )
    await team.run("go", T)
    assert (await team.run("more", T)).text == "Two."


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_a_question_of_an_agent_is_answered_by_its_id_in_another_process(conversation: Any) -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("well?"))

    def made(lead: list[Any], work: list[Any]) -> SupervisorAgent:
        worker = ReactAgent("w", ScriptedModel(work), [ask])
        return SupervisorAgent("team", ScriptedModel(lead), [worker], conversation=conversation, checkpointer=saver)

    saver = MemorySaver()
    call = over("w") if conversation == "shared" else give("w", "x")
    (asked,) = (await made([[call]], [[ToolCall("a1", "ask")]]).run("go", T)).interrupts
    assert asked.node[-2:] == ("w", "tools")
    result = await made(["All done."], ["yes it is"]).run(Command(resume={asked.id: "yes"}), T)
    assert result.text == "All done."


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_usage_is_summed_once(conversation: Any) -> None:
    spent = Usage(input_tokens=100)
    worker = ReactAgent("w", ScriptedModel([AssistantMessage("x", usage=spent)]))
    call = over("w") if conversation == "shared" else give("w", "x")
    asked = AssistantMessage(tool_calls=[call], usage=Usage(input_tokens=1))
    model = ScriptedModel([asked, AssistantMessage("done", usage=Usage(input_tokens=20))])
    result = await SupervisorAgent("team", model, [worker], conversation=conversation).run("go")
    assert result.usage == result.state["_token_usage"] == Usage(input_tokens=121, calls=3)


@pytest.mark.case("E12")
@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_the_limit_of_steps_is_the_whole_runs(conversation: Any) -> None:
    call = over("w") if conversation == "shared" else give("w", "x")

    def made() -> SupervisorAgent:
        lead = ScriptedModel([[call], "done"])
        return SupervisorAgent("team", lead, [ReactAgent("w", FunctionModel(does))], conversation=conversation)

    steps = (await made().run("go")).steps
    assert (await made().run("go", RunConfig(recursion_limit=steps))).text == "done"
    with pytest.raises(RecursionLimitError):
        await made().run("go", RunConfig(recursion_limit=steps - 1))


async def test_an_agent_that_fails_is_an_answer_or_the_flows_failure() -> None:
    def failing() -> ReactAgent:
        return ReactAgent("w", ScriptedModel([ValueError("boom")]))

    model = ScriptedModel([[give("w", "x")], "Sorry."])
    result = await SupervisorAgent("team", model, [failing()]).run("go")
    assert texts(result.messages)[2:] == ["ValueError: boom", "Sorry."]
    with pytest.raises(ValueError, match="boom"):
        await SupervisorAgent("team", ScriptedModel([[over("w")]]), [failing()], conversation="shared").run("go")


async def test_a_supervisor_has_tools_and_an_output_type_of_its_own_and_leads_flows_and_teams() -> None:
    class Report(msgspec.Struct):
        title: str

    @tool
    async def clock() -> str:
        """Tell the time."""
        return "noon"

    inner = SupervisorAgent(
        "inner", ScriptedModel([[give("w", "x", "i1")], "ok"]), [ReactAgent("w", FunctionModel(does))]
    )
    pair = SequentialAgent("pair", [inner, ReactAgent("v", FunctionModel(does))], conversation="separate")
    model = ScriptedModel([[ToolCall("c0", "clock"), give("pair", "x")], '{"title": "T"}'])
    team = SupervisorAgent(
        "team",
        model,
        [pair],
        tools=[clock],
        output_type=Report,
        descriptions={"pair": "Two."},
        checkpointer=MemorySaver(),
    )
    result = await team.run("go", T)
    assert texts(result.messages)[2] == "noon\ndid ok"
    assert result.output == Report("T")


def test_the_agents_are_drawn_in_a_shared_conversation() -> None:
    worker = ReactAgent("w", ScriptedModel([]))
    drawn = SupervisorAgent("team", ScriptedModel([]), [worker], conversation="shared").app.mermaid()
    for line in ('n0[["supervisor"]]', "n0 -.-> n1", "n1 --> n0", "n0 -.-> end_"):
        assert line in drawn
    assert "tools" in SupervisorAgent("team", ScriptedModel([]), [worker]).app.mermaid()


def test_a_description_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="no agent 'x'"):
        SupervisorAgent("team", ScriptedModel([]), [ReactAgent("w", ScriptedModel([]))], descriptions={"x": "y"})
