"""Hooks: where they stand, what they may do, and whose comes before whose."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from agentgraph import END, START, Command, RecursionLimitError, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.errors import ConfigError
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, SystemMessage, ToolCall, UserMessage
from agentgraph.models import ModelRequest, ModelResponse
from agentgraph.nodes import LlmRequest, ReactAgent, Tool, ToolRequest, tool
from agentgraph.nodes.hooks import AgentParts, FunctionHook, Jump, after_agent, after_model, before_agent, before_model
from agentgraph.strategies import Append, Messages
from agentgraph.testing import FunctionModel, ScriptedModel, check_request


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(return_direct=True)
async def form() -> str:
    return "a form"


def calls(*names: str, arguments: str = '{"a": 1, "b": 2}') -> AssistantMessage:
    return AssistantMessage("", tool_calls=[ToolCall(f"c{i}", n, arguments) for i, n in enumerate(names)])


class Told:
    """A hook at each position, and round model and tools."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    async def before_agent(self, state: Any, run: RunContext[Any]) -> None:
        self.log.append(f"{self.name}: begin")

    async def before_model(self, state: Any, run: RunContext[Any]) -> None:
        self.log.append(f"{self.name}: before model")

    async def after_model(self, state: Any, run: RunContext[Any]) -> None:
        self.log.append(f"{self.name}: after model")

    async def after_agent(self, state: Any, run: RunContext[Any]) -> None:
        self.log.append(f"{self.name}: end")

    async def wrap_model(self, request: LlmRequest, call: Any) -> ModelResponse:
        self.log.append(f"{self.name}: model")
        return await call(request)

    async def wrap_tool(self, request: ToolRequest, call: Any) -> Any:
        self.log.append(f"{self.name}: tool {request.call.name}")
        return await call(request)


async def test_hooks_stand_round_the_agent_the_model_and_the_tools_like_an_onion() -> None:
    log: list[str] = []
    agent = ReactAgent("clerk", ScriptedModel([calls("add"), "3"]), [add], hooks=[Told("one", log), Told("two", log)])
    assert (await agent.run("1 + 2?")).text == "3"
    model = ["one: model", "two: model", "two: after model", "one: after model"]
    before = ["one: before model", "two: before model"]
    assert log == [
        *("one: begin", "two: begin"),
        *before,
        *model,
        *("one: tool add", "two: tool add"),
        *before,
        *model,
        *("two: end", "one: end"),
    ]


async def test_a_function_is_a_hook_by_its_name_or_by_a_decorator() -> None:
    log: list[str] = []

    async def before_model(state: Any) -> dict[str, Any]:
        log.append("by name")
        return {"messages": SystemMessage("Be brief.")}

    @after_agent
    def tidy(state: Any, run: RunContext[Any]) -> None:
        log.append(f"decorated, in {'a thread' if threading.current_thread().daemon else 'the loop'}")

    model = ScriptedModel(["yes"])
    await ReactAgent("clerk", model, hooks=[before_model, tidy]).run("well?")
    assert log == ["by name", "decorated, in a thread"]
    assert model.requests[0].system is not None
    assert model.requests[0].system.text == "Be brief."


@pytest.mark.parametrize("position", ["before_agent", "before_model", "after_model", "after_agent"])
async def test_a_jump_to_the_end_ends_this_turn_and_no_other(position: str) -> None:
    decorate: Any = {
        "before_agent": before_agent,
        "before_model": before_model,
        "after_model": after_model,
        "after_agent": after_agent,
    }[position]
    log: list[str] = []

    @decorate(jumps=["end"])
    async def stop(state: Any, run: RunContext[Any]) -> Jump | None:
        if state["messages"][-1].text == "stop" or (position.startswith("after") and len(state["messages"]) == 2):
            return Jump("end", {"messages": AssistantMessage("stopped")})
        return None

    async def after(state: Any) -> None:
        log.append("after all")

    last = after_agent(after, name="last")
    model = ScriptedModel(["ignored", "goes on"] if position.startswith("after") else ["goes on"])
    agent = ReactAgent("clerk", model, hooks=[last, stop], checkpointer=MemorySaver())
    thread = RunConfig(thread_id="t")
    assert (await agent.run("stop", thread)).text == "stopped"
    assert (await agent.run("and now?", thread)).text == "goes on"
    assert log == ["after all"] * (1 if position == "after_agent" else 2)


