"""How often an agent may ask its model: over rounds, turns, pauses and failures."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agentgraph import END, START, Command, ConfigError, Retry, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import MemorySaver, SqliteSaver
from agentgraph.messages import AssistantMessage, Message, ToolCall, ToolResponseMessage, UserMessage
from agentgraph.nodes import AgentResult, ReactAgent, ToolContext, tool
from agentgraph.nodes.history import repair
from agentgraph.nodes.hooks import CallLimitError, Jump, ModelCallLimit, after_model, before_model
from agentgraph.nodes.interceptors import ModelRetry
from agentgraph.strategies import Messages, Replace
from agentgraph.testing import FunctionModel, ScriptedModel

THREAD = RunConfig(thread_id="t")


@tool
async def look(at: str = "") -> str:
    """Look."""
    return f"seen {at}"


def looking(id: str) -> list[ToolCall]:
    return [ToolCall(id, "look", '{"at": "it"}')]


def endless() -> FunctionModel:
    """A model that never stops to call tools."""
    model = FunctionModel(lambda _: looking(f"c{len(model.requests)}"))
    return model


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_ends_with_a_message_that_says_so(stream: bool) -> None:
    model = endless()
    agent = ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=2)], stream=stream)
    result = await agent.run("go")
    assert len(model.requests) == 2
    assert result.text == "The limit of 2 model calls in one turn was reached, and the work ended there."
    assert isinstance(result.message, AssistantMessage)
    assert result.message.finish_reason == "limit"
    assert result.message.metadata == {"limit": {"what": "model calls", "limit": 2, "per": "run"}}
    assert (result.status, repair(result.messages)) == ("done", (result.messages, []))


async def test_a_turn_with_as_many_calls_as_allowed_is_not_touched() -> None:
    async with ScriptedModel([looking("c1"), "done"]) as model:
        result = await ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=2)]).run("go")
    assert texts(result.messages) == ["go", "", "seen it", "done"]


async def test_the_next_turn_counts_anew() -> None:
    async with ScriptedModel([looking("c1"), looking("c2"), looking("c3"), "done"]) as model:
        agent = ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=2)], checkpointer=MemorySaver())
        first = await agent.run("go", THREAD)
        second = await agent.run("go on", THREAD)
    assert first.text.startswith("The limit of 2 model calls")
    assert second.text == "done"
    assert repair(second.messages)[1] == []


async def test_the_calls_of_all_turns_count_for_the_thread() -> None:
    limit = ModelCallLimit(per_thread=3)
    model = ScriptedModel([looking("c1"), "one", "two"])
    agent = ReactAgent("clerk", model, [look], hooks=[limit], checkpointer=MemorySaver())
    said = [(await agent.run("go", THREAD)).text for _ in range(4)]
    assert said[:2] == ["one", "two"]
    assert said[2] == said[3] == "The limit of 3 model calls in one conversation was reached, and the work ended there."
    assert len(model.requests) == 3


async def test_another_thread_has_its_own_count() -> None:
    agent = ReactAgent(
        "clerk", ScriptedModel(["one", "two"]), hooks=[ModelCallLimit(per_thread=1)], checkpointer=MemorySaver()
    )
    assert (await agent.run("go", THREAD)).text == "one"
    assert (await agent.run("go", RunConfig(thread_id="u"))).text == "two"


async def test_a_turn_that_a_limit_has_ended_has_no_output_of_a_form() -> None:
    async with ScriptedModel(["[1, 2]", looking("c1")]) as model:
        hooks = [ModelCallLimit(per_run=1)]
        agent = ReactAgent("clerk", model, [look], hooks=hooks, output_type=list[int], checkpointer=MemorySaver())
        first, second = [await agent.run("go", THREAD) for _ in range(2)]
    assert (first.output, second.output) == ([1, 2], None)


async def test_an_error_names_the_limit_and_the_next_turn_works() -> None:
    async with ScriptedModel([looking("c1"), "done"]) as model:
        hooks = [ModelCallLimit(per_run=1, at_limit="error")]
        agent = ReactAgent("clerk", model, [look], hooks=hooks, checkpointer=MemorySaver())
        with pytest.raises(
            CallLimitError, match=r"the limit of 1 model call per run is reached; raise it by per_run="
        ) as e:
            await agent.run("go", THREAD)
        assert (e.value.what, e.value.limit, e.value.per) == ("model calls", 1, "run")
        assert (await agent.run("again", THREAD)).text == "done"


async def test_a_pause_does_not_begin_a_new_count(tmp_path: Any) -> None:
    @tool
    def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("well?"))

    model = FunctionModel(lambda _: [ToolCall(f"c{len(model.requests)}", "ask")])

    async def run(given: Any) -> AgentResult:
        async with SqliteSaver(tmp_path / "runs.db") as saver:  # as a process of its own would
            agent = ReactAgent("clerk", model, [ask], hooks=[ModelCallLimit(per_run=2)], checkpointer=saver)
            return await agent.run(given, THREAD)

    results = [await run(given) for given in ("go", Command(resume="yes"), Command(resume="yes"))]
    assert [r.status for r in results] == ["interrupted", "interrupted", "done"]
    assert results[2].text.startswith("The limit of 2")
    assert len(model.requests) == 2


async def test_a_run_that_failed_and_goes_on_counts_its_failed_call_once() -> None:
    async with ScriptedModel([ConnectionError("down"), looking("c1"), "done"]) as model:
        agent = ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=2)], checkpointer=MemorySaver())
        with pytest.raises(ConnectionError):
            await agent.run("go", THREAD)
        result = await agent.run(None, THREAD)
    assert result.text == "done"


async def test_a_cancelled_run_that_goes_on_counts_on() -> None:
    started = asyncio.Event()
    may_end: list[bool] = []

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        if not may_end:
            await asyncio.Event().wait()
        return "waited"

    model = FunctionModel(lambda _: [ToolCall(f"c{len(model.requests)}", "wait")])
    agent = ReactAgent("clerk", model, [wait], hooks=[ModelCallLimit(per_run=2)], checkpointer=MemorySaver())
    running = asyncio.create_task(agent.run("go", THREAD))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    may_end.append(True)
    assert (await agent.run(None, THREAD)).text.startswith("The limit of 2 model calls")
    assert len(model.requests) == 2


async def test_what_is_tried_again_until_it_is_answered_is_one_call() -> None:
    async with ScriptedModel([ConnectionError("down"), ConnectionError("down"), "done"]) as model:
        retry = ModelRetry(Retry(delay=0))
        agent = ReactAgent("clerk", model, hooks=[ModelCallLimit(per_run=1)], interceptors=[retry])
        assert (await agent.run("go")).text == "done"


async def test_a_hook_that_jumps_back_to_the_model_is_counted() -> None:
    @after_model
    def unhappy(state: Mapping[str, Any]) -> Jump:
        return Jump("model")

    model = FunctionModel(lambda _: "mine")
    agent = ReactAgent("clerk", model, hooks=[ModelCallLimit(per_run=3), unhappy])
    assert (await agent.run("go")).text.startswith("The limit of 3 model calls")
    assert len(model.requests) == 3


async def test_a_hook_that_jumps_past_the_others_to_the_model_is_counted() -> None:
    @before_model
    def at_once(state: Mapping[str, Any]) -> Jump:
        return Jump("model")

    model = endless()
    agent = ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=2), at_once])
    await agent.run("go")
    assert len(model.requests) == 2


async def test_calls_that_are_open_at_the_end_are_answered() -> None:
    @after_model
    def unhappy(state: Mapping[str, Any]) -> Jump:
        return Jump("model")

    model = endless()
    agent = ReactAgent("clerk", model, [look], hooks=[ModelCallLimit(per_run=1), unhappy])
    messages = (await agent.run("go")).messages
    assert isinstance(messages[2], ToolResponseMessage)
    assert [r.is_error for r in messages[2].responses] == [True]
    assert repair(messages)[1] == []


async def test_an_agent_that_is_a_node_of_another_ones_graph_counts_for_itself() -> None:
    limit = ModelCallLimit(per_run=2)
    inner = ReactAgent("inner", ScriptedModel([looking("i1"), "inside"]), [look], hooks=[limit])
    model = ScriptedModel([looking("c1"), "outside"])

    async def before_agent(state: Any, run: RunContext[Any]) -> Any:
        return await inner(state, run)

    result = await ReactAgent("outer", model, [look], hooks=[limit, before_agent]).run("go")
    assert texts(result.messages) == ["go", "", "seen it", "inside", "", "seen it", "outside"]


async def test_an_agent_as_a_node_counts_per_thread_where_the_outer_graph_has_the_key() -> None:
    limit = ModelCallLimit(per_thread=2)
    inner = ReactAgent("inner", ScriptedModel(["one", "two"]), hooks=[limit])
    strategies = {"messages": Messages(), limit.key("inner"): Replace()}
    graph = StateGraph[dict[str, Any]](strategies=strategies)
    graph.add_node("inner", inner).add_edge(START, "inner").add_edge("inner", END)
    app = graph.compile(checkpointer=MemorySaver())
    said = [(await app.invoke({"messages": [UserMessage("go")]}, THREAD)).state["messages"][-1].text for _ in range(3)]
    assert said[:2] == ["one", "two"]
    assert said[2].startswith("The limit of 2 model calls in one conversation")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "limits nothing: give it per_run=, per_thread=, or both"),
        ({"per_run": 0}, r"per_run=...\) must be a positive whole number"),
        ({"per_thread": 1.5}, r"per_thread=...\) must be a positive whole number"),
        ({"per_run": 1, "at_limit": "stop"}, "unknown choice 'stop'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ModelCallLimit(**options)
