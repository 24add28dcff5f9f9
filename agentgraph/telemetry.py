"""Spans and metrics of OpenTelemetry, for an application that records them.

The names are those of OpenTelemetry's semantic conventions for generative AI in their revision v1.41.0, the last that
was published there (open-telemetry/semantic-conventions). Their new home, open-telemetry/semantic-conventions-genai,
renames both metrics in its first release, v0.1.0, and brings one for tools. That of v1.41.0 needs a provider, and a
tool has none: so tools are not measured.

Rules of this file:
- opentelemetry is loaded by the application that records, never by this file first. Where nobody records, `listeners`
  is None, and nothing is built.
- An `Operation` ends its span once, whatever ends its block, and leaves the caller's current span as it was.
- What was said is recorded only where `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` asks for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from urllib.parse import urlsplit

import msgspec

from agentgraph.events import shown
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponseMessage,
    Usage,
    UserMessage,
    sound,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Span, Tracer

__all__ = ["Listeners", "Operation", "chat", "execute_tool", "invoke_agent", "listeners"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4.0**n for n in range(14))

_OPTIONS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


class Listeners(msgspec.Struct, frozen=True):
    """Who records: a tracer, the metrics' instruments, or both."""

    tracer: Tracer | None
    duration: Histogram | None
    tokens: Histogram | None


class _Known:
    """The listeners of the providers that were last seen."""

    tracers: object = None
    meters: object = None
    listeners: Listeners | None = None


_known = _Known()


def listeners() -> Listeners | None:
    """Who records; None where nobody does."""
    modules = sys.modules
    if "opentelemetry.trace" not in modules and "opentelemetry.metrics" not in modules:
        return None  # then nobody can have set up anything
    tracers = meters = None
    if "opentelemetry.trace" in modules:
        from opentelemetry.trace import get_tracer_provider  # noqa: PLC0415  # loaded already

        tracers = get_tracer_provider()
    if "opentelemetry.metrics" in modules:
        from opentelemetry.metrics import get_meter_provider  # noqa: PLC0415  # loaded already

        meters = get_meter_provider()
    if tracers is not _known.tracers or meters is not _known.meters:
        _known.listeners = _listeners(tracers, meters)
        _known.tracers, _known.meters = tracers, meters
    return _known.listeners


def _listeners(tracers: Any, meters: Any) -> Listeners | None:
    tracer = duration = tokens = None
    if _records(tracers, "opentelemetry.trace"):
        tracer = tracers.get_tracer("agentgraph", schema_url=SCHEMA_URL)
    if _records(meters, "opentelemetry.metrics"):
        meter = meters.get_meter("agentgraph", schema_url=SCHEMA_URL)
        duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
    return None if tracer is None and duration is None else Listeners(tracer, duration, tokens)


def _records(provider: object, api: str) -> bool:
    """Whether a provider may record: those that the API itself brings do not."""
    return provider is not None and not type(provider).__module__.startswith(api)


class ToolTold(Protocol):
    """A tool as a model is told of it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def description(self) -> str:
        """What it does."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        ...


