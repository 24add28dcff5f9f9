"""How often an agent may call its tools, or one of them."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Command, ConfigError, Retry, RunConfig
from agentgraph.checkpoint import MemorySaver, SqliteSaver
from agentgraph.messages import AssistantMessage, Message, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.nodes import AgentResult, ReactAgent, ToolContext, tool
from agentgraph.nodes.history import answered, repair
from agentgraph.nodes.hooks import CallLimitError, ToolCallLimit, after_model
from agentgraph.nodes.interceptors import ToolRetry
from agentgraph.testing import ScriptedModel

THREAD = RunConfig(thread_id="t")


@tool
async def look(at: str = "") -> str:
    """Look."""
    return f"seen {at}"


@tool
async def add(a: int = 1) -> int:
    """Add."""
    return a + 1


def calls(*names: str, turn: str = "c") -> list[ToolCall]:
    return [ToolCall(f"{turn}{i}", name) for i, name in enumerate(names)]


def answers(messages: list[Message]) -> list[ToolResponse]:
    return [r for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses]


def ran(messages: list[Message]) -> list[bool]:
    return [not r.is_error for r in answers(messages)]


@pytest.mark.parametrize("parallel", [True, False])
async def test_calls_over_the_limit_are_refused_and_the_others_run(parallel: bool) -> None:
    async with ScriptedModel([calls("look", "add", "look", "look"), "done"]) as model:
        hooks = [ToolCallLimit("look", per_run=2)]
        result = await ReactAgent("clerk", model, [look, add], hooks=hooks, parallel=parallel).run("go")
    assert ran(result.messages) == [True, True, True, False]
    assert answers(result.messages)[3].content == (
        "This call did not run: the limit of 2 calls of tool 'look' is reached. Do not call 'look' again."
    )
    assert (result.text, repair(result.messages)[1]) == ("done", [])


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(
        st.lists(st.lists(st.sampled_from(["look", "add"]), min_size=1, max_size=4), max_size=3), max_size=3
    ),
    per_run=st.none() | st.integers(1, 4),
    per_thread=st.integers(1, 8),
    at_limit=st.sampled_from(["continue", "end"]),
    parallel=st.booleans(),
)
async def test_no_more_calls_run_than_a_turn_and_a_thread_may_have(
    turns: list[list[list[str]]], per_run: int | None, per_thread: int, at_limit: Any, parallel: bool
) -> None:
    saver, run_so_far = MemorySaver(), 0
    for t, rounds in enumerate(turns):
        model = ScriptedModel([*(calls(*names, turn=f"{t}-{r}-") for r, names in enumerate(rounds)), "done"])
        limit = ToolCallLimit("look", per_run=per_run, per_thread=per_thread, at_limit=at_limit)
        agent = ReactAgent("clerk", model, [look, add], hooks=[limit], parallel=parallel, checkpointer=saver)
        messages = (await agent.run("go", THREAD)).messages
        looks = sum(r.name == "look" and not r.is_error for r in answers(messages))
        asked = sum(names.count("look") for names in rounds)
        allowed = min(asked, per_thread - run_so_far, asked if per_run is None else per_run)
        assert looks - run_so_far == allowed if at_limit == "continue" else looks - run_so_far <= allowed
        assert repair(messages)[1] == []
        run_so_far = looks


async def test_refused_calls_alone_go_back_to_the_model() -> None:
    async with ScriptedModel([calls("look", turn="a"), calls("look", turn="b"), "done"]) as model:
        result = await ReactAgent("clerk", model, [look], hooks=[ToolCallLimit(per_run=1)]).run("go")
    assert ran(result.messages) == [True, False]
    assert answers(result.messages)[1].text.endswith("the limit of 1 tool call is reached. Do not call any tool again.")


async def test_end_ends_the_turn_with_every_open_call_answered() -> None:
    async with ScriptedModel([calls("add", "look", "look"), "next"]) as model:
        hooks = [ToolCallLimit("look", per_run=1, at_limit="end")]
        agent = ReactAgent("clerk", model, [look, add], hooks=hooks, checkpointer=MemorySaver())
        result = await agent.run("go", THREAD)
        assert result.text == result.output
        assert result.text == "The limit of 1 call of tool 'look' in one turn was reached, and the work ended there."
        assert isinstance(result.message, AssistantMessage)
        assert (result.message.finish_reason, ran(result.messages)) == ("limit", [False, False, False])
        second = await agent.run("again", THREAD)
    assert (second.text, repair(second.messages)[1]) == ("next", [])


async def test_error_raises_before_any_of_the_calls_runs() -> None:
    seen: list[str] = []

    @tool
    async def note(text: str = "") -> str:
        """Note."""
        seen.append(text)
        return "noted"

    async with ScriptedModel([calls("note", "note"), "next"]) as model:
        hooks = [ToolCallLimit(note, per_run=1, at_limit="error")]
        agent = ReactAgent("clerk", model, [note], hooks=hooks, checkpointer=MemorySaver())
        with pytest.raises(CallLimitError, match="the limit of 1 call of tool 'note' per run is reached"):
            await agent.run("go", THREAD)
        result = await agent.run("again", THREAD)
    assert (seen, result.text, repair(result.messages)[1]) == ([], "next", [])


async def test_a_turn_counts_anew_and_a_thread_does_not() -> None:
    turns = [calls("look", "look", turn="a"), "one", calls("look", "look", turn="b"), "two"]
    async with ScriptedModel(turns) as model:
        hooks = [ToolCallLimit("look", per_run=1), ToolCallLimit("look", per_thread=3, name="in all")]
        agent = ReactAgent("clerk", model, [look], hooks=hooks, checkpointer=MemorySaver())
        await agent.run("go", THREAD)
        result = await agent.run("go on", THREAD)
    assert ran(result.messages) == [True, False, True, False]
    assert result.state[hooks[0].key("clerk")] == {"run": 1, "thread": 2}
    # it stands behind the other one, and so has counted what that one then refused
    assert result.state[hooks[1].key("clerk")] == {"run": 1, "thread": 3}


async def test_a_tool_that_asks_is_counted_once_however_often_it_is_resumed(tmp_path: Any) -> None:
    @tool
    def ask(n: int, context: ToolContext) -> str:
        """Ask."""
        return str([context.interrupt(f"{n} {i}?") for i in range(2)])

    asked = [ToolCall(f"c{n}", "ask", f'{{"n": {n}}}') for n in range(3)]
    model = ScriptedModel([asked, "done"])

    async def run(given: Any) -> AgentResult:
        async with SqliteSaver(tmp_path / "runs.db") as saver:
            hooks = [ToolCallLimit(per_run=2)]
            return await ReactAgent("clerk", model, [ask], hooks=hooks, checkpointer=saver).run(given, THREAD)

    result = await run("go")
    while result.interrupts:
        result = await run(Command(resume={result.interrupts[0].id: "yes"}))
    assert (ran(result.messages), result.text) == ([True, True, False], "done")


async def test_a_call_that_is_tried_again_counts_once() -> None:
    tries: list[int] = []

    @tool
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("down")
        return "up"

    async with ScriptedModel([calls("flaky"), "done"]) as model:
        retry = ToolRetry(retry=Retry(delay=0))
        agent = ReactAgent("clerk", model, [flaky], hooks=[ToolCallLimit(per_run=1)], interceptors=[retry])
        result = await agent.run("go")
    assert (answers(result.messages)[0].content, len(tries)) == ("up", 3)


async def test_a_call_that_another_hook_has_answered_is_not_counted() -> None:
    @after_model
    def refuse_first(state: Mapping[str, Any]) -> Any:
        last = state["messages"][-1]
        if not last.tool_calls:
            return None
        call = last.tool_calls[0]
        return {"messages": [answered(state["messages"], [ToolResponse(call.id, call.name, "no", is_error=True)])]}

    async with ScriptedModel([calls("look", "look", "look"), "done"]) as model:
        agent = ReactAgent("clerk", model, [look], hooks=[ToolCallLimit(per_run=1), refuse_first])
        result = await agent.run("go")
    assert [r.content for r in answers(result.messages)][:2] == ["no", "seen "]
    assert ran(result.messages) == [False, True, False]


async def test_a_refused_call_of_a_tool_that_ends_the_turn_does_not_end_it() -> None:
    @tool(return_direct=True)
    async def form() -> str:
        """Fill in."""
        return "filled in"

    async with ScriptedModel([calls("form", "form"), "done"]) as model:
        result = await ReactAgent("clerk", model, [form], hooks=[ToolCallLimit(form, per_run=1)]).run("go")
    assert result.text == "done"


async def test_a_name_that_no_tool_has_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "agentgraph"):
        ReactAgent("clerk", ScriptedModel([]), [look], hooks=[ToolCallLimit("loook", per_run=1)])
    assert "unknown tool 'loook'; did you mean 'look'?" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "ToolCallLimit limits nothing"),
        ({"per_run": -1}, "must be a positive whole number"),
        ({"per_run": 1, "at_limit": "stop"}, "unknown choice 'stop'"),
        ({"tool": 3, "per_run": 1}, "tools are functions or Tool objects"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ToolCallLimit(**options)
