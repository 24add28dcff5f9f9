"""The to-do list: who writes it, where it stands, and what the model is told of it."""

from typing import Any

import pytest

from agentgraph import END, START, Command, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import StateUpdate
from agentgraph.messages import REMOVE_ALL, ToolCall, ToolResponse, ToolResponseMessage, UserMessage
from agentgraph.nodes import AgentResult, ReactAgent
from agentgraph.nodes.hooks import HumanApproval, Reject, Todo, TodoList, before_model
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel

THREAD = RunConfig(thread_id="t")
BOTH = '{"todos": [{"content": "dig", "status": "completed"}, {"content": "build"}]}'


def answers(result: AgentResult) -> list[ToolResponse]:
    return [r for m in result.messages if isinstance(m, ToolResponseMessage) for r in m.responses]


async def test_the_model_writes_the_list_and_the_state_has_it() -> None:
    model = ScriptedModel([[ToolCall("c1", "write_todos", BOTH)], "Done."])
    agent = ReactAgent("builder", model, hooks=[TodoList()])
    async with agent.stream("Build.") as events:
        told = [e async for e in events if isinstance(e, StateUpdate) and "todos" in e.update]
    assert events.result.state["todos"] == [Todo("dig", "completed"), Todo("build")]
    assert [e.update["todos"][1] for e in told] == [Todo("build")]
    assert [r.content for r in answers(events.result)] == ["The list is written: 2 items, 1 completed."]
    assert [tool.name for tool in model.requests[0].tools] == ["write_todos"]


async def test_what_the_model_is_told_stands_in_each_request_once_and_in_no_history() -> None:
    model = ScriptedModel([[ToolCall("c1", "write_todos", BOTH)], "Done.", "And now?"])
    agent = ReactAgent("builder", model, hooks=[TodoList()], system_prompt="You build.", checkpointer=MemorySaver())
    await agent.run("Build.", THREAD)
    result = await agent.run("More.", THREAD)
    for request in model.requests:
        assert request.system is not None
        assert request.system.text.startswith("You build.\n\nYou have a to-do list")
        assert request.system.text.count("to-do list, which you write") == 1
        assert "as it stands" not in request.system.text
    assert [m.text for m in result.messages if "to-do" in m.text] == []
    assert len(result.messages) == 6


async def test_the_list_stays_with_the_thread_and_each_writing_replaces_it() -> None:
    again = '{"todos": [{"content": "paint", "status": "in_progress"}]}'
    script: list[Any] = [[ToolCall("c1", "write_todos", BOTH)], "One."]
    saver = MemorySaver()
    await ReactAgent("builder", ScriptedModel(script), hooks=[TodoList()], checkpointer=saver).run("Build.", THREAD)
    script = ["Two.", [ToolCall("c1", "write_todos", again)], "Three."]
    builder = ReactAgent("builder", ScriptedModel(script), hooks=[TodoList()], checkpointer=saver)
    assert (await builder.run("How far?", THREAD)).state["todos"] == [Todo("dig", "completed"), Todo("build")]
    assert (await builder.run("Go on.", THREAD)).state["todos"] == [Todo("paint", "in_progress")]


@pytest.mark.parametrize("parallel", [True, False])
async def test_two_writings_in_one_answer_are_both_refused_and_the_list_stays(parallel: bool) -> None:
    calls = [ToolCall("c2", "write_todos", BOTH), ToolCall("c3", "write_todos", '{"todos": []}')]
    script: list[Any] = [[ToolCall("c1", "write_todos", '{"todos": [{"content": "dig"}]}')], calls, "Done."]
    result = await ReactAgent("builder", ScriptedModel(script), hooks=[TodoList()], parallel=parallel).run("Build.")
    assert result.state["todos"] == [Todo("dig")]
    assert [r.is_error for r in answers(result)] == [False, True, True]
    assert "call it once, with all items" in answers(result)[1].text


async def test_a_list_of_another_form_goes_back_to_the_model() -> None:
    wrong = '{"todos": [{"content": "dig", "status": "done"}]}'
    script: list[Any] = [[ToolCall("c1", "write_todos", wrong)], [ToolCall("c2", "write_todos", BOTH)], "Done."]
    result = await ReactAgent("builder", ScriptedModel(script), hooks=[TodoList()]).run("Build.")
    assert "done" in answers(result)[0].text
    assert [r.is_error for r in answers(result)] == [True, False]
    assert len(result.state["todos"]) == 2


async def test_a_list_whose_writing_is_no_longer_in_the_conversation_is_told() -> None:
    @before_model
    async def summarize(state: Any) -> Any:
        return {"messages": [REMOVE_ALL, UserMessage("We are building.")]} if len(state["messages"]) > 3 else None

    model = ScriptedModel([[ToolCall("c1", "write_todos", BOTH)], "One.", "Two."])
    agent = ReactAgent("builder", model, hooks=[TodoList(prompt=None), summarize], checkpointer=MemorySaver())
    await agent.run("Build.", THREAD)
    await agent.run("How far?", THREAD)
    assert [None if r.system is None else r.system.text for r in model.requests] == [
        None,
        None,
        "The to-do list as it stands:\n- [completed] dig\n- [pending] build",
    ]


@pytest.mark.parametrize("todo", [Todo("dig"), {"content": "dig"}])
async def test_a_list_may_be_given_with_the_input(todo: Any) -> None:
    model = ScriptedModel(["On it."])
    agent = ReactAgent("builder", model, hooks=[TodoList(prompt="Keep it up.", description="Mine.")])
    result = await agent.run({"input": "Build.", "todos": [todo]})
    assert model.requests[0].system is not None
    assert model.requests[0].system.text == "Keep it up.\n\nThe to-do list as it stands:\n- [pending] dig"
    assert model.requests[0].tools[0].description == "Mine."
    assert result.state["todos"] == [todo]


async def test_a_writing_that_a_human_rejects_leaves_the_list() -> None:
    script: list[Any] = [[ToolCall("c1", "write_todos", BOTH)], "Then not."]
    hooks = [HumanApproval({"write_todos"}), TodoList()]
    agent = ReactAgent("builder", ScriptedModel(script), hooks=hooks, checkpointer=MemorySaver())
    await agent.run("Build.", THREAD)
    result = await agent.run(Command(resume=Reject("too much")), THREAD)
    assert (result.text, result.state.get("todos")) == ("Then not.", None)


async def test_an_agent_with_a_list_can_be_a_node_of_a_graph() -> None:
    agent = ReactAgent("builder", ScriptedModel([[ToolCall("c1", "write_todos", BOTH)], "Done."]), hooks=[TodoList()])
    graph = StateGraph[Any](strategies={"messages": Messages()})
    graph.add_node("builder", agent).add_edge(START, "builder").add_edge("builder", END)
    state = (await graph.compile().invoke({"messages": [UserMessage("Build.")]})).state
    assert state["messages"][-1].text == "Done."


async def test_an_agent_with_a_list_can_be_a_node_of_a_graph_that_is_kept() -> None:
    agent = ReactAgent("builder", ScriptedModel([[ToolCall("c1", "write_todos", BOTH)], "Done."]), hooks=[TodoList()])
    graph = StateGraph[Any](strategies={"messages": Messages()})
    graph.add_node("builder", agent).add_edge(START, "builder").add_edge("builder", END)
    app = graph.compile(checkpointer=MemorySaver())
    state = (await app.invoke({"messages": [UserMessage("Build.")]}, THREAD)).state
    assert state["messages"][-1].text == "Done."
