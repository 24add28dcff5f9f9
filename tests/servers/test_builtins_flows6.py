"""Agents that work together, on a small real model. What the model says is not looked at."""

from collections.abc import AsyncGenerator

import pytest

from agentgraph import RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, ToolResponseMessage, Usage, UserMessage
from agentgraph.models import OpenAIChat
from agentgraph.nodes import AgentResult, ReactAgent
from agentgraph.nodes.flows import (
    HandoffAgent,
    LoopAgent,
    ParallelAgent,
    RoutingAgent,
    SequentialAgent,
    SupervisorAgent,
    handoff,
)
from agentgraph.nodes.hooks import SubAgents

T = RunConfig(thread_id="t")


@pytest.fixture
async def chat(llm: str) -> AsyncGenerator[OpenAIChat]:
    async with OpenAIChat(
        "smollm2-135m", base_url=llm, api_key="none", options={"max_tokens": 60, "temperature": 0}
    ) as model:
        yield model


def agents(chat: OpenAIChat, *names: str) -> list[ReactAgent]:
    return [
        ReactAgent(n, chat, description=f"Knows all about {n}.", options={"max_tokens": 12}, output_key=f"{n}_said")
        for n in names
    ]


def calls(result: AgentResult) -> int:
    assert result.status == "done"
    assert isinstance(result.usage, Usage)
    assert result.state["_token_usage"].calls >= result.usage.calls
    return result.usage.calls


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_a_sequence_with_a_second_turn(chat: OpenAIChat, conversation: str) -> None:
    flow = SequentialAgent(
        "s",
        agents(chat, "bread", "cheese"),
        conversation=conversation,  # pyright: ignore[reportArgumentType]
        checkpointer=MemorySaver(),
    )
    result = await flow.run("Say hello.", T)
    assert calls(result) == 2
    assert result.text == result.state["cheese_said"] != ""
    assert calls(await flow.run("Say it again.", T)) == 2


async def test_branches_beside_each_other_stream_apart(chat: OpenAIChat) -> None:
    flow = ParallelAgent("p", agents(chat, "bread", "cheese"), merge="dict")
    said: dict[tuple[str, ...], str] = {}
    async with flow.stream("Say hello.") as stream:
        async for event in stream:
            if isinstance(event, ModelDelta):
                said[event.path] = said.get(event.path, "") + event.text
    assert calls(stream.result) == 2
    assert stream.result.output == {"bread": said["bread", "llm"], "cheese": said["cheese", "llm"]}


async def test_the_first_answer_wins(chat: OpenAIChat) -> None:
    slow = ReactAgent("slow", chat, options={"max_tokens": 400})
    flow = ParallelAgent("p", [slow, *agents(chat, "bread")], until="first", merge="dict")
    assert list((await flow.run("Count from one to five hundred in words.")).output) == ["bread"]


async def test_rounds_and_items(chat: OpenAIChat) -> None:
    (agent,) = agents(chat, "bread")
    rounds = await LoopAgent("l", agent, times=3).run("Say hello.")
    assert calls(rounds) == 3
    assert [type(m) for m in rounds.messages] == [UserMessage, AssistantMessage] * 3
    items = await LoopAgent("l", agent, items=["Say one.", "Say two."]).run("go")
    assert calls(items) == len(items.output) == 2


@pytest.mark.parametrize("several", [True, False])
async def test_the_model_chooses(chat: OpenAIChat, llm: str, several: bool) -> None:
    options = {"max_tokens": 60, "temperature": 0}
    async with OpenAIChat(
        "smollm2-135m", base_url=llm, api_key="none", options=options, native_output_schema=True
    ) as chooser:
        flow = RoutingAgent("r", chooser, agents(chat, "bread", "cheese"), several=several)
        result = await flow.run("Tell me of bread.")
    assert calls(result) >= 2
    assert [type(m) for m in result.messages] == [UserMessage, AssistantMessage]


async def test_a_handoff(chat: OpenAIChat) -> None:
    bread = ReactAgent("bread", chat, options={"max_tokens": 12})
    triage = ReactAgent("triage", chat, [handoff("bread", description="Knows all about bread.")])
    result = await HandoffAgent("h", [triage, bread], checkpointer=MemorySaver()).run("Tell me of bread.", T)
    assert calls(result) == 2
    kinds = [UserMessage, AssistantMessage, ToolResponseMessage, AssistantMessage]
    assert [type(m) for m in result.messages] == kinds
    assert result.messages[2].text == "Handed over to bread."


@pytest.mark.parametrize("by", ["supervisor", "hook", "one tool", "as_tool"])
async def test_agents_as_tools(chat: OpenAIChat, by: str) -> None:
    team = agents(chat, "bread", "cheese")
    if by == "supervisor":
        lead: ReactAgent | SupervisorAgent = SupervisorAgent("lead", chat, team, checkpointer=MemorySaver())
    elif by == "as_tool":
        lead = ReactAgent("lead", chat, [a.as_tool() for a in team], checkpointer=MemorySaver())
    else:
        hook = SubAgents(team, tool="task" if by == "one tool" else None)
        lead = ReactAgent("lead", chat, hooks=[hook], checkpointer=MemorySaver())
    result = await lead.run("What is the recipe of bread?", T)
    _, asked, answers, *_ = result.messages
    assert isinstance(asked, AssistantMessage)
    assert isinstance(answers, ToolResponseMessage)
    assert [r.id for r in answers.responses] == [c.id for c in asked.tool_calls]
    assert not any(r.is_error for r in answers.responses)
    assert calls(result) == 2 + len(asked.tool_calls)
