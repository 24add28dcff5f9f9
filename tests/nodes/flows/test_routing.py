"""A model, or a function, chooses which agent answers."""

from typing import Any

import pytest

from agentgraph import Command, ConfigError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import AssistantMessage, Message, ToolCall, ToolResponseMessage, Usage
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import FlowError, RoutingAgent
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def says(name: str, *steps: Any, description: str = "") -> ReactAgent:
    return ReactAgent(name, ScriptedModel(steps), description=description)


async def test_a_model_chooses_by_the_agents_descriptions_and_its_choice_is_not_kept() -> None:
    model = ScriptedModel(['{"agent": "b"}'])
    agents = [says("a", description="knows sums"), says("b", "Bern.", description="knows towns"), says("c")]
    flow = RoutingAgent("r", model, agents, descriptions={"c": "knows nothing"}, output_key="answer")
    result = await flow.run("The capital?")
    assert model.requests[0].system is not None
    assert model.requests[0].system.text.endswith("\n- a: knows sums\n- b: knows towns\n- c: knows nothing")
    assert texts(result.messages) == ["The capital?", "Bern."]
    assert result.state["answer"] == result.output == "Bern."


async def test_a_bad_choice_is_mended_by_the_model_once() -> None:
    model = ScriptedModel(['{"agent": "x"}', '{"agent": "a"}'])
    assert (await RoutingAgent("r", model, [says("a", "yes"), says("b")]).run("go")).text == "yes"
    assert "Invalid enum value 'x'" in model.requests[1].messages[-1].text


async def test_a_bare_name_or_one_in_a_fence_will_do() -> None:
    for said in ("b", " b\n", '```json\n{"agent": "b"}\n```', "```\nb\n```"):
        assert (await RoutingAgent("r", ScriptedModel([said]), [says("a"), says("b", "me")]).run("go")).text == "me"


async def test_a_choice_that_stays_bad_is_an_error_or_the_defaults() -> None:
    with pytest.raises(FlowError, match=r"flow 'r': its model chose no agent: .*who knows"):
        await RoutingAgent("r", ScriptedModel(["hm", "who knows"]), [says("a")]).run("go")
    model = ScriptedModel(["hm", "who knows"])
    assert (await RoutingAgent("r", model, [says("a"), says("b", "me")], default="b").run("go")).text == "me"


async def test_a_function_chooses_sync_or_async() -> None:
    def by_words(state: Any) -> str:
        return "b" if "town" in state["messages"][-1].text else "a"

    async def later(state: Any) -> list[str]:
        return [by_words(state)]

    for chooser in (by_words, later):
        flow = RoutingAgent("r", chooser, [says("a", "sum"), says("b", "Bern")])
        assert (await flow.run("a town?")).text == "Bern"


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("bb", "unknown agent 'bb'; did you mean 'b'"),
        (None, "unknown agent None"),
        ([], "gave 0"),
        (["a", "b"], "gave 2"),
    ],
)
async def test_a_function_that_names_no_agent_is_an_error_or_the_defaults(chosen: Any, told: str) -> None:
    def chooser(_: Any) -> Any:
        return chosen

    with pytest.raises(FlowError, match=told):
        await RoutingAgent("r", chooser, [says("a"), says("b")]).run("go")
    assert (await RoutingAgent("r", chooser, [says("a", "me"), says("b")], default="a").run("go")).text == "me"


async def test_several_agents_may_be_chosen_and_their_answers_are_merged_in_the_agents_order() -> None:
    model = ScriptedModel(['{"agents": []}', '{"agents": ["c", "a", "c"]}'])
    agents = [says("a", "1"), says("b"), says("c", "3")]
    flow = RoutingAgent("r", model, agents, several=True, merge="dict")
    result = await flow.run("go")
    assert result.output == {"a": "1", "c": "3"}
    assert texts(result.messages) == ["go", "a: 1\n\nc: 3"]


