"""OpenAIChat over real HTTP on loopback: what it sends, and what it makes of answers and of all that goes wrong."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from agentgraph import ConfigError, InputError
from agentgraph.config import is_transient
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    InstructionMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthError,
    Delta,
    MalformedResponseError,
    ModelError,
    ModelRequest,
    ModelTimeoutError,
    OpenAIChat,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RealModelRefusedError,
    ServerError,
    StreamCutError,
    ToolSpec,
)
from agentgraph.nodes import tool
from agentgraph.testing import Transcript, TranscriptServer, no_real_models, serve_transcript, with_clock

SSE = Path(__file__).parent.parent / "sse"
TEXT = SSE / "llamacpp-text-no-usage.sse"
SAID = "Hello, welcome to my world."
CHAT = SSE / "llamacpp-chat.json"
ASK = ModelRequest(messages=[UserMessage("Hi")])

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def now() -> float:
    return asyncio.get_running_loop().time()


def events(*chunks: Any) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(c) + b"\n\n" for c in chunks)


def said(*texts: str) -> bytes:
    return events(*({"choices": [{"delta": {"content": text}}]} for text in texts))


ROLE = events({"choices": [{"delta": {"role": "assistant", "content": None}}]})
END = b"data: [DONE]\n\n"


def error(code: Any = None, message: str = "no", **fields: Any) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "code": code, **fields}})


def refusal(status: int, **headers: str) -> Transcript:
    # closed, as servers that refuse do: the jumping clock takes an idle connection for work under way
    named = {k.replace("_", "-"): v for k, v in headers.items()} | {"connection": "close"}
    return Transcript(error(message="slow down"), status=status, headers=named)


def stalling(first: bytes, rest: bytes, wait: Callable[[], Coroutine[Any, Any, object]]) -> Transcript:
    """Sends `first`, then waits, then sends `rest`."""

    async def before_chunk(number: int) -> None:
        if number == 1:
            await wait()

    return Transcript(first + rest, chunk_size=len(first), before_chunk=before_chunk)


async def forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def served(*responses: Any, **options: Any) -> AsyncGenerator[tuple[TranscriptServer, OpenAIChat]]:
    """A server that answers with these, and a model that asks it."""
    async with serve_transcript(*responses) as server, OpenAIChat("m", base_url=server.base_url, **options) as model:
        yield server, model


async def all_of(model: OpenAIChat, request: ModelRequest = ASK) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


async def text_of(model: OpenAIChat, request: ModelRequest = ASK) -> str:
    """The streamed answer's text; what was told in pieces is the same."""
    *deltas, last = await all_of(model, request)
    assert last.response is not None
    assert "".join(d.text for d in deltas) == last.response.message.text
    return last.response.message.text


async def sent(request: ModelRequest, **options: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    async with served(CHAT, **options) as (server, model):
        await model.generate(request)
    return server.requests[0].json


async def wire(*messages: Message) -> list[dict[str, Any]]:
    return (await sent(ModelRequest(messages=list(messages))))["messages"]


# -- what is sent


async def test_a_request_names_model_and_key_and_asks_for_usage_when_it_streams() -> None:
    async with served(TEXT, CHAT, api_key="secret", headers={"X-Team": "a"}) as (server, model):
        await all_of(model)
        await model.generate(ASK)
    streamed, whole = server.requests
    assert (streamed.method, streamed.path) == ("POST", "/v1/chat/completions")
    assert streamed.headers["authorization"] == "Bearer secret"
    assert streamed.headers["x-team"] == "a"
    base = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert whole.json == base
    assert streamed.json == base | {"stream": True, "stream_options": {"include_usage": True}}


async def test_a_server_of_ones_own_needs_no_key() -> None:
    async with served(CHAT) as (server, model):
        await model.generate(ASK)
    assert "authorization" not in server.requests[0].headers


async def test_base_url_and_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_transcript(CHAT) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        async with OpenAIChat("m") as model:
            await model.generate(ASK)
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer from the environment"


async def test_a_requests_options_override_the_models() -> None:
    request = msgspec.structs.replace(ASK, options={"temperature": 1, "seed": 7})
    body = await sent(request, options={"temperature": 0, "max_tokens": 5})
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (1, 5, 7)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", "auto"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
async def test_tools_are_sent_with_the_choice(choice: str | None, expected: Any) -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice=choice, parallel_tool_calls=False))
    function = {"name": "add", "description": "Adds.", "parameters": ADD.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body.get("tool_choice") == expected
    assert body["parallel_tool_calls"] is False


async def test_a_strict_tool_is_sent_with_all_its_parameters_required_and_the_optional_ones_nullable() -> None:
    @tool(strict=True)
    async def find(query: str, limit: int = 5) -> None:
        """Find it."""

    body = await sent(msgspec.structs.replace(ASK, tools=[find.spec, ADD]))
    strict, loose = (t["function"] for t in body["tools"])
    assert strict == {
        "name": "find",
        "description": "Find it.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"description": "(default: 5)", "anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["query", "limit"],
            "additionalProperties": False,
        },
    }
    assert loose.keys() == {"name", "description", "parameters"}


