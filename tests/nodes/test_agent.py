"""The ReAct agent: model and tools in turn, as a run of its own and as a node of other graphs."""

import asyncio
import gc
import json
import logging
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from agentgraph import (
    END,
    START,
    ConfigError,
    GraphError,
    InputError,
    RecursionLimitError,
    RunConfig,
    StateGraph,
    SyncInLoopError,
)
from agentgraph.events import (
    ModelDelta,
    NodeFinished,
    NodeStarted,
    RunFinished,
    RunStarted,
    StateUpdate,
    ToolFinished,
    ToolStarted,
    encode,
)
from agentgraph.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import Delta, ModelError, ModelRequest, ModelResponse, StreamCutError
from agentgraph.nodes import (
    Answer,
    Limiter,
    LlmNode,
    LlmRequest,
    ModelCall,
    ReactAgent,
    Tool,
    ToolContext,
    ToolError,
    ToolRequest,
    tool,
)
from agentgraph.nodes.hooks import PiiRedaction
from agentgraph.strategies import Append, Merge, Messages, Reduce, Replace
from agentgraph.testing import FunctionModel, ScriptedModel, with_clock


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def call_add(id: str = "c1", a: int = 17, b: int = 25) -> list[ToolCall]:
    return [ToolCall(id, "add", json.dumps({"a": a, "b": b}))]


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


class Silent:
    """A model whose stream says these pieces, then waits for what never comes."""

    name = "silent"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.requests: list[ModelRequest] = []
        self.waits = asyncio.Event()
        self.closed = asyncio.Event()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        try:
            for piece in self.pieces:
                yield Delta(piece)
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