async def test_a_turn_that_was_ended_without_an_answer_does_not_give_that_of_the_turn_before() -> None:
    @before_agent
    async def stop(state: Any) -> Jump | None:
        return Jump("end") if state["messages"][-1].text == "stop" else None

    agent = ReactAgent("clerk", ScriptedModel(["first"]), hooks=[stop], checkpointer=MemorySaver())
    assert (await agent.run("hello", RunConfig(thread_id="t"))).text == "first"
    result = await agent.run("stop", RunConfig(thread_id="t"))
    assert (result.text, result.output) == ("", None)


async def test_jumps_lead_to_the_tools_and_back_to_the_model() -> None:
    log: list[str] = []

    @before_model
    async def call_first(state: Any) -> Jump | None:
        if isinstance(state["messages"][-1], UserMessage):
            return Jump("tools", {"messages": calls("add")})
        return None

    @after_model
    async def ask_again(state: Any) -> Jump | None:
        log.append(state["messages"][-1].text)
        return Jump("model", {"messages": UserMessage("Are you sure?")}) if len(log) == 1 else None

    model = ScriptedModel(["perhaps 3", "it is 3"])
    agent = ReactAgent("clerk", model, [add], hooks=[call_first, ask_again])
    result = await agent.run("1 + 2?")
    assert (result.text, log) == ("it is 3", ["perhaps 3", "it is 3"])
    assert [m.text for m in model.requests[0].messages] == ["1 + 2?", "", "3"]


async def test_a_jump_to_tools_that_are_not_there_says_where_one_can_go() -> None:
    @before_model
    async def lost(state: Any) -> Jump:
        return Jump("tools")

    with pytest.raises(ConfigError, match=r"hook 'lost.before_model' jumps to 'tools'; from there: 'model', 'end'"):
        await ReactAgent("clerk", ScriptedModel([]), hooks=[lost]).run("well?")


async def test_after_return_direct_the_last_hooks_run_and_the_next_turn_asks_the_model() -> None:
    log: list[str] = []
    agent = ReactAgent(
        "clerk",
        ScriptedModel([calls("form", arguments=""), "hello again"]),
        [form],
        hooks=[Told("hook", log)],
        checkpointer=MemorySaver(),
    )
    assert (await agent.run("form", RunConfig(thread_id="t"))).text == "a form"
    assert log[-1] == "hook: end"
    assert (await agent.run("hello", RunConfig(thread_id="t"))).text == "hello again"


class Brings:
    """A hook with a tool, an interceptor and a state key of its own."""

    name = "notes"
    strategies = {"notes": Append()}  # noqa: RUF012  # read, never written

    @property
    def tools(self) -> Sequence[Tool]:
        @tool
        async def note(text: str, context: Any = None) -> str:
            return f"noted {text}"

        return [note]

    async def before_model(self, state: Any) -> dict[str, Any]:
        return {"notes": len(state["messages"])}


async def test_a_hook_brings_tools_and_state_keys() -> None:
    model = ScriptedModel([calls("note", arguments='{"text": "x"}'), "done"])
    result = await ReactAgent("clerk", model, hooks=[Brings()]).run("note it")
    assert [t.name for t in model.requests[0].tools] == ["note"]
    assert [m.text for m in result.messages] == ["note it", "", "noted x", "done"]
    assert result.state["notes"] == [1, 3]


async def test_of_tools_with_one_name_the_hooks_comes_before_the_interceptors_and_the_agents_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def named(text: str) -> Tool:
        async def look() -> str:
            return text

        return Tool(look, name="look")

    class Hooked:
        tools = (named("hook's"),)

    class Around:
        tools = (named("interceptor's"),)

        async def wrap_model(self, request: LlmRequest, call: Any) -> ModelResponse:
            return await call(request)

    for hooks, around, first in (([Hooked()], [Around()], "hook's"), ([], [Around()], "interceptor's")):
        model = ScriptedModel([calls("look", arguments=""), "seen"])
        with caplog.at_level(logging.WARNING, "agentgraph"):
            agent = ReactAgent("clerk", model, [named("own")], hooks=hooks, interceptors=around)
        assert (await agent.run("look")).messages[2].text == first
        assert len(model.requests[0].tools) == 1
    assert "tool 'look' of hook 'Hooked' stays, and that of the agent's own goes" in caplog.text