async def test_a_strict_tool_without_a_strict_schema_is_refused_before_it_is_sent() -> None:
    loose = ToolSpec("put", "Puts.", {"type": "object", "properties": {"a": {"type": "object"}}}, strict=True)
    async with served(CHAT) as (server, model):
        with pytest.raises(
            ConfigError, match="tool 'put', parameter 'a': cannot be strict: it takes an object with any"
        ):
            await model.generate(msgspec.structs.replace(ASK, tools=[loose]))
    assert server.requests == []


async def test_tools_that_may_not_be_called_are_left_out() -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice="none"))
    assert body.keys() == {"model", "messages"}


async def test_a_turn_with_tools_is_sent_as_the_protocol_has_it() -> None:
    messages = await wire(
        UserMessage("Add."),
        AssistantMessage("", tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "now", " ")]),
        ToolResponseMessage([ToolResponse("1", "add", "2"), ToolResponse("2", "now", "noon")]),
        InstructionMessage("Be brief.", rendered=True),
        SystemMessage("You add."),
    )
    assert messages == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": "",  # null is refused by some
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "tool", "tool_call_id": "2", "content": "noon"},
        {"role": "user", "content": "Be brief."},
    ]


async def test_images_and_files_are_sent_as_parts() -> None:
    parts = [
        TextPart("See:"),
        ImagePart(url="https://x/y.png"),
        ImagePart(data=b"png"),
        FilePart(data=b"pdf", name="a.pdf"),
        FilePart(data=b"mp3", media_type="audio/mpeg"),
    ]
    (message,) = await wire(UserMessage(parts))
    assert message["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"}},
        {"type": "input_audio", "input_audio": {"data": "bXAz", "format": "mp3"}},
    ]


async def test_an_image_in_a_tools_answer_follows_as_the_users() -> None:
    answer = ToolResponse("1", "look", [TextPart("Here."), ImagePart(url="https://x/y.png")])
    messages = await wire(AssistantMessage("", tool_calls=[ToolCall("1", "look")]), ToolResponseMessage([answer]))
    assert messages[1] == {"role": "tool", "tool_call_id": "1", "content": "Here."}
    assert messages[2]["role"] == "user"
    assert messages[2]["content"][1] == {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


@pytest.mark.parametrize("part", [FilePart(url="https://x/y.pdf"), ImagePart()])
async def test_a_part_that_cannot_be_sent_is_an_error(part: FilePart | ImagePart) -> None:
    with pytest.raises(InputError):
        await wire(UserMessage([part]))


@pytest.mark.case("D16")
async def test_half_a_surrogate_pair_in_a_message_does_not_keep_the_rest_from_being_sent() -> None:
    (message,) = await wire(UserMessage("a\ud83d \u00e9"))
    assert message["content"] == "a\ufffd \u00e9"


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int


async def test_an_output_schema_is_sent_with_an_object_at_its_root() -> None:
    body = await sent(msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(Point)))
    assert body["response_format"]["type"] == "json_schema"
    told = body["response_format"]["json_schema"]
    assert told["schema"]["type"] == "object"
    assert told["schema"]["properties"] == {"x": {"type": "integer"}}
    assert told["strict"] is True  # all is required, and nothing else allowed


async def test_a_schema_that_is_not_closed_is_not_sent_as_strict() -> None:
    body = await sent(msgspec.structs.replace(ASK, output_schema=ADD.parameters))
    assert body["response_format"]["json_schema"] == {"name": "answer", "schema": ADD.parameters}


