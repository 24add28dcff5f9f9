"""Agents one after the other."""

from typing import Annotated, TypedDict

import msgspec
import pytest

from agentgraph import END, START, Command, ConfigError, GraphError, RecursionLimitError, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import FlowError, SequentialAgent
from agentgraph.strategies import Append, Messages
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def says(name: str, *steps: str) -> ReactAgent:
    return ReactAgent(name, ScriptedModel(steps))


def louder(request: ModelRequest) -> str:
    return f"{request.messages[-1].text}!"


async def test_in_a_shared_conversation_each_agent_sees_what_was_said_before() -> None:
    critic = ScriptedModel(["Too short."])
    flow = SequentialAgent("report", [says("writer", "Lamps glow."), ReactAgent("critic", critic)])
    result = await flow.run("Write.")
    assert texts(critic.requests[0].messages) == ["Write.", "Lamps glow.", "It is your turn now, critic."]
    assert texts(result.messages) == ["Write.", "Lamps glow.", "It is your turn now, critic.", "Too short."]
    assert (result.text, result.output, result.status) == ("Too short.", "Too short.", "done")


async def test_no_agent_is_asked_with_an_answer_as_the_last_message() -> None:
    models = [FunctionModel(louder) for _ in range(3)]
    flow = SequentialAgent("s", {f"a{k}": ReactAgent("a", m) for k, m in enumerate(models)}, hand_on="Go on, {agent}.")
    await flow.run("go")
    assert [m.requests[0].messages[-1].text for m in models] == ["go", "Go on, a1.", "Go on, a2."]


async def test_in_separate_conversations_only_the_answer_is_handed_on() -> None:
    models = [FunctionModel(louder) for _ in range(3)]
    flow = SequentialAgent(
        "s", {f"a{k}": ReactAgent("a", m) for k, m in enumerate(models)}, conversation="separate", output_key="loud"
    )
    result = await flow.run("go")
    assert [texts(m.requests[0].messages) for m in models] == [["go"], ["go!"], ["go!!"]]
    assert texts(result.messages) == ["go", "go!!!"]
    assert result.state["loud"] == result.output == "go!!!"


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_an_agents_output_key_fills_in_the_next_ones_instruction(conversation: str) -> None:
    critic = ScriptedModel(["Good."])
    agents = [
        ReactAgent("writer", ScriptedModel(["Lamps glow."]), output_key="draft"),
        ReactAgent("critic", critic, instruction="Judge this: {draft}"),
    ]
    flow = SequentialAgent("report", agents, conversation=conversation)  # pyright: ignore[reportArgumentType]
    result = await flow.run("Write.")
    assert critic.requests[0].messages[-1].text == "Judge this: Lamps glow."
    assert result.state["draft"] == "Lamps glow."


async def test_names_in_an_instruction_are_state_keys_of_the_agent() -> None:
    model = ScriptedModel(["Good."])
    agent = ReactAgent("critic", model, instruction="Judge {{this}}: {draft}")
    result = await agent.run({"input": "Well?", "draft": "Lamps."})
    assert model.requests[0].messages[-1].text == "Judge {this}: Lamps."
    assert result.state["draft"] == "Lamps."


async def test_a_flow_of_separate_conversations_in_a_shared_one_is_asked_what_was_answered_before() -> None:
    model = FunctionModel(louder)
    inner = SequentialAgent("inner", [ReactAgent("b", model)], conversation="separate")
    await SequentialAgent("s", [says("a", "Lamps glow."), inner], hand_on="Go on.").run("Write.")
    assert texts(model.requests[0].messages) == ["Lamps glow.\n\nGo on."]


async def test_keys_that_agents_add_to_are_added_to_once() -> None:
    @tool
    async def note(text: str, context: ToolContext) -> str:
        """Note."""
        context.update(notes=[text])
        return "noted"

    def scribe(name: str) -> ReactAgent:
        model = ScriptedModel([[ToolCall("c1", "note", f'{{"text": "{name}"}}')], "done"])
        return ReactAgent(name, model, [note], strategies={"notes": Append()})

    result = await SequentialAgent("s", [scribe("a"), scribe("b")]).run({"input": "go", "notes": ["old"]})
    assert result.state["notes"] == ["old", "a", "b"]