class Tracked:
    """A tool that loops until it is cancelled, and what became of it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.ticks = 0
        self.context: ToolContext | None = None

    async def tick(self, context: ToolContext) -> str:
        """Tick for ever."""
        self.context = context
        assert not context.cancellation.cancelled
        try:
            while True:
                self.ticks += 1
                self.started.set()
                await asyncio.sleep(0)
        finally:
            self.ended.set()

    async def check_stopped(self) -> None:
        """It has ended, was told so by its token, and ticks no more."""
        assert self.ended.is_set()
        assert self.context is not None
        assert self.context.cancellation.cancelled
        ticks = self.ticks
        for _ in range(5):
            await asyncio.sleep(0)
        assert self.ticks == ticks


# --- a run ---


@pytest.mark.parametrize(
    "question",
    [
        "17 + 25?",
        UserMessage("17 + 25?"),
        [UserMessage("17 + 25?")],
        {"messages": [UserMessage("17 + 25?")]},
        {"input": "17 + 25?"},
    ],
)
async def test_a_text_a_message_a_list_or_a_state_is_answered(question: Any) -> None:
    async with ScriptedModel([call_add(), "It is 42."]) as model:
        result = await ReactAgent("clerk", model, [add]).run(question)
    assert texts(result.messages) == ["17 + 25?", "", "42", "It is 42."]
    assert [texts(r.messages) for r in model.requests] == [["17 + 25?"], ["17 + 25?", "", "42"]]


@pytest.mark.parametrize("question", [42, b"17 + 25?", ("17 + 25?",)])
async def test_anything_else_is_an_error_that_says_what_is_answered(question: Any) -> None:
    with pytest.raises(InputError, match=f"a list of messages or a state; found {type(question).__name__}"):
        await ReactAgent("clerk", ScriptedModel([])).run(question)


async def test_a_result_tells_how_the_run_ended() -> None:
    usage = Usage(10, 5)
    async with ScriptedModel([AssistantMessage("It is 42.", usage=usage)]) as model:
        config = RunConfig(run_id="run-1", thread_id="thread-1")
        result = await ReactAgent("clerk", model, [add], output_key="answer").run("17 + 25?", config)
    assert result.text == result.output == result.state["answer"] == "It is 42."
    assert result.message == result.messages[-1] == result.state["messages"][-1]
    assert (result.status, result.interrupts, result.steps) == ("done", (), 1)
    assert (result.run_id, result.thread_id, result.usage) == ("run-1", "thread-1", usage)


async def test_the_state_of_a_result_may_be_given_back() -> None:
    async with ScriptedModel(["Hi.", "It is 42."]) as model:
        agent = ReactAgent("clerk", model, [add])
        first = await agent.run("Hello.")
        second = await agent.run({**first.state, "messages": [*first.messages, UserMessage("17 + 25?")]})
    assert set(first.state) == {"messages"}
    assert texts(second.messages) == ["Hello.", "Hi.", "17 + 25?", "It is 42."]


@pytest.mark.case("I13")
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_is_the_sum_over_all_rounds(stream: bool) -> None:
    answers = [
        AssistantMessage(tool_calls=call_add("c1"), usage=Usage(100, 20)),
        AssistantMessage(tool_calls=call_add("c2")),
        AssistantMessage("done", usage=Usage(200, 5, cached_tokens=100)),
    ]
    async with ScriptedModel(answers) as model:
        result = await ReactAgent("clerk", model, [add], stream=stream).run("go")
    assert result.usage == result.state["_token_usage"] == Usage(300, 25, cached_tokens=100, calls=2)


async def test_without_tools_there_is_no_tool_node() -> None:
    agent = ReactAgent("poet", ScriptedModel(["a poem"]))
    assert agent.tool_node is None
    assert "tools" not in agent.app.mermaid()
    assert (await agent.run("go")).steps == 1


async def test_tools_that_only_an_interceptor_brings_are_run() -> None:
    async def bring(request: LlmRequest, call: ModelCall) -> ModelResponse:
        return await call(msgspec.structs.replace(request, dynamic_tools=[add]))

    async with ScriptedModel([call_add(), "It is 42."]) as model:
        result = await ReactAgent("clerk", model, interceptors=[bring]).run("17 + 25?")
    assert texts(result.messages) == ["17 + 25?", "", "42", "It is 42."]
    assert [t.name for t in model.requests[0].tools] == ["add"]


async def test_with_a_resolver_there_is_a_tool_node_without_tools() -> None:
    async def resolver(name: str) -> Tool | None:
        return add if name == "add" else None

    async with ScriptedModel([call_add(), "It is 42."]) as model:
        result = await ReactAgent("clerk", model, resolver=resolver).run("17 + 25?")
    assert texts(result.messages) == ["17 + 25?", "", "42", "It is 42."]


async def test_an_error_processor_and_a_tool_context_reach_the_tool_node() -> None:
    @tool
    async def read(ctx: ToolContext) -> None:
        raise ToolError(f"no file in {ctx.extras['folder']}")

    def told(error: ToolError, call: ToolCall) -> str:
        return f"{call.name}: {error}; try another"

    model = ScriptedModel([[ToolCall("c1", "read")], "done"])
    agent = ReactAgent("clerk", model, [read], error_processor=told, tool_context={"folder": "/tmp"})  # noqa: S108
    assert (await agent.run("go")).messages[2].text == "read: no file in /tmp; try another"


async def test_agents_graph_may_be_changed_before_the_first_run() -> None:
    async def shout(state: dict[str, Any]) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": msgspec.structs.replace(last, text=last.text.upper())}

    agent = ReactAgent("poet", ScriptedModel(["a poem"]))
    agent.graph.add_node("shout", shout)
    agent.graph.add_edge("llm", "shout").add_edge("shout", END)
    assert (await agent.run("go")).text == "A POEM"


async def test_options_prompt_instruction_and_tools_reach_the_request() -> None:
    async with ScriptedModel(["ok"]) as model:
        agent = ReactAgent(
            "clerk",
            model,
            [add],
            system_prompt="You are a clerk.",
            instruction="Answer {who}.",
            options={"temperature": 0},
        )
        await agent.run("go", RunConfig(metadata={"who": "Ada"}))
    sent = model.requests[0]
    assert sent.system is not None
    assert (sent.system.text, texts(sent.messages)) == ("You are a clerk.", ["go", "Answer Ada."])
    assert ([t.name for t in sent.tools], sent.options) == (["add"], {"temperature": 0})


async def test_interceptors_wrap_model_calls_and_tool_calls() -> None:
    seen: list[str] = []

    async def around_model(request: ModelRequest, call: ModelCall) -> ModelResponse:
        seen.append(f"model {len(request.messages)}")
        return await call(request)

    async def around_tool(request: ToolRequest, call: Any) -> ToolResponse:
        seen.append(f"tool {request.call.name}")
        answer = await call(request)
        return msgspec.structs.replace(answer, content="43")

    model = ScriptedModel([call_add(), "It is 43."])
    agent = ReactAgent("clerk", model, [add], interceptors=[around_model], tool_interceptors=[around_tool])
    assert texts((await agent.run("17 + 25?")).messages)[2] == "43"
    assert seen == ["model 1", "tool add", "model 3"]


def test_building_faults_are_told_where_they_are_made() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        ReactAgent("", ScriptedModel([]))
    with pytest.raises(ConfigError, match="two tools are named 'add'"):
        ReactAgent("clerk", ScriptedModel([]), [add, add])
    with pytest.raises(ConfigError, match="'messages' is the conversation"):
        ReactAgent("clerk", ScriptedModel([]), output_key="messages")
    with pytest.raises(ConfigError, match="ReactAgent: tools come in a list, found 5"):
        ReactAgent("clerk", ScriptedModel([]), 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"ReactAgent: an interceptor is an async function of .*, found 5"):
        ReactAgent("clerk", ScriptedModel([]), interceptors=[5])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"'PiiRedaction' among the interceptors has 'before_model', so it is a hook"):
        ReactAgent("clerk", ScriptedModel([]), interceptors=[PiiRedaction()])


# --- the tools' part ---


@pytest.mark.case("A14")
@pytest.mark.parametrize("parallel", [True, False])
async def test_tools_write_to_the_state_by_each_keys_strategy_in_call_order(parallel: bool) -> None:
    first_may_end = asyncio.Event()

    @tool
    async def note(name: str, context: ToolContext) -> str:
        """Note it."""
        if name == "a" and parallel:
            await first_may_end.wait()
        first_may_end.set()
        context.update(files={name: 1}, log=[name], last=name)
        return "ok"

    model = ScriptedModel([[ToolCall(n, "note", json.dumps({"name": n})) for n in ("a", "b")], "done"])
    keys = {"files": Merge(), "log": Append(), "last": Replace()}
    agent = ReactAgent("clerk", model, [note], strategies=keys, parallel=parallel)
    state = (await agent.run({"input": "go", "files": {"old": 0}, "log": ["old"]})).state
    assert (state["files"], state["log"], state["last"]) == ({"old": 0, "a": 1, "b": 1}, ["old", "a", "b"], "b")


@pytest.mark.case("A17")
async def test_return_direct_ends_a_run_after_the_tools_and_only_that_run() -> None:
    @tool(return_direct=True)
    async def form(fail: bool = False) -> str:
        """Show a form."""
        if fail:
            raise ToolError("no form today")
        return "a form"

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(
        [
            [ToolCall("c1", "form")],
            "plain answer",
            [ToolCall("c2", "form"), ToolCall("c3", "look")],
            "after both",
            [ToolCall("c4", "form", '{"fail": true}')],
            "after the error",
        ]
    )
    agent = ReactAgent("clerk", model, [form, look], output_key="answer")
    first = await agent.run("1")
    assert (first.text, first.output, first.steps, len(model.requests)) == ("a form", "a form", 2, 1)
    second = await agent.run({**first.state, "messages": [*first.messages, UserMessage("2")]})
    assert (second.text, second.output, len(model.requests)) == ("plain answer", "plain answer", 2)
    third = await agent.run([*second.messages, UserMessage("3")])
    assert (third.text, model.requests[3].messages[-1].text) == ("after both", "a form\nseen")
    fourth = await agent.run([*third.messages, UserMessage("4")])
    assert (fourth.text, model.requests[5].messages[-1].text) == ("after the error", "no form today")
    assert "answer" not in first.state


async def test_after_return_direct_the_output_is_not_that_of_an_earlier_turn() -> None:
    @tool(return_direct=True)
    async def form() -> str:
        """Show a form."""
        return "a form"

    model = ScriptedModel(["[1]", [ToolCall("c1", "form")]])
    agent = ReactAgent("clerk", model, [form], output_type=list[int], output_key="answer")
    first = await agent.run("1")
    second = await agent.run({**first.state, "messages": [*first.messages, UserMessage("2")]})
    assert (first.output, second.output, second.text) == ([1], None, "a form")


@pytest.mark.case("A6")
@pytest.mark.parametrize("direct", [True, False])
async def test_a_message_that_a_tool_adds_follows_the_answers_and_does_not_hide_them(direct: bool) -> None:
    @tool(return_direct=direct)
    async def show(n: int) -> Answer:
        """Show a picture."""
        return Answer(f"shown {n}", update={"messages": [UserMessage(f"picture {n}")]})

    steps: list[Any] = [[ToolCall("a", "show", '{"n": 1}'), ToolCall("b", "show", '{"n": 2}')]]
    async with ScriptedModel(steps if direct else [*steps, "nice"]) as model:
        result = await ReactAgent("clerk", model, [show]).run("go")
    assert texts(result.messages)[2:5] == ["shown 1\nshown 2", "picture 1", "picture 2"]
    assert result.text == ("shown 1\nshown 2" if direct else "nice")


@pytest.mark.case("D17")
async def test_whatever_tools_return_the_next_request_has_no_empty_answer() -> None:
    values: dict[str, Any] = {"none": None, "empty": "", "list": [], "dict": {"a": 1}, "odd": object()}

    def returning(name: str) -> Tool:
        async def fn() -> Any:
            return values[name]

        return Tool(fn, name=name, description="Give it.")

    def strict(request: ModelRequest) -> Any:
        answers = request.messages[-1]
        if not isinstance(answers, ToolResponseMessage):
            return [ToolCall(f"id-{n}", n) for n in values]
        assert all(r.content for r in answers.responses), "empty content refused"
        return "accepted"

    result = await ReactAgent("clerk", FunctionModel(strict), [returning(n) for n in values]).run("go")
    answers = result.messages[2]
    assert isinstance(answers, ToolResponseMessage)
    assert [r.id for r in answers.responses] == [f"id-{n}" for n in values]
    assert [r.content for r in answers.responses[:4]] == ["(no output)", "(no output)", "[]", '{"a":1}']
    assert answers.responses[4].is_error
    assert "'odd' returned a object" in answers.responses[4].text
    assert result.text == "accepted"


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"parallel": False}, 1),
        ({"max_parallel": 2}, 2),
        ({"max_parallel": Limiter(3)}, 3),
        ({"max_parallel": None}, 7),
        ({}, 5),
    ],
)
async def test_so_many_tools_run_at_once(limits: dict[str, Any], most: int) -> None:
    running = 0
    seen: list[int] = []

    @tool
    async def work() -> str:
        """Work."""
        nonlocal running
        running += 1
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append(running)
        running -= 1
        return "ok"

    model = ScriptedModel([[ToolCall(f"c{n}", "work") for n in range(7)], "done"])
    await ReactAgent("clerk", model, [work], **limits).run("go")
    assert (len(seen), max(seen)) == (7, most)


@with_clock
async def test_a_tool_that_takes_too_long_is_told_to_the_model() -> None:
    @tool
    async def nap() -> str:
        """Sleep."""
        await asyncio.sleep(86_400)
        return "awake"

    async with ScriptedModel([[ToolCall("c1", "nap")], "It slept."]) as model:
        await ReactAgent("sleeper", model, [nap], tool_timeout=10).run("go")
    assert "timed out after 10 s" in model.requests[1].messages[-1].text
    assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.1)


async def test_a_tool_that_asks_interrupts_the_run() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return context.interrupt({"question": "sure?"})

    agent = ReactAgent("clerk", ScriptedModel([[ToolCall("c1", "ask")]]), [ask], output_key="answer")
    result = await agent.run({"input": "go", "answer": "of an earlier turn"})
    assert (result.status, [i.value for i in result.interrupts]) == ("interrupted", [{"question": "sure?"}])
    assert (result.output, len(result.messages)) == (None, 2)


# --- failures ---


async def test_a_model_that_fails_fails_the_run_with_its_own_error_and_where() -> None:
    async with ScriptedModel([call_add(), ModelError("overloaded", status_code=529)]) as model:
        with pytest.raises(ModelError, match="overloaded") as caught:
            await ReactAgent("clerk", model, [add]).run("go")
    assert caught.value.__notes__ == ["in node 'llm', step 3"]


async def test_a_model_that_fails_may_become_the_answer() -> None:
    async with ScriptedModel([call_add(), ModelError("overloaded")]) as model:
        result = await ReactAgent("clerk", model, [add], on_error="message").run("go")
    assert texts(result.messages) == ["go", "", "42", "Exception: overloaded"]
    assert result.text == result.output == "Exception: overloaded"


@pytest.mark.case("I6")
async def test_an_answer_that_reads_like_an_error_ends_the_run_as_any_other() -> None:
    async with ScriptedModel(["Exception: handle it with care"]) as model:
        result = await ReactAgent("clerk", model, [add], on_error="message").run("go")
    assert (result.text, result.status) == ("Exception: handle it with care", "done")


@pytest.mark.case("C8")
async def test_a_call_that_a_broken_stream_began_neither_runs_nor_is_told_as_an_update() -> None:
    class Broken(FunctionModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
            self.requests.append(request)
            yield Delta("let me")
            yield Delta(index=0, call_id="c1", name="never", arguments='{"a": 1')
            raise StreamCutError("cut", partial="let me")

    @tool
    async def never(a: int) -> str:
        """Never."""
        raise AssertionError("ran")

    events: list[Any] = []
    async with ReactAgent("clerk", Broken(lambda _: ""), [never]).stream("go") as stream:
        with pytest.raises(StreamCutError):
            await collect(stream, events)
    assert not any(isinstance(e, StateUpdate | ToolStarted) for e in events)


async def collect(events: Any, into: list[Any]) -> None:
    async for event in events:
        into.append(event)  # noqa: PERF401  # what came before an error is asked for


# --- streams ---


async def test_a_stream_tells_the_rounds_in_order_and_ends_with_the_same_result() -> None:
    def agent() -> ReactAgent:
        return ReactAgent("clerk", ScriptedModel([call_add(), "It is 42."]), [add])

    events: list[Any] = []
    async with agent().stream("17 + 25?", RunConfig(run_id="r")) as stream:
        await collect(stream, events)
    told = [type(e).__name__ for e in events if isinstance(e, RunStarted | NodeStarted | ToolFinished | RunFinished)]
    assert told == ["RunStarted", "NodeStarted", "NodeStarted", "ToolFinished", "NodeStarted", "RunFinished"]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert all(encode(e) for e in events)
    ran = await agent().run("17 + 25?", RunConfig(run_id="r"))
    assert texts(stream.result.messages) == texts(ran.messages)
    assert (stream.result.text, stream.result.steps, stream.result.run_id) == (ran.text, ran.steps, ran.run_id)


async def test_an_agent_that_does_not_stream_tells_no_deltas() -> None:
    async with ReactAgent("clerk", ScriptedModel(["hello there"]), stream=False).stream("go") as events:
        assert [e async for e in events if isinstance(e, ModelDelta)] == []
    assert events.result.text == "hello there"


@pytest.mark.case("B3")
async def test_a_reader_that_leaves_after_two_events_ends_the_run_and_nothing_starts_afterwards() -> None:
    model = Silent("a", "b")
    async with ReactAgent("clerk", model, [add]).stream("go") as stream:
        for _ in range(2):
            await anext(stream)
        await model.waits.wait()
    assert model.closed.is_set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(model.requests) == 1


@pytest.mark.case("B4")
@with_clock
async def test_a_time_limit_round_the_first_token_ends_the_run_without_a_trace() -> None:
    untold: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
    model = Silent()

    async def read() -> None:
        async with ReactAgent("clerk", model, [add]).stream("go") as stream:
            async for _ in stream:
                pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.1)
    assert model.closed.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    await asyncio.sleep(0)
    assert untold == []


@pytest.mark.case("G12")
async def test_a_reader_cancelled_while_it_waits_closes_the_model_without_any_further_event() -> None:
    model = Silent()

    async def read() -> None:
        async with ReactAgent("clerk", model, [add]).stream("go") as stream:
            async for _ in stream:
                pass

    reader = asyncio.create_task(read())
    await model.waits.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert model.closed.is_set()


@pytest.mark.case("G12")
async def test_a_reader_that_leaves_while_a_tool_runs_stops_the_tool() -> None:
    tracked = Tracked()
    model = ScriptedModel([[ToolCall("c1", "tick")], "never asked"])
    async with ReactAgent("clerk", model, [tracked.tick]).stream("go"):
        await tracked.started.wait()
    await tracked.check_stopped()
    assert len(model.requests) == 1


# --- as a node of other graphs ---


@pytest.mark.case("E15")
async def test_an_agent_as_a_node_gives_back_what_it_added_and_doubles_nothing() -> None:
    graph = StateGraph(
        strategies={"messages": Messages(), "log": Append(), "n": Reduce(int.__add__), "kept": Replace()}
    )
    agents = [ReactAgent(n, ScriptedModel([call_add(n), f"{n} done"]), [add]) for n in ("a", "b")]
    graph.add_node("a", agents[0]).add_node("b", agents[1])
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    start = {"messages": [UserMessage("go")], "log": ["one"], "n": 1, "kept": "k"}
    state = (await graph.compile().invoke(start)).state
    assert texts(state["messages"]) == ["go", "", "42", "a done", "", "42", "b done"]
    assert (state["log"], state["n"], state["kept"]) == (["one"], 1, "k")
    assert set(state) == set(start)


async def test_an_agents_private_keys_stay_inside_also_where_the_outer_graph_is_an_agents_too() -> None:
    boss = ReactAgent("boss", ScriptedModel(["the boss's"]))
    boss.graph.add_node("clerk", ReactAgent("clerk", ScriptedModel(["the clerk's"])))
    boss.graph.add_edge("llm", "clerk").add_edge("clerk", END)
    result = await boss.run("go")
    assert (texts(result.messages), result.output) == (["go", "the boss's", "the clerk's"], "the boss's")


@pytest.mark.parametrize("whole", [True, False])
async def test_an_agent_as_a_node_takes_a_mapping_of_keys(whole: bool) -> None:
    writer = ReactAgent("writer", ScriptedModel(["a poem"]), output_key="answer")
    graph = StateGraph(strategies={"topic": Replace(), "draft": Replace()})
    node = writer if whole else writer.app
    graph.add_node("write", node, input={"topic": "input"}, output={"answer": "draft"})
    graph.add_edge(START, "write").add_edge("write", END)
    assert (await graph.compile().invoke({"topic": "lamps"})).state == {"topic": "lamps", "draft": "a poem"}


@pytest.mark.parametrize(
    ("strategies", "told"),
    [
        ({"messages": Replace()}, "'messages' has Messages.. in its graph and Replace.. in this one"),
        ({"answer": Replace()}, "no state key in common"),
        (None, "'messages' has Messages.. in its graph and Replace.. in this one"),
    ],
)
def test_a_graph_that_would_lose_what_its_agent_adds_is_refused(strategies: Any, told: str) -> None:
    graph = StateGraph(strategies=strategies)
    graph.add_node("agent", ReactAgent("clerk", ScriptedModel(["hi"])))
    graph.add_edge(START, "agent").add_edge("agent", END)
    with pytest.raises(GraphError, match=f"node 'agent': .*{told}"):
        graph.compile()


@pytest.mark.parametrize(
    ("shared", "output", "warnings"),
    [("input", None, 1), ("answer", None, 0), ("messages", None, 0), ("input", {"log": "log"}, 0)],
)
async def test_an_answer_that_no_key_of_the_outer_graph_takes_is_told_in_the_log(
    shared: str, output: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    agent = ReactAgent("clerk", ScriptedModel(["hi"]), output_key="answer", strategies={"log": Append()})
    keys = {shared: Messages() if shared == "messages" else Replace(), "input": Replace(), "log": Append()}
    graph = StateGraph(strategies=keys)
    graph.add_node("agent", agent, output=output)
    graph.add_edge(START, "agent").add_edge("agent", END)
    caplog.set_level(logging.WARNING, "agentgraph")
    await graph.compile().invoke({"input": "go"})
    assert len(caplog.records) == warnings
    assert all("agent 'clerk' has answered, and the graph of node 'agent'" in r.getMessage() for r in caplog.records)


@pytest.mark.case("I13")
async def test_an_agent_as_a_node_counts_into_the_runs_usage_once() -> None:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("a", ReactAgent("a", ScriptedModel([AssistantMessage("one", usage=Usage(10, 1))])))
    graph.add_node("b", LlmNode(ScriptedModel([AssistantMessage("two", usage=Usage(20, 2))])))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    result = await graph.compile().invoke({"messages": UserMessage("go")})
    assert result.usage == result.state["_token_usage"] == Usage(30, 3, calls=2)


def looping(rounds: int) -> ReactAgent:
    """An agent that calls its tool so many times, then answers: two steps a round, and one."""

    def answer(request: ModelRequest) -> Any:
        done = sum(isinstance(m, ToolResponseMessage) for m in request.messages)
        return "done" if done == rounds else call_add(f"c{done}")

    return ReactAgent("looper", FunctionModel(answer), [add])


def around(agent: ReactAgent) -> Any:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent").add_edge("agent", END)
    return graph.compile()


@pytest.mark.case("E12")
async def test_an_agent_as_a_node_shares_the_runs_limit_of_steps() -> None:
    result = await around(looping(20)).invoke({"messages": UserMessage("go")}, RunConfig(recursion_limit=200))
    assert (result.steps, len(result.state["messages"])) == (42, 42)
    exact = await around(looping(4)).invoke({"messages": UserMessage("go")}, RunConfig(recursion_limit=10))
    assert exact.steps == 10
    with pytest.raises(RecursionLimitError):
        await around(looping(4)).invoke({"messages": UserMessage("go")}, RunConfig(recursion_limit=9))


@pytest.mark.case("E12")
async def test_an_agent_without_an_end_reaches_the_limit_which_tells_where_and_how_to_raise_it() -> None:
    with pytest.raises(RecursionLimitError, match=r"limit of 10 steps.*recursion_limit=20") as caught:
        await around(looping(1000)).invoke({"messages": UserMessage("go")}, RunConfig(recursion_limit=10))
    assert caught.value.limit == 10
    assert set(caught.value.last) == {"agent/llm", "agent/tools"}
    with pytest.raises(RecursionLimitError) as caught:
        await looping(1000).run("go", RunConfig(recursion_limit=10))
    assert len(caught.value.state["messages"]) == 11  # the question, and what ten steps added


@pytest.mark.case("E12")
async def test_an_agent_as_a_tool_has_steps_of_its_own() -> None:
    @tool
    async def delegate(task: str) -> str:
        """Let another one do it."""
        return (await looping(20).run(task)).text

    model = ScriptedModel([[ToolCall("c1", "delegate", '{"task": "go"}')], "all done"])
    result = await ReactAgent("boss", model, [delegate]).run("go", RunConfig(recursion_limit=3))
    assert (result.text, result.messages[2].text) == ("all done", "done")


@pytest.mark.case("B12")
async def test_a_cancelled_run_stops_a_tool_two_levels_down_before_the_caller_goes_on() -> None:
    tracked = Tracked()
    model = ScriptedModel([[ToolCall("c1", "tick")], "never asked"])
    middle = around(ReactAgent("clerk", model, [tracked.tick]))
    outer = ReactAgent("boss", ScriptedModel(["go on"]))
    outer.graph.add_node("middle", middle)
    outer.graph.add_edge("llm", "middle").add_edge("middle", END)
    run = asyncio.create_task(outer.run("go"))
    await tracked.started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await tracked.check_stopped()
    assert len(model.requests) == 1


async def test_an_agent_as_a_node_does_not_hold_the_only_permit_while_it_works_inside() -> None:
    graph = StateGraph(strategies={"messages": Messages(), "log": Append()})
    for name in ("a", "b"):
        graph.add_node(name, ReactAgent(name, ScriptedModel([call_add(name), f"{name} done"]), [add]))
        graph.add_edge(START, name).add_edge(name, END)
    result = await graph.compile().invoke({"messages": UserMessage("go")}, RunConfig(max_concurrency=1, timeout=5))
    assert texts(result.state["messages"]) == ["go", "", "42", "a done", "", "42", "b done"]


class Paced:
    """A model that says its words one by one, each when it is told to."""

    name = "paced"

    def __init__(self, *words: str) -> None:
        self.words = words
        self.go = asyncio.Semaphore(0)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        for word in self.words:
            await self.go.acquire()
            yield Delta(word)
        message = AssistantMessage("".join(self.words), id=request.message_id or "")
        yield Delta(response=ModelResponse(message=message))


@pytest.mark.case("G4")
@pytest.mark.case("G14")
async def test_deltas_of_agents_beside_each_other_are_told_apart_by_path_and_message_id() -> None:
    slow, fast = Paced("s1 ", "s2 ", "s3"), Paced("f1 ", "f2")
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("slow", ReactAgent("slow", slow))
    graph.add_node("sub", around(ReactAgent("fast", fast)))
    graph.add_edge(START, "slow").add_edge(START, "sub").add_edge(["slow", "sub"], END)
    events: list[Any] = []
    async with graph.compile().stream({"messages": UserMessage("go")}) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, NodeStarted) and event.path == ("slow", "llm"):
                slow.go.release()
            elif isinstance(event, ModelDelta) and event.path[0] == "slow":
                fast.go.release()
                fast.go.release()
            elif isinstance(event, NodeFinished) and event.path == ("sub",):
                slow.go.release()
                slow.go.release()
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1], RunFinished)
    finals = {m.id: m.text for m in stream.result.state["messages"][1:]}
    assert list(finals.values()) == ["s1 s2 s3", "f1 f2"]
    for path in (("slow", "llm"), ("sub", "agent", "llm")):
        mine = [e for e in events if e.path == path]
        deltas = [e for e in mine if isinstance(e, ModelDelta)]
        assert [type(e) for e in mine] == [NodeStarted, *[ModelDelta] * len(deltas), NodeFinished, StateUpdate]
        (id,) = {d.message_id for d in deltas}
        assert "".join(d.text for d in deltas) == finals[id]


# --- loops, threads, and many runs of one agent ---


@pytest.mark.case("J1")
def test_one_agent_works_in_one_event_loop_after_another() -> None:
    @tool
    def blocking(a: int) -> int:
        """Double."""
        return 2 * a

    def answer(request: ModelRequest) -> Any:
        return "done" if len(request.messages) > 1 else [ToolCall("c1", "blocking", '{"a": 1}'), *call_add("c2")]

    agent = ReactAgent("clerk", FunctionModel(answer), [blocking, add])
    assert [asyncio.run(agent.run("go")).text for _ in range(3)] == ["done"] * 3


@pytest.mark.case("J11")
def test_one_agent_works_in_event_loops_of_several_threads_at_once() -> None:
    everyone_is_asked = threading.Barrier(3)

    def answer(request: ModelRequest) -> str:
        everyone_is_asked.wait(5)
        return f"to {request.messages[-1].text}"

    agent = ReactAgent("clerk", FunctionModel(answer))
    with ThreadPoolExecutor(3) as pool:
        assert [r.text for r in pool.map(agent.run_sync, "abc")] == ["to a", "to b", "to c"]


@pytest.mark.case("J12")
@pytest.mark.case("J2")
async def test_the_blocking_helper_refuses_in_a_running_loop_and_works_beside_it() -> None:
    agent = ReactAgent("clerk", FunctionModel(lambda _: "hi"))
    assert [(await agent.run("cell 1")).text, (await agent.run("cell 2")).text] == ["hi", "hi"]
    with pytest.raises(SyncInLoopError, match=r"await agent\.run"):
        agent.run_sync("go")
    gc.collect()  # a coroutine that nobody awaits would warn here
    assert (await asyncio.to_thread(agent.run_sync, "go")).text == "hi"


@pytest.mark.case("J13")
async def test_five_hundred_runs_at_once_see_nothing_of_each_other() -> None:
    @tool
    async def whoami(context: ToolContext) -> str:
        """Tell who asks."""
        n = context.run.context["n"]
        for _ in range(3):
            await asyncio.sleep(0)
            assert context.run.context["n"] == n
            assert context.run.config.tags == (f"tag-{n}",)
            assert (context.run.run_id, context.run.config.thread_id) == (f"run-{n}", f"thread-{n}")
        return f"{n}"

    async def bring(request: ModelRequest, call: ModelCall) -> ModelResponse:
        n = request.context["n"]
        own = Tool(lambda: f"own {n}", name=f"own-{n}", description="Yours alone.")
        return await call(msgspec.structs.replace(request, dynamic_tools=[own]))

    async def answer(request: ModelRequest) -> Any:
        await asyncio.sleep(0)
        names = [t.name for t in request.tools]
        assert names == ["whoami", f"own-{request.context['n']}"]
        last = request.messages[-1]
        return last.text if isinstance(last, ToolResponseMessage) else [ToolCall(n, n) for n in names]

    agent = ReactAgent("clerk", FunctionModel(answer), [whoami], interceptors=[bring])

    async def one(n: int) -> str:
        config = RunConfig(run_id=f"run-{n}", thread_id=f"thread-{n}", tags=(f"tag-{n}",), metadata={"n": n})
        if n % 2:
            return (await agent.run(f"{n}", config, context={"n": n})).text
        async with agent.stream(f"{n}", config, context={"n": n}) as stream:
            assert {e.run_id async for e in stream} == {f"run-{n}"}
        return stream.result.text

    assert await asyncio.gather(*map(one, range(500))) == [f"{n}\nown {n}" for n in range(500)]


def test_the_app_of_an_agent_is_shared_and_takes_no_attribute() -> None:
    agent = ReactAgent("clerk", ScriptedModel([]))
    assert agent.app is agent.app
    with pytest.raises(AttributeError, match="shared between runs"):
        agent.app.thread = "mine"