async def test_an_output_that_is_no_object_is_asked_for_inside_one_and_taken_out_again() -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(list[Point]))
    async with served(said('{"answer": [{"x"', ": 1}]}") + END) as (server, model):
        assert json.loads(await text_of(model, request)) == [{"x": 1}]
    schema = server.requests[0].json["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["items"] == {"$ref": "#/$defs/Point"}
    assert list(schema["$defs"]) == ["Point"]


def test_a_native_schema_is_for_openai_itself_or_whoever_says_so() -> None:
    assert OpenAIChat("m").native_output_schema
    assert not OpenAIChat("m", base_url="http://127.0.0.1/v1").native_output_schema
    assert OpenAIChat("m", base_url="http://127.0.0.1/v1", native_output_schema=True).native_output_schema
    assert OpenAIChat("m", base_url="http://127.0.0.1/v1", tool_mode="json").native_output_schema


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"stall_timeout": -1},
        {"max_retries": -1},
        {"tool_mode": "xml"},
        {"json_rounds": -1},
        {"base_url": "localhost:8000/v1"},
        {"base_url": "ftp://x"},
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIChat("m", **wrong)


async def test_without_a_key_openai_is_not_asked() -> None:
    with pytest.raises(AuthenticationError, match=r"model 'm' at api\.openai\.com: no API key; set OPENAI_API_KEY"):
        await OpenAIChat("m").generate(ASK)


async def test_a_test_cannot_ask_a_real_model() -> None:
    model = OpenAIChat("m", api_key="x")
    with pytest.raises(RealModelRefusedError, match=r"'api\.openai\.com' was refused"):
        await model.generate(ASK)
    with no_real_models(), pytest.raises(RealModelRefusedError):
        await all_of(model)


def test_the_protocol_loads_no_http_library() -> None:
    code = "import sys, agentgraph.models; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# -- answers


@pytest.mark.parametrize("size", [None, 1, 13])
async def test_a_streamed_answer_comes_in_pieces_and_then_whole(size: int | None) -> None:
    async with served(Transcript(TEXT, chunk_size=size)) as (_, model):
        *deltas, last = await all_of(model, msgspec.structs.replace(ASK, message_id="the id"))
    assert [d.text for d in deltas] == ["Hello", ",", " welcome", " to", " my", " world", "."]
    assert last.response is not None
    assert (last.response.message.id, last.response.message.text) == ("the id", SAID)


@pytest.mark.case("I13")
async def test_a_call_that_is_not_streamed_gives_the_same() -> None:
    async with served(SSE / "llamacpp-tool-calls-two.json", SSE / "llamacpp-tool-calls-two.sse") as (_, model):
        one = (await model.generate(ASK)).message
        other = (await all_of(model))[-1].response
    assert other is not None
    assert [(c.name, c.arguments) for c in one.tool_calls] == [(c.name, c.arguments) for c in other.message.tool_calls]
    assert one.usage == other.message.usage == Usage(332, 63, 187)


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with served(Transcript(TEXT, chunk_size=50)) as (server, model):
        assert [await text_of(model), await text_of(model)] == [SAID, SAID]
        assert (len(server.requests), server.connections) == (2, 1)
        await asyncio.gather(text_of(model), text_of(model))
    assert (len(server.requests), server.connections) == (4, 2)


async def test_an_answer_that_came_whole_though_a_stream_was_asked_for_is_an_answer() -> None:
    async with served(CHAT) as (_, model):
        assert await text_of(model) == SAID


async def test_a_stream_of_an_unknown_content_type_is_read() -> None:
    async with served(Transcript(TEXT, headers={"content-type": "text/plain"})) as (_, model):
        assert await text_of(model) == SAID


