"""The LLM node: what it sends, what it writes, and what it does about a model that fails."""

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import (
    END,
    START,
    CompiledGraph,
    ConfigError,
    GraphError,
    InputError,
    Retry,
    RunConfig,
    RunContext,
    StateGraph,
)
from agentgraph.events import Event, ModelDelta, RunFailed, encode
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    InstructionMessage,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import ChatModel, Delta, ModelError, ModelRequest, ModelResponse, StreamCutError
from agentgraph.node import as_mapping
from agentgraph.nodes import LlmNode, LlmRequest, ModelCall, ReactAgent, TemplateError, Tool, ToolNode, tool
from agentgraph.nodes.history import NOT_FINISHED
from agentgraph.strategies import LastWrite, Messages, Replace
from agentgraph.testing import FunctionModel, ScriptedModel, check_request, with_clock

KEYS = {k: Replace() for k in ("input", "topic", "notes", "answer", "n")}


def alone(node: Any, **policies: Any) -> CompiledGraph[dict[str, Any]]:
    """A graph of this node only."""
    graph = StateGraph(strategies={"messages": Messages(), **KEYS})
    graph.add_node("llm", node, **policies)
    graph.add_edge(START, "llm").add_edge("llm", END)
    return graph.compile()


class Streaming:
    """A model whose stream yields these deltas, raises these errors and waits for these events."""

    name = "streaming"

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.requests: list[ModelRequest] = []
        self.waits = asyncio.Event()
        self.closed = asyncio.Event()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    self.waits.set()
                    await step.wait()
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            self.closed.set()


def whole(text: str, **fields: Any) -> Delta:
    return Delta(response=ModelResponse(message=AssistantMessage(text, **fields)))


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


async def collect(events: AsyncIterator[Event], into: list[Any]) -> None:
    """Read to the end; what came before an error is in `into` all the same."""
    async for event in events:
        into.append(event)  # noqa: PERF401


# --- rounds ---


async def test_each_run_counts_its_rounds_from_zero(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentgraph")
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(FunctionModel(lambda _: "hm"), agent_name="thinker", log=True))
    graph.add_edge(START, "llm")
    graph.add_conditional_edges("llm", lambda state: END if len(state["messages"]) > 3 else "llm", ["llm", END])
    app = graph.compile()
    for _ in range(2):
        await app.invoke({"messages": UserMessage("?")})
    rounds = [f"thinker: round {n}, stop: 'hm'" for n in (0, 1, 2)]
    assert [r.getMessage() for r in caplog.records] == rounds * 2


# --- where the conversation comes from ---


async def test_the_messages_of_the_state_are_asked_and_the_answer_is_added() -> None:
    async with ScriptedModel(["42"]) as model:
        messages = [UserMessage("17 + 25?")]
        result = await alone(LlmNode(model)).invoke({"messages": messages, "input": "not asked"})
    assert model.requests[0].messages == messages
    assert texts(result.state["messages"]) == ["17 + 25?", "42"]


@pytest.mark.parametrize(
    "spoken", ["17 + 25?", UserMessage("17 + 25?"), [TextPart("17 + 25?")], InstructionMessage("{n} + 25?")]
)
async def test_without_messages_the_input_becomes_the_users(spoken: Any) -> None:
    async with ScriptedModel(["42"]) as model:
        result = await alone(LlmNode(model)).invoke({"input": spoken, "n": 17})
    assert texts(model.requests[0].messages) == ["17 + 25?"]
    assert texts(result.state["messages"]) == ["17 + 25?", "42"]


async def test_system_messages_alone_are_nothing_to_ask_so_the_input_is() -> None:
    async with ScriptedModel(["42"]) as model:
        result = await alone(LlmNode(model)).invoke({"messages": SystemMessage("Be brief."), "input": "17 + 25?"})
    assert texts(model.requests[0].messages) == ["17 + 25?"]
    assert texts(result.state["messages"]) == ["Be brief.", "17 + 25?", "42"]


@pytest.mark.parametrize("state", [{}, {"input": ""}, {"messages": SystemMessage("Be brief.")}])
@pytest.mark.parametrize("on_error", ["raise", "message"])
async def test_nothing_to_ask_is_an_error_that_says_what_to_give(state: dict[str, Any], on_error: Any) -> None:
    async with ScriptedModel([]) as model:
        with pytest.raises(InputError, match=r"'llm' has nothing to ask.*neither messages nor input.*UserMessage"):
            await alone(LlmNode(model, on_error=on_error)).invoke(state)


async def test_the_state_is_not_changed_in_place() -> None:
    broken = [InstructionMessage("about {topic}"), AssistantMessage(tool_calls=[ToolCall("a", "look", "{")])]
    before = copy.deepcopy(broken)
    graph = StateGraph(strategies={"messages": Messages(), **KEYS})
    graph.add_node("llm", LlmNode(ScriptedModel(["1"]), instruction="Be brief.", output_schema={}))
    graph.add_edge(START, "llm").add_edge("llm", END)
    result = await graph.compile(debug=True).invoke({"messages": broken, "topic": "lamps"})
    assert len(result.state["messages"]) == 4
    assert broken == before


class TypedState(TypedDict, total=False):
    messages: Annotated[list[Message], Messages()]
    topic: str


@dataclass
class DataState:
    messages: Annotated[list[Message], Messages()]
    topic: str = ""


class StructState(msgspec.Struct):
    messages: Annotated[list[Message], Messages()]
    topic: str = ""


@pytest.mark.parametrize("kind", [TypedState, DataState, StructState])
async def test_any_kind_of_state_with_messages_will_do(kind: type[Any]) -> None:
    graph = StateGraph[Any](kind)
    model = ScriptedModel([AssistantMessage("ok", usage=Usage(1, 1))])
    graph.add_node("llm", LlmNode(model, instruction="About {topic}"))
    graph.add_edge(START, "llm").add_edge("llm", END)
    result = await graph.compile().invoke({"messages": [UserMessage("go")], "topic": "lamps"})
    assert texts(model.requests[0].messages) == ["go", "About lamps"]
    assert texts(as_mapping(result.state)["messages"]) == ["go", "ok"]
    assert result.usage == Usage(1, 1)


# --- instructions ---


async def test_the_last_open_instruction_message_is_filled_in_by_state_and_metadata_and_kept_so() -> None:
    async with ScriptedModel(["ok"]) as model:
        ask = InstructionMessage("{topic} for {user}")
        state = {"messages": [ask], "topic": UserMessage("lamps")}
        result = await alone(LlmNode(model)).invoke(state, RunConfig(metadata={"user": "Ada"}))
    assert model.requests[0].messages == [msgspec.structs.replace(ask, text="lamps for Ada", rendered=True)]
    assert result.state["messages"][0] == model.requests[0].messages[0]


async def test_an_instruction_message_is_filled_in_only_once() -> None:
    graph = StateGraph(strategies={"messages": Messages(), "topic": Replace()})
    graph.add_node("first", LlmNode(ScriptedModel(["ok"]), output_key="topic"))
    graph.add_node("second", LlmNode(ScriptedModel(["ok"])))
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    result = await graph.compile().invoke({"messages": InstructionMessage("{topic}"), "topic": "{topic} lamps"})
    assert texts(result.state["messages"]) == ["{topic} lamps", "ok", "ok"]


