"""Spans and metrics as OpenTelemetry's own SDK records them, on every way out of a call and of a run."""

import asyncio
import contextvars
import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from agentgraph import END, START, CompiledGraph, RunConfig, RunContext, StateGraph, telemetry
from agentgraph.compiled import RunStream
from agentgraph.events import ModelDelta
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    InstructionMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import Delta, FallbackModel, ModelRequest, ModelResponse, OpenAIChat, RateLimitError
from agentgraph.nodes import (
    LlmNode,
    ModelCall,
    ReactAgent,
    Tool,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolNode,
    ToolRequest,
    tool,
)
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel, serve_transcript

SSE = Path(__file__).parent / "sse"

PRIVATE = "for nobody else"


class Recorded:
    """What the SDK has recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """By name, in the order in which they ended. One that ended twice would be there twice."""
        spans = self.exporter.get_finished_spans()
        assert len({span.name for span in spans}) == len(spans)
        return {span.name: span for span in spans}

    def points(self, metric: str) -> list[HistogramDataPoint]:
        data = self.reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [p for m in metrics if m.name == metric and isinstance(m.data, Histogram) for p in m.data.data_points]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Recorded]:
    """OpenTelemetry set up by the application; nothing at warning or above may stand in its log at the end."""
    recorded = Recorded()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    meters = MeterProvider([recorded.reader])
    # an application may set them once only: a test takes them back
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", tracers)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", meters)
    monkeypatch.delenv(telemetry.CAPTURE, raising=False)
    yield recorded
    tracers.shutdown()
    meters.shutdown()
    said = [r for r in caplog.get_records("call") if r.name.startswith("opentelemetry")]
    assert [r.getMessage() for r in said if r.levelno >= logging.WARNING] == []


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> int | None:
    return None if span.context is None else span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


ANSWER = AssistantMessage(
    "Hello",
    finish_reason="stop",
    usage=Usage(10, 5, cached_tokens=4, reasoning_tokens=2),
    metadata={"model": "gpt-x-2026", "response_id": "resp-1", "cache_creation_input_tokens": 3},
)


# -- a call of a model


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_call_has_a_span_with_what_was_asked_and_answered(recorded: Recorded, stream: bool) -> None:
    options = {"temperature": 0.5, "max_tokens": 7, "stop": "END", "seed": 3, "n": 2, "top_p": None}
    async with ScriptedModel([ANSWER], name="gpt-x") as model:
        agent = ReactAgent("clerk", model, options=options, stream=stream)
        await agent.run("Hi", RunConfig(thread_id="t1"))
    span = recorded.spans["chat gpt-x"]
    assert (span.kind, span.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scriptedmodel",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 2,
        "gen_ai.conversation.id": "t1",
        "gen_ai.response.model": "gpt-x-2026",
        "gen_ai.response.id": "resp-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        **({"gen_ai.request.stream": True} if stream else {}),
    }
    assert span.instrumentation_scope is not None
    assert (span.instrumentation_scope.name, span.instrumentation_scope.schema_url) == (
        "agentgraph",
        "https://opentelemetry.io/schemas/1.41.0",
    )


async def test_a_real_client_tells_its_provider_and_its_server(recorded: Recorded) -> None:
    async with (
        serve_transcript(SSE / "llamacpp-text.sse") as server,
        OpenAIChat("m", base_url=server.base_url) as model,
    ):
        await ReactAgent("clerk", model).run("Hi")
    told = attributes(recorded.spans["chat m"])
    assert told["gen_ai.provider.name"] == "openai"
    assert told["server.address"] == "127.0.0.1"
    assert f"http://127.0.0.1:{told['server.port']}/v1" == server.base_url
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.response.id"].startswith("chatcmpl-")


async def test_each_try_of_an_interceptor_is_a_call(recorded: Recorded) -> None:
    async def twice(request: Any, call: ModelCall) -> ModelResponse:
        with suppress(OSError):
            await call(request)
        return await call(request)

    async with ScriptedModel([OSError("no"), "yes"], name="m") as model:
        await ReactAgent("clerk", model, interceptors=[twice]).run("Hi")
    first, second, _ = recorded.exporter.get_finished_spans()
    assert [span.name for span in (first, second)] == ["chat m", "chat m"]
    assert attributes(first)["error.type"] == "OSError"
    assert "error.type" not in attributes(second)


async def test_the_model_that_answered_for_another_is_told_by_what_its_server_says(recorded: Recorded) -> None:
    model = FallbackModel(ScriptedModel([TimeoutError()], name="a"), ScriptedModel([ANSWER], name="b"))
    await ReactAgent("clerk", model).run("Hi")
    told = attributes(recorded.spans["chat a or b"])
    assert told["gen_ai.response.model"] == "gpt-x-2026"
    assert told["gen_ai.provider.name"] == "scriptedmodel"


async def test_metrics_tell_how_long_a_call_took_and_how_many_tokens(recorded: Recorded) -> None:
    async with ScriptedModel([ANSWER], name="gpt-x") as model:
        await ReactAgent("clerk", model).run("Hi")
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scriptedmodel",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.model": "gpt-x-2026",
    }
    (duration,) = recorded.points("gen_ai.client.operation.duration")
    assert (dict(duration.attributes or {}), duration.count) == (common, 1)
    assert 0 < duration.sum < 10
    assert duration.explicit_bounds[0] == 0.01
    tokens = recorded.points("gen_ai.client.token.usage")
    assert {(dict(p.attributes or {})["gen_ai.token.type"], p.sum) for p in tokens} == {("input", 10), ("output", 5)}
    assert all(common.items() <= dict(p.attributes or {}).items() for p in tokens)


async def test_a_failed_call_is_measured_with_its_error_and_without_tokens(recorded: Recorded) -> None:
    model = ScriptedModel([RateLimitError("slow down", status_code=429)], name="m")
    with pytest.raises(RateLimitError):
        await ReactAgent("clerk", model).run("Hi")
    (duration,) = recorded.points("gen_ai.client.operation.duration")
    assert dict(duration.attributes or {})["error.type"] == "RateLimitError"
    assert recorded.points("gen_ai.client.token.usage") == []


async def test_tokens_that_the_server_does_not_tell_are_not_made_up(recorded: Recorded) -> None:
    async with ScriptedModel(["Hello"], name="m") as model:
        await ReactAgent("clerk", model).run("Hi")
    assert recorded.points("gen_ai.client.token.usage") == []
    assert not [name for name in attributes(recorded.spans["chat m"]) if "usage" in name]


# -- a run of an agent


@tool
def look(place: str) -> str:
    """Look somewhere."""
    with trace.get_tracer("users").start_as_current_span("a tool's own span"):  # in a worker thread
        return f"{PRIVATE} in the {place}"


ASKS = AssistantMessage(
    tool_calls=[ToolCall("c1", "look", '{"place": "box"}')], finish_reason="tool_calls", usage=Usage(1, 2)
)


async def test_the_calls_and_the_users_spans_are_children_of_the_agents_run(recorded: Recorded) -> None:
    async with ScriptedModel([ASKS, ANSWER], name="m") as model:
        await ReactAgent("clerk", model, [look]).run("Hi", RunConfig(thread_id="t1"))
    first, own, call, second, run = recorded.exporter.get_finished_spans()
    names = [span.name for span in (first, own, call, second)]
    assert names == ["chat m", "a tool's own span", "execute_tool look", "chat m"]
    assert [parent_of(span) for span in (first, call, second)] == [id_of(run)] * 3
    assert parent_of(own) == id_of(call)
    assert (run.name, run.kind, run.parent) == ("invoke_agent clerk", SpanKind.INTERNAL, None)
    told = attributes(run)
    assert (told["gen_ai.agent.name"], told["gen_ai.conversation.id"]) == ("clerk", "t1")
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (11, 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_belongs_to_the_callers_span_which_stays_current(recorded: Recorded, stream: bool) -> None:
    agent = ReactAgent("clerk", ScriptedModel(["Hello"], name="m"))
    with trace.get_tracer("users").start_as_current_span("request") as outer:
        if stream:
            async with agent.stream("Hi") as events:
                async for _ in events:
                    assert trace.get_current_span() is outer
        else:
            await agent.run("Hi")
        assert trace.get_current_span() is outer
    parent = recorded.spans["invoke_agent clerk"].parent
    assert parent is not None
    assert parent.span_id == outer.get_span_context().span_id


async def test_an_agent_that_is_a_node_has_a_span_of_its_own(recorded: Recorded) -> None:
    inner = ReactAgent("inner", ScriptedModel(["Hello"], name="m"))
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("inner", inner).add_edge(START, "inner").add_edge("inner", END)
    await graph.compile().invoke({"messages": [UserMessage("Hi")]})
    assert list(recorded.spans) == ["chat m", "invoke_agent inner"]


async def test_two_agents_at_once_keep_their_spans_apart(recorded: Recorded) -> None:
    def agent(name: str) -> ReactAgent:
        return ReactAgent(name, ScriptedModel([ASKS, "Hello"], name=f"model of {name}"), [look])

    await asyncio.gather(*(agent(name).run("Hi") for name in ("a", "b")))
    spans = recorded.exporter.get_finished_spans()
    runs = {s.context.span_id: s.name for s in spans if s.context and s.name.startswith("invoke_agent")}
    pairs = {(s.name, runs[s.parent.span_id]) for s in spans if s.parent and s.name.startswith("chat")}
    assert pairs == {("chat model of a", "invoke_agent a"), ("chat model of b", "invoke_agent b")}


# -- a call of a tool


def asking(*names: str, arguments: str = "") -> dict[str, Any]:
    """A state whose last message makes these calls."""
    return {"messages": [AssistantMessage(tool_calls=[ToolCall(f"c{i}", n, arguments) for i, n in enumerate(names)])]}


def acting(*tools: Tool, **options: Any) -> CompiledGraph[dict[str, Any]]:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode(tools, **options)).add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


async def test_a_tools_call_has_a_span_and_what_was_said_is_not_in_it(recorded: Recorded) -> None:
    with trace.get_tracer("users").start_as_current_span("request") as outer:
        await acting(look).invoke(asking("look", arguments='{"place": "box"}'))
        assert trace.get_current_span() is outer
    span = recorded.spans["execute_tool look"]
    assert attributes(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c0",
        "gen_ai.tool.description": "Look somewhere.",
    }
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert parent_of(span) == outer.get_span_context().span_id
    assert recorded.points("gen_ai.client.operation.duration") == []  # it has no provider


@tool
async def show(shape: str) -> Any:
    """Show."""
    picture = ImagePart(data=b"123", media_type="image/png")
    return {"json": {"a": 1}, "text": "plain", "parts": [TextPart("see"), picture]}[shape]


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("json", '{"a":1}'),
        ("text", '"plain"'),
        (
            "parts",
            '[{"type":"text","content":"see"},{"type":"omitted_blob","modality":"image","mime_type":"image/png","bytes":3}]',
        ),
    ],
)
async def test_arguments_and_result_are_recorded_where_content_is_asked_for(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, shape: str, told: str
) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    await acting(show).invoke(asking("show", arguments=json.dumps({"shape": shape})))
    span = recorded.spans["execute_tool show"]
    assert attributes(span)["gen_ai.tool.call.arguments"] == f'{{"shape":"{shape}"}}'
    assert attributes(span)["gen_ai.tool.call.result"] == told


async def test_an_agent_that_a_tool_runs_has_its_spans_below_the_tools(recorded: Recorded) -> None:
    @tool
    def delegate() -> str:
        return ReactAgent("inner", ScriptedModel(["done"], name="m2")).run_sync("go").text  # in a worker thread

    model = ScriptedModel([[ToolCall("c1", "delegate")], "done"], name="m")
    await ReactAgent("boss", model, [delegate]).run("go")
    spans = {s.name: s for s in recorded.exporter.get_finished_spans()}
    chain = ["chat m2", "invoke_agent inner", "execute_tool delegate", "invoke_agent boss"]
    assert [parent_of(spans[name]) for name in chain] == [*(id_of(spans[name]) for name in chain[1:]), None]


async def test_calls_beside_each_other_and_each_try_of_an_interceptor_have_spans_of_their_own(
    recorded: Recorded,
) -> None:
    @tool
    async def flaky() -> str:
        with trace.get_tracer("users").start_as_current_span("own"):
            return "yes"

    async def twice(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        await call(request)
        return await call(request)

    await acting(flaky, interceptors=[twice]).invoke(asking("flaky", "flaky"))
    spans = recorded.exporter.get_finished_spans()
    calls = {id_of(s): attributes(s)["gen_ai.tool.call.id"] for s in spans if s.name == "execute_tool flaky"}
    assert sorted(calls.values()) == ["c0", "c0", "c1", "c1"]
    assert sorted(filter(None, (parent_of(s) for s in spans if s.name == "own"))) == sorted(filter(None, calls))


@tool
async def fails(how: str) -> None:
    """Fail."""
    if how == "timeout":
        await asyncio.Event().wait()
    if how == "stray":
        raise asyncio.CancelledError
    raise ToolError("no such file") if how == "told" else ValueError("boom")


@pytest.mark.parametrize(
    ("how", "kind", "description", "exceptions"),
    [
        ("error", "ValueError", "ValueError: boom", 1),
        ("told", "ToolError", "ToolError: no such file", 1),
        ("timeout", "timeout", "timeout", 0),
        ("stray", "StrayCancelError", "StrayCancelError: CancelledError, though nothing had cancelled it", 1),
    ],
)
async def test_a_call_that_fails_says_how_though_the_run_goes_on(
    recorded: Recorded, how: str, kind: str, description: str, exceptions: int
) -> None:
    await acting(fails, timeout=0.02).invoke(asking("fails", arguments=json.dumps({"how": how})))
    span = recorded.spans["execute_tool fails"]
    assert attributes(span)["error.type"] == kind
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, description)
    assert len(span.events) == exceptions


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_error_that_cannot_say_its_text_ends_its_span_all_the_same(recorded: Recorded) -> None:
    async def lost() -> None:
        raise MuteError

    asks = [ToolCall("c1", "lost")]
    result = await ReactAgent("clerk", ScriptedModel([asks, "Sorry."], name="m"), [lost]).run("Go.")
    assert result.messages[2].text == "MuteError: <MuteError that cannot be shown>"
    *calls, run = recorded.exporter.get_finished_spans()
    assert [s.name for s in calls] == ["chat m", "execute_tool lost", "chat m"]
    assert [parent_of(s) for s in calls] == [id_of(run)] * 3
    assert attributes(calls[1])["error.type"] == "MuteError"


async def test_the_text_of_an_error_that_is_no_unicode_is_mended_for_exporters(recorded: Recorded) -> None:
    async def lost() -> None:
        raise ValueError("half \ud83d")

    await ReactAgent("clerk", ScriptedModel([[ToolCall("c1", "lost")], "Sorry."], name="m"), [lost]).run("Go.")
    (event,) = next(s for s in recorded.exporter.get_finished_spans() if s.name == "execute_tool lost").events
    told = dict(event.attributes or {})
    assert told["exception.message"] == "half \ufffd"
    assert b"half \xef\xbf\xbd" in str(told["exception.stacktrace"]).encode()


async def test_a_tool_that_is_cancelled_with_its_run_says_so(recorded: Recorded) -> None:
    started = asyncio.Event()

    @tool
    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(acting(never).invoke(asking("never", "never")))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    spans = recorded.exporter.get_finished_spans()
    assert [attributes(span)["error.type"] for span in spans] == ["cancelled"] * len(spans)
    assert [(s.status.status_code, s.status.description, s.events) for s in spans] == [
        (StatusCode.ERROR, "cancelled", ())
    ] * len(spans)
    assert spans


async def test_a_tool_that_asks_has_not_failed(recorded: Recorded) -> None:
    @tool
    async def ask(context: ToolContext) -> None:
        context.interrupt("Sure?")

    assert (await acting(ask).invoke(asking("ask"))).status == "interrupted"
    span = recorded.spans["execute_tool ask"]
    assert (span.status.status_code, "error.type" in attributes(span), span.events) == (StatusCode.UNSET, False, ())


async def test_a_call_that_no_tool_runs_has_no_span(recorded: Recorded) -> None:
    await acting(look).invoke(asking("nobody", "look", arguments='{"wrong": 1}'))
    assert recorded.spans == {}


# -- every way out


class Silent:
    """Says one word, then calls `then` and says nothing more."""

    name = "silent"

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        self._then()
        await asyncio.Event().wait()
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("Hel")
        await self.generate(request)


async def read_a_word(events: RunStream[Any]) -> None:
    while not isinstance(await anext(events), ModelDelta):
        pass


def assert_cancelled(recorded: Recorded) -> None:
    spans = recorded.spans
    assert list(spans) == ["chat silent", "invoke_agent clerk"]
    for span in spans.values():
        assert attributes(span)["error.type"] == "cancelled"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "cancelled")
        assert span.events == ()
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.case("I14")
async def test_a_reader_that_leaves_ends_each_span_once(recorded: Recorded) -> None:
    async with ReactAgent("clerk", Silent()).stream("Hi") as events:
        await read_a_word(events)
    assert_cancelled(recorded)


@pytest.mark.case("I14")
async def test_a_stream_that_another_task_closes_ends_each_span_once(recorded: Recorded) -> None:
    async with ReactAgent("clerk", Silent()).stream("Hi") as events:
        await read_a_word(events)
        await asyncio.create_task(events.aclose())
    assert_cancelled(recorded)


@pytest.mark.case("I14")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_that_is_cancelled_says_so_in_its_spans(recorded: Recorded, stream: bool) -> None:
    def leave() -> None:
        running.cancel()

    running = asyncio.create_task(ReactAgent("clerk", Silent(leave), stream=stream).run("Hi"))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_cancelled(recorded)


@pytest.mark.case("I14")
async def test_a_run_whose_node_fails_has_the_exception(recorded: Recorded) -> None:
    async def fails(state: Any) -> None:
        raise ValueError("boom")

    agent = ReactAgent("clerk", ScriptedModel(["Hello"], name="m"))
    agent.graph.add_node("fails", fails).add_edge(START, "fails").add_edge("fails", END)
    async with agent.stream("Hi") as events:
        with pytest.raises(ValueError, match="boom"):
            [event async for event in events]
    span = recorded.spans["invoke_agent clerk"]
    assert attributes(span)["error.type"] == "ValueError"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: boom")
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})["exception.message"]) == ("exception", "boom")


async def test_a_call_that_fails_has_the_exception_though_the_run_goes_on(recorded: Recorded) -> None:
    agent = ReactAgent("clerk", ScriptedModel([RateLimitError("slow down")], name="m"), on_error="message")
    assert (await agent.run("Hi")).text == "Exception: slow down"
    spans = recorded.spans
    assert attributes(spans["chat m"])["error.type"] == "RateLimitError"
    assert spans["invoke_agent clerk"].status.status_code is StatusCode.UNSET


async def test_a_question_to_the_caller_is_no_error(recorded: Recorded) -> None:
    async def asks(state: Any, run: RunContext[Any]) -> None:
        run.interrupt("may I?")

    inner = ReactAgent("inner", ScriptedModel([], name="m"))
    inner.graph = StateGraph(strategies={"messages": Messages()})
    inner.graph.add_node("asks", asks).add_edge(START, "asks").add_edge("asks", END)
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("inner", inner).add_edge(START, "inner").add_edge("inner", END)
    assert (await graph.compile().invoke({})).status == "interrupted"
    assert recorded.spans["invoke_agent inner"].status.status_code is StatusCode.UNSET


async def test_a_run_that_is_dropped_half_way_ends_its_spans_and_leaves_the_current_one(recorded: Recorded) -> None:
    with trace.get_tracer("users").start_as_current_span("request") as outer:
        run = ReactAgent("clerk", Silent(), stream=False).run("Hi")
        run.send(None)
        assert trace.get_current_span() is not outer
        run.close()
        assert trace.get_current_span() is outer
    assert [attributes(span).get("error.type") for span in recorded.spans.values()] == ["cancelled", "cancelled", None]


async def test_a_run_that_is_dropped_elsewhere_changes_nothing_there(recorded: Recorded) -> None:
    run = ReactAgent("clerk", Silent(), stream=False).run("Hi")
    contextvars.copy_context().run(run.send, None)
    with trace.get_tracer("users").start_as_current_span("another request") as current:
        run.close()
        assert trace.get_current_span() is current
    assert list(recorded.spans) == ["chat silent", "invoke_agent clerk", "another request"]


# -- what is said


async def ask(*messages: Any, answer: Any = ANSWER, **options: Any) -> None:
    await ReactAgent("clerk", ScriptedModel([answer], name="m"), **options).run(list(messages))


async def test_nothing_that_was_said_is_recorded_unasked(recorded: Recorded) -> None:
    async with ScriptedModel([ASKS, PRIVATE], name="m") as model:
        await ReactAgent("clerk", model, [look], system_prompt=PRIVATE).run(PRIVATE)
    for span in recorded.exporter.get_finished_spans():
        assert PRIVATE not in span.to_json()


async def test_what_was_said_is_recorded_where_asked_for(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    thinks = AssistantMessage("Sunny.", reasoning=[ReasoningPart("Hm.")], finish_reason="stop")
    called = AssistantMessage("", tool_calls=[ToolCall("c1", "look", '{"place": "box"}'), ToolCall("c2", "look", "")])
    answers = ToolResponseMessage(responses=[ToolResponse("c1", "look", "A cat."), ToolResponse("c2", "look", "none")])
    await ask(UserMessage("Look."), called, answers, answer=thinks, system_prompt="Be brief.", tools=[look])
    told = attributes(recorded.spans["chat m"])
    content = {name: json.loads(value) for name, value in told.items() if isinstance(value, str) and value[0] == "["}
    assert content == {
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": "Look."}]},
            {
                "role": "assistant",
                "parts": [
                    {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"place": "box"}},
                    {"type": "tool_call", "id": "c2", "name": "look", "arguments": ""},
                ],
            },
            {
                "role": "tool",
                "parts": [
                    {"type": "tool_call_response", "id": "c1", "response": "A cat."},
                    {"type": "tool_call_response", "id": "c2", "response": "none"},
                ],
            },
        ],
        "gen_ai.tool.definitions": [
            {
                "type": "function",
                "name": "look",
                "description": "Look somewhere.",
                "parameters": look.spec.parameters,
            }
        ],
        "gen_ai.output.messages": [
            {
                "role": "assistant",
                "parts": [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Sunny."}],
                "finish_reason": "stop",
            }
        ],
    }


async def test_images_and_files_are_told_without_their_bytes(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "TRUE")
    parts = [TextPart("See"), ImagePart(url="http://x/y.png"), ImagePart(data=b"1234"), FilePart(data=b"12")]
    await ask(UserMessage(parts))
    (message,) = json.loads(attributes(recorded.spans["chat m"])["gen_ai.input.messages"])
    assert message["parts"] == [
        {"type": "text", "content": "See"},
        {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "http://x/y.png"},
        {"type": "omitted_blob", "modality": "image", "mime_type": "image/png", "bytes": 4},
        {"type": "omitted_blob", "modality": "document", "mime_type": "application/pdf", "bytes": 2},
    ]


async def test_text_that_is_no_unicode_does_not_cost_the_answer(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    await ask(InstructionMessage("half \ud83d", rendered=True), SystemMessage("\udc00"))
    told = attributes(recorded.spans["invoke_agent clerk"])
    assert json.loads(told["gen_ai.input.messages"])[0]["parts"] == [{"type": "text", "content": "half �"}]


# -- where nobody records


async def test_a_run_that_is_not_sampled_records_nothing_and_tells_those_inside(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracers = TracerProvider(ALWAYS_OFF)
    tracers.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", tracers)
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    seen: list[trace.Span] = []

    async def see(request: Any, call: ModelCall) -> ModelResponse:
        seen.append(trace.get_current_span())
        return await call(request)

    await ask(UserMessage("Hi"), interceptors=[see])
    assert recorded.exporter.get_finished_spans() == ()
    assert seen[0].get_span_context().is_valid
    assert not seen[0].is_recording()
    assert len(recorded.points("gen_ai.client.operation.duration")) == 1


async def test_metrics_alone_are_enough(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    await ask(UserMessage("Hi"))
    assert len(recorded.points("gen_ai.client.token.usage")) == 2


@pytest.mark.parametrize("loads", ["", "import opentelemetry.trace, opentelemetry.metrics; "])
def test_without_an_application_that_records_nothing_is_built_and_nothing_loaded(loads: str) -> None:
    code = f"""
import asyncio, sys
{loads}
from agentgraph import telemetry
from agentgraph.nodes import ReactAgent
from agentgraph.testing import ScriptedModel
before = set(sys.modules)
telemetry.Operation = None
print(asyncio.run(ReactAgent("clerk", ScriptedModel(["Hello"])).run("Hi")).text, telemetry.listeners())
print([name for name in set(sys.modules) - before if name.startswith("opentelemetry")])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split("\n")[:2] == ["Hello None", "[]"]


async def test_a_node_without_an_agent_has_the_span_of_its_call(recorded: Recorded) -> None:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(ScriptedModel(["Hello"], name="m"))).add_edge(START, "llm").add_edge("llm", END)
    await graph.compile().invoke({"messages": [UserMessage("Hi")]})
    assert list(recorded.spans) == ["chat m"]