async def test_an_answer_that_is_whole_counts_though_the_connection_breaks_before_the_end_mark() -> None:
    body = said("whole") + events({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    async with served(Transcript(body, end="close")) as (_, model):
        assert await text_of(model) == "whole"


# -- streams that break


@pytest.mark.case("C8")
async def test_a_stream_cut_in_mid_answer_is_an_error_with_the_partial_text_and_not_tried_again() -> None:
    async with served(Transcript(SSE / "llamacpp-killed-mid-stream.sse", end="close")) as (server, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert len(server.requests) == 1
    assert str(raised.value).startswith(f"model 'm' at {server.base_url[7:-3]}: the connection failed")
    assert raised.value.partial.startswith("The story is about a young woman named Aria")
    assert raised.value.retried  # readers have seen a part: nobody else may try again unasked
    assert not is_transient(raised.value)


@pytest.mark.case("C8")
@pytest.mark.case("I12")
@pytest.mark.parametrize("end", ["complete", "close"])
async def test_a_stream_cut_inside_a_tool_call_gives_no_message(end: Any) -> None:
    cut = (SSE / "llamacpp-tool-call.sse").read_bytes()[:1500]
    deltas: list[Delta] = []

    async def read(model: OpenAIChat) -> None:
        async for delta in model.stream(ASK):
            deltas.append(delta)  # noqa: PERF401  # the error must not cost what came before it

    async with served(Transcript(cut, end=end)) as (_, model):
        with pytest.raises(StreamCutError):
            await read(model)
    assert [d.name for d in deltas if d.name] == ["get_weather"]
    assert not any(d.response for d in deltas)


@pytest.mark.case("I12")
@pytest.mark.parametrize("before", [b"", ROLE])
@pytest.mark.parametrize("end", ["complete", "close", "reset"])
@with_clock
async def test_a_stream_cut_before_anything_was_told_is_tried_again_unseen(before: bytes, end: Any) -> None:
    async with served(Transcript(before, end=end, headers={"connection": "close"}), TEXT) as (server, model):
        assert await text_of(model) == SAID
    assert len(server.requests) == 2


@pytest.mark.case("I2")
@with_clock
async def test_a_stream_that_is_refused_at_first_is_tried_again_and_one_that_is_cut_later_is_not() -> None:
    cut = Transcript(said("a", "b", "c"), end="close")
    async with served(refusal(429), cut, TEXT) as (server, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert raised.value.partial == "abc"
    assert len(server.requests) == 2


@pytest.mark.case("C9")
@with_clock
async def test_an_error_inside_a_stream_is_tried_again_by_its_code() -> None:
    overloaded = Transcript(ROLE + b"data: " + error(529, "overloaded") + b"\n\n", headers={"connection": "close"})
    async with served(overloaded, overloaded, TEXT) as (server, model):
        assert await text_of(model) == SAID
    assert len(server.requests) == 3


@pytest.mark.case("C9")
@with_clock
async def test_an_error_inside_each_stream_comes_out_with_message_and_code() -> None:
    overloaded = Transcript(b"data: " + error(529, "overloaded") + b"\n\n", headers={"connection": "close"})
    async with served(overloaded) as (_, model):
        with pytest.raises(OverloadedError, match=r"model 'm' at 127\.0\.0\.1:\d+: HTTP 529: overloaded") as raised:
            await all_of(model)
    assert (raised.value.status_code, raised.value.retried) == (529, True)
    assert raised.value.__notes__ == ["tried 3 times"]


@pytest.mark.case("C15")
@pytest.mark.parametrize("code", [None, 529])
async def test_an_error_after_deltas_carries_the_partial_text_and_is_not_tried_again(code: int | None) -> None:
    body = said("Hel", "lo") + b"data: " + error(code, "ran away") + b"\n\n" + END
    async with served(body) as (server, model):
        with pytest.raises(ProviderError, match="ran away") as raised:
            await all_of(model)
    assert (raised.value.partial, raised.value.retried, len(server.requests)) == ("Hello", True, 1)


@pytest.mark.case("C15")
@pytest.mark.parametrize(
    "body",
    [
        b"data: " + error(None, "bad luck") + b"\n\n" + END,
        b'data: {"error": "bad luck"}\n\n' + END,
        b'event: error\ndata: {"type": "error", "error": {"type": "x", "message": "bad luck"}}\n\n',
    ],
)
async def test_an_error_of_no_known_code_is_not_tried_again(body: bytes) -> None:
    async with served(body) as (server, model):
        with pytest.raises(ProviderError, match="bad luck") as raised:
            await all_of(model)
    assert (raised.value.status_code, raised.value.retried, len(server.requests)) == (None, False, 1)


@pytest.mark.case("C15")
@pytest.mark.parametrize("streamed", [True, False])
@with_clock
async def test_an_error_as_a_json_body_that_says_200_is_an_error_and_tried_again_by_its_code(streamed: bool) -> None:
    body = Transcript(error(503, "busy"), headers={"content-type": "application/json", "connection": "close"})
    async with served(body) as (server, model):
        with pytest.raises(OverloadedError, match="busy"):
            await (all_of(model) if streamed else model.generate(ASK))
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", ["application/json", "text/html; charset=utf-8", "text/event-stream"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_malformed_answer_that_says_200_is_an_error_and_not_an_empty_answer(kind: str, streamed: bool) -> None:
    body = b"{malformed json: <<<chaos>>>" if kind != "text/event-stream" else b"data: {malformed\n\n"
    async with served(Transcript(body, headers={"content-type": kind, "x-request-id": "r7"})) as (server, model):
        with pytest.raises(MalformedResponseError, match=r"model 'm' at 127\.0\.0\.1:\d+: .*malformed") as raised:
            await (all_of(model) if streamed else model.generate(ASK))
    assert (raised.value.request_id, len(server.requests)) == ("r7", 1)


@pytest.mark.parametrize("body", [b"", b": nothing but a comment\n\n", ROLE])
async def test_an_empty_stream_is_an_error(body: bytes) -> None:
    async with served(body, max_retries=0) as (_, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert not raised.value.retried
    assert is_transient(raised.value)  # nothing was told: a node's Retry may try again


# -- refusals


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, SSE / "llamacpp-error-bad-json.json", BadRequestError, "invalid_request_error"),
        (400, SSE / "llamacpp-error-context-overflow.json", ContextLengthError, "exceed_context_size_error"),
        (400, error("content_filter", "no"), ContentFilterError, "content_filter"),
        (401, error("invalid_api_key", "no"), AuthenticationError, "invalid_api_key"),
        (403, b"<html>forbidden</html>", AuthenticationError, None),
        (404, SSE / "llamacpp-error-wrong-path.json", BadRequestError, "not_found_error"),
        (422, b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', BadRequestError, None),
        (429, error("insufficient_quota", "no money"), RateLimitError, "insufficient_quota"),
        (302, b"", BadRequestError, None),
    ],
)
async def test_a_refusal_is_an_error_of_its_kind_and_not_tried_again(
    status: int, body: Path | bytes, kind: type[ProviderError], code: str | None
) -> None:
    async with served(Transcript(body, status=status, headers={"x-request-id": "r1"})) as (server, model):
        with pytest.raises(kind, match=rf"model 'm' at 127\.0\.0\.1:\d+: HTTP {status}: ") as raised:
            await all_of(model)
    assert type(raised.value) is kind
    assert (raised.value.status_code, raised.value.code, raised.value.request_id) == (status, code, "r1")
    assert (len(server.requests), raised.value.retried) == (1, False)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (408, b"", BadRequestError),
        (429, error(None, "slow down"), RateLimitError),
        (500, SSE / "llamacpp-error-image.json", ServerError),
        (500, SSE / "llamacpppython-error-null-content.json", ServerError),
        (503, b"no upstream", OverloadedError),
        (529, b"", OverloadedError),
    ],
)
@with_clock
async def test_a_refusal_that_may_pass_is_tried_twice_more(status: int, body: Any, kind: type[ProviderError]) -> None:
    refused = Transcript(body, status=status, headers={"connection": "close"})
    async with served(refused) as (server, model):
        with pytest.raises(kind) as raised:
            await model.generate(ASK)
    assert len(server.requests) == 3
    assert raised.value.retried
    assert not is_transient(raised.value)


async def test_with_no_retries_a_nodes_retry_may_try_again() -> None:
    async with served(refusal(503), max_retries=0) as (server, model):
        with pytest.raises(OverloadedError) as raised:
            await model.generate(ASK)
    assert len(server.requests) == 1
    assert is_transient(raised.value)


@with_clock
async def test_where_nobody_listens_the_connection_fails_and_is_tried_again() -> None:
    async with serve_transcript(TEXT) as server:
        pass
    async with OpenAIChat("m", base_url=server.base_url) as model:
        with pytest.raises(ConnectionFailedError, match=r"model 'm' at 127\.0\.0\.1:\d+: the connection") as raised:
            await all_of(model)
    assert raised.value.__notes__ == ["tried 3 times"]
    assert isinstance(raised.value, ConnectionError)
    assert now() > 0.7


# -- waits between tries


async def wait_after(refused: Transcript, **options: Any) -> float:
    """Seconds between the refused try and the next one."""
    arrivals: list[float] = []

    async def note() -> None:
        arrivals.append(now())

    responses = [msgspec.structs.replace(t, before_response=note) for t in (refused, Transcript(TEXT))]
    async with served(*responses, **options) as (_, model):
        assert await text_of(model) == SAID
    return arrivals[1] - arrivals[0]


@pytest.mark.case("I1")
@pytest.mark.case("I11")
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"retry_after": "1"}, 1.0),
        ({"retry_after": "5"}, 5.0),
        ({"retry_after": "60"}, 60.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "50"}, 0.05),
        ({"retry_after_ms": "50", "retry_after": "9"}, 0.05),
        ({"retry_after_ms": "junk", "retry_after": "9"}, 9.0),
    ],
)
@with_clock
async def test_the_wait_that_a_provider_asks_for_is_kept(status: int, headers: dict[str, str], least: float) -> None:
    assert least <= await wait_after(refusal(status, **headers)) < least * 1.1 + 0.1