async def test_an_instruction_message_in_a_broken_conversation_is_filled_in_once_too() -> None:
    broken = [InstructionMessage("{topic}"), AssistantMessage(tool_calls=[ToolCall("a", "look")])]
    app = alone(LlmNode(FunctionModel(lambda _: "ok"), output_key="topic"))
    first = (await app.invoke({"messages": broken, "topic": "{topic} lamps"})).state
    second = (await app.invoke(first)).state
    assert texts(second["messages"])[::2] == ["{topic} lamps", NOT_FINISHED, "ok"]


async def test_a_nodes_instruction_belongs_to_each_request_and_does_not_pile_up() -> None:
    graph = StateGraph(strategies={"messages": Messages(), "n": Replace()})
    model = ScriptedModel(["one", "two"])
    graph.add_node("llm", LlmNode(model, instruction="Round {n}", output_key="n"))
    graph.add_edge(START, "llm")
    graph.add_conditional_edges("llm", lambda state: END if len(state["messages"]) > 2 else "llm", ["llm", END])
    result = await graph.compile().invoke({"messages": UserMessage("?"), "n": "zero"})
    assert [texts(r.messages) for r in model.requests] == [["?", "Round zero"], ["?", "Round one", "one"]]
    assert texts(result.state["messages"]) == ["?", "one", "two"]


@pytest.mark.parametrize("question", [UserMessage("now?"), InstructionMessage("now?", rendered=True)])
async def test_a_nodes_instruction_stands_with_the_turns_question_after_tools_answered_too(question: Message) -> None:
    calls = AssistantMessage(tool_calls=[ToolCall("a", "look")])
    answers = ToolResponseMessage([ToolResponse("a", "look", "found")])
    history = [UserMessage("before?"), AssistantMessage("before"), question, calls, answers]
    async with ScriptedModel(["ok"]) as model:
        await alone(LlmNode(model, instruction="Be brief.")).invoke({"messages": history})
    assert texts(model.requests[0].messages) == ["before?", "before", "now?", "Be brief.", "", "found"]


async def test_a_renderer_of_ones_own_gets_template_and_values() -> None:
    def upper(template: str, values: Mapping[str, Any]) -> str:
        return template.replace("$topic", values["topic"].upper())

    async with ScriptedModel(["ok"]) as model:
        node = LlmNode(model, instruction="About $topic", template_renderer=upper)
        await alone(node).invoke({"input": "go", "topic": "lamps"})
    assert texts(model.requests[0].messages) == ["go", "About LAMPS"]


async def test_a_value_that_is_missing_ends_the_run_before_the_model_is_asked() -> None:
    async with ScriptedModel([]) as model:
        with pytest.raises(TemplateError, match="did you mean 'topic'"):
            await alone(LlmNode(model, instruction="{topik}")).invoke({"input": "go", "topic": "lamps"})


# --- system messages ---


async def test_the_system_prompt_comes_first_and_several_are_joined_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedModel(["ok"]) as model:
        messages = [UserMessage("go"), SystemMessage("Be brief.")]
        await alone(LlmNode(model, system_prompt="You are a clerk.")).invoke({"messages": messages})
    assert model.requests[0].system is not None
    assert model.requests[0].system.text == "You are a clerk.\n\nBe brief."
    assert texts(model.requests[0].messages) == ["go"]
    assert ["2 system messages" in r.getMessage() for r in caplog.records] == [True]


# --- tools and interceptors ---


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def write() -> str:
    """Write."""
    raise AssertionError("the node ran a tool itself")


async def test_the_model_is_told_of_the_tools_and_the_node_runs_none() -> None:
    async with ScriptedModel([[ToolCall("a", "write")]]) as model:
        result = await alone(LlmNode(model, tools=[look, write])).invoke({"input": "go"})
    assert [t.name for t in model.requests[0].tools] == ["look", "write"]
    assert result.state["messages"][-1].tool_calls == [ToolCall("a", "write")]


async def test_an_empty_tool_list_in_the_options_hides_all_tools_and_other_options_go_on() -> None:
    async with ScriptedModel(["ok"]) as model:
        node = LlmNode(model, tools=[look], options={"tools": [], "temperature": 0})
        await alone(node).invoke({"input": "go"})
    assert (model.requests[0].tools, model.requests[0].options) == ([], {"temperature": 0})


async def test_an_interceptor_may_change_all_of_a_request() -> None:
    async def change(request: ModelRequest, call: ModelCall) -> ModelResponse:
        kept = [t for t in request.tools if t.name == request.context["topic"]]
        added = [*request.messages, UserMessage("please")]
        return await call(msgspec.structs.replace(request, tools=kept, messages=added, tool_choice="required"))

    async with ScriptedModel(["ok"]) as model:
        node = LlmNode(model, tools=[look, write], interceptors=[change])
        result = await alone(node).invoke({"input": "go", "topic": "write"})
    sent = model.requests[0]
    assert ([t.name for t in sent.tools], texts(sent.messages), sent.tool_choice) == (
        ["write"],
        ["go", "please"],
        "required",
    )
    assert texts(result.state["messages"]) == ["go", "ok"]


async def test_an_interceptor_that_changes_a_request_in_place_changes_no_other_call() -> None:
    seen: list[Any] = []

    async def careless(request: ModelRequest, call: ModelCall) -> ModelResponse:
        seen.append((len(request.tools), dict(request.options), texts(request.messages)))
        request.tools.clear()
        request.messages.append(UserMessage("please"))
        request.options["temperature"] = 1  # pyright: ignore[reportIndexIssue]
        return await call(request)

    async with ScriptedModel(["ok", "ok"]) as model:
        app = alone(LlmNode(model, tools=[look], interceptors=[careless], options={"temperature": 0}))
        for _ in range(2):
            assert texts((await app.invoke({"input": "go"})).state["messages"]) == ["go", "ok"]
    assert seen == [(1, {"temperature": 0}, ["go"])] * 2


async def test_an_interceptor_may_hide_all_tools_by_the_options() -> None:
    async def hide(request: ModelRequest, call: ModelCall) -> ModelResponse:
        return await call(msgspec.structs.replace(request, options={"tools": []}))

    async with ScriptedModel(["ok"]) as model:
        await alone(LlmNode(model, tools=[look], interceptors=[hide])).invoke({"input": "go"})
    assert (model.requests[0].tools, model.requests[0].options) == ([], {})


async def test_an_interceptor_knows_state_and_metadata_by_the_requests_context() -> None:
    seen: list[Any] = []

    async def watch(request: ModelRequest, call: ModelCall) -> ModelResponse:
        seen.append((request.context["topic"], request.context["user"]))
        return await call(request)

    node = LlmNode(ScriptedModel(["ok"]), interceptors=[watch])
    await alone(node).invoke({"input": "go", "topic": "lamps"}, RunConfig(metadata={"user": "Ada", "topic": "no"}))
    assert seen == [("lamps", "Ada")]