async def test_the_agents_own_interceptor_takes_the_place_of_a_hooks_of_the_same_name() -> None:
    log: list[str] = []

    def around(name: str, whose: str) -> Any:
        async def wrap(request: LlmRequest, call: Any) -> ModelResponse:
            log.append(f"{name} {whose}")
            return await call(request)

        wrap.__name__ = name
        return wrap

    class Hooked:
        interceptors = (around("retry", "hook's"), around("count", "hook's"))

    agent = ReactAgent("clerk", ScriptedModel(["hi"]), hooks=[Hooked()], interceptors=[around("retry", "own")])
    await agent.run("hello")
    assert log == ["retry own", "count hook's"]


async def test_one_hook_serves_two_agents_and_is_handed_the_tool_it_asks_for() -> None:
    class Calls(msgspec.Struct):
        wanted: Any
        found: Tool | None = None
        agent: str = ""

        def bind(self, agent: AgentParts) -> "Calls":
            return msgspec.structs.replace(self, found=agent.tool(self.wanted), agent=agent.name)

        async def before_agent(self, state: Any) -> dict[str, Any]:
            assert self.found is not None
            return {"messages": SystemMessage(f"{self.agent}: {await self.found.fn(a=1, b=2)}")}

    shared = Calls("add")
    for name in ("one", "two"):
        result = await ReactAgent(name, ScriptedModel(["ok"]), [add], hooks=[shared]).run("hi")
        assert result.messages[1].text == f"{name}: 3"
    assert shared.found is None
    assert (await ReactAgent("three", ScriptedModel(["ok"]), [add], hooks=[Calls(Tool)]).run("hi")).text == "ok"
    with pytest.raises(
        ConfigError, match=r"agent 'four': a hook asks for a tool: unknown tool 'ad'; did you mean 'add'"
    ):
        ReactAgent("four", ScriptedModel([]), [add], hooks=[Calls("ad")])
    with pytest.raises(ConfigError, match=r"agent 'five': several tools are a .*Tool.*: 'add', 'form'"):
        ReactAgent("five", ScriptedModel([]), [add, form], hooks=[Calls(Tool)])


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (5, "agent 'clerk': 5 is no hook: it has none of 'before_agent'"),
        (Brings, "hook Brings is a class; write Brings()"),
        (calls, "function 'calls' is no hook by its name; name it one of 'before_agent'"),
    ],
)
def test_what_is_no_hook_is_refused(hook: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReactAgent("clerk", ScriptedModel([]), hooks=[hook])
    assert told in str(caught.value)


def test_two_hooks_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 hooks are named 'notes'; names must differ: give one a name="):
        ReactAgent("clerk", ScriptedModel([]), hooks=[Brings(), Brings()])


def test_jumps_that_lead_nowhere_are_refused() -> None:
    @before_model(jumps=["ende"])
    async def stop(state: Any) -> None: ...

    with pytest.raises(ConfigError, match="hook 'stop': jumps: unknown target 'ende'; did you mean 'end'"):
        ReactAgent("clerk", ScriptedModel([]), hooks=[stop])


async def test_a_hook_asks_and_goes_on_with_the_answer_in_another_process() -> None:
    class Ask:
        name = "ask"

        async def after_model(self, state: Any, run: RunContext[Any]) -> dict[str, Any] | None:
            answer = run.interrupt(state["messages"][-1].text, schema=Literal["yes", "no"])
            return {"messages": SystemMessage(f"they said {answer}")}

    saver, model = MemorySaver(), ScriptedModel(["shall I?"])

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, hooks=[Ask()], checkpointer=saver)

    paused = await agent().run("do it", RunConfig(thread_id="t"))
    assert [q.value for q in paused.interrupts] == ["shall I?"]
    ended = await agent().run(Command(resume={paused.interrupts[0].id: "yes"}), RunConfig(thread_id="t"))
    assert (ended.status, ended.messages[-1].text, len(model.requests)) == ("done", "they said yes", 1)