@pytest.mark.case("I1")
@pytest.mark.case("I11")
@with_clock
async def test_a_wait_may_be_asked_for_as_a_date() -> None:
    date = formatdate(time.time() + 10, usegmt=True)  # without its fraction of a second
    assert 8 < await wait_after(refusal(429, retry_after=date)) < 11.1


@pytest.mark.case("I1")
@pytest.mark.case("I11")
@pytest.mark.parametrize("asked", ["0", "-1", "junk", "nan", "inf", "", formatdate(0, usegmt=True), "9" * 400])
@with_clock
async def test_a_wait_that_makes_no_sense_becomes_a_backoff_of_our_own(asked: str) -> None:
    assert 0.25 <= await wait_after(refusal(429, retry_after=asked)) < 0.6


@pytest.mark.case("I11")
@pytest.mark.parametrize("asked", ["90", "3600"])
@with_clock
async def test_a_wait_above_the_cap_is_not_begun(asked: str) -> None:
    async with served(refusal(429, retry_after=asked)) as (server, model):
        with pytest.raises(RateLimitError) as raised:
            await model.generate(ASK)
    assert raised.value.retry_after == float(asked)
    assert raised.value.__notes__ == [f"the provider asks to wait {asked} s, and no more than 60 s are waited"]
    assert (len(server.requests), raised.value.retried) == (1, True)
    assert now() < 1