async def test_interceptors_wrap_each_other_the_first_outermost_and_may_answer_themselves() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def around(request: ModelRequest, call: ModelCall) -> ModelResponse:
            order.append(name)
            return await call(request)

        return around

    async def cached(request: ModelRequest, call: ModelCall) -> ModelResponse:
        return ModelResponse(message=AssistantMessage("from the cache", usage=Usage(1000, 1000)))

    async with ScriptedModel([]) as model:
        node = LlmNode(model, interceptors=[named("a"), named("b"), cached, named("c")])
        result = await alone(node).invoke({"input": "go"})
    assert order == ["a", "b"]
    assert texts(result.state["messages"]) == ["go", "from the cache"]
    assert (result.usage, "_token_usage" in result.state) == (None, False)


@pytest.mark.case("D6")
async def test_the_same_answer_from_a_cache_twice_is_two_messages() -> None:
    kept = ModelResponse(message=AssistantMessage("hm"))

    async def cached(request: ModelRequest, call: ModelCall) -> ModelResponse:
        return kept

    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(ScriptedModel([]), interceptors=[cached]))
    graph.add_edge(START, "llm")
    graph.add_conditional_edges("llm", lambda state: END if len(state["messages"]) > 2 else "llm", ["llm", END])
    assert texts((await graph.compile().invoke({"messages": UserMessage("?")})).state["messages"]) == ["?", "hm", "hm"]


async def test_an_interceptor_that_forgets_to_return_is_told_so() -> None:
    async def forgetful(request: ModelRequest, call: ModelCall) -> Any:
        await call(request)

    with pytest.raises(TypeError, match="must return a ModelResponse, found NoneType"):
        await alone(LlmNode(ScriptedModel(["ok"]), interceptors=[forgetful])).invoke({"input": "go"})


async def test_a_dynamic_tool_of_an_interceptor_is_told_to_the_model_and_run_by_the_tool_node() -> None:
    @tool
    async def extra(x: int) -> int:
        """Double."""
        return 2 * x

    async def bring(request: ModelRequest, call: ModelCall) -> ModelResponse:
        return await call(msgspec.structs.replace(request, dynamic_tools=[extra, tool(name="look")(extra.fn)]))

    model = ScriptedModel([[ToolCall("a", "extra", '{"x": 21}'), ToolCall("b", "look")]])
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(model, tools=[look], interceptors=[bring]))
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "llm").add_edge("llm", "tools").add_edge("tools", END)
    result = await graph.compile().invoke({"messages": UserMessage("go")})
    assert model.requests[0].tools == [look.spec, extra.spec]  # one name once, and the node's own comes first
    assert result.state["messages"][-1].text == "42\nseen"


async def test_dynamic_tools_may_be_functions_and_what_is_none_is_told() -> None:
    async def extra() -> int:
        """Six times seven."""
        return 42

    async def bring(request: ModelRequest, call: ModelCall) -> ModelResponse:
        given = request.context["given"]
        return await call(msgspec.structs.replace(request, dynamic_tools=given))

    model = ScriptedModel([[ToolCall("a", "extra")]])
    graph = StateGraph(strategies={"messages": Messages(), "given": Replace()})
    graph.add_node("llm", LlmNode(model, interceptors=[bring])).add_node("tools", ToolNode([]))
    graph.add_edge(START, "llm").add_edge("llm", "tools").add_edge("tools", END)
    app = graph.compile()
    result = await app.invoke({"messages": UserMessage("go"), "given": [extra]})
    assert (model.requests[0].tools[0].description, result.state["messages"][-1].text) == ("Six times seven.", "42")
    with pytest.raises(ConfigError, match="tools are functions or Tool objects; found 'extra'"):
        await app.invoke({"messages": UserMessage("go"), "given": ["extra"]})


async def test_tools_that_a_node_of_the_run_has_brought_are_told_to_the_model() -> None:
    async def bring(state: dict[str, Any], run: RunContext[None]) -> None:
        run.scratch["tools"] = {"look": look, "write": write}

    model = ScriptedModel(["ok"])
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("bring", bring).add_node("llm", LlmNode(model, tools=[look]))
    graph.add_edge(START, "bring").add_edge("bring", "llm").add_edge("llm", END)
    await graph.compile().invoke({"messages": UserMessage("go")})
    assert [t.name for t in model.requests[0].tools] == ["look", "write"]


# --- streaming ---


