"""FallbackModel: which model answers, after which errors, and what is told of those that did not."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from agentgraph import ConfigError
from agentgraph.config import is_transient
from agentgraph.messages import AssistantMessage, ToolCall, Usage, UserMessage
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ChatModel,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthError,
    Delta,
    FallbackModel,
    MalformedResponseError,
    ModelError,
    ModelRequest,
    ModelResponse,
    ModelTimeoutError,
    OpenAIChat,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RealModelRefusedError,
    ServerError,
    StreamCutError,
)
from agentgraph.nodes import ReactAgent
from agentgraph.testing import ScriptedModel, serve_transcript

ASK = ModelRequest(messages=[UserMessage("Hi")])


def two(first: Any, second: Any = "from b", **options: Any) -> FallbackModel:
    """Two models: the first says or raises `first`."""
    return FallbackModel(ScriptedModel([first], name="a"), ScriptedModel([second], name="b"), **options)


async def text_of(model: ChatModel, *, stream: bool) -> str:
    if not stream:
        return (await model.generate(ASK)).message.text
    deltas = [delta async for delta in model.stream(ASK)]
    assert deltas[-1].response is not None
    assert "".join(d.text for d in deltas) == deltas[-1].response.message.text
    return deltas[-1].response.message.text


FAILURES = [
    RateLimitError("slow down", status_code=429, retried=True),
    OverloadedError("busy", status_code=529),
    ServerError("oops", status_code=500, retried=True),
    ModelTimeoutError("too slow", kind="first_chunk_timeout", seconds=1),
    ConnectionFailedError("no connection"),
    StreamCutError("cut"),
    MalformedResponseError("a web page"),
    ProviderError("an error in a stream that says success"),
    BadRequestError("lock conflict", status_code=409),
    BadRequestError("the server's own timeout", status_code=408),
    ConnectionResetError("of another library"),
    TimeoutError(),
]
REFUSALS = [
    BadRequestError("wrong", status_code=400),
    ContextLengthError("too long", status_code=400),
    ContentFilterError("no", status_code=400),
    AuthenticationError("who?", status_code=401),
    ConfigError("no such setting"),
    RealModelRefusedError("in a test"),
    ValueError("a fault of the program"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", FAILURES, ids=lambda e: f"{type(e).__name__} {e}")
async def test_the_next_model_answers_where_a_provider_fails(error: Exception, stream: bool) -> None:
    assert await text_of(two(error), stream=stream) == "from b"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: type(e).__name__)
async def test_what_is_refused_or_wrong_is_raised_and_nobody_else_is_asked(error: Exception, stream: bool) -> None:
    other = ScriptedModel(["from b"])
    with pytest.raises(type(error)) as caught:
        await text_of(FallbackModel(ScriptedModel([error]), other), stream=stream)
    assert caught.value is error
    assert other.requests == []


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_model_answers_where_nothing_is_wrong(stream: bool) -> None:
    other = ScriptedModel(["from b"])
    assert await text_of(FallbackModel(ScriptedModel(["from a"]), other), stream=stream) == "from a"
    assert other.requests == []


@pytest.mark.case("I6")
@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_answer_says_is_never_a_reason(stream: bool) -> None:
    honest = "Exception: handle it with care"
    assert await text_of(two(honest), stream=stream) == honest


def has_no_quota(error: Exception) -> bool:
    return "quota" in str(error)


@pytest.mark.parametrize(
    ("on", "error", "answers"),
    [
        (BadRequestError, ContextLengthError("too long"), True),
        ((KeyError, OSError), KeyError("k"), True),
        ((KeyError, OSError), RateLimitError("slow down"), False),
        (has_no_quota, RateLimitError("no quota left"), True),
        (has_no_quota, RateLimitError("slow down"), False),
    ],
)
async def test_errors_may_be_named_in_place_of_the_usual_ones(on: Any, error: Exception, answers: bool) -> None:
    model = two(error, on=on)
    if answers:
        assert await text_of(model, stream=False) == "from b"
    else:
        with pytest.raises(type(error)):
            await text_of(model, stream=False)


@pytest.mark.parametrize("stream", [True, False])
async def test_where_all_fail_the_last_error_tells_of_the_others(stream: bool) -> None:
    model = FallbackModel(
        ScriptedModel([RateLimitError("slow down", status_code=429)], name="a"),
        ScriptedModel([TimeoutError()], name="b"),
        ScriptedModel([ServerError("oops", status_code=500)], name="c"),
    )
    with pytest.raises(ServerError, match="oops") as caught:
        await text_of(model, stream=stream)
    assert caught.value.__notes__ == [
        "before it, model 'a' failed: RateLimitError: slow down",
        "before it, model 'b' failed: TimeoutError: ",
    ]
    assert caught.value.__context__ is None


async def test_an_error_that_ends_it_early_tells_of_those_before_it_too() -> None:
    with pytest.raises(BadRequestError) as caught:
        await two(OverloadedError("busy"), BadRequestError("wrong")).generate(ASK)
    assert caught.value.__notes__ == ["before it, model 'a' failed: OverloadedError: busy"]


# -- streams


class Streaming:
    """Streams these pieces, and raises an exception among them."""

    name = "streaming"

    def __init__(self, *pieces: Delta | Exception) -> None:
        self.pieces = pieces
        self.requests: list[ModelRequest] = []
        self.ended = False

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.ended = True


@pytest.mark.case("I12")
@pytest.mark.parametrize("before", [[], [Delta()], [Delta(usage=Usage(10, 0))]], ids=["nothing", "role", "usage"])
async def test_a_stream_that_breaks_before_its_first_piece_is_begun_anew_unseen(before: list[Delta]) -> None:
    cut = StreamCutError("cut")
    assert await text_of(FallbackModel(Streaming(*before, cut), ScriptedModel(["Hello"])), stream=True) == "Hello"


@pytest.mark.case("I12")
@pytest.mark.parametrize(
    ("piece", "partial"),
    [(Delta("Hel"), "Hel"), (Delta(reasoning="Hm"), ""), (Delta(index=0, call_id="c", name="look"), "")],
    ids=["text", "reasoning", "call"],
)
async def test_a_stream_that_breaks_later_is_an_error_with_the_text_so_far(piece: Delta, partial: str) -> None:
    other = ScriptedModel(["Hello"])
    model = FallbackModel(Streaming(piece, StreamCutError("cut")), other)
    deltas: list[Delta] = []
    with pytest.raises(StreamCutError, match="cut") as caught:
        deltas.extend([delta async for delta in model.stream(ASK)])
    assert caught.value.partial == partial
    assert not is_transient(caught.value)  # a node's Retry would say it all twice
    assert other.requests == []


async def test_the_text_so_far_that_a_client_tells_itself_stays() -> None:
    model = FallbackModel(Streaming(Delta("Hel"), StreamCutError("cut", partial="Hello w")))
    with pytest.raises(StreamCutError) as caught:
        await text_of(model, stream=True)
    assert caught.value.partial == "Hello w"


@pytest.mark.case("C15")
@pytest.mark.parametrize("told", [False, True])
async def test_a_real_stream_with_an_error_inside_is_handed_on_only_while_nothing_was_told(told: bool) -> None:
    said = b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n' if told else b""
    error = b'data: {"error": {"message": "overloaded", "code": null}}\n\ndata: [DONE]\n\n'
    async with (
        serve_transcript(said + error) as server,
        FallbackModel(OpenAIChat("m", base_url=server.base_url), ScriptedModel(["Hello"] * (not told))) as model,
    ):
        agent = ReactAgent("clerk", model)
        if told:
            with pytest.raises(ProviderError, match="overloaded") as caught:
                await agent.run("Hi")
            assert caught.value.partial == "Hel"
        else:
            result = await agent.run("Hi")
            assert [m.text for m in result.messages] == ["Hi", "Hello"]


async def test_a_stream_that_ends_without_an_answer_is_a_failure_too() -> None:
    assert await text_of(FallbackModel(Streaming(), ScriptedModel(["Hello"])), stream=True) == "Hello"
    with pytest.raises(ModelError, match="'streaming' ended its stream without an answer"):
        await text_of(FallbackModel(Streaming(Delta("Hel"))), stream=True)


async def test_a_reader_that_leaves_closes_the_models_stream() -> None:
    streaming = Streaming(Delta("Hel"), Delta("lo"))
    deltas = FallbackModel(streaming, ScriptedModel([])).stream(ASK)
    await anext(deltas)
    await deltas.aclose()
    assert streaming.ended


async def test_a_cancelled_call_asks_nobody_else() -> None:
    other = ScriptedModel([])
    model = FallbackModel(ScriptedModel([asyncio.CancelledError()]), other)
    with pytest.raises(asyncio.CancelledError):
        await model.generate(ASK)
    assert other.requests == []


# -- what it tells of itself


@pytest.mark.parametrize("stream", [True, False])
async def test_the_message_says_which_model_gave_it(stream: bool) -> None:
    answer = AssistantMessage("Hello", metadata={"model": "b-2026-01", "response_id": "r"})
    agent = ReactAgent("clerk", two(OverloadedError("busy"), answer), stream=stream)
    message = (await agent.run("Hi")).message
    assert message is not None
    assert message.metadata == {"model": "b", "response_model": "b-2026-01", "response_id": "r"}


async def test_the_name_that_the_server_says_too_is_said_once() -> None:
    response = await two(AssistantMessage("Hello", metadata={"model": "a"})).generate(ASK)
    assert response.message.metadata == {"model": "a"}


async def test_both_models_get_the_same_request_and_tool_calls_come_through() -> None:
    first = ScriptedModel([OverloadedError("busy")])
    second = ScriptedModel([[ToolCall("c1", "look", "{}")]])
    response = await FallbackModel(first, second).generate(ASK)
    assert first.requests == second.requests == [ASK]
    assert response.message.tool_calls == [ToolCall("c1", "look", "{}")]


def test_a_schema_is_sent_as_such_only_where_all_models_take_it() -> None:
    native, prompted = OpenAIChat("m", native_output_schema=True), ScriptedModel([])
    assert FallbackModel(native, native).native_output_schema
    assert not FallbackModel(native, prompted).native_output_schema


def test_its_name_and_its_repr_name_all_models() -> None:
    model = two("x")
    assert model.name == "a or b"
    assert repr(model).startswith("FallbackModel(<ScriptedModel 'a'")
    assert (model.provider, FallbackModel("openai:x", ScriptedModel([])).provider) == ("scriptedmodel", "fallback")


def test_models_may_be_given_by_their_names() -> None:
    assert [m.name for m in FallbackModel("openai:gpt-x", "openai:gpt-y").models] == ["gpt-x", "gpt-y"]


class Closing(ScriptedModel):
    def __init__(self, closed: list[str], name: str, error: Exception | None = None) -> None:
        super().__init__([], name=name)
        self._closed = closed
        self._error = error

    async def aclose(self) -> None:
        self._closed.append(self.name)
        if self._error is not None:
            raise self._error


async def test_closing_it_closes_all_models_also_where_one_fails_to() -> None:
    closed: list[str] = []
    model = FallbackModel(Closing(closed, "a", OSError("no")), ScriptedModel([]), Closing(closed, "b"))
    with pytest.raises(OSError, match="no"):
        async with model:
            pass
    assert closed == ["a", "b"]


@pytest.mark.parametrize("on", [3, "429", (3,), (ValueError, "x")])
def test_a_rule_that_cannot_be_meant_is_refused(on: Any) -> None:
    with pytest.raises(ConfigError, match=r"FallbackModel\(on=...\)"):
        two("x", on=on)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs models"):
        FallbackModel(ScriptedModel([]), object())  # pyright: ignore[reportArgumentType]


async def test_it_changes_no_message_but_the_metadata() -> None:
    answer = AssistantMessage("Hello", id="m1", usage=Usage(1, 2), finish_reason="stop")
    response = await two(answer).generate(ASK)
    assert response.message == msgspec.structs.replace(answer, metadata={"model": "a"})