@pytest.mark.case("I11")
@with_clock
async def test_a_wait_that_does_not_fit_into_the_calls_timeout_is_not_begun() -> None:
    async with served(refusal(429, retry_after="30"), timeout=20) as (_, model):
        with pytest.raises(RateLimitError) as raised:
            await model.generate(ASK)
    assert "does not fit into what is left of timeout=20" in raised.value.__notes__[0]
    assert now() < 1


@with_clock
async def test_a_wait_of_our_own_grows_and_differs_from_call_to_call() -> None:
    waits: set[float] = set()
    for _ in range(3):
        began = now()
        async with served(refusal(500)) as (_, model):
            with pytest.raises(ServerError):
                await model.generate(ASK)
        waits.add(now() - began)
    assert all(0.75 <= wait < 1.6 for wait in waits)  # 0.25 to 0.5, and 0.5 to 1
    assert len(waits) == 3


@pytest.mark.case("I4")
@pytest.mark.case("I11")
@with_clock
async def test_a_cancel_during_a_wait_is_immediate() -> None:
    async with served(refusal(429, retry_after="60")) as (server, model):
        task = asyncio.create_task(model.generate(ASK))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() < 2
    assert len(server.requests) == 1


# -- timeouts


@with_clock
async def test_a_stream_that_does_not_begin_ends_at_its_first_chunk_timeout_and_is_tried_again() -> None:
    silent = Transcript(b"", before_response=forever)
    async with served(silent, TEXT, first_chunk_timeout=30) as (server, model):
        assert await text_of(model) == SAID
    assert 30 <= now() < 31
    assert len(server.requests) == 2


