"""What holds for all flows, however they stand in each other."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Command, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta, NodeStarted, RunFinished
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponseMessage, Usage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import AgentResult, ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import (
    HandoffAgent,
    LoopAgent,
    ParallelAgent,
    RoutingAgent,
    SequentialAgent,
    SupervisorAgent,
    handoff,
)
from agentgraph.nodes.history import repair
from agentgraph.testing import FunctionModel

Conversation = Literal["shared", "separate"]
Made = Callable[[list[ModelRequest]], Any]
"""Makes an agent that notes what its models are asked."""


class Noting(FunctionModel):
    """Refuses what strict providers refuse, and counts what it takes."""

    def __init__(self, seen: list[ModelRequest], answer: Callable[[ModelRequest], Any]) -> None:
        super().__init__(lambda request: self.noted(request, seen, answer))

    def noted(self, request: ModelRequest, seen: list[ModelRequest], answer: Callable[[ModelRequest], Any]) -> Any:
        assert repair(request.messages) == (request.messages, [])
        assert not isinstance(request.messages[-1], AssistantMessage), "an answer as the last message"
        seen.append(request)
        said = answer(request)
        if isinstance(said, str):
            return AssistantMessage(said, usage=Usage(input_tokens=1))
        return AssistantMessage(tool_calls=said, usage=Usage(input_tokens=1))


def last(request: ModelRequest) -> str:
    return request.messages[-1].text[-30:]


def once(call: str, arguments: str = "{}") -> Callable[[ModelRequest], Any]:
    """Calls a tool, unless somebody has since the user spoke, then answers."""
    number = iter(range(1000))

    def answer(request: ModelRequest) -> Any:
        for message in reversed(request.messages):
            if isinstance(message, AssistantMessage) and call in (c.name for c in message.tool_calls):
                return last(request)
            if isinstance(message, UserMessage) and not message.metadata:
                break
        return [ToolCall(f"c{next(number)}", call, arguments)]

    return answer


def leaf(seen: list[ModelRequest]) -> ReactAgent:
    return ReactAgent("leaf", Noting(seen, lambda request: f"{last(request)}!"))


def of(kind: str, conversation: Conversation, inner: list[Made]) -> Made:
    def make(seen: list[ModelRequest]) -> Any:
        agents = {f"a{k}": made(seen) for k, made in enumerate(inner)}
        first = next(iter(agents.values()))
        if kind == "sequence":
            return SequentialAgent("sequence", agents, conversation=conversation)
        if kind == "parallel":
            return ParallelAgent("parallel", agents, conversation=conversation)
        if kind == "loop":
            return LoopAgent("loop", first, times=2, conversation=conversation)
        if kind == "items":
            return LoopAgent("items", first, items=["x", "y"])
        if kind == "route":
            return RoutingAgent("route", Noting(seen, lambda _: '{"agent": "a0"}'), agents, conversation=conversation)
        if kind == "supervisor":
            call = ("transfer_to_a0", "{}") if conversation == "shared" else ("a0", '{"task": "t"}')
            return SupervisorAgent("lead", Noting(seen, once(*call)), agents, conversation=conversation)
        if kind == "tool":
            return ReactAgent("caller", Noting(seen, once("t", '{"task": "t"}')), [first.as_tool(name="t")])
        begin = ReactAgent("begin", Noting(seen, once("transfer_to_a0")), [handoff("a0")])
        return HandoffAgent("desk", {"begin": begin, **agents}, conversation=conversation)

    return make


KINDS = ("sequence", "parallel", "loop", "items", "route", "supervisor", "tool", "handoff")
conversations = st.sampled_from(["shared", "separate"])
flows = st.recursive(
    st.just(leaf),
    lambda inner: st.builds(of, st.sampled_from(KINDS), conversations, st.lists(inner, min_size=1, max_size=2)),
    max_leaves=3,
)


def texts(result: AgentResult) -> list[str]:
    return [m.text for m in result.messages]


@settings(max_examples=20, deadline=None)
@given(flows)
def test_any_flow_of_flows_asks_what_strict_providers_take_and_counts_each_call_once(made: Made) -> None:
    async def run() -> None:
        seen: list[ModelRequest] = []
        flow = SequentialAgent("outer", [made(seen)], checkpointer=MemorySaver())
        thread, limit = RunConfig(thread_id="t", recursion_limit=1000), RunConfig(recursion_limit=1000)
        first = await flow.run("go", thread)
        assert first.status == "done"
        assert first.text == first.messages[-1].text != ""
        assert first.usage == first.state["_token_usage"] == Usage(input_tokens=len(seen), calls=len(seen))
        assert texts(await SequentialAgent("outer", [made([])]).run("go", limit)) == texts(first)
        second = await flow.run("more", thread)
        assert second.messages[: len(first.messages)] == first.messages
        assert second.text
        assert second.state["_token_usage"].calls == len(seen)

    asyncio.run(run())


@settings(max_examples=20, deadline=None)
@given(flows)
def test_any_flow_of_flows_streams_what_it_answers_and_can_be_drawn(made: Made) -> None:
    async def run() -> None:
        seen: list[ModelRequest] = []
        flow = SequentialAgent("outer", [made(seen)])
        async with flow.stream("go", RunConfig(recursion_limit=1000)) as stream:
            events = [event async for event in stream]
        assert isinstance(events[-1], RunFinished)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        started = {e.path for e in events if isinstance(e, NodeStarted)}
        assert {e.path for e in events if isinstance(e, ModelDelta)} <= started
        assert (
            stream.result.text
            == texts(await SequentialAgent("outer", [made([])]).run("go", RunConfig(recursion_limit=1000)))[-1]
        )
        assert flow.app.mermaid().startswith("flowchart TD")

    asyncio.run(run())


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    return str(context.interrupt("well?"))


def asking(seen: list[ModelRequest]) -> ReactAgent:
    return ReactAgent("leaf", Noting(seen, once("ask")), [ask])


asking_flows = st.recursive(
    st.just(asking),
    lambda inner: st.builds(of, st.sampled_from(KINDS), conversations, st.lists(inner, min_size=1, max_size=2)),
    max_leaves=3,
)


@settings(max_examples=20, deadline=None)
@given(asking_flows)
def test_any_question_in_any_flow_of_flows_is_answered_by_its_id_one_at_a_time_in_another_process(made: Made) -> None:
    async def run() -> None:
        seen: list[ModelRequest] = []
        saver, thread = MemorySaver(), RunConfig(thread_id="t", recursion_limit=1000)
        result = await SequentialAgent("outer", [made(seen)], checkpointer=saver).run("go", thread)
        answered: set[str] = set()
        while result.interrupts:
            asked = result.interrupts[-1]
            assert asked.id not in answered
            answered.add(asked.id)
            flow = SequentialAgent("outer", [made(seen)], checkpointer=saver)
            result = await flow.run(Command(resume={asked.id: "yes"}), thread)
        assert len(answered) == sum(
            isinstance(m := r.messages[-1], ToolResponseMessage) and m.responses[0].name == "ask" for r in seen
        )
        assert result.status == "done"
        assert result.state["_token_usage"].calls == len(seen)

    asyncio.run(run())


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_a_cancelled_turn_is_followed_by_a_whole_one(conversation: Conversation) -> None:
    began, seen = asyncio.Event(), list[ModelRequest]()

    async def hang(_: ModelRequest) -> str:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return "fine"

    agents = [leaf(seen), ReactAgent("hangs", FunctionModel(hang))]
    flow = SequentialAgent("s", agents, conversation=conversation, checkpointer=MemorySaver())
    run = asyncio.create_task(flow.run("go", RunConfig(thread_id="t")))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await flow.run("more", RunConfig(thread_id="t"))
    assert result.text == "fine"
    assert seen[1].messages[-1].text == "more"
