"""OpenAIResponses over real HTTP on loopback: what it sends, and what it makes of answers and of what goes wrong."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError, InputError
from agentgraph.config import is_transient
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
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
    decode,
    encode,
)
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ChatModel,
    ContentFilterError,
    ContextLengthError,
    Delta,
    MalformedResponseError,
    ModelRequest,
    ModelTimeoutError,
    OpenAIChat,
    OpenAIResponses,
    ProviderError,
    RateLimitError,
    RealModelRefusedError,
    ServerError,
    StreamCutError,
    ToolSpec,
)
from agentgraph.nodes import ReactAgent, tool
from agentgraph.testing import Transcript, TranscriptServer, serve_transcript, with_clock

SSE = Path(__file__).parent.parent / "sse"
TEXT = SSE / "llamacpp-responses-text.sse"
CALL = SSE / "llamacpp-responses-tool-call.sse"
CALLS = SSE / "aimock-responses-tool-calls-two.sse"
REASONING = SSE / "aimock-responses-reasoning.sse"
SAID = "Hello, welcome to my world."
ASK = ModelRequest(messages=[UserMessage("Hi")])

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def events(*told: dict[str, Any]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), msgspec.json.encode(e)) for e in told)


def said(*texts: str) -> bytes:
    return events(*({"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in texts))


START = events({"type": "response.created", "response": {"id": "r1", "model": "m1"}})
END = events({"type": "response.completed", "response": {"status": "completed"}})


def error(code: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "code": code, "message": message}


def refusal(status: int, code: str, message: str = "no", **headers: str) -> Transcript:
    # closed, as servers that refuse do: the jumping clock takes an idle connection for work under way
    named = {k.replace("_", "-"): v for k, v in headers.items()} | {"connection": "close"}
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return Transcript(msgspec.json.encode(body), status=status, headers=named)


def answer(*output: dict[str, Any], **fields: Any) -> Transcript:
    """An answer that is not streamed."""
    body = {"id": "r1", "model": "m1", "status": "completed", "output": output, **fields}
    return Transcript(msgspec.json.encode(body), headers={"content-type": "application/json"})


HI = answer({"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi."}]})


def stalling(first: bytes) -> Transcript:
    """Sends `first`, then nothing more."""

    async def before_chunk(number: int) -> None:
        if number == 1:
            await forever()

    return Transcript(first, before_chunk=before_chunk)


async def forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def served(*responses: Any, **options: Any) -> AsyncGenerator[tuple[TranscriptServer, OpenAIResponses]]:
    """A server that answers with these, and a model that asks it."""
    name = options.pop("model", "m")
    async with (
        serve_transcript(*responses) as server,
        OpenAIResponses(name, base_url=server.base_url, **options) as model,
    ):
        yield server, model


async def all_of(model: ChatModel, request: ModelRequest = ASK) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


async def answer_of(model: ChatModel, request: ModelRequest = ASK) -> AssistantMessage:
    """The streamed answer; what was told in pieces is the same."""
    *deltas, last = await all_of(model, request)
    assert last.response is not None
    assert "".join(d.text for d in deltas) == last.response.message.text
    return last.response.message


async def sent(request: ModelRequest, **options: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    async with served(HI, **options) as (server, model):
        await model.generate(request)
    return server.requests[0].json


async def wire(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    return (await sent(ModelRequest(messages=list(messages)), **options))["input"]


async def resent(*responses: Any, change: Any = None, **options: Any) -> list[dict[str, Any]]:
    """How an answer goes back to the server that gave it, after it was stored."""
    async with served(*responses, HI, **options) as (server, model):
        message = await answer_of(model)
        (stored,) = decode(encode([message if change is None else change(message)]))
        await model.generate(ModelRequest(messages=[stored]))
    return server.requests[1].json["input"]


# -- what is sent


async def test_a_request_names_model_and_key_and_stores_nothing() -> None:
    async with served(TEXT, HI, api_key="secret", headers={"X-Team": "a"}) as (server, model):
        await all_of(model)
        await model.generate(ASK)
    streamed, whole = server.requests
    assert (streamed.method, streamed.path) == ("POST", "/v1/responses")
    assert streamed.headers["authorization"] == "Bearer secret"
    assert streamed.headers["x-team"] == "a"
    base = {"model": "m", "input": [{"role": "user", "content": "Hi"}], "store": False}
    assert whole.json == base
    assert streamed.json == base | {"stream": True}


async def test_base_url_and_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_transcript(HI) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        async with OpenAIResponses("m") as model:
            await model.generate(ASK)
    assert server.requests[0].headers["authorization"] == "Bearer from the environment"


async def test_without_a_key_openai_is_not_asked() -> None:
    with pytest.raises(AuthenticationError, match=r"model 'm' at api\.openai\.com: no API key; set OPENAI_API_KEY"):
        await OpenAIResponses("m").generate(ASK)
    with pytest.raises(RealModelRefusedError):
        await OpenAIResponses("m", api_key="x").generate(ASK)


def test_a_setting_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OpenAIResponses\(base_url="):
        OpenAIResponses("m", base_url="localhost:8000")
    with pytest.raises(ConfigError):
        OpenAIResponses("m", timeout=0)


def test_a_native_schema_is_for_openai_itself_or_whoever_says_so() -> None:
    assert OpenAIResponses("m").native_output_schema
    assert not OpenAIResponses("m", base_url="http://127.0.0.1/v1").native_output_schema
    assert OpenAIResponses("m", base_url="http://127.0.0.1/v1", native_output_schema=True).native_output_schema


async def test_a_requests_options_override_the_models_and_max_tokens_has_the_name_it_has_here() -> None:
    request = msgspec.structs.replace(ASK, options={"temperature": 1, "metadata": {"a": "b"}})
    body = await sent(request, options={"temperature": 0, "max_tokens": 5})
    assert (body["temperature"], body["max_output_tokens"], body["metadata"]) == (1, 5, {"a": "b"})
    assert "max_tokens" not in body
    named = await sent(ASK, options={"max_tokens": 5, "max_output_tokens": 6})
    assert (named["max_output_tokens"], "max_tokens" in named) == (6, False)


@pytest.mark.parametrize("name", ["o3", "o4-mini", "gpt-5", "gpt-5.6-sol", "gpt-6", "gpt-10", "openai/gpt-5-mini"])
async def test_models_that_reason_are_asked_for_their_encrypted_reasoning(name: str) -> None:
    assert (await sent(ASK, model=name))["include"] == ["reasoning.encrypted_content"]
    stored = await sent(ASK, model=name, options={"store": True})
    assert (stored["store"], "include" in stored) == (True, False)


@pytest.mark.parametrize("name", ["gpt-4.1", "gpt-4o-mini", "gpt-3.5-turbo", "gpt-5-chat-latest", "m", "oscar"])
async def test_others_are_not_for_they_would_refuse_unless_options_say_that_they_reason(name: str) -> None:
    assert "include" not in await sent(ASK, model=name)
    body = await sent(ASK, model=name, options={"reasoning": {"effort": "low"}})
    assert body["include"] == ["reasoning.encrypted_content"]


async def test_what_the_options_include_is_sent_as_it_is() -> None:
    body = await sent(ASK, model="o3", options={"include": ["file_search_call.results"]})
    assert body["include"] == ["file_search_call.results"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(None, None), ("auto", "auto"), ("required", "required"), ("add", {"type": "function", "name": "add"})],
)
async def test_tools_are_sent_with_the_choice(choice: str | None, expected: Any) -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice=choice, parallel_tool_calls=False))
    function = {"type": "function", "name": "add", "description": "Adds.", "parameters": ADD.parameters}
    assert body["tools"] == [function | {"strict": False}]
    assert body.get("tool_choice") == expected
    assert body["parallel_tool_calls"] is False


async def test_the_providers_own_tools_stand_beside_the_requests() -> None:
    search = {"type": "web_search"}
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD]), options={"tools": [search]})
    assert [t["type"] for t in body["tools"]] == ["function", "web_search"]
    assert (await sent(ASK, options={"tools": [search]}))["tools"] == [search]


async def test_a_strict_tool_is_sent_with_all_its_parameters_required_and_the_optional_ones_nullable() -> None:
    @tool(strict=True)
    async def find(query: str, limit: int = 5) -> None:
        """Find it."""

    body = await sent(msgspec.structs.replace(ASK, tools=[find.spec, ADD]))
    strict, loose = body["tools"]
    assert strict == {
        "type": "function",
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
    assert loose["strict"] is False


async def test_a_strict_tool_without_a_strict_schema_is_refused_before_it_is_sent() -> None:
    loose = ToolSpec("put", "Puts.", {"type": "object", "properties": {"a": {"type": "object"}}}, strict=True)
    async with served(HI) as (server, model):
        with pytest.raises(
            ConfigError, match="tool 'put', parameter 'a': cannot be strict: it takes an object with any"
        ):
            await model.generate(msgspec.structs.replace(ASK, tools=[loose]))
    assert server.requests == []


async def test_tools_that_may_not_be_called_are_left_out() -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice="none"))
    assert body.keys() == {"model", "input", "store"}


async def test_a_turn_with_tools_is_sent_as_the_protocol_has_it() -> None:
    messages: list[Message] = [
        UserMessage("Add."),
        AssistantMessage("Well.", tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "now", " ")]),
        ToolResponseMessage([ToolResponse("1", "add", "2"), ToolResponse("2", "now", [TextPart("noon")])]),
        InstructionMessage("Be brief.", rendered=True),
        SystemMessage("You add."),
    ]
    body = await sent(ModelRequest(messages=messages, system=SystemMessage("You are a clerk.")))
    assert body["instructions"] == "You are a clerk.\n\nYou add."
    assert body["input"] == [
        {"role": "user", "content": "Add."},
        {"type": "message", "role": "assistant", "content": "Well."},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "2"},
        {"type": "function_call_output", "call_id": "2", "output": "noon"},
        {"role": "user", "content": "Be brief."},
    ]


async def test_images_and_files_are_sent_as_parts() -> None:
    parts = [
        TextPart("See:"),
        ImagePart(url="https://x/y.png"),
        ImagePart(data=b"png"),
        FilePart(data=b"gif", media_type="image/gif"),
        FilePart(data=b"pdf", name="a.pdf"),
        FilePart(url="https://x/y.pdf"),
    ]
    (message,) = await wire(UserMessage(parts))
    assert message["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/png;base64,cG5n", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/gif;base64,Z2lm", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"},
        {"type": "input_file", "file_url": "https://x/y.pdf"},
    ]


async def test_an_image_in_a_tools_answer_is_part_of_it() -> None:
    response = ToolResponse("1", "look", [TextPart("Here."), ImagePart(url="https://x/y.png")])
    *_, output = await wire(AssistantMessage("", tool_calls=[ToolCall("1", "look")]), ToolResponseMessage([response]))
    assert output["output"] == [
        {"type": "input_text", "text": "Here."},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
    ]


@pytest.mark.parametrize("part", [FilePart(data=b"x", media_type="audio/mpeg"), ImagePart(), FilePart()])
async def test_a_part_that_cannot_be_sent_is_an_error(part: FilePart | ImagePart) -> None:
    with pytest.raises(InputError):
        await wire(UserMessage([part]))


@pytest.mark.case("D16")
async def test_half_a_surrogate_pair_in_a_message_does_not_keep_the_rest_from_being_sent() -> None:
    (message,) = await wire(UserMessage("a\ud83d \u00e9"))
    assert message["content"] == "a\ufffd \u00e9"


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int


async def test_an_output_schema_is_sent_as_the_texts_format_beside_what_the_options_say_of_text() -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(Point))
    body = await sent(request, options={"text": {"verbosity": "low"}})
    form = body["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "answer", True)
    assert form["schema"]["properties"] == {"x": {"type": "integer"}}
    assert body["text"]["verbosity"] == "low"
    loose = await sent(msgspec.structs.replace(ASK, output_schema=ADD.parameters))
    assert loose["text"]["format"]["strict"] is False


async def test_an_output_that_is_no_object_is_asked_for_inside_one_and_taken_out_again() -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(list[Point]))
    async with served(START + said('{"answer": [{"x"', ": 1}]}") + END) as (server, model):
        assert json.loads((await answer_of(model, request)).text) == [{"x": 1}]
    assert list(server.requests[0].json["text"]["format"]["schema"]["properties"]) == ["answer"]


# -- what goes back


def item(place: int, **fields: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": fields}


THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"}
SEARCH: dict[str, Any] = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}}
NOTE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "So:"}],
}
ASKED: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
TURN = events(*(item(k, **i) for k, i in enumerate([THOUGHT, NOTE, SEARCH, {**THOUGHT, "id": "rs_2"}, ASKED]))) + END


async def test_all_items_go_back_as_they_came_and_in_their_order() -> None:
    content: list[dict[str, Any]] = [{**NOTE["content"][0], "annotations": []}]
    note = {**NOTE, "role": "assistant", "status": "completed", "content": content}
    assert await resent(TURN) == [THOUGHT, note, SEARCH, {**THOUGHT, "id": "rs_2"}, ASKED]


async def test_a_recorded_answer_with_reasoning_goes_back_with_what_is_encrypted() -> None:
    reasoning, message = await resent(REASONING)
    assert (reasoning["type"], reasoning["encrypted_content"][:4]) == ("reasoning", "YWlt")
    assert (message["id"][:4], message["content"][0]["text"]) == ("msg-", "42")


async def test_text_and_calls_go_back_as_they_are_now() -> None:
    def change(message: AssistantMessage) -> AssistantMessage:
        renamed = [msgspec.structs.replace(c, id="other") for c in message.tool_calls]
        return msgspec.structs.replace(message, text="[redacted]", tool_calls=renamed)

    items = await resent(TURN, change=change)
    assert [i["type"] for i in items] == ["reasoning", "message", "web_search_call", "reasoning", "function_call"]
    assert (items[1]["content"][0]["text"], items[4]["call_id"], items[4]["id"]) == ("[redacted]", "other", "fc_1")


async def test_without_its_reasoning_or_a_call_an_answer_goes_back_without_ids() -> None:
    def forget(message: AssistantMessage) -> AssistantMessage:
        return msgspec.structs.replace(message, reasoning=[])

    def answer_only(message: AssistantMessage) -> AssistantMessage:
        return msgspec.structs.replace(message, tool_calls=[])

    call = {k: v for k, v in ASKED.items() if k != "id"}
    assert await resent(TURN, change=forget) == [{"type": "message", "role": "assistant", "content": "So:"}, call]
    *kept, said_ = await resent(TURN, change=answer_only)
    assert kept == [THOUGHT, SEARCH, {**THOUGHT, "id": "rs_2"}]
    assert said_ == {"type": "message", "role": "assistant", "content": "So:"}


async def test_reasoning_that_the_server_could_not_find_again_stays_here() -> None:
    bare: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
    body = events(item(0, **bare), item(1, **ASKED)) + END
    call = {k: v for k, v in ASKED.items() if k != "id"}
    assert await resent(body) == [call]
    assert await resent(body, options={"store": True}) == [bare, ASKED]
    told = {**bare, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert await resent(events(item(0, **told), item(1, **ASKED)) + END) == [told, ASKED]


async def test_reasoning_of_another_server_or_protocol_stays_here() -> None:
    async with served(TURN) as (_, model):
        message = await answer_of(model)
    assert [i["type"] for i in await wire(message)] == ["message", "function_call"]
    thinking = AssistantMessage("Yes.", reasoning=[ReasoningPart("Hm.", "signed", {"type": "thinking"})])
    assert await wire(thinking) == [{"type": "message", "role": "assistant", "content": "Yes."}]


async def test_an_answer_that_only_reasons_does_not_go_back() -> None:
    end = {"type": "response.incomplete", "response": {"status": "incomplete"}}
    assert await resent(events(item(0, **THOUGHT), end)) == []


def made(kind: str, place: int, text: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": f"msg_{place}", "role": "assistant", "status": "completed", "content": content}
    return {
        "reasoning": {**THOUGHT, "id": f"rs_{place}"},
        "message": message,
        "call": {**ASKED, "id": f"fc_{place}", "call_id": f"c{place}"},
        "search": {**SEARCH, "id": f"ws_{place}"},
    }[kind]


@settings(max_examples=50)
@given(
    kinds=st.lists(st.sampled_from(["reasoning", "message", "call", "search"]), min_size=1, max_size=6),
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=6, max_size=6),
    size=st.integers(1, 60),
)
def test_any_order_of_items_goes_back_the_same(kinds: list[str], texts: list[str], size: int) -> None:
    output = [made(kind, place, texts[place]) for place, kind in enumerate(kinds)]
    body = events(*(item(k, **i) for k, i in enumerate(output))) + END
    items = asyncio.run(resent(Transcript(body, chunk_size=size)))
    if not {"message", "call"} & set(kinds):
        assert items == []
    elif {"reasoning", "search"} & set(kinds) or kinds.count("message") > 1:
        assert items == output
    else:  # there is nothing that their order could matter to
        assert [i["type"] for i in items] == sorted((i["type"] for i in output), reverse=True)


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
    end = CALL.read_bytes().rsplit(b"data: ", 1)[1]
    whole = Transcript(
        msgspec.json.encode(msgspec.json.decode(end)["response"]), headers={"content-type": "application/json"}
    )
    async with served(whole, CALL) as (_, model):
        response = await model.generate(msgspec.structs.replace(ASK, message_id="the id"))
        other = await answer_of(model, msgspec.structs.replace(ASK, message_id="the id"))
    assert response.message == other
    assert (other.usage, other.tool_calls[0].arguments) == (Usage(200, 31, 181), '{"city": "Paris"}')
    assert response.raw["object"] == "response"


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with served(Transcript(TEXT, chunk_size=50)) as (server, model):
        assert [(await answer_of(model)).text, (await answer_of(model)).text] == [SAID, SAID]
        assert (len(server.requests), server.connections) == (2, 1)


async def test_an_agent_calls_tools_and_answers() -> None:
    @tool
    async def get_weather(city: str) -> str:
        """Current weather of a city."""
        return f"Sunny in {city}."

    async with served(CALLS, TEXT) as (server, model):
        result = await ReactAgent("a", model, [get_weather]).run("How is the weather?")
    assert (result.text, len(server.requests)) == (SAID, 2)
    assert server.requests[1].json["input"][1:] == [
        {"type": "function_call", "call_id": "call_a", "name": "get_weather", "arguments": '{"city":"Paris"}'},
        {"type": "function_call", "call_id": "call_b", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "call_a", "output": "Sunny in Paris."},
        {"type": "function_call_output", "call_id": "call_b", "output": "Sunny in Oslo."},
    ]


# -- what goes wrong


@pytest.mark.case("C8")
@pytest.mark.parametrize("end", ["complete", "close", "reset"])
@pytest.mark.parametrize("name", ["llamacpp-responses-text", "llamacpp-responses-tool-call"])
async def test_a_stream_that_is_cut_gives_no_message(name: str, end: Any) -> None:
    body = (SSE / f"{name}.sse").read_bytes()
    cut = body[: body.index(b"event: response.completed") - 300]
    deltas: list[Delta] = []

    async def read(model: OpenAIResponses) -> None:
        async for delta in model.stream(ASK):
            deltas.append(delta)  # noqa: PERF401  # the error must not cost what came before it

    async with served(Transcript(cut, end=end, chunk_size=700), max_retries=0) as (server, model):
        with pytest.raises(StreamCutError, match=r"model 'm' at 127\.0\.0\.1:\d+: ") as raised:
            await read(model)
    assert (raised.value.retried, len(server.requests)) == (True, 1)
    assert raised.value.partial == "".join(d.text for d in deltas)
    assert not any(d.response for d in deltas)


@pytest.mark.case("I12")
@with_clock
async def test_a_stream_that_is_cut_before_anything_was_told_is_tried_again_unseen() -> None:
    cut = Transcript(START, end="close", headers={"connection": "close"})
    async with served(cut, TEXT) as (server, model):
        assert (await answer_of(model)).text == SAID
    assert len(server.requests) == 2


@pytest.mark.case("C9")
@with_clock
async def test_an_error_before_anything_was_told_is_tried_again_by_its_code() -> None:
    failed = Transcript(START + events(error("server_error", "bad luck")), headers={"connection": "close"})
    async with served(failed, TEXT) as (server, model):
        assert (await answer_of(model)).text == SAID
    async with served(failed) as (server, model):
        with pytest.raises(ServerError, match=r"model 'm' at 127\.0\.0\.1:\d+: HTTP 500: bad luck") as raised:
            await all_of(model)
    assert (len(server.requests), raised.value.retried) == (3, True)


@pytest.mark.case("C15")
@pytest.mark.parametrize("event", [error("server_error", "ran away"), error("odd", "ran away")])
async def test_an_error_after_deltas_carries_the_partial_text_and_is_not_tried_again(event: dict[str, Any]) -> None:
    async with served(START + said("Hel", "lo") + events(event)) as (server, model):
        with pytest.raises(ProviderError, match="ran away") as raised:
            await all_of(model)
    assert (raised.value.partial, raised.value.retried, len(server.requests)) == ("Hello", True, 1)


async def test_a_failed_response_says_why() -> None:
    why = {"code": "invalid_prompt", "message": "Not so."}
    failed = {"type": "response.failed", "response": {"status": "failed", "error": why}}
    async with served(START + events(failed)) as (server, model):
        with pytest.raises(ContentFilterError, match="Not so") as raised:
            await all_of(model)
    assert (raised.value.code, len(server.requests)) == ("invalid_prompt", 1)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "invalid_value", "no", BadRequestError),
        (400, "context_length_exceeded", "too long", ContextLengthError),
        (400, "invalid_prompt", "flagged", ContentFilterError),
        (401, "invalid_api_key", "no", AuthenticationError),
        (404, "model_not_found", "no", BadRequestError),
        (429, "insufficient_quota", "no money", RateLimitError),
    ],
)
async def test_a_refusal_is_an_error_of_its_kind_and_not_tried_again(
    status: int, code: str, message: str, kind: type[ProviderError]
) -> None:
    async with served(refusal(status, code, message, x_request_id="q1")) as (server, model):
        with pytest.raises(kind, match=rf"model 'm' at 127\.0\.0\.1:\d+: HTTP {status}: {message}") as raised:
            await all_of(model)
    assert type(raised.value) is kind
    assert (raised.value.status_code, raised.value.code, raised.value.request_id) == (status, code, "q1")
    assert len(server.requests) == 1


@with_clock
async def test_a_refusal_that_may_pass_is_tried_again() -> None:
    async with served(refusal(429, "rate_limit_exceeded", retry_after="3"), TEXT) as (server, model):
        assert (await answer_of(model)).text == SAID
        assert asyncio.get_running_loop().time() >= 3
    assert len(server.requests) == 2


@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/event-stream"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_malformed_answer_that_says_200_is_an_error_and_not_an_empty_answer(kind: str, streamed: bool) -> None:
    body = b"{malformed json: <<<chaos>>>" if kind != "text/event-stream" else b"data: {malformed\n\n"
    async with served(Transcript(body, headers={"content-type": kind})) as (_, model):
        with pytest.raises(MalformedResponseError, match="malformed"):
            await (all_of(model) if streamed else model.generate(ASK))


async def test_an_empty_stream_is_an_error_that_may_pass() -> None:
    async with served(START, max_retries=0) as (_, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert is_transient(raised.value)


@with_clock
async def test_a_stream_that_stalls_ends_at_its_stall_timeout_with_the_partial_text() -> None:
    async with served(stalling(START + said("Hel", "lo")), stall_timeout=25) as (_, model):
        with pytest.raises(ModelTimeoutError, match="stall_timeout=25 s") as raised:
            await all_of(model)
    assert raised.value.partial == "Hello"


# -- leaving


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_call_closes_its_connection(streamed: bool) -> None:
    began = asyncio.Event()

    async def before_response() -> None:
        began.set()
        await forever()

    async with served(Transcript(TEXT, before_response=before_response)) as (server, model):
        task = asyncio.create_task(answer_of(model) if streamed else asyncio.wait_for(model.generate(ASK), None))
        await asyncio.wait_for(began.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_reader_that_leaves_closes_the_connection_and_leaves_no_task() -> None:
    async with served(stalling(START + said("a", "b"))) as (server, model):
        async with aclosing(model.stream(ASK)) as deltas:
            assert (await anext(deltas)).text == "a"
        await asyncio.wait_for(server.disconnected.wait(), 5)


# -- the provider's own SDK reads what these tests serve


@pytest.mark.parametrize("name", ["llamacpp-text", "llamacpp-tool-calls-two"])
async def test_the_openai_sdk_reads_a_served_stream_of_chat_completions_as_our_client_does(name: str) -> None:
    openai = pytest.importorskip("openai")
    question = {"role": "user", "content": "Hi"}
    async with serve_transcript(SSE / f"{name}.sse", chunk_size=100) as server:
        async with (
            openai.AsyncOpenAI(api_key="x", base_url=server.base_url, max_retries=0) as client,
            client.chat.completions.stream(model="m", messages=[question]) as stream,
        ):
            theirs = (await stream.get_final_completion()).choices[0].message
        async with OpenAIChat("m", base_url=server.base_url) as model:
            ours = await answer_of(model)
    calls = [ToolCall(c.id, c.function.name, c.function.arguments) for c in theirs.tool_calls or ()]
    assert (theirs.content or "", calls) == (ours.text, ours.tool_calls)
    assert bool(ours.text) != bool(calls)
    assert server.requests[0].json["messages"] == server.requests[1].json["messages"] == [question]


@pytest.mark.parametrize("path", [TEXT, CALL, CALLS, REASONING])
async def test_the_openai_sdk_reads_a_served_stream_of_responses_as_this_client_does(path: Path) -> None:
    openai = pytest.importorskip("openai")
    async with serve_transcript(path, chunk_size=100) as server:
        async with openai.AsyncOpenAI(api_key="x", base_url=server.base_url, max_retries=0) as client:
            told = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
        async with OpenAIResponses("m", base_url=server.base_url) as model:
            message = await answer_of(model)
    assert told[-1].type == "response.completed"
    output: list[Any] = told[-1].response.output
    assert told[-1].response.output_text == message.text
    assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == message.text
    calls = [ToolCall(i.call_id, i.name, i.arguments) for i in output if i.type == "function_call"]
    assert calls == message.tool_calls
    reasoning = [i.encrypted_content for i in output if i.type == "reasoning"]
    assert reasoning == [cast("dict[str, Any]", r.data)["encrypted_content"] for r in message.reasoning]


async def test_the_openai_sdk_reads_the_errors_that_these_tests_serve_as_errors() -> None:
    openai = pytest.importorskip("openai")
    nested = {"type": "error", "error": {"code": "server_error", "message": "bad luck"}}
    async with (
        serve_transcript(refusal(429, "rate_limit_exceeded"), events(nested), events(error("odd", "luck"))) as server,
        openai.AsyncOpenAI(api_key="x", base_url=server.base_url, max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="m", input="Hi")
        with pytest.raises(openai.APIError, match="bad luck"):
            [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
        (flat,) = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
    assert (flat.type, flat.code, flat.message) == ("error", "odd", "luck")