async def test_an_agent_with_hooks_is_a_node_like_any_other() -> None:
    log: list[str] = []
    outer = StateGraph(strategies={"messages": Messages()})
    outer.add_node("clerk", ReactAgent("clerk", ScriptedModel(["hi"]), hooks=[Told("hook", log)]))
    outer.add_edge(START, "clerk")
    outer.add_edge("clerk", END)
    result = await outer.compile().invoke({"messages": [UserMessage("hello")]})
    assert [m.text for m in result.state["messages"]] == ["hello", "hi"]
    assert log[0] == "hook: begin"
    assert log[-1] == "hook: end"


async def test_an_interceptor_may_ask_another_model() -> None:
    other = ScriptedModel(["from the other"])

    async def swap(request: LlmRequest, call: Any) -> ModelResponse:
        return await call(msgspec.structs.replace(request, model=other))

    agent = ReactAgent("clerk", ScriptedModel([]), interceptors=[swap])
    async with agent.stream("hello") as events:
        told = "".join([e.text async for e in events if isinstance(e, ModelDelta)])
    assert (events.result.text, told) == ("from the other", "from the other")


async def test_another_model_that_takes_no_schema_is_asked_for_the_form_in_words() -> None:
    class Native(ScriptedModel):
        native_output_schema = True

    other = ScriptedModel(['{"n": 3}'])

    async def swap(request: LlmRequest, call: Any) -> ModelResponse:
        assert request.output_schema is not None
        return await call(msgspec.structs.replace(request, model=other))

    agent = ReactAgent("clerk", Native([]), output_type=dict[str, int], interceptors=[swap])
    assert (await agent.run("hello")).output == {"n": 3}
    (asked,) = other.requests
    assert asked.output_schema is None
    assert "fits this JSON schema" in asked.messages[-1].text


async def test_hooks_of_many_runs_at_once_do_not_mix() -> None:
    @before_model
    async def say(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"messages": SystemMessage(str(run.config.tags[0]))}

    agent = ReactAgent("clerk", ScriptedModel(["ok"] * 20), hooks=[say])
    results = await asyncio.gather(*(agent.run("hi", RunConfig(tags=(str(k),))) for k in range(20)))
    assert [r.messages[1].text for r in results] == [str(k) for k in range(20)]


@pytest.mark.parametrize("position", ["before_agent", "before_model", "after_model", "after_agent"])
@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_hook_that_fails_is_named_and_the_next_turn_goes_on(position: Any, in_thread: bool) -> None:
    failures = iter([ValueError("no")])

    def fails(state: Any) -> None:
        for error in failures:
            raise error

    async def fails_in_the_loop(state: Any) -> None:
        fails(state)

    hook = FunctionHook(fails if in_thread else fails_in_the_loop, position, "picky", ())

    def answer(request: ModelRequest) -> str:
        check_request(request)
        return f"to {request.messages[-1].text}"

    agent = ReactAgent("clerk", FunctionModel(answer), hooks=[hook], checkpointer=MemorySaver())
    with pytest.raises(ValueError, match="no") as caught:
        await agent.run("one", RunConfig(thread_id="t"))
    assert f"in node 'picky.{position}'" in caught.value.__notes__[0]
    assert (await agent.run("two", RunConfig(thread_id="t"))).text == "to two"


async def test_the_limit_of_steps_counts_hooks_and_its_error_names_them() -> None:
    async def before_model(state: Any) -> None: ...

    agent = ReactAgent("clerk", FunctionModel(lambda _: [ToolCall("", "form")]), [add], hooks=[before_model])
    with pytest.raises(RecursionLimitError, match=r"limit of 7 steps.*'before_model.before_model'.*recursion_limit=14"):
        await agent.run("go", RunConfig(recursion_limit=7))