ANSWERS: list[Any] = [
    AssistantMessage("It is 42.", usage=Usage(10, 5), reasoning=[ReasoningPart("17 + 25")]),
    AssistantMessage("let me see", tool_calls=[ToolCall("a", "look", '{"x": 1}'), ToolCall("b", "look")]),
    "plain text",
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("off", [(False, {}), (True, {"stream": False})])
async def test_streamed_or_not_the_state_is_the_same(answer: Any, off: tuple[bool, dict[str, Any]]) -> None:
    ask = UserMessage("17 + 25?")

    async def state(stream: bool, metadata: dict[str, Any]) -> dict[str, Any]:
        app = alone(LlmNode(ScriptedModel([answer]), stream=stream, output_key="answer"))
        ended = (await app.invoke({"messages": ask}, RunConfig(metadata=metadata))).state
        ended["messages"][1] = msgspec.structs.replace(ended["messages"][1], id="")
        return ended

    assert await state(True, {}) == await state(*off)


@pytest.mark.case("G14")
@pytest.mark.parametrize("answer", ANSWERS)
async def test_deltas_joined_by_message_id_are_the_final_message(answer: Any) -> None:
    async with alone(LlmNode(ScriptedModel([answer]))).stream({"input": "go"}) as stream:
        deltas = [e async for e in stream if isinstance(e, ModelDelta)]
    final = stream.result.state["messages"][-1]
    assert {d.message_id for d in deltas} == {final.id}
    assert "".join(d.text for d in deltas) == final.text
    assert "".join(d.reasoning for d in deltas) == "".join(r.text for r in final.reasoning)
    for index, call in enumerate(final.tool_calls):
        mine = [d for d in deltas if d.index == index]
        assert (mine[0].call_id, mine[0].name) == (call.id, call.name)
        assert "".join(d.arguments for d in mine) == call.arguments


@pytest.mark.parametrize(("stream", "metadata"), [(True, {"stream": False}), (False, {}), (False, {"stream": True})])
async def test_without_streaming_no_delta_is_told(stream: bool, metadata: dict[str, Any]) -> None:
    app = alone(LlmNode(ScriptedModel(["hello there"]), stream=stream))
    async with app.stream({"input": "go"}, RunConfig(metadata=metadata)) as events:
        assert [e async for e in events if isinstance(e, ModelDelta)] == []


async def test_a_piece_that_says_nothing_is_not_told_and_text_beside_the_whole_answer_is() -> None:
    model = Streaming(Delta("a"), Delta(usage=Usage(1, 1)), msgspec.structs.replace(whole("ab"), text="b"))
    async with alone(LlmNode(model)).stream({"input": "go"}) as stream:
        assert [e.text async for e in stream if isinstance(e, ModelDelta)] == ["a", "b"]
    assert stream.result.state["messages"][-1].text == "ab"


async def test_the_answer_has_the_id_that_its_deltas_had_whatever_the_model_calls_it() -> None:
    model = Streaming(Delta("ab"), whole("ab", id="always the same"))
    app = alone(LlmNode(model))
    async with app.stream({"input": "go"}) as stream:
        ids = [e.message_id async for e in stream if isinstance(e, ModelDelta)]
    assert ids == [stream.result.state["messages"][-1].id]
    again = await app.invoke({"messages": [*stream.result.state["messages"], UserMessage("more")]})
    assert texts(again.state["messages"]) == ["go", "ab", "more", "ab"]


@pytest.mark.case("I12")
async def test_a_call_made_again_by_an_interceptor_is_told_under_a_new_message_id() -> None:
    async def twice(request: ModelRequest, call: ModelCall) -> ModelResponse:
        try:
            return await call(request)
        except StreamCutError:
            return await call(request)

    class Model(Streaming):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
            self.requests.append(request)
            yield Delta("Hel")
            if len(self.requests) == 1:
                raise StreamCutError("cut")
            yield Delta("lo")
            yield whole("Hello")

    async with alone(LlmNode(Model(), interceptors=[twice])).stream({"input": "go"}) as stream:
        told = [(e.message_id, e.text) async for e in stream if isinstance(e, ModelDelta)]
    final = stream.result.state["messages"][-1]
    assert [text for id, text in told if id == final.id] == ["Hel", "lo"]
    assert [text for id, text in told if id != final.id] == ["Hel"]


@pytest.mark.case("I12")
async def test_a_further_attempt_of_the_node_is_told_under_a_new_message_id() -> None:
    model = Streaming(Delta("Hel"), StreamCutError("cut"))
    app = alone(LlmNode(model), retry=Retry(attempts=2, delay=0))
    events: list[Any] = []
    async with app.stream({"input": "go"}) as stream:
        with pytest.raises(StreamCutError):
            await collect(stream, events)
    deltas = [e for e in events if isinstance(e, ModelDelta)]
    assert [d.text for d in deltas] == ["Hel", "Hel"]
    assert deltas[0].message_id != deltas[1].message_id


@with_clock
async def test_each_piece_tells_that_the_node_lives_also_where_nobody_reads() -> None:
    model = Streaming(*(step for _ in range(5) for step in (8.0, Delta("hm "))), whole("hm " * 5))
    result = await alone(LlmNode(model), idle_timeout=10).invoke({"input": "go"})
    assert result.state["messages"][-1].text == "hm " * 5


# --- chunk interceptors ---


async def unchanged(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    async for delta in deltas:
        yield delta


async def loud(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    async for delta in deltas:
        yield msgspec.structs.replace(delta, text=delta.text.upper())


async def polite(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    async for delta in deltas:
        yield delta
    yield Delta(f" Thanks for {request.messages[-1].text}!")


async def until_stop(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    async for delta in deltas:
        before, found, _ = delta.text.partition("STOP")
        yield msgspec.structs.replace(delta, text=before)
        if found:
            return


async def deltas_and_message(node: LlmNode) -> tuple[list[ModelDelta], AssistantMessage]:
    async with alone(node).stream({"input": "go"}) as stream:
        deltas = [e async for e in stream if isinstance(e, ModelDelta)]
    return deltas, stream.result.state["messages"][-1]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("stream", [True, False])
async def test_where_chunk_interceptors_change_nothing_the_message_is_the_models_own(answer: Any, stream: bool) -> None:
    plain = alone(LlmNode(ScriptedModel([answer])))
    through = alone(LlmNode(ScriptedModel([answer]), chunk_interceptors=[unchanged, unchanged], stream=stream))
    first = (await plain.invoke({"input": "go"})).state["messages"][-1]
    second = (await through.invoke({"input": "go"})).state["messages"][-1]
    assert msgspec.structs.replace(second, id=first.id) == first


async def test_what_chunk_interceptors_let_through_is_what_readers_see_and_what_the_message_says() -> None:
    calls = [ToolCall("a", "look", '{"x": 1}')]
    rest: dict[str, Any] = {
        "reasoning": [ReasoningPart("hm", "signed")],
        "metadata": {"model": "m"},
        "usage": Usage(1, 2),
    }
    answer = AssistantMessage("let me see", tool_calls=calls, **rest)
    deltas, message = await deltas_and_message(LlmNode(ScriptedModel([answer]), chunk_interceptors=[loud]))
    assert {d.message_id for d in deltas} == {message.id}
    assert [d.text for d in deltas if d.text] == ["LET", " ME", " SEE"]
    assert message == msgspec.structs.replace(answer, id=message.id, text="LET ME SEE")


async def test_the_first_chunk_interceptor_is_the_outermost_and_each_gets_the_request() -> None:
    _, outside = await deltas_and_message(LlmNode(ScriptedModel(["ok"]), chunk_interceptors=[loud, polite]))
    _, inside = await deltas_and_message(LlmNode(ScriptedModel(["ok"]), chunk_interceptors=[polite, loud]))
    assert (outside.text, inside.text) == ("OK THANKS FOR GO!", "OK Thanks for go!")


def redacted(word: str, by: str) -> Any:
    """What never tells a part of the word: it holds back as many characters as may still grow into it."""

    async def redact(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        held = ""
        async for delta in deltas:
            held = (held + delta.text).replace(word, by)
            kept = next(n for n in range(len(word) - 1, -1, -1) if held.endswith(word[:n]))
            yield msgspec.structs.replace(delta, text=held[: len(held) - kept])
            held = held[len(held) - kept :]
        yield Delta(held)

    return redact


@settings(max_examples=40)
@given(st.lists(st.text("ab x", min_size=1, max_size=6), min_size=1, max_size=6), st.booleans())
async def test_a_word_cut_anywhere_is_redacted_alike_in_what_is_told_and_in_the_message_streamed_or_not(
    pieces: list[str], stream: bool
) -> None:
    class Model(Streaming):
        async def generate(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse(message=AssistantMessage("".join(pieces) + "."))

    model = Model(*map(Delta, pieces), Delta("."), whole("".join(pieces) + "."))
    node = LlmNode(model, chunk_interceptors=[redacted("ab", "*")], stream=stream)
    deltas, message = await deltas_and_message(node)
    assert message.text == "".join(pieces).replace("ab", "*") + "."
    assert "".join(d.text for d in deltas) == (message.text if stream else "")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_whose_first_piece_is_dropped_is_dropped_whole(stream: bool) -> None:
    async def without_writing(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if delta.name != "write":
                yield delta

    calls = [ToolCall("a", "write", '{"path": "/"}'), ToolCall("b", "look", '{"x": 1}')]
    node = LlmNode(ScriptedModel([calls]), chunk_interceptors=[without_writing], stream=stream)
    deltas, message = await deltas_and_message(node)
    assert message.tool_calls == calls[1:]
    assert "".join(d.arguments for d in deltas) == ('{"x": 1}' if stream else "")
    text = AssistantMessage("no", tool_calls=calls[:1], finish_reason="tool_calls")
    node = LlmNode(ScriptedModel([text]), chunk_interceptors=[without_writing], stream=stream)
    _, message = await deltas_and_message(node)
    assert (message.text, message.tool_calls, message.finish_reason) == ("no", [], "stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_may_be_added_and_is_run_under_the_id_that_readers_were_told(stream: bool) -> None:
    async def look_first(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            yield delta
        if len(request.messages) == 1:
            yield Delta(index=0, name="look", arguments="{}")

    model = ScriptedModel(["let me see", "done"])
    agent = ReactAgent("clerk", model, [look], chunk_interceptors=[look_first], stream=stream)
    async with agent.stream("go") as events:
        told = [e.call_id async for e in events if isinstance(e, ModelDelta) and e.call_id]
    asked, answered = events.result.messages[1:3]
    assert isinstance(asked, AssistantMessage)
    assert (asked.finish_reason, answered.text, events.result.text) == ("tool_calls", "seen", "done")
    assert told == ([call.id for call in asked.tool_calls] if stream else [])


async def test_an_interceptor_that_returns_stops_the_models_stream_and_the_message_is_what_was_told() -> None:
    never = asyncio.Event()
    model = Streaming(Delta(reasoning="hm"), Delta("one "), Delta("two STOP three"), never)
    deltas, message = await deltas_and_message(LlmNode(model, chunk_interceptors=[unchanged, until_stop, unchanged]))
    assert model.closed.is_set()
    assert "".join(d.text for d in deltas) == message.text == "one two "
    assert (message.reasoning, message.finish_reason, message.usage) == ([ReasoningPart("hm")], "stop", None)


async def test_an_answer_that_is_stopped_is_the_same_without_streaming_but_for_its_usage() -> None:
    answer = AssistantMessage(
        "one two STOP three",
        reasoning=[ReasoningPart("hm", signature="s")],
        finish_reason="length",
        usage=Usage(3, 4),
        metadata={"model": "m"},
    )

    async def ended(stream: bool) -> tuple[AssistantMessage, Usage | None]:
        node = LlmNode(ScriptedModel([answer]), chunk_interceptors=[until_stop], stream=stream)
        result = await alone(node).invoke({"input": "go"})
        return msgspec.structs.replace(result.state["messages"][-1], id=""), result.usage

    (streamed, nothing), (at_once, usage) = await ended(True), await ended(False)
    assert (nothing, usage, at_once.usage) == (None, Usage(3, 4), Usage(3, 4))
    assert msgspec.structs.replace(at_once, usage=None) == streamed
    assert streamed.text == "one two "


async def test_of_an_answer_that_is_stopped_only_whole_calls_are_kept() -> None:
    async def three(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        pieces = 0
        async for delta in deltas:
            yield delta
            pieces += 1
            if pieces == 3:
                return

    first = Delta(index=0, call_id="a", name="look", arguments='{"x"')
    others = [Delta(index=0, arguments=": 1}"), Delta(index=1, call_id="b", name="write"), Delta(index=1)]
    _, message = await deltas_and_message(LlmNode(Streaming(first, *others), chunk_interceptors=[three]))
    assert (message.tool_calls, message.finish_reason) == ([ToolCall("a", "look", '{"x": 1}')], "tool_calls")


async def test_a_reader_that_leaves_closes_interceptors_and_the_models_stream_the_outermost_first() -> None:
    closed: list[str] = []

    def named(name: str) -> Any:
        async def through(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
            try:
                async for delta in deltas:
                    yield delta
            finally:
                closed.append(name)

        return through

    class Model(Streaming):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
            try:
                while True:
                    yield Delta("hm ")
            finally:
                closed.append("model")

    app = alone(LlmNode(Model(), chunk_interceptors=[named("a"), named("b")]))
    async with app.stream({"input": "go"}, buffer=2) as events:
        async for event in events:
            if isinstance(event, ModelDelta):
                break
    assert closed == ["a", "b", "model"]


async def test_an_error_of_a_chunk_interceptor_is_the_nodes_and_closes_the_models_stream() -> None:
    async def broken(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            yield delta
            raise LookupError("broken")

    model = Streaming(Delta("one "), Delta("two"), whole("one two"))
    with pytest.raises(LookupError, match="broken"):
        await alone(LlmNode(model, chunk_interceptors=[unchanged, broken])).invoke({"input": "go"})
    assert model.closed.is_set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chunk_interceptor_may_answer_for_a_model_that_fails(stream: bool) -> None:
    async def sorry(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        try:
            async for delta in deltas:
                yield delta
        except ModelError as error:
            yield Delta(f"Sorry: {error}.")

    model = ScriptedModel([ModelError("overloaded")])
    _, message = await deltas_and_message(LlmNode(model, chunk_interceptors=[sorry], stream=stream))
    assert message.text == "Sorry: overloaded."


async def test_reasoning_that_was_changed_loses_its_signature_and_what_was_never_told_stays() -> None:
    async def quiet(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            yield msgspec.structs.replace(delta, reasoning=delta.reasoning[:1])

    sealed = ReasoningPart(data={"type": "sealed"})
    given = AssistantMessage("ok", reasoning=[ReasoningPart("12", "s"), ReasoningPart("34", "t"), sealed])
    deltas, message = await deltas_and_message(LlmNode(ScriptedModel([given]), chunk_interceptors=[quiet]))
    assert "".join(d.reasoning for d in deltas) == "13"
    assert message.reasoning == [ReasoningPart("13"), sealed]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_a_model_says_only_in_its_whole_answer_goes_through_the_interceptors_too(answer: Any) -> None:
    seen: list[Delta] = []

    async def watch(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            seen.append(delta)
            yield delta

    response = await ScriptedModel([answer]).generate(ModelRequest(messages=[]))
    node = LlmNode(Streaming(Delta(response=response)), chunk_interceptors=[watch])
    _, message = await deltas_and_message(node)
    assert "".join(d.text for d in seen) == message.text == response.message.text
    assert [d.name for d in seen if d.name] == [call.name for call in message.tool_calls]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_of_which_nothing_is_let_through_is_an_error_and_its_tokens_count(stream: bool) -> None:
    async def nothing(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            yield msgspec.structs.replace(delta, text="")

    answer = AssistantMessage("secret", usage=Usage(10, 5))
    node = LlmNode(ScriptedModel([answer]), chunk_interceptors=[nothing], stream=stream, on_error="message")
    result = await alone(node).invoke({"input": "go"})
    assert "or none that its chunk interceptors let through" in result.state["messages"][-1].text
    assert result.usage == Usage(10, 5)


@with_clock
async def test_pieces_that_are_held_back_tell_that_the_node_lives() -> None:
    async def at_once(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        yield Delta("".join([delta.text async for delta in deltas]))

    model = Streaming(*(step for _ in range(5) for step in (8.0, Delta("hm "))), whole("hm " * 5))
    result = await alone(LlmNode(model, chunk_interceptors=[at_once]), idle_timeout=10).invoke({"input": "go"})
    assert result.state["messages"][-1].text == "hm " * 5


async def test_interceptors_of_the_call_and_the_output_type_get_what_the_chunk_interceptors_let_through() -> None:
    seen: list[str] = []

    async def watch(request: ModelRequest, call: ModelCall) -> ModelResponse:
        response = await call(request)
        seen.append(response.message.text)
        return response

    model = ScriptedModel(['["secret"]'])
    node = LlmNode(
        model, interceptors=[watch], chunk_interceptors=[redacted("secret", "*")], output_type=list[str], output_key="n"
    )
    assert (await alone(node).invoke({"input": "go"})).state["n"] == ["*"]
    assert seen == ['["*"]']


async def test_an_id_that_the_conversation_has_is_another_one_here_through_chunk_interceptors_too() -> None:
    before = [
        UserMessage("go"),
        AssistantMessage(tool_calls=[ToolCall("call_0", "look")]),
        ToolResponseMessage([ToolResponse("call_0", "look", "seen")]),
    ]
    node = LlmNode(ScriptedModel([[ToolCall("call_0", "look", '{"x": 1}')]]), chunk_interceptors=[unchanged])
    async with alone(node).stream({"messages": before}) as stream:
        told = [e.call_id async for e in stream if isinstance(e, ModelDelta) and e.call_id]
    (call,) = stream.result.state["messages"][-1].tool_calls
    assert told == [call.id]
    assert call.id != "call_0"


async def test_two_calls_of_one_index_are_an_error_that_says_so() -> None:
    async def clumsy(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in deltas:
            yield delta
        yield Delta(index=0, call_id="mine", name="write")

    node = LlmNode(ScriptedModel([[ToolCall("a", "look", "{}")]]), chunk_interceptors=[clumsy])
    with pytest.raises(ValueError, match="two tool calls of one answer have the index 0: 'look' and 'write'"):
        await alone(node).invoke({"input": "go"})


async def test_a_model_that_keeps_no_protocol_is_told_so_beside_chunk_interceptors_too() -> None:
    for model, told in [
        (Odd("lo"), "must stream Deltas, found 'lo'"),
        (Odd(Delta(response=cast("Any", "hi"))), "must answer by a ModelResponse, found 'hi'"),
        (Streaming(Delta("Hel")), "ended its stream without an answer"),
    ]:
        with pytest.raises(ModelError, match=told):
            await alone(LlmNode(model, chunk_interceptors=[unchanged])).invoke({"input": "go"})
    with pytest.raises(ModelError, match="must answer by a ModelResponse, found 'hi'"):
        await alone(LlmNode(Odd("hi"), chunk_interceptors=[unchanged], stream=False)).invoke({"input": "go"})


async def test_a_chunk_interceptor_that_is_none_is_told_so_at_the_latest_when_it_is_called() -> None:
    async def words(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Any]:
        async for delta in deltas:
            yield delta.text

    class Later:
        async def __call__(self, deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
            return deltas

    with pytest.raises(TypeError, match="a chunk interceptor must yield Deltas, found 'ok'"):
        await alone(LlmNode(ScriptedModel(["ok"]), chunk_interceptors=[words])).invoke({"input": "go"})
    with pytest.raises(TypeError, match="must be an async generator function, found <"):
        await alone(LlmNode(ScriptedModel(["ok"]), chunk_interceptors=[cast("Any", Later())])).invoke({"input": "go"})


# --- advisors ---


def advisor(name: str, order: list[str]) -> Any:
    def advise(request: LlmRequest) -> LlmRequest:
        order.append(name)
        return msgspec.structs.replace(request, messages=[*request.messages, UserMessage(name)])

    return advise


async def test_advisors_prepare_the_request_in_order_sync_or_async_before_the_interceptors() -> None:
    order: list[str] = []

    async def slow(request: LlmRequest) -> LlmRequest:
        await asyncio.sleep(0)
        return advisor("slow", order)(request)

    async def watch(request: LlmRequest, call: ModelCall) -> ModelResponse:
        order.append("interceptor")
        return await call(request)

    async with ScriptedModel(["ok"]) as model:
        node = LlmNode(model, advisors=[advisor("first", order), slow], interceptors=[watch])
        result = await alone(node).invoke({"input": "go"})
    assert order == ["first", "slow", "interceptor"]
    assert texts(model.requests[0].messages) == ["go", "first", "slow"]
    assert texts(result.state["messages"]) == ["go", "ok"]


async def test_advisors_are_asked_once_where_an_answer_goes_back_to_be_mended() -> None:
    order: list[str] = []
    async with ScriptedModel(["wrong", "[1]"]) as model:
        await alone(LlmNode(model, advisors=[advisor("hint", order)], output_type=list[int])).invoke({"input": "go"})
    assert order == ["hint"]
    assert texts(model.requests[1].messages)[1:3] == ["hint", "wrong"]


async def test_a_tool_that_an_advisor_brings_is_run_by_an_agent_that_has_none_of_its_own() -> None:
    def bring(request: LlmRequest) -> LlmRequest:
        return msgspec.structs.replace(request, dynamic_tools=[look])

    async with ScriptedModel([[ToolCall("a", "look")], "done"]) as model:
        result = await ReactAgent("clerk", model, advisors=[bring]).run("go")
    assert [m.text for m in result.messages] == ["go", "", "seen", "done"]


async def test_an_advisor_that_forgets_to_return_is_told_so() -> None:
    def forgetful(request: LlmRequest) -> Any:
        msgspec.structs.replace(request, messages=[])

    with pytest.raises(TypeError, match=r"an advisor must return the request.*forgetful.*gave None"):
        await alone(LlmNode(ScriptedModel([]), advisors=[forgetful])).invoke({"input": "go"})


async def test_an_advisor_that_fails_is_a_failed_call() -> None:
    async def broken(request: LlmRequest) -> LlmRequest:
        raise LookupError("no such page")

    result = await alone(LlmNode(ScriptedModel([]), advisors=[broken], on_error="message")).invoke({"input": "go"})
    assert texts(result.state["messages"]) == ["go", "Exception: no such page"]


# --- the log ---


async def test_the_log_tells_a_models_reasoning_cut_to_a_sensible_length(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentgraph")
    answer = AssistantMessage(
        "42", reasoning=[ReasoningPart("17\n"), ReasoningPart(data={}), ReasoningPart("x" * 5000)]
    )
    await alone(LlmNode(ScriptedModel([answer]), log=True)).invoke({"input": "go"})
    reasoning, told = (r.getMessage() for r in caplog.records)
    assert reasoning.startswith("llm: round 0, reasoning: '17\\n\\nxxx")
    assert 950 < len(reasoning) < 1050
    assert told == "llm: round 0, None: '42'"


# --- usage and the output key ---


async def test_what_calls_took_is_summed_over_rounds_and_repeated_calls_each_once() -> None:
    async def twice(request: ModelRequest, call: ModelCall) -> ModelResponse:
        await call(request)
        return await call(request)

    answer = AssistantMessage("hm", usage=Usage(10, 5))
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("first", LlmNode(ScriptedModel([answer, answer]), interceptors=[twice]))
    graph.add_node("second", LlmNode(ScriptedModel([answer])))
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    result = await graph.compile().invoke({"messages": UserMessage("?")})
    assert result.usage == result.state["_token_usage"] == Usage(30, 15, calls=3)


async def test_the_output_key_gets_the_text_but_not_that_beside_calls() -> None:
    model = ScriptedModel([AssistantMessage("let me see", tool_calls=[ToolCall("a", "look")]), "seen"])
    app = alone(LlmNode(model, tools=[look], output_key="answer"))
    assert "answer" not in (await app.invoke({"input": "go"})).state
    assert (await app.invoke({"input": "go"})).state["answer"] == "seen"


async def test_an_instruction_that_comes_later_in_a_run_is_filled_in_at_the_end_and_in_an_earlier_place() -> None:
    async def instruct(state: dict[str, Any]) -> dict[str, Any]:
        first = state["messages"][0].id
        earlier, later = InstructionMessage("About {topic}?", id=first), InstructionMessage("And {topic}?")
        return {"messages": earlier if len(state["messages"]) == 2 else later}

    model = FunctionModel(lambda _: "hm")
    graph = StateGraph(strategies={"messages": Messages(), **KEYS})
    graph.add_node("llm", LlmNode(model)).add_node("instruct", instruct)
    graph.add_edge(START, "llm").add_edge("instruct", "llm")
    graph.add_conditional_edges("llm", lambda s: END if len(s["messages"]) > 4 else "instruct", ["instruct", END])
    state = (await graph.compile().invoke({"messages": UserMessage("?"), "topic": "lamps"})).state
    sent = [["?"], ["About lamps?", "hm"], ["About lamps?", "hm", "hm", "And lamps?"]]
    assert [texts(request.messages) for request in model.requests] == sent
    assert texts(state["messages"]) == [*sent[-1], "hm"]


# --- ids of calls ---


async def test_ids_that_repeat_in_a_message_or_are_missing_are_made_unique() -> None:
    calls = [ToolCall("a", "look"), ToolCall("a", "look"), ToolCall("", "look"), ToolCall("", "look")]
    result = await alone(LlmNode(ScriptedModel([calls]))).invoke({"input": "go"})
    ids = [c.id for c in result.state["messages"][-1].tool_calls]
    assert ids[0] == "a"
    assert all(ids)
    assert len(set(ids)) == 4


@pytest.mark.parametrize(
    ("made_up", "name"),
    [("multi_tool_use.parallel", "multi_tool_use_parallel"), ("look<|channel|>json", "look_channel_json"), ("", "_")],
)
async def test_a_name_that_no_tool_has_and_no_provider_takes_is_another_one_in_the_conversation(
    made_up: str, name: str
) -> None:
    def answer(request: ModelRequest) -> Any:
        check_request(request)
        return "well" if len(request.messages) > 1 else [ToolCall("c1", made_up)]

    result = await ReactAgent("clerk", FunctionModel(answer), [look]).run("go")
    assert isinstance(result.messages[1], AssistantMessage)
    assert ([c.name for c in result.messages[1].tool_calls], result.text) == ([name], "well")
    assert f"unknown tool {name!r}" in result.messages[2].text


async def test_a_name_that_a_tool_has_stays_as_it_is() -> None:
    dotted = Tool(look.fn, name="eyes.look")
    model = ScriptedModel([[ToolCall("c1", "eyes.look")], "well"])
    result = await ReactAgent("clerk", model, [dotted]).run("go")
    assert result.messages[2].text == "seen"


async def test_an_id_that_the_conversation_has_is_another_one_here_in_deltas_too() -> None:
    before = [
        UserMessage("go"),
        AssistantMessage(tool_calls=[ToolCall("call_0", "look")]),
        ToolResponseMessage([ToolResponse("call_0", "look", "seen")]),
    ]
    model = ScriptedModel([[ToolCall("call_0", "look", '{"x": 1}')]])
    async with alone(LlmNode(model)).stream({"messages": before}) as stream:
        told = [e.call_id async for e in stream if isinstance(e, ModelDelta) and e.call_id]
    (call,) = stream.result.state["messages"][-1].tool_calls
    assert told == [call.id]
    assert call.id != "call_0"
    assert stream.result.state["messages"][:3] == before


# --- failures ---


@pytest.mark.case("D17")
@pytest.mark.parametrize(
    "nothing",
    [
        AssistantMessage(),
        AssistantMessage(" \n"),
        AssistantMessage(reasoning=[ReasoningPart("hm")], finish_reason="length"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_answer_at_all_is_an_error_that_says_so_and_nothing_is_stored(
    nothing: AssistantMessage, stream: bool
) -> None:
    seen: list[Any] = []

    async def handle(state: dict[str, Any], error: Exception) -> dict[str, Any]:
        seen.append(error)
        return {"answer": texts(state["messages"])}

    app = alone(LlmNode(ScriptedModel([nothing]), stream=stream), on_error=handle)
    assert (await app.invoke({"messages": UserMessage("?")})).state["answer"] == ["?"]
    assert isinstance(seen[0], ModelError)
    assert f"no answer: neither text nor a tool call (finish reason: {nothing.finish_reason})" in str(seen[0])


async def test_a_stream_that_ends_without_the_whole_answer_is_an_error() -> None:
    with pytest.raises(ModelError, match="ended its stream without an answer"):
        await alone(LlmNode(Streaming(Delta("Hel")))).invoke({"input": "go"})


class Odd:
    """A model of somebody's own that answers with this, streamed or not."""

    name = "odd"

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    async def generate(self, request: ModelRequest) -> Any:
        return self.answers[-1]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Any, None]:
        for answer in self.answers:
            yield answer


@pytest.mark.parametrize(
    ("stream", "answers", "told"),
    [
        (True, [Delta("Hel"), "lo"], "model 'odd' must stream Deltas, found 'lo'"),
        (True, [None], "model 'odd' must stream Deltas, found None"),
        (True, [Delta(response=cast("Any", "hi"))], "model 'odd' must answer by a ModelResponse, found 'hi'"),
        (False, ["hi"], "model 'odd' must answer by a ModelResponse, found 'hi'"),
        (False, [None], "model 'odd' must answer by a ModelResponse, found None"),
    ],
)
async def test_a_model_that_keeps_no_protocol_is_an_error_of_the_model_that_says_so(
    stream: bool, answers: list[Any], told: str
) -> None:
    with pytest.raises(ModelError, match=told):
        await alone(LlmNode(Odd(*answers), stream=stream)).invoke({"input": "go"})


@pytest.mark.case("C8")
async def test_no_half_message_is_in_the_state_when_a_stream_fails() -> None:
    async def handle(state: dict[str, Any], error: Exception) -> dict[str, Any]:
        return {"answer": f"{len(state['messages'])} {error}"}

    model = Streaming(Delta("Hel"), Delta(index=0, call_id="a", name="look"), StreamCutError("cut", partial="Hel"))
    result = await alone(LlmNode(model), on_error=handle).invoke({"messages": UserMessage("go")})
    assert texts(result.state["messages"]) == ["go"]
    assert result.state["answer"] == "1 cut"


@pytest.mark.case("C15")
async def test_a_failing_stream_ends_the_run_as_its_last_event_and_in_the_models_own_error() -> None:
    model = Streaming(Delta("Hel"), ModelError("overloaded", status_code=529))
    events: list[Any] = []
    async with alone(LlmNode(model)).stream({"input": "go"}) as stream:
        with pytest.raises(ModelError, match="overloaded"):
            await collect(stream, events)
    assert isinstance(events[-1], RunFailed)
    assert model.closed.is_set()


@pytest.mark.parametrize(
    ("error", "text"), [(ModelError("overloaded"), "overloaded"), (TimeoutError(), "TimeoutError")]
)
async def test_a_failed_call_may_become_a_message(error: Exception, text: str) -> None:
    model = Streaming(Delta("Hel"), error)
    result = await alone(LlmNode(model, on_error="message", output_key="answer")).invoke({"input": "go"})
    assert texts(result.state["messages"]) == ["go", f"Exception: {text}"]
    assert result.state["messages"][-1].finish_reason == "error"
    assert result.state["answer"] == f"Exception: {text}"


async def test_tokens_of_a_call_that_failed_afterwards_are_counted() -> None:
    empty = AssistantMessage(usage=Usage(10, 0))
    result = await alone(LlmNode(ScriptedModel([empty]), on_error="message")).invoke({"input": "go"})
    assert result.usage == result.state["_token_usage"] == Usage(10, 0)


@pytest.mark.case("I6")
@pytest.mark.parametrize("on_error", ["raise", "message"])
async def test_an_answer_that_reads_like_an_error_is_the_answer(on_error: Any) -> None:
    async with ScriptedModel(["Exception: handle it with care"]) as model:
        app = alone(LlmNode(model, on_error=on_error, output_key="answer"), retry=Retry(attempts=3, delay=0))
        result = await app.invoke({"input": "go"})
    assert result.state["answer"] == "Exception: handle it with care"
    assert result.state["messages"][-1].finish_reason == "stop"


async def test_a_cancelled_call_is_never_a_message() -> None:
    model = Streaming(asyncio.Event())
    run = asyncio.create_task(alone(LlmNode(model, on_error="message")).invoke({"input": "go"}))
    await model.waits.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert model.closed.is_set()


@pytest.mark.case("G12")
async def test_a_reader_that_leaves_before_the_first_token_closes_the_models_stream() -> None:
    model = Streaming(asyncio.Event())
    async with alone(LlmNode(model)).stream({"input": "go"}):
        await model.waits.wait()
        assert not model.closed.is_set()
    assert model.closed.is_set()


@pytest.mark.case("B3")
async def test_a_reader_that_leaves_while_the_model_waits_for_it_closes_the_models_stream() -> None:
    model = Streaming(*(Delta("hm ") for _ in range(100)))
    async with alone(LlmNode(model)).stream({"input": "go"}, buffer=2) as stream:
        async for event in stream:
            if isinstance(event, ModelDelta):
                break
        assert not model.closed.is_set()
    assert model.closed.is_set()


@pytest.mark.case("D16")
async def test_half_a_surrogate_pair_of_a_model_or_a_user_does_not_reach_state_or_events() -> None:
    answer = AssistantMessage("sound 😀 half \ud83d", tool_calls=[ToolCall("a", "look", '{"q": "\ud83d"}')])
    async with ScriptedModel([answer]) as model:
        app = alone(LlmNode(model))
        async with app.stream({"messages": UserMessage("lone \udc00")}) as stream:
            told = [encode(event) async for event in stream]
    assert len(told) > 5
    final = stream.result.state["messages"]
    assert texts(final) == ["lone \ufffd", "sound 😀 half \ufffd"]
    assert final[1].tool_calls == [ToolCall("a", "look", '{"q": "\ufffd"}')]
    assert texts(model.requests[0].messages) == ["lone \ufffd"]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["yes", "no"]), min_size=1, max_size=5))
@pytest.mark.case("D6")
async def test_nothing_that_looks_like_something_said_before_is_dropped(said: list[str]) -> None:
    app = alone(LlmNode(FunctionModel(lambda request: request.messages[-1].text)))
    messages: list[Message] = []
    for text in said:
        messages = (await app.invoke({"messages": [*messages, UserMessage(text)]})).state["messages"]
    assert texts(messages) == [text for text in said for _ in (0, 1)]


async def test_two_nodes_of_one_step_that_both_repair_the_conversation_lose_no_answer() -> None:
    graph = StateGraph(strategies={"messages": Messages()})
    for name in ("one", "two"):
        graph.add_node(name, LlmNode(ScriptedModel([name])))
        graph.add_edge(START, name).add_edge(name, END)
    broken = [UserMessage("1"), AssistantMessage(tool_calls=[ToolCall("a", "look")]), UserMessage("2")]
    result = await graph.compile().invoke({"messages": broken})
    said = result.state["messages"]
    assert [type(m).__name__ for m in said[:4]] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResponseMessage",
        "UserMessage",
    ]
    assert texts(said[4:]) == ["one", "two"]


# --- building ---


def test_what_is_no_model_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match=r"needs a model with generate\(\) and stream\(\), found 5"):
        LlmNode(5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"interceptors": [5]}, r"LlmNode: an interceptor is an async function of \(request, call\), found 5"),
        ({"interceptors": 5}, "LlmNode: interceptors come in a list, found 5"),
        ({"advisors": [5]}, r"LlmNode: an advisor is a function of \(request\), found 5"),
        ({"chunk_interceptors": 5}, "LlmNode: chunk interceptors come in a list, found 5"),
        ({"chunk_interceptors": [5]}, r"a chunk interceptor is an async generator function of \(deltas, request\)"),
        ({"chunk_interceptors": [asyncio.sleep]}, "is an async generator function, and .*sleep.* has no `yield`"),
        ({"tools": 5}, "LlmNode: tools come in a list, found 5"),
        ({"tools": ["look"]}, "tools are functions or Tool objects; found 'look'"),
    ],
)
def test_what_is_no_interceptor_and_no_tool_is_refused_where_it_is_given(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LlmNode(ScriptedModel([]), **options)


@pytest.mark.parametrize("strategy", [Replace(), LastWrite(), None])
@pytest.mark.parametrize("node", [LlmNode(ScriptedModel([])), ToolNode([])])
def test_a_key_that_would_lose_the_conversation_is_a_fault_of_the_graph(node: Any, strategy: Any) -> None:
    graph = StateGraph(strategies={"messages": strategy} if strategy else {"input": Replace()})
    graph.add_node("node", node)
    graph.add_edge(START, "node").add_edge("node", END)
    with pytest.raises(GraphError, match=r"node 'node' needs the state key 'messages' .*for the conversation"):
        graph.compile()


def test_an_unknown_choice_of_on_error_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="did you mean 'message'"):
        LlmNode(ScriptedModel([]), on_error="mesage")  # pyright: ignore[reportArgumentType]


def test_a_model_of_ones_own_needs_nothing_but_the_protocol() -> None:
    model: ChatModel = Streaming()
    assert repr(LlmNode(model, agent_name="clerk", tools=[look])) == "<LlmNode clerk streaming tools=['look']>"


async def test_an_image_in_the_input_is_kept_as_a_part() -> None:
    async with ScriptedModel(["a cat"]) as model:
        await alone(LlmNode(model)).invoke({"input": [TextPart("What is this?"), ImagePart(url="http://x/cat.png")]})
    (asked,) = model.requests[0].messages
    assert isinstance(asked, UserMessage)
    assert asked.content == [TextPart("What is this?"), ImagePart(url="http://x/cat.png")]