@with_clock
async def test_the_first_chunk_timeout_counts_from_the_request_though_the_head_came() -> None:
    async def before_chunk(number: int) -> None:
        await forever()

    late = Transcript(TEXT, before_response=lambda: asyncio.sleep(20), before_chunk=before_chunk)
    async with served(late, first_chunk_timeout=30, max_retries=0) as (_, model):
        with pytest.raises(ModelTimeoutError, match=r"longer than first_chunk_timeout=30 s") as raised:
            await all_of(model)
    assert (raised.value.kind, raised.value.seconds) == ("first_chunk_timeout", 30)
    assert 30 <= now() < 31


@with_clock
async def test_a_stream_that_stalls_ends_at_its_stall_timeout_with_the_partial_text() -> None:
    async with served(stalling(said("Hel", "lo"), END, forever), stall_timeout=25) as (server, model):
        with pytest.raises(ModelTimeoutError, match=r"model 'm' at .* longer than stall_timeout=25 s") as raised:
            await all_of(model)
    assert (raised.value.kind, raised.value.partial, raised.value.retried) == ("stall_timeout", "Hello", True)
    assert isinstance(raised.value, TimeoutError)
    assert 25 <= now() < 26
    assert len(server.requests) == 1


@with_clock
async def test_comments_keep_a_stream_from_counting_as_stalled() -> None:
    async def before_chunk(number: int) -> None:
        await asyncio.sleep(20)

    body = b": alive\n\n" * 9 + said("late") + END
    alive = Transcript(body, chunk_size=9, before_chunk=before_chunk)
    async with served(alive, stall_timeout=25, first_chunk_timeout=25) as (_, model):
        assert await text_of(model) == "late"
    assert now() > 180


@pytest.mark.parametrize("streamed", [True, False])
@with_clock
async def test_the_whole_call_ends_at_its_timeout_and_is_not_tried_again(streamed: bool) -> None:
    async with served(Transcript(CHAT, before_response=forever), timeout=40) as (server, model):
        with pytest.raises(ModelTimeoutError, match="longer than timeout=40 s") as raised:
            await (all_of(model) if streamed else model.generate(ASK))
    assert (raised.value.kind, raised.value.seconds, raised.value.retried) == ("timeout", 40, False)
    assert 40 <= now() < 41
    assert len(server.requests) == 1


@with_clock
async def test_limits_that_are_off_let_a_call_take_its_time() -> None:
    slow = Transcript(TEXT, before_response=lambda: asyncio.sleep(86_400))
    off: dict[str, Any] = {"timeout": None, "first_chunk_timeout": None, "stall_timeout": None, "connect_timeout": None}
    async with served(slow, **off) as (_, model):
        assert await text_of(model) == SAID
    assert now() >= 86_400