class Operation:
    """A block with a span round it. Made by `chat`, `invoke_agent` and `execute_tool`.

    `answered` or `returned` tells what came of it. A block that is left by cancellation has the `error.type`
    "cancelled" and no exception; one that has `timed_out` has "timeout"; one that is left by an error has that error's
    class, and the exception. What is neither, as a question to the caller, is no error.
    """

    __slots__ = (
        "_attributes", "_began", "_content", "_context", "_details", "_is_call", "_listeners", "_name", "_span",
        "_timed_out", "_token", "_usage",
    )  # fmt: skip

    def __init__(
        self,
        listeners: Listeners,
        name: str,
        attributes: dict[str, Any],
        details: dict[str, Any],
        content: Callable[[], dict[str, Any]],
        *,
        is_call: bool,
    ) -> None:
        self._listeners = listeners
        self._name = name
        self._attributes = attributes
        self._details = details
        self._content = content
        self._is_call = is_call
        self._timed_out = False
        self._usage: Usage | None = None
        self._span: Span | None = None
        self._context: Context | None = None
        self._token: Token[Context] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        if self._listeners.tracer is not None:
            # loaded already, since there is a tracer
            from opentelemetry.context import attach  # noqa: PLC0415
            from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

            span = self._span = self._listeners.tracer.start_span(
                self._name,
                kind=SpanKind.CLIENT if self._is_call else SpanKind.INTERNAL,
                attributes={**self._attributes, **self._details},
            )
            if span.is_recording() and _captures():
                span.set_attributes({name: _as_json(value) for name, value in self._content().items() if value})
            # also where this span is not recorded: those further inside ask it whether they are
            self._context = set_span_in_context(span)
            self._token = attach(self._context)
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._began
        failure = "timeout" if self._timed_out else None if error is None else _error_type(error)
        if failure is not None:
            self._attributes["error.type"] = failure
        if self._is_call:
            self._measure(seconds)
        if self._span is None or self._token is None:
            return
        if error is not None and failure is not None and self._span.is_recording():
            _mark(self._span, error, failure)
        from opentelemetry.context import detach, get_current  # noqa: PLC0415  # loaded already

        # a coroutine that is dropped ends anywhere, and there is nothing of ours to take back there
        if kind is not GeneratorExit or get_current() is self._context:
            detach(self._token)
        self._span.end()

    def answered(self, message: Message | None, usage: Usage | None) -> None:
        """Tell what came of it: the last message, and the tokens it took."""
        self._usage = usage
        told: dict[str, Any] = {}
        metadata: Mapping[str, Any] = {} if message is None else message.metadata
        model = metadata.get("response_model") or metadata.get("model")
        if self._is_call and isinstance(model, str):
            self._attributes["gen_ai.response.model"] = told["gen_ai.response.model"] = model
        if self._span is None or not self._span.is_recording():
            return
        if self._is_call and isinstance(metadata.get("response_id"), str):
            told["gen_ai.response.id"] = metadata["response_id"]
        if isinstance(message, AssistantMessage) and message.finish_reason:
            told["gen_ai.response.finish_reasons"] = (message.finish_reason,)
        if usage is not None:
            told |= {
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.cache_creation.input_tokens": metadata.get("cache_creation_input_tokens"),
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            }
        if message is not None and _captures():
            told["gen_ai.output.messages"] = _as_json(messages_told([message], output=True))
        self._span.set_attributes({name: value for name, value in told.items() if value is not None})

    def returned(self, content: str | Sequence[Part]) -> None:
        """Tell what a tool answered."""
        if self._span is not None and self._span.is_recording() and _captures():
            result = _arguments(content) if isinstance(content, str) else [_part(part) for part in content]
            self._span.set_attribute("gen_ai.tool.call.result", _as_json(result))

    def timed_out(self) -> None:
        """Tell that the error with which the block will be left is its time limit's."""
        self._timed_out = True

    def _measure(self, seconds: float) -> None:
        attributes, tokens = self._attributes, self._listeners.tokens
        if self._listeners.duration is not None:
            self._listeners.duration.record(seconds, attributes)
        if tokens is not None and self._usage is not None:
            counts = {"input": self._usage.input_tokens, "output": self._usage.output_tokens}
            for kind, count in counts.items():
                if count is not None:
                    tokens.record(count, {**attributes, "gen_ai.token.type": kind})


