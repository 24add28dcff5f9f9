"""Sub-agents, by a hook or as tools: a conversation of its own for each call, as a part of the caller's run."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from agentgraph import Command, ConfigError, RecursionLimitError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import SequentialAgent
from agentgraph.nodes.hooks import SubAgents
from agentgraph.strategies import Replace
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def give(name: str, task: str, id: str = "c1") -> ToolCall:
    return ToolCall(id, name, json.dumps({"task": task}))


def does(request: ModelRequest) -> str:
    return f"did {request.messages[-1].text}"


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    return str(context.interrupt("well?"))


class Asks(FunctionModel):
    """Calls `ask` for its task, then tells task and answer."""

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, request: ModelRequest) -> Any:
        task = request.messages[0].text
        return [ToolCall("a1", "ask")] if len(request.messages) == 1 else f"{task}: {request.messages[-1].text}"


@pytest.mark.case("J6")
async def test_one_agent_called_twice_at_once_has_two_conversations_each_turn_of_a_thread() -> None:
    worker = FunctionModel(does)
    model = ScriptedModel(
        [[give("w", "A"), give("w", "B", "c2")], "One.", [give("w", "C"), give("w", "D", "c2")], "Two."]
    )
    lead = ReactAgent("lead", model, hooks=[SubAgents([ReactAgent("w", worker)])], checkpointer=MemorySaver())
    await lead.run("go", T)
    result = await lead.run("more", T)
    assert [texts(r.messages) for r in worker.requests] == [["A"], ["B"], ["C"], ["D"]]
    assert [t for t in texts(result.messages) if "did" in t] == ["did A\ndid B", "did C\ndid D"]


@pytest.mark.case("J6")
async def test_two_calls_of_one_agent_that_ask_are_answered_each_by_its_id_in_another_process() -> None:
    def made(*steps: Any) -> ReactAgent:
        sub = ReactAgent("w", worker, [ask])
        return ReactAgent("lead", ScriptedModel(steps), hooks=[SubAgents([sub])], checkpointer=saver)

    saver, worker = MemorySaver(), Asks()
    paused = await made([give("w", "A"), give("w", "B", "c2")]).run("go", T)
    first, second = paused.interrupts
    assert first.node == second.node == ("tools", "w", "tools")
    paused = await made().run(Command(resume={second.id: "two"}), T)
    assert paused.interrupts == (first,)
    result = await made("Done.").run(Command(resume={first.id: "one"}), T)
    assert texts(result.messages)[2:] == ["A: one\nB: two", "Done."]
    assert len(worker.requests) == 4


async def test_after_a_crash_a_sub_agent_goes_on_where_it_stood() -> None:
    began = asyncio.Event()
    steps: list[int] = []

    @tool
    async def step(context: ToolContext) -> str:
        """Do a step."""
        steps.append(1)
        return "done"

    async def answer(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            return [ToolCall("a1", "step")]
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return "finished"

    worker = FunctionModel(answer)
    lead = ReactAgent(
        "lead",
        ScriptedModel([[give("w", "A")], "Done."]),
        [ReactAgent("w", worker, [step]).as_tool()],
        checkpointer=MemorySaver(),
    )
    run = asyncio.create_task(lead.run("go", T))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert texts((await lead.run(None, T)).messages)[2:] == ["finished", "Done."]
    assert (len(steps), len(worker.requests)) == (1, 3)


@pytest.mark.case("B12")
async def test_a_cancelled_run_has_stopped_its_sub_agents_tools_before_the_caller_goes_on() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(context: ToolContext) -> str:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert context.cancellation is not None
            ended.set()
        return "never"

    sub = ReactAgent("w", ScriptedModel([[ToolCall("a1", "wait")]]), [wait])
    run = asyncio.create_task(ReactAgent("lead", ScriptedModel([[give("w", "A")]]), [sub.as_tool()]).run("go"))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended.is_set()


@pytest.mark.case("E12")
async def test_its_steps_count_into_the_runs_limit() -> None:
    def made() -> ReactAgent:
        sub = ReactAgent("w", ScriptedModel([*[[ToolCall(f"a{k}", "look")] for k in range(20)], "done"]), [look])
        return ReactAgent("lead", ScriptedModel([[give("w", "A")], "Done."]), [sub.as_tool()])

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    result = await made().run("go", RunConfig(recursion_limit=200))
    assert (result.text, result.steps) == ("Done.", 45)
    with pytest.raises(RecursionLimitError):
        await made().run("go", RunConfig(recursion_limit=44))


@pytest.mark.case("I13")
async def test_its_tokens_are_counted_once_into_the_run_and_the_thread() -> None:
    def said(text: str, tokens: int) -> AssistantMessage:
        return AssistantMessage(text, usage=Usage(input_tokens=tokens))

    sub = ReactAgent("w", ScriptedModel([said("x", 100), said("y", 1000)]))
    calls = AssistantMessage(tool_calls=[give("w", "A"), give("w", "B", "c2")], usage=Usage(input_tokens=1))
    lead = ReactAgent("lead", ScriptedModel([calls, said("Done.", 10)]), [sub.as_tool()], checkpointer=MemorySaver())
    result = await lead.run("go", T)
    assert result.usage == result.state["_token_usage"] == Usage(input_tokens=1111, calls=4)


async def test_its_events_are_told_under_its_name() -> None:
    agents = [ReactAgent("a", ScriptedModel(["one two"])), ReactAgent("b", ScriptedModel(["three"]))]
    model = ScriptedModel([[give("a", "A"), give("b", "B", "c2")], "Done."])
    said: dict[tuple[str, ...], str] = {}
    async with ReactAgent("lead", model, hooks=[SubAgents(agents)]).stream("go") as stream:
        async for event in stream:
            if isinstance(event, ModelDelta) and event.text:
                said[event.path] = said.get(event.path, "") + event.text
    assert said == {("tools", "a", "llm"): "one two", ("tools", "b", "llm"): "three", ("llm",): "Done."}


class Person(msgspec.Struct):
    name: str


@pytest.mark.parametrize("by", ["tool", "hook", "one tool"])
async def test_a_typed_answer_comes_back_as_json_and_is_kept_with_the_callers_thread(by: str) -> None:
    sub = ReactAgent("reader", ScriptedModel(['{"name": "Ada"}']), output_type=Person)
    call = ToolCall("c1", "task", '{"agent": "reader", "task": "Who?"}') if by == "one tool" else give("reader", "Who?")
    lead = ReactAgent(
        "lead",
        ScriptedModel([[call], "Done."]),
        [sub.as_tool()] if by == "tool" else [],
        hooks=[] if by == "tool" else [SubAgents([sub], tool="task" if by == "one tool" else None)],
        checkpointer=MemorySaver(),
    )
    assert texts((await lead.run("go", RunConfig(thread_id="t", durability="sync"))).messages)[2] == '{"name":"Ada"}'


async def test_the_callers_state_is_not_the_sub_agents_and_the_other_way_round() -> None:
    @tool
    async def note(context: ToolContext) -> str:
        """Note."""
        context.update(notes="inner")
        return str(context.state.get("notes"))

    sub = ReactAgent("w", ScriptedModel([[ToolCall("a1", "note")], "x"]), [note], strategies={"notes": Replace()})
    model = ScriptedModel([[give("w", "A")], "Done."])
    lead = ReactAgent("lead", model, [sub.as_tool()], strategies={"notes": Replace()})
    assert (await lead.run({"input": "go", "notes": "outer"})).state["notes"] == "outer"


async def test_one_tool_for_all_names_the_agents_and_refuses_others() -> None:
    agents = {"a": ReactAgent("x", FunctionModel(does), description="Sums."), "b": ReactAgent("x", FunctionModel(does))}
    calls = [
        ToolCall("c1", "task", '{"agent": "c", "task": "T"}'),
        ToolCall("c2", "task", '{"agent": "b", "task": "T"}'),
    ]
    model = ScriptedModel([calls, "Done."])
    result = await ReactAgent("lead", model, hooks=[SubAgents(agents, tool="task")]).run("go")
    (spec,) = model.requests[0].tools
    assert spec.description.endswith("There are:\n- a: Sums.\n- b")
    assert spec.parameters["properties"]["agent"]["enum"] == ["a", "b"]
    assert "Invalid enum value 'c'" in texts(result.messages)[2]
    assert texts(result.messages)[2].endswith("did T")


async def test_a_hook_serves_several_agents_and_a_sub_agent_has_sub_agents() -> None:
    low = SubAgents([ReactAgent("low", FunctionModel(does))])
    mid = [ReactAgent(n, ScriptedModel([[give("low", n)], f"{n} done"]), hooks=[low]) for n in ("m1", "m2")]
    model = ScriptedModel([[give("m1", "A"), give("m2", "B", "c2")], "Done."])
    result = await ReactAgent("lead", model, hooks=[SubAgents(mid)]).run("go")
    assert texts(result.messages)[2:] == ["m1 done\nm2 done", "Done."]


async def test_a_flow_may_be_a_tool_and_return_directly() -> None:
    pair = SequentialAgent(
        "the pair", [ReactAgent(n, FunctionModel(does)) for n in ("a", "b")], conversation="separate"
    )
    done = pair.as_tool(description="Two.", return_direct=True)
    assert (done.name, done.description) == ("the_pair", "Two.")
    result = await ReactAgent("lead", ScriptedModel([[give("the_pair", "T")]]), [done]).run("go")
    assert result.text == "did did T"


async def test_an_error_inside_is_told_to_the_caller_and_a_timeout_stops_the_sub_agent() -> None:
    stopped = asyncio.Event()

    async def never(_: ModelRequest) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    agents = [ReactAgent("bad", ScriptedModel([ValueError("boom")])), ReactAgent("slow", FunctionModel(never))]
    model = ScriptedModel([[give("bad", "A"), give("slow", "B", "c2")], "Done."])
    result = await ReactAgent("lead", model, hooks=[SubAgents(agents, timeout=0.02)]).run("go")
    assert texts(result.messages)[2].splitlines()[0] == "ValueError: boom"
    assert "'slow' timed out" in texts(result.messages)[2]
    assert stopped.is_set()


async def test_a_new_question_on_a_paused_thread_leaves_the_task_behind() -> None:
    model = ScriptedModel([[give("w", "A")], "Fine."])
    lead = ReactAgent("lead", model, [ReactAgent("w", Asks(), [ask]).as_tool()], checkpointer=MemorySaver())
    assert (await lead.run("go", T)).status == "interrupted"
    result = await lead.run([UserMessage("forget it")], T)
    assert texts(result.messages)[2:] == ["this call did not finish: its run was ended before", "forget it", "Fine."]


async def test_one_permit_is_enough_for_an_agent_and_its_sub_agents() -> None:
    model = ScriptedModel([[give("w", "A"), give("w", "B", "c2")], "Done."])
    lead = ReactAgent("lead", model, [ReactAgent("w", FunctionModel(does)).as_tool()])
    assert (await lead.run("go", RunConfig(max_concurrency=1, timeout=5))).text == "Done."


def test_faults_are_told_where_they_are_made() -> None:
    agent = ReactAgent("a", ScriptedModel([]))
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "no agents"),
        (agent, {}, "agents come in a list"),
        ([agent, agent], {}, "two agents have one name"),
        ([agent.graph], {}, "call compile"),
        ([agent], {"descriptions": {"b": "x"}}, "no agent 'b'"),
        ([agent], {"timeout": 0}, "timeout"),
    ]
    for agents, options, told in cases:
        with pytest.raises(ConfigError, match=told):
            SubAgents(agents, **options)