async def test_a_connection_that_does_not_come_about_is_a_timeout() -> None:
    def connect(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"] == {"connect": 3, "read": None, "write": None, "pool": None}
        raise httpx.ConnectTimeout("")

    async with httpx.AsyncClient(transport=httpx.MockTransport(connect)) as client:
        model = OpenAIChat("m", base_url="http://127.0.0.1/v1", http_client=client, connect_timeout=3, max_retries=0)
        with pytest.raises(ModelTimeoutError, match=r"model 'm' at 127\.0\.0\.1: .* connect_timeout=3 s") as raised:
            await model.generate(ASK)
    assert raised.value.kind == "connect_timeout"


@pytest.mark.parametrize("wrong", [httpx.DecodingError("bad gzip"), httpx.TooManyRedirects("round")])
async def test_whatever_else_the_http_client_raises_becomes_an_error_of_ours(wrong: httpx.HTTPError) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise wrong

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = OpenAIChat("m", base_url="http://127.0.0.1/v1", http_client=client)
        with pytest.raises(ModelError, match=str(wrong)) as raised:
            await all_of(model)
    assert raised.value.__cause__ is wrong


# -- leaving


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_call_closes_its_connection(streamed: bool) -> None:
    began = asyncio.Event()

    async def before_response() -> None:
        began.set()
        await forever()

    async with served(Transcript(CHAT, before_response=before_response)) as (server, model):
        task = asyncio.create_task(text_of(model) if streamed else asyncio.wait_for(model.generate(ASK), None))
        await asyncio.wait_for(began.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_cancel_in_mid_stream_closes_the_connection() -> None:
    async with served(stalling(said("a"), END, forever)) as (server, model):
        began = asyncio.Event()

        async def read() -> None:
            async with aclosing(model.stream(ASK)) as deltas:
                async for _ in deltas:
                    began.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(began.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_reader_that_leaves_closes_the_connection_and_leaves_no_task() -> None:
    async with served(stalling(said("a", "b"), END, forever)) as (server, model):
        async with aclosing(model.stream(ASK)) as deltas:
            assert (await anext(deltas)).text == "a"
            before = asyncio.all_tasks()
        assert asyncio.all_tasks() <= before
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_closed_model_can_be_used_again() -> None:
    async with serve_transcript(TEXT) as server:
        model = OpenAIChat("m", base_url=server.base_url)
        for _ in range(2):
            async with model:
                assert await text_of(model) == SAID
    assert server.connections == 2


# -- event loops and clients


@contextmanager
def server_in_a_thread(*responses: Path) -> Generator[str]:
    """A server in a loop of its own, that outlives the loops of a test."""
    ready = threading.Event()
    found: list[str] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            async with serve_transcript(*responses) as server:
                found.append(server.base_url)
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=runner.run, args=(serve(),))
        thread.start()
        assert ready.wait(10)
        try:
            yield found[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)


@pytest.mark.case("J1")
@pytest.mark.case("J11")
def test_one_model_serves_loops_in_a_row_and_at_once_without_a_warning() -> None:
    texts: list[str] = []
    both = threading.Barrier(2)

    async def ask_twice(model: OpenAIChat) -> None:
        for _ in range(2):
            await asyncio.to_thread(both.wait, 10)
            texts.append(await text_of(model))

    with server_in_a_thread(TEXT) as url:
        model = OpenAIChat("m", base_url=url)
        texts += [asyncio.run(text_of(model)) for _ in range(3)]
        threads = [threading.Thread(target=lambda: asyncio.run(ask_twice(model))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    gc.collect()  # a connection that was not closed would warn now
    assert texts == [SAID] * 7


@pytest.mark.case("J11")
def test_closing_the_model_in_one_loop_does_not_break_another() -> None:
    with server_in_a_thread(TEXT) as url:
        model = OpenAIChat("m", base_url=url)
        with asyncio.Runner() as first, asyncio.Runner() as second:
            assert first.run(text_of(model)) == second.run(text_of(model)) == SAID
            first.run(model.aclose())
            assert second.run(text_of(model)) == SAID


@pytest.mark.case("J11")
def test_a_callers_own_client_in_a_foreign_loop_is_an_error_that_says_so() -> None:
    with server_in_a_thread(TEXT) as url, asyncio.Runner() as first, asyncio.Runner() as second:
        client = httpx.AsyncClient()
        model = OpenAIChat("m", base_url=url, http_client=client)
        assert first.run(text_of(model)) == SAID
        with pytest.raises(ConfigError, match="was used in another event loop"):
            second.run(text_of(model))
        assert first.run(text_of(model)) == SAID
        first.run(client.aclose())


async def test_a_callers_own_client_is_used_as_it_is_and_never_closed() -> None:
    async with httpx.AsyncClient(headers={"x-mine": "yes"}) as client, serve_transcript(CHAT) as server:
        async with OpenAIChat("m", base_url=server.base_url, http_client=client) as model:
            await model.generate(ASK)
        assert not client.is_closed
    assert server.requests[0].headers["x-mine"] == "yes"
    with pytest.raises(ConfigError, match="the http_client that was passed in is closed"):
        await model.generate(ASK)


async def test_a_client_of_httpx2_does_as_well() -> None:
    httpx2 = pytest.importorskip("httpx2")
    async with httpx2.AsyncClient() as client:
        async with serve_transcript(TEXT, Transcript(said("x"), end="close")) as server:
            model = OpenAIChat("m", base_url=server.base_url, http_client=client, max_retries=0)
            assert await text_of(model) == SAID
            with pytest.raises(StreamCutError):
                await all_of(model)
        with pytest.raises(ConnectionFailedError):
            await all_of(model)