def chat(
    listeners: Listeners,
    *,
    model: str,
    provider: str,
    base_url: str | None,
    thread_id: str | None,
    options: Mapping[str, Any],
    stream: bool,
    as_json: bool,
    system: SystemMessage | None,
    messages: Sequence[Message],
    tools: Sequence[ToolTold],
) -> Operation:
    """A call of a model. `answered` gets the model's message."""
    details = _options_told(options)
    if thread_id is not None:
        details["gen_ai.conversation.id"] = thread_id
    if stream:
        details["gen_ai.request.stream"] = True
    if as_json:
        details["gen_ai.output.type"] = "json"

    def content() -> dict[str, Any]:
        return {
            "gen_ai.system_instructions": [] if system is None else [_text(system.text)],
            "gen_ai.input.messages": messages_told(messages),
            "gen_ai.tool.definitions": [
                {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
                for t in tools
            ],
        }

    attributes = _common("chat", model, provider, base_url)
    return Operation(listeners, f"chat {model}", attributes, details, content, is_call=True)


def invoke_agent(
    listeners: Listeners,
    *,
    agent: str,
    model: str,
    provider: str,
    thread_id: str | None,
    system: str | None,
    messages: Sequence[Message],
) -> Operation:
    """A run of an agent. `answered` gets its last message, and the usage of the whole run."""
    details = {"gen_ai.agent.name": agent}
    if thread_id is not None:
        details["gen_ai.conversation.id"] = thread_id

    def content() -> dict[str, Any]:
        return {
            "gen_ai.system_instructions": [_text(system)] if system else [],
            "gen_ai.input.messages": messages_told(messages),
        }

    attributes = _common("invoke_agent", model, provider, None)
    return Operation(listeners, f"invoke_agent {agent}", attributes, details, content, is_call=False)


def execute_tool(listeners: Listeners, *, tool: ToolTold, call: ToolCall) -> Operation:
    """A call of a tool. `returned` gets its answer."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool.name}
    details = {"gen_ai.tool.type": "function", "gen_ai.tool.call.id": call.id}
    if tool.description:
        details["gen_ai.tool.description"] = tool.description

    def content() -> dict[str, Any]:
        return {"gen_ai.tool.call.arguments": _arguments(call.arguments)}

    return Operation(listeners, f"execute_tool {tool.name}", attributes, details, content, is_call=False)


def _common(operation: str, model: str, provider: str, base_url: str | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
    }
    if base_url:
        server = urlsplit(base_url)
        attributes["server.address"] = server.hostname or base_url
        attributes["server.port"] = server.port or (80 if server.scheme == "http" else 443)
    return attributes


def _options_told(options: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, attribute in _OPTIONS.items():
        value = options.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            told[attribute] = value
    stop = options.get("stop") or options.get("stop_sequences") or ()
    stop = [stop] if isinstance(stop, str) else stop
    if stop and isinstance(stop, (list, tuple)):
        told["gen_ai.request.stop_sequences"] = [str(word) for word in cast("Sequence[Any]", stop)]
    if isinstance(count := options.get("n"), int) and count != 1:
        told["gen_ai.request.choice.count"] = count
    return told


def _error_type(error: BaseException) -> str | None:
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return "cancelled"
    return type(error).__qualname__ if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)) else None


def _mark(span: Span, error: BaseException, failure: str) -> None:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  # loaded already: there is a span

    span.set_attribute("error.type", failure)
    if failure in ("cancelled", "timeout"):
        span.set_status(Status(StatusCode.ERROR, failure))
    else:
        text, trace = shown(error, str), shown(error, _traced)  # text that is no Unicode costs exporters a whole batch
        span.set_status(Status(StatusCode.ERROR, f"{failure}: {text}"))
        with suppress(Exception):  # it asks the error for its text again, which may fail
            span.record_exception(error, {"exception.message": text, "exception.stacktrace": trace})


def _traced(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _captures() -> bool:
    return os.environ.get(CAPTURE, "").strip().lower() in ("true", "1", "span_only", "span_and_event")


def _as_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair in somebody's text
        return sound(json.dumps(value, ensure_ascii=False))


def messages_told(messages: Sequence[Message], *, output: bool = False) -> list[dict[str, Any]]:
    """The messages in the conventions' own form."""
    told: list[dict[str, Any]] = []
    for message in messages:
        one: dict[str, Any] = {"role": _ROLES.get(type(message), "user"), "parts": _parts(message)}
        if output and isinstance(message, AssistantMessage):
            reason = message.finish_reason or "stop"
            one["finish_reason"] = "tool_call" if reason == "tool_calls" else reason
        told.append(one)
    return told


_ROLES = {
    SystemMessage: "system",
    UserMessage: "user",
    InstructionMessage: "user",
    AssistantMessage: "assistant",
    ToolResponseMessage: "tool",
}


def _parts(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, ToolResponseMessage):
        return [{"type": "tool_call_response", "id": r.id, "response": r.text} for r in message.responses]
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        return [_part(part) for part in message.content]
    if not isinstance(message, AssistantMessage):
        return [_text(message.text)]
    parts = [{"type": "reasoning", "content": r.text} for r in message.reasoning if r.text]
    if message.text:
        parts.append(_text(message.text))
    parts += [
        {"type": "tool_call", "id": c.id, "name": c.name, "arguments": _arguments(c.arguments)}
        for c in message.tool_calls
    ]
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return _text(part.text)
    family = part.media_type.partition("/")[0]
    modality = family if family in ("image", "audio", "video") else "document"
    told = {"modality": modality, "mime_type": part.media_type}
    if part.url is not None:
        return {"type": "uri", **told, "uri": part.url}
    return {"type": "omitted_blob", **told, "bytes": len(part.data or b"")}


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
