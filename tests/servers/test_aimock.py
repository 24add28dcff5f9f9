"""aimock speaks the protocols of OpenAI, Anthropic and Google, and fails as their servers do."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from agentgraph.messages import AssistantMessage, ToolCall, ToolResponseMessage, Usage, UserMessage, new_id
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ConnectionFailedError,
    ContextLengthError,
    MalformedResponseError,
    ModelClient,
    ModelError,
    ModelRequest,
    ModelTimeoutError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamCutError,
    model,
)
from agentgraph.nodes import ReactAgent
from agentgraph.testing import with_clock

ASK = ModelRequest(messages=[UserMessage("Hi")])
SAID = "Grüße aus Zürich 🙂: one, two, three, four, five, six, seven."
USAGE = {
    "prompt_tokens": 11, "completion_tokens": 7,
    "input_tokens": 11, "output_tokens": 7,
    "promptTokenCount": 11, "candidatesTokenCount": 7,
}  # fmt: skip

# the client's name, and where the server has its protocol
PATHS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "", "gemini": ""}


class Mock:
    """What one test has of the server: it is known there by the name of its model."""

    def __init__(self, url: str, provider: str, name: str) -> None:
        self._url = url
        self._provider = provider
        self._name = name

    def will(self, *answers: dict[str, Any]) -> None:
        """Answer with these: the first that fits, also in its `match`."""
        fixtures = [{**a, "match": {"model": self._name, **a.get("match", {})}} for a in answers]
        httpx.post(f"{self._url}/__aimock/fixtures", json={"fixtures": fixtures}).raise_for_status()

    def client(self, *, headers: dict[str, str] | None = None, **options: Any) -> ModelClient:
        url = self._url + PATHS[self._provider]
        headers = {"x-test-id": self._name, **(headers or {})}
        return model(f"{self._provider}:{self._name}", base_url=url, api_key="none", headers=headers, **options)

    def statuses(self) -> list[int]:
        """How the server has answered so far. 0: not at all."""
        journal = httpx.get(f"{self._url}/__aimock/journal", params={"testId": self._name}).raise_for_status()
        return [entry["response"]["status"] for entry in journal.json()]


@pytest.fixture(params=list(PATHS))
def mock(request: pytest.FixtureRequest, aimock: str) -> Mock:
    return Mock(aimock, request.param, f"{request.node.originalname}-{new_id()}")


def answer(**fields: Any) -> dict[str, Any]:
    return {"response": {"content": SAID, "usage": USAGE}, "chunkSize": 4, **fields}


def first(**fields: Any) -> dict[str, Any]:
    """An answer to the first request only."""
    return {"match": {"sequenceIndex": 0}, **fields}


def refusal(status: int, message: str = "no", **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message}, "status": status, **fields}


async def text_of(client: ModelClient) -> str:
    return "".join([delta.text async for delta in client.stream(ASK)])


async def failed(client: ModelClient, kind: type[ModelError]) -> tuple[Any, str]:
    """The error that a stream ends with, and the text that was told before."""
    told: list[str] = []

    async def read() -> None:
        async for delta in client.stream(ASK):
            told.append(delta.text)  # noqa: PERF401  # what came before the error, too

    with pytest.raises(kind) as error:
        await read()
    assert type(error.value) is kind
    return error.value, "".join(told)


def now() -> float:
    return asyncio.get_running_loop().time()


# -- as the protocols have it


async def test_a_stream_and_an_answer_in_one_piece_are_the_same_message(mock: Mock) -> None:
    mock.will(answer())
    async with mock.client() as client:
        whole = (await client.generate(ASK)).message
        *pieces, last = [delta async for delta in client.stream(ASK)]
    assert last.response is not None
    streamed = last.response.message
    assert [p.text for p in pieces if p.text][:3] == ["Grüß", "e au", "s Zü"]
    assert "".join(p.text for p in pieces) == SAID
    for message in (whole, streamed):
        assert (message.text, message.finish_reason, message.tool_calls) == (SAID, "stop", [])
        assert message.usage == Usage(11, 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_makes_two_calls_and_answers_in_round_two(mock: Mock, stream: bool) -> None:
    calls = [ToolCall("call_a", "weather", '{"city":"Oslo"}'), ToolCall("call_b", "hour", '{"city":"Rome","of":"day"}')]
    asked = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in calls]
    mock.will(
        {"match": {"hasToolResult": False}, "response": {"toolCalls": asked}, "chunkSize": 3},
        {"match": {"toolResultContains": "noon in Rome of the day"}, "response": {"content": "Rain, and noon."}},
    )

    async def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    async def hour(city: str, of: str) -> str:
        """Tell the hour."""
        return f"noon in {city} of the {of}"

    async with mock.client() as client:
        result = await ReactAgent("clerk", client, [weather, hour], stream=stream).run("Weather in Oslo, hour in Rome?")
    _, said, answers, last = result.messages
    assert isinstance(said, AssistantMessage)
    assert isinstance(answers, ToolResponseMessage)
    assert (said.finish_reason, [c.id for c in said.tool_calls]) == ("tool_calls", ["call_a", "call_b"])
    assert [(r.id, r.content) for r in answers.responses] == [
        ("call_a", "rain in Oslo"),
        ("call_b", "noon in Rome of the day"),
    ]
    assert last.text == result.text == "Rain, and noon."
    assert mock.statuses() == [200, 200]


# -- faults in mid-stream


CALL = {"toolCalls": [{"id": "call_a", "name": "weather", "arguments": '{"city":"' + "very long " * 10 + '"}'}]}


@pytest.mark.case("C8")
async def test_a_stream_that_is_cut_is_an_error_with_the_partial_text(mock: Mock) -> None:
    mock.will(answer(truncateAfterChunks=8, latency=5))
    async with mock.client() as client:
        error, told = await failed(client, StreamCutError)
    assert SAID.startswith(told)
    assert error.partial == told != ""
    assert error.retried
    assert mock.statuses() == [200]


@pytest.mark.case("C8")
@pytest.mark.parametrize(
    "mock", ["openai", "openai-responses", "anthropic"], indirect=True
)  # Gemini's calls come in one piece
async def test_a_call_that_is_cut_never_becomes_a_message(mock: Mock) -> None:
    mock.will({"response": CALL, "chunkSize": 4, "truncateAfterChunks": 8, "latency": 5})
    ran: list[str] = []

    async def weather(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        return "rain"

    async with mock.client(max_retries=0) as client:
        agent = ReactAgent("clerk", client, [weather])
        with pytest.raises(StreamCutError):
            await agent.run("Hi")
    assert ran == []
    assert mock.statuses() == [200]


async def test_a_connection_that_is_reset_in_mid_stream_is_a_cut(mock: Mock) -> None:
    mock.will(answer(latency=5))
    async with mock.client(headers={"x-fault-reset": "8"}) as client:
        error, told = await failed(client, StreamCutError)
    assert error.partial == told
    assert SAID.startswith(told)


async def test_a_chunk_that_is_no_json_is_an_error_with_the_partial_text(mock: Mock) -> None:
    mock.will(answer())
    async with mock.client(headers={"x-fault-garble": "8"}) as client:
        error, told = await failed(client, MalformedResponseError)
    assert SAID.startswith(told)
    assert error.partial == told != ""


async def test_a_stream_that_stalls_ends_after_the_time_for_it(mock: Mock) -> None:
    mock.will(
        answer(recordedTimings={"ttftMs": 0, "interChunkDelaysMs": [0] * 7 + [60_000], "totalDurationMs": 60_000})
    )
    async with mock.client(stall_timeout=0.3) as client:
        error, told = await failed(client, ModelTimeoutError)
    assert (error.kind, error.seconds) == ("stall_timeout", 0.3)
    assert error.partial == told
    assert SAID.startswith(told)


# -- faults before the first byte


async def test_a_first_byte_that_takes_too_long_ends_the_call(mock: Mock) -> None:
    mock.will(answer(streamingProfile={"ttft": 60_000}))
    async with mock.client(first_chunk_timeout=0.1, max_retries=0) as client:
        error, told = await failed(client, ModelTimeoutError)
    assert (error.kind, error.seconds, error.partial, told) == ("first_chunk_timeout", 0.1, "", "")


async def test_a_first_byte_that_is_slow_is_waited_for(mock: Mock) -> None:
    mock.will(answer(streamingProfile={"ttft": 500}))
    async with mock.client(stall_timeout=0.4, max_retries=0) as client:
        assert await text_of(client) == SAID


async def test_a_body_that_is_no_answer_is_an_error_streamed_or_not(mock: Mock) -> None:
    mock.will(answer(chaos={"malformedRate": 1}))
    async with mock.client() as client:
        error, _ = await failed(client, MalformedResponseError)
        assert "{malformed json" in error.body
        with pytest.raises(MalformedResponseError):
            await client.generate(ASK)
    assert mock.statuses() == [200, 200]


@pytest.mark.parametrize("fault", ["x-aimock-chaos-disconnect", "x-fault-reset"])
async def test_a_connection_that_breaks_at_once_is_an_error_of_its_own(mock: Mock, fault: str) -> None:
    mock.will(answer())
    async with mock.client(headers={fault: "1" if "chaos" in fault else "0"}, max_retries=0) as client:
        error, _ = await failed(client, ConnectionFailedError)
        assert isinstance(error, ConnectionError)
        with pytest.raises(ConnectionFailedError):
            await client.generate(ASK)


# a closed connection is none that the jumping clock would have to wait for
CLOSED = {"connection": "close"}


@with_clock
async def test_a_connection_that_breaks_at_once_is_made_again(mock: Mock) -> None:
    mock.will(first(**answer(chaos={"disconnectRate": 1})), answer())
    async with mock.client(headers=CLOSED) as client:
        assert await text_of(client) == SAID
    assert mock.statuses() == [0, 200]


# -- refusals


@pytest.mark.case("I1")
@pytest.mark.parametrize(
    ("header", "asked", "least"),
    [
        pytest.param(None, lambda: 30, 30, id="seconds"),
        pytest.param(None, lambda: formatdate(time.time() + 50, usegmt=True), 30, id="date"),
        pytest.param("retry-after-ms=30500", lambda: 1, 30.5, id="milliseconds"),
    ],
)
def test_a_429_is_tried_again_after_the_wait_that_it_asks_for(
    mock: Mock, header: str | None, asked: Callable[[], Any], least: float
) -> None:
    @with_clock
    async def wait() -> None:
        mock.will(first(response=refusal(429, "slow down", retryAfter=asked())), answer())
        async with mock.client(headers=CLOSED | ({"x-fault-header": header} if header else {})) as client:
            assert await text_of(client) == SAID
        assert least <= now() < 60
        assert mock.statuses() == [429, 200]

    wait()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_429_that_asks_for_too_long_a_wait_fails_at_once(mock: Mock, stream: bool) -> None:
    mock.will({"response": refusal(429, "come back tomorrow", retryAfter=86_400)})
    async with mock.client() as client:
        with pytest.raises(RateLimitError, match="HTTP 429: come back tomorrow") as error:
            await (text_of(client) if stream else client.generate(ASK))
    assert (error.value.retry_after, error.value.retried) == (86_400, True)
    assert mock.statuses() == [429]


@with_clock
async def test_an_overload_is_tried_again(mock: Mock) -> None:
    mock.will(first(response=refusal(529, "Overloaded")), answer())
    async with mock.client(headers=CLOSED) as client:
        assert (await client.generate(ASK)).message.text == SAID
    assert 0.25 <= now() < 10
    assert mock.statuses() == [529, 200]


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "This model's maximum context length is 8 tokens.", ContextLengthError),
        (400, "prompt is too long: 9 tokens > 8 maximum", ContextLengthError),
        (400, "messages: field required", BadRequestError),
        (401, "wrong key", AuthenticationError),
        (403, "not yours", AuthenticationError),
        (404, "no such model", BadRequestError),
    ],
)
async def test_a_refusal_of_the_request_is_told_and_not_tried_again(
    mock: Mock, status: int, message: str, kind: type[ProviderError]
) -> None:
    mock.will({"response": refusal(status, message)})
    async with mock.client() as client:
        error, _ = await failed(client, kind)
    assert (error.status_code, error.retried) == (status, False)
    assert message in str(error)
    assert message in error.body
    assert error.request_id.startswith("req-")
    assert mock.statuses() == [status]


@pytest.mark.parametrize(
    ("status", "kind"), [(500, ServerError), (502, ServerError), (503, OverloadedError), (529, OverloadedError)]
)
async def test_a_failure_of_the_server_is_told_by_its_kind(mock: Mock, status: int, kind: type[ProviderError]) -> None:
    mock.will({"response": refusal(status, "our fault")})
    async with mock.client(max_retries=0) as client:
        error, _ = await failed(client, kind)
    assert (error.status_code, error.retry_after) == (status, None)
    assert mock.statuses() == [status]