class Person(msgspec.Struct):
    name: str


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_a_typed_output_of_the_last_agent_is_the_flows_and_is_kept(conversation: str) -> None:
    reader = ReactAgent("reader", ScriptedModel(['{"name": "Ada"}'] * 2), output_type=Person)
    flow = SequentialAgent(
        "s",
        [says("first", "Ada wrote it.", "Again."), reader],
        conversation=conversation,  # pyright: ignore[reportArgumentType]
        checkpointer=MemorySaver(),
    )
    assert (await flow.run("Who?", T)).output == Person("Ada")
    assert (await flow.run("Again?", T)).output == Person("Ada")


async def test_the_next_turn_on_a_thread_goes_on_with_the_conversation() -> None:
    second = FunctionModel(louder)
    flow = SequentialAgent("s", [says("first", "one", "two"), ReactAgent("second", second)], checkpointer=MemorySaver())
    await flow.run("go", T)
    result = await flow.run("more", T)
    assert texts(result.messages[4:]) == [
        "more",
        "two",
        "It is your turn now, second.",
        "It is your turn now, second.!",
    ]
    assert len(second.requests[1].messages) == 7


async def test_a_second_turn_in_separate_conversations_is_asked_the_new_question_also_after_a_failed_one() -> None:
    def answer(request: ModelRequest) -> str:
        if request.messages[-1].text == "bad!":
            raise ValueError("boom")
        return louder(request)

    agents = [ReactAgent("a", FunctionModel(louder)), ReactAgent("b", FunctionModel(answer))]
    flow = SequentialAgent("s", agents, conversation="separate", checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("bad", T)
    result = await flow.run("good", T)
    assert (result.text, result.state.keys()) == ("good!!", {"messages"})


async def test_a_question_inside_pauses_the_flow_and_is_answered_by_its_id_in_another_process() -> None:
    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        return f"paid: {context.interrupt('pay?')}"

    def made(model: ScriptedModel, before: ScriptedModel) -> SequentialAgent:
        return SequentialAgent("s", [ReactAgent("asks", before), ReactAgent("clerk", model, [pay])], checkpointer=saver)

    saver = MemorySaver()
    paused = await made(ScriptedModel([[ToolCall("c1", "pay")]]), ScriptedModel(["Do it."])).run("go", T)
    (asked,) = paused.interrupts
    assert (paused.status, asked.node) == ("interrupted", ("clerk", "tools"))
    result = await made(ScriptedModel(["Done."]), ScriptedModel([])).run(Command(resume={asked.id: "yes"}), T)
    assert texts(result.messages) == ["go", "Do it.", "It is your turn now, clerk.", "", "paid: yes", "Done."]


async def test_a_new_input_on_a_paused_flow_leaves_a_valid_conversation() -> None:
    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        return str(context.interrupt("pay?"))

    clerk = ReactAgent("clerk", ScriptedModel([[ToolCall("c1", "pay")], "Fine."]), [pay])
    flow = SequentialAgent("s", [says("first", "Do it.", "Never mind."), clerk], checkpointer=MemorySaver())
    assert (await flow.run("go", T)).status == "interrupted"
    result = await flow.run("forget it", T)
    assert result.text == "Fine."
    assert "did not finish" in texts(result.messages)[3]


async def test_a_flow_that_failed_goes_on_where_it_stood() -> None:
    first, second = ScriptedModel(["one"]), ScriptedModel([ValueError("boom"), "two"])
    agents = [ReactAgent("a", first), ReactAgent("b", second)]
    flow = SequentialAgent("s", agents, checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run(None, T)).text == "two"
    assert len(first.requests) == 1


async def test_usage_is_summed_once() -> None:
    def spends(name: str, tokens: int) -> ReactAgent:
        answer = AssistantMessage(name, usage=Usage(input_tokens=tokens, output_tokens=1))
        return ReactAgent(name, ScriptedModel([answer]))

    inner = SequentialAgent("inner", [spends("b", 20), spends("c", 300)], conversation="separate")
    result = await SequentialAgent("s", [spends("a", 1), inner]).run("go")
    assert result.usage == Usage(input_tokens=321, output_tokens=3, calls=3)
    assert result.state["_token_usage"] == result.usage


@pytest.mark.case("E12")
async def test_the_limit_of_steps_is_the_whole_runs() -> None:
    def made() -> SequentialAgent:
        return SequentialAgent("s", [says("a", "x"), SequentialAgent("t", [says("b", "y")])])

    assert (await made().run("go", RunConfig(recursion_limit=5))).steps == 5
    with pytest.raises(RecursionLimitError):
        await made().run("go", RunConfig(recursion_limit=4))


async def test_events_tell_which_agent_they_are_of() -> None:
    flow = SequentialAgent("s", [says("a", "x"), SequentialAgent("t", [says("b", "y")])])
    async with flow.stream("go") as stream:
        told = [(e.path, e.text) async for e in stream if isinstance(e, ModelDelta)]
    assert told == [(("a", "llm"), "x"), (("t", "b", "llm"), "y")]
    assert stream.result.text == "y"


class State(TypedDict):
    messages: Annotated[list[Message], Messages()]


async def test_a_compiled_graph_may_be_one_of_the_agents_and_a_flow_a_node() -> None:
    async def shout(state: State) -> dict[str, object]:
        return {"messages": AssistantMessage(state["messages"][-1].text.upper())}

    graph = StateGraph(State)
    graph.add_node("shout", shout).add_edge(START, "shout").add_edge("shout", END)
    flow = SequentialAgent("s", [says("a", "hey"), graph.compile(name="loud")], conversation="separate")
    outer = StateGraph(State)
    outer.add_node("flow", flow).add_edge(START, "flow").add_edge("flow", END)
    result = await outer.compile().invoke({"messages": [UserMessage("go")]})
    assert texts(result.state["messages"]) == ["go", "HEY"]


def test_it_is_drawn_as_its_agents_in_order() -> None:
    drawn = SequentialAgent("s", [says("a"), says("b")]).app.mermaid()
    assert 'n0[["a"]]' in drawn
    assert "start --> n0" in drawn
    assert "n0 --> n1" in drawn
    assert "n1 --> end_" in drawn


async def test_its_graph_may_be_changed_before_the_first_run() -> None:
    flow = SequentialAgent("s", [says("a", "x")], strategies={"log": Append()})
    flow.graph.add_node("note", lambda state: {"log": state["messages"][-1].text}).add_edge("a", "note")
    flow.graph.add_edge("note", END)
    assert (await flow.run("go")).state["log"] == ["x"]


def test_building_faults_are_told_where_they_are_made() -> None:
    agent = says("a")
    for made, told in (
        (lambda: SequentialAgent("s", []), "no agents"),
        (lambda: SequentialAgent("", [agent]), "a flow needs a name"),
        (lambda: SequentialAgent("s", [agent, agent]), "two agents are named 'a'"),
        (lambda: SequentialAgent("s", [StateGraph().add_node("x", louder)]), "call compile"),
        (lambda: SequentialAgent("s", agent), "agents come in a list"),  # pyright: ignore[reportArgumentType]
        (lambda: SequentialAgent("s", [agent], conversation="sharde"), "did you mean 'shared'"),  # pyright: ignore[reportArgumentType]
        (lambda: SequentialAgent("s", [agent], output_key="messages"), "name another key"),
    ):
        with pytest.raises(ConfigError, match=told):
            made()


def test_agents_whose_keys_merge_in_different_ways_are_refused() -> None:
    one = ReactAgent("one", ScriptedModel([]), strategies={"notes": Append()})
    other = ReactAgent("other", ScriptedModel([]), output_key="notes")
    with pytest.raises(ConfigError, match=r"'notes'.*lost or doubled"):
        SequentialAgent("s", [one, other])


def test_a_graph_without_a_conversation_is_refused() -> None:
    graph = StateGraph(strategies={"notes": Append()})
    graph.add_node("x", lambda state: None).add_edge(START, "x").add_edge("x", END)
    with pytest.raises(ConfigError, match="no conversation"):
        SequentialAgent("s", [graph.compile(name="notes")])


async def test_nothing_to_ask_is_an_error_that_says_so() -> None:
    with pytest.raises(FlowError, match="nothing to ask"):
        await SequentialAgent("s", [says("a", "x")], conversation="separate").run({})


def test_an_agent_named_as_another_node_is_told_when_it_is_compiled() -> None:
    flow = SequentialAgent("s", [says("a")])
    flow.graph.add_node("a", lambda state: None)
    with pytest.raises(GraphError, match="named 'a'"):
        _ = flow.app
