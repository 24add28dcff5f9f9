"""An agent again and again."""

from typing import Any

import pytest

from agentgraph import Command, ConfigError, InputError, RecursionLimitError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import Message, ToolCall
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import FlowError, LoopAgent, SequentialAgent
from agentgraph.strategies import Replace
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def louder(request: ModelRequest) -> str:
    return f"{request.messages[-1].text}!"


def says(name: str, *steps: Any) -> ReactAgent:
    return ReactAgent(name, ScriptedModel(steps))


async def test_so_many_rounds_are_made_in_one_conversation() -> None:
    flow = LoopAgent("l", says("w", "one", "two", "three"), times=3, hand_on="Better, {agent}.")
    result = await flow.run("go")
    assert texts(result.messages) == ["go", "one", "Better, w.", "two", "Better, w.", "three"]
    assert (result.text, result.output, result.state["round"]) == ("three", "three", 3)


async def test_in_separate_conversations_each_round_begins_with_the_answer_of_the_one_before() -> None:
    model = FunctionModel(louder)
    result = await LoopAgent("l", ReactAgent("w", model), times=3, conversation="separate").run("go")
    assert [texts(r.messages) for r in model.requests] == [["go"], ["go!"], ["go!!"]]
    assert texts(result.messages) == ["go", "go!!!"]


async def test_a_condition_ends_the_loop_sync_or_async() -> None:
    async def loud(state: Any) -> bool:
        return state["messages"][-1].text == "three"

    def at_once(state: Any) -> bool:
        return state["messages"][-1].text == "three"

    for until in (loud, at_once):
        result = await LoopAgent("l", says("w", "one", "two", "three", "four"), times=9, until=until).run("go")
        assert (result.text, result.state["round"]) == ("three", 3)


@pytest.mark.parametrize("on_limit", ["end", "raise"])
async def test_a_condition_that_never_holds_ends_at_the_limit(on_limit: Any) -> None:
    flow = LoopAgent("l", says("w", "one", "two"), times=2, until=lambda state: False, on_limit=on_limit)
    if on_limit == "end":
        assert (await flow.run("go")).text == "two"
        return
    with pytest.raises(FlowError, match="made its 2 rounds, and its condition does not hold"):
        await flow.run("go")


@pytest.mark.parametrize("where", ["list", "key", "function"])
async def test_each_item_is_a_run_of_its_own(where: str) -> None:
    model = FunctionModel(louder)
    agent = ReactAgent("w", model, output_key="last")
    todo: list[Any] = ["a", {"b": 1}]

    def listed(state: Any) -> list[Any]:
        return state["todo"]

    given: dict[str, Any] = {"list": todo, "key": "todo", "function": listed}
    flow = LoopAgent("l", agent, items=given[where], strategies={"todo": Replace()})
    result = await flow.run({"input": "go", "todo": todo})
    assert [texts(r.messages) for r in model.requests] == [["a"], ['{"b":1}']]
    assert result.output == ["a!", '{"b":1}!']
    assert texts(result.messages) == ["go", 'a!\n\n{"b":1}!']


async def test_items_and_rounds_fill_in_an_instruction() -> None:
    model = FunctionModel(louder)
    agent = ReactAgent("w", model, instruction="{round}: say {item}")
    assert (await LoopAgent("l", agent, items=["a", "b"]).run("go")).output == ["1: say a!", "2: say b!"]


async def test_no_items_are_an_empty_output() -> None:
    result = await LoopAgent("l", says("w"), items=[]).run("go")
    assert (result.output, result.text) == ([], "There was nothing to do.")


@pytest.mark.parametrize("on_limit", ["end", "raise"])
async def test_more_items_than_rounds_are_left_or_an_error_as_told(on_limit: Any) -> None:
    flow = LoopAgent("l", says("w", "1", "2"), items=["a", "b", "c"], times=2, on_limit=on_limit)
    if on_limit == "end":
        assert (await flow.run("go")).output == ["1", "2"]
        return
    with pytest.raises(FlowError, match="not all items were reached"):
        await flow.run("go")


async def test_items_that_are_no_list_are_an_error_that_says_what_was_found() -> None:
    with pytest.raises(InputError, match="found str: 'abc'"):
        await LoopAgent("l", says("w"), items=lambda state: "abc").run("go")


async def test_each_turn_of_a_thread_counts_anew_also_after_a_failed_one() -> None:
    model = ScriptedModel(["1", ValueError("boom"), "3", "4"])
    flow = LoopAgent("l", ReactAgent("w", model), items=["a", "b"], checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run("again", T)).output == ["3", "4"]


async def test_a_loop_that_failed_goes_on_in_the_round_where_it_stood() -> None:
    model = ScriptedModel(["1", ValueError("boom"), "2"])
    flow = LoopAgent("l", ReactAgent("w", model), items=["a", "b"], checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run(None, T)).output == ["1", "2"]


async def test_a_question_in_a_round_is_answered_by_its_id_and_asked_once_a_round() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("well?"))

    def made(*steps: Any) -> LoopAgent:
        return LoopAgent("l", ReactAgent("w", ScriptedModel(steps), [ask]), items=["a", "b"], checkpointer=saver)

    saver = MemorySaver()
    (first,) = (await made([ToolCall("c1", "ask")]).run("go", T)).interrupts
    (second,) = (await made("A", [ToolCall("c1", "ask")]).run(Command(resume={first.id: "1"}), T)).interrupts
    assert first.id != second.id
    assert (await made("B").run(Command(resume={second.id: "2"}), T)).output == ["A", "B"]


async def test_loops_in_loops_and_flows_in_loops_count_on_their_own() -> None:
    model = FunctionModel(louder)
    inner = LoopAgent("inner", ReactAgent("w", model), times=2, conversation="separate")
    pair = SequentialAgent("pair", [inner, ReactAgent("v", model)], conversation="separate")
    result = await LoopAgent("outer", pair, times=3, conversation="separate").run("go")
    assert result.text == "go" + "!" * 9
    assert result.state["round"] == 3


async def test_the_runs_limit_of_steps_holds() -> None:
    with pytest.raises(RecursionLimitError):
        await LoopAgent("l", ReactAgent("w", FunctionModel(louder)), times=1000).run("go")


def test_a_loop_without_a_limit_is_refused_and_so_are_other_faults() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "needs times="),
        ({"until": bool}, "needs times="),
        ({"times": 0}, "times"),
        ({"times": 1, "until": "done"}, "function of"),
        ({"times": 1, "on_limit": "rise"}, "did you mean 'raise'"),
    ]
    for options, told in cases:
        with pytest.raises(ConfigError, match=told):
            LoopAgent("l", says("w"), **options)


def test_it_is_drawn_as_a_loop() -> None:
    drawn = LoopAgent("l", says("w"), times=2).app.mermaid()
    for line in ('n1[["w"]]', "n1 --> n2", 'n2 -.->|"goto"| n1', 'n2 -.->|"goto"| end_'):
        assert line in drawn