async def test_what_was_made_in_a_turn_that_failed_is_not_merged_in_the_next_one() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    turns = iter([["a", "b"], ["c", "d"]])

    def chooser(_: Any) -> list[str]:
        return next(turns)

    late = ReactAgent("b", ScriptedModel([[ToolCall("c1", "look")], ValueError("boom")]), [look])  # a has ended by then
    agents = [says("a", "1"), late, says("c", "3"), says("d", "4")]
    flow = RoutingAgent("r", chooser, agents, several=True, merge="list", checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run("more", T)).output == ["3", "4"]


@pytest.mark.parametrize(("conversation", "told"), [("shared", ["one", "1", "two"]), ("separate", ["two"])])
async def test_whoever_is_chosen_has_the_conversation_or_the_question_as_told(
    conversation: Any, told: list[str]
) -> None:
    model = ScriptedModel(["1", "2"])
    flow = RoutingAgent(
        "r", lambda state: "a", [ReactAgent("a", model)], conversation=conversation, checkpointer=MemorySaver()
    )
    await flow.run("one", T)
    result = await flow.run("two", T)
    assert texts(model.requests[1].messages) == told
    assert texts(result.messages) == ["one", "1", "two", "2"]


async def test_the_chooser_reads_texts_only_and_its_tokens_are_counted() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    chosen = AssistantMessage('{"agent": "a"}', usage=Usage(input_tokens=5))
    chooser = ScriptedModel([chosen, chosen])
    agent = ReactAgent("a", ScriptedModel([[ToolCall("c1", "look")], "Done.", "Bye."]), [look])
    flow = RoutingAgent("r", chooser, [agent], checkpointer=MemorySaver())
    await flow.run("go", T)
    result = await flow.run("more", T)
    assert texts(list(chooser.requests[1].messages))[:2] == ["go", "Done."]
    assert not any(isinstance(m, ToolResponseMessage) for m in chooser.requests[1].messages)
    assert (result.usage, result.state["_token_usage"].input_tokens) == (Usage(input_tokens=5), 10)


async def test_a_question_of_the_chosen_agent_does_not_choose_anew() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("well?"))

    chooser = ScriptedModel(['{"agent": "a"}'])
    agent = ReactAgent("a", ScriptedModel([[ToolCall("c1", "ask")], "Done."]), [ask])
    flow = RoutingAgent("r", chooser, [agent], checkpointer=MemorySaver())
    (asked,) = (await flow.run("go", T)).interrupts
    assert (await flow.run(Command(resume={asked.id: "yes"}), T)).text == "Done."


async def test_its_chooser_streams_under_its_own_path() -> None:
    flow = RoutingAgent("r", FunctionModel(lambda r: '{"agent": "a"}'), [says("a", "x")])
    async with flow.stream("go") as stream:
        paths = [e.path async for e in stream if type(e).__name__ == "ModelDelta"]
    assert set(paths) == {("choose",), ("a", "llm")}


def test_faults_are_told_where_they_are_made() -> None:
    for make, told in (
        (lambda: RoutingAgent("r", ScriptedModel([]), [says("a")], default="b"), "unknown agent 'b'"),
        (lambda: RoutingAgent("r", ScriptedModel([]), [says("a")], descriptions={"b": "x"}), "unknown agent 'b'"),
        (lambda: RoutingAgent("r", 3, [says("a")]), "the chooser is a model or a function"),  # pyright: ignore[reportArgumentType]
        (lambda: RoutingAgent("r", ScriptedModel([]), [says("a")], merge="x"), "merge"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(ConfigError, match=told):
            make()


def test_it_is_drawn_with_all_ways() -> None:
    drawn = RoutingAgent("r", ScriptedModel([]), [says("a"), says("b")]).app.mermaid()
    for line in ('n0 -.->|"goto"| n1', 'n0 -.->|"goto"| n2', "n2 --> end_"):
        assert line in drawn
