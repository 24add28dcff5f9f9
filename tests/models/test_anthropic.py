"""AnthropicMessages over real HTTP on loopback: what it sends, and what it makes of answers and of what goes wrong."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, cast

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
    AnthropicMessages,
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    Delta,
    MalformedResponseError,
    ModelRequest,
    ModelTimeoutError,
    OverloadedError,
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
TEXT = SSE / "llamacpp-anthropic-text.sse"
CALLS = SSE / "llamacpp-anthropic-tool-calls-two.sse"
REASONING = SSE / "aimock-anthropic-reasoning.sse"
SAID = "Hello, welcome to my world."
ASK = ModelRequest(messages=[UserMessage("Hi")])

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def events(*told: dict[str, Any]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), msgspec.json.encode(e)) for e in told)


def said(*texts: str) -> bytes:
    deltas = [{"type": "text_delta", "text": text} for text in texts]
    return events(*({"type": "content_block_delta", "index": 0, "delta": d} for d in deltas))


START = events({"type": "message_start", "message": {"id": "r1", "model": "m1", "content": []}}, {"type": "ping"})
END = events({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"})


def error(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def refusal(status: int, kind: str = "api_error", **headers: str) -> Transcript:
    # closed, as servers that refuse do: the jumping clock takes an idle connection for work under way
    named = {k.replace("_", "-"): v for k, v in headers.items()} | {"connection": "close"}
    return Transcript(msgspec.json.encode(error(kind)), status=status, headers=named)


def answer(*content: dict[str, Any], **fields: Any) -> Transcript:
    """An answer that is not streamed."""
    body = {"type": "message", "id": "r1", "model": "m1", "content": content, "stop_reason": "end_turn", **fields}
    return Transcript(msgspec.json.encode(body), headers={"content-type": "application/json"})


HI = answer({"type": "text", "text": "Hi."}, usage={"input_tokens": 3, "output_tokens": 2})


def stalling(first: bytes, wait: Callable[[], Coroutine[Any, Any, object]]) -> Transcript:
    """Sends `first`, then waits."""

    async def before_chunk(number: int) -> None:
        if number == 1:
            await wait()

    return Transcript(first, before_chunk=before_chunk)


async def forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def served(*responses: Any, **options: Any) -> AsyncGenerator[tuple[TranscriptServer, AnthropicMessages]]:
    """A server that answers with these, and a model that asks it."""
    async with (
        serve_transcript(*responses) as server,
        AnthropicMessages("m", base_url=server.base_url, **options) as model,
    ):
        yield server, model


async def all_of(model: AnthropicMessages, request: ModelRequest = ASK) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


async def text_of(model: AnthropicMessages, request: ModelRequest = ASK) -> str:
    """The streamed answer's text; what was told in pieces is the same."""
    *deltas, last = await all_of(model, request)
    assert last.response is not None
    assert "".join(d.text for d in deltas) == last.response.message.text
    return last.response.message.text


async def sent(request: ModelRequest, **options: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    async with served(HI, **options) as (server, model):
        await model.generate(request)
    return server.requests[0].json


async def wire(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    return (await sent(ModelRequest(messages=list(messages)), **options))["messages"]


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def call(id: str, name: str = "add", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [text(content)], **fields}


# -- what is sent


async def test_a_request_names_model_key_version_and_a_bound() -> None:
    async with served(TEXT, HI, api_key="secret", headers={"Anthropic-Beta": "x"}, max_tokens=50) as (server, model):
        await all_of(model)
        await model.generate(ASK)
    streamed, whole = server.requests
    assert (streamed.method, streamed.path) == ("POST", "/v1/messages")
    assert streamed.headers["x-api-key"] == "secret"
    assert streamed.headers["anthropic-version"] == "2023-06-01"
    assert streamed.headers["anthropic-beta"] == "x"
    base = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": [text("Hi")]}]}
    assert whole.json == base
    assert streamed.json == base | {"stream": True}


async def test_a_header_of_ones_own_overrides() -> None:
    async with served(HI, api_key="secret", headers={"anthropic-version": "2026-10-21"}) as (server, model):
        await model.generate(ASK)
    assert server.requests[0].headers["anthropic-version"] == "2026-10-21"


@pytest.mark.parametrize("end", ["", "/v1", "/v1/", "/"])
async def test_base_url_and_key_may_come_from_the_environment(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_transcript(HI) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1") + end)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "from the environment")
        async with AnthropicMessages("m") as model:
            await model.generate(ASK)
    assert server.requests[0].path == "/v1/messages"
    assert server.requests[0].headers["x-api-key"] == "from the environment"


async def test_a_bearer_token_may_stand_for_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    async with served(HI) as (server, model):
        await model.generate(ASK)
    assert server.requests[0].headers["authorization"] == "Bearer token"
    async with served(HI, api_key="key") as (server, model):
        await model.generate(ASK)
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("url", [None, "https://api.anthropic.com/v1"])
async def test_without_a_key_anthropic_is_not_asked(url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="no API key; set ANTHROPIC_API_KEY"):
        await AnthropicMessages("m", base_url=url).generate(ASK)


async def test_a_test_cannot_ask_a_real_model() -> None:
    with pytest.raises(RealModelRefusedError, match=r"'api\.anthropic\.com' was refused"):
        await AnthropicMessages("m", api_key="x").generate(ASK)
    with pytest.raises(RealModelRefusedError):  # a key may come in a header too
        await all_of(AnthropicMessages("m", headers={"Authorization": "Bearer x"}))


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"cache": True}, {"cache": "5min"}, {"timeout": 0}, {"base_url": "localhost/v1"}]
)
def test_a_setting_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AnthropicMessages("m", **wrong)


async def test_options_are_passed_on_and_a_requests_own_override() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    request = msgspec.structs.replace(ASK, options={"max_tokens": 2048, "thinking": thinking})
    body = await sent(request, options={"max_tokens": 5, "stop_sequences": ["END"]})
    assert (body["max_tokens"], body["thinking"], body["stop_sequences"]) == (2048, thinking, ["END"])


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", None, {"type": "none"}),
        ("add", None, {"type": "tool", "name": "add"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("add", True, {"type": "tool", "name": "add", "disable_parallel_tool_use": False}),
        ("none", False, {"type": "none"}),
    ],
)
async def test_tools_are_sent_with_the_choice(choice: str | None, parallel: bool | None, expected: Any) -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice=choice, parallel_tool_calls=parallel))
    assert body["tools"] == [{"name": "add", "description": "Adds.", "input_schema": ADD.parameters}]
    assert body.get("tool_choice") == expected


async def test_a_strict_tool_is_sent_closed_and_what_is_optional_stays_so() -> None:
    @tool(strict=True)
    async def find(query: str, limit: Annotated[int, msgspec.Meta(ge=1)] = 5) -> None:
        """Find it."""

    body = await sent(msgspec.structs.replace(ASK, tools=[find.spec, ADD]))
    strict, loose = body["tools"]
    assert strict == {
        "name": "find",
        "description": "Find it.",
        "strict": True,
        "input_schema": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "description": "(minimum: 1, default: 5)"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert loose.keys() == {"name", "description", "input_schema"}


class Tree(msgspec.Struct):
    children: list["Tree"]


async def test_a_strict_tool_whose_type_is_recursive_is_refused_before_it_is_sent() -> None:
    @tool(strict=True)
    async def plant(tree: Tree) -> None: ...

    async with served(HI) as (server, model):
        with pytest.raises(ConfigError, match=r"tool 'plant', parameter 'tree': .*'Tree' is recursive - at"):
            await model.generate(msgspec.structs.replace(ASK, tools=[plant.spec]))
    assert server.requests == []


async def test_a_conversation_with_calls_defines_their_tools_though_none_may_be_called() -> None:
    request = ModelRequest(
        messages=[
            UserMessage("Add."),
            AssistantMessage(tool_calls=[ToolCall("1", "add"), ToolCall("2", "add")]),
            ToolResponseMessage([ToolResponse("1", "add", "2"), ToolResponse("2", "add", "3")]),
        ]
    )
    body = await sent(request)
    assert body["tools"] == [{"name": "add", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


# -- the conversation as blocks


@pytest.mark.case("D4")
async def test_a_turn_with_tools_is_sent_as_the_protocol_has_it() -> None:
    messages = await wire(
        UserMessage("Add."),
        AssistantMessage("Let me see.", tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "now", " ")]),
        ToolResponseMessage([ToolResponse("1", "add", "2"), ToolResponse("2", "now", "broken", is_error=True)]),
        UserMessage("And?"),
        InstructionMessage("Be brief.", rendered=True),
    )
    assert messages == [
        {"role": "user", "content": [text("Add.")]},
        {"role": "assistant", "content": [text("Let me see."), call("1", a=1), call("2", "now")]},
        {
            "role": "user",
            "content": [result("1", "2"), result("2", "broken", is_error=True), text("And?"), text("Be brief.")],
        },
    ]


@pytest.mark.case("D4")
async def test_a_call_between_texts_stands_last_and_its_answer_first() -> None:
    body = [text("Before."), call("1", a=1), text(" After.")]
    async with served(answer(*body, stop_reason="tool_use"), HI) as (server, model):
        asked = (await model.generate(ASK)).message
        late = [UserMessage("Well?"), ToolResponseMessage([ToolResponse("1", "add", "2")])]
        await model.generate(ModelRequest(messages=[UserMessage("Hi"), asked, *late]))
    _, said, answered = server.requests[1].json["messages"]
    assert said["content"] == [text("Before. After."), call("1", a=1)]
    assert answered["content"] == [result("1", "2"), text("Well?")]


@pytest.mark.case("D6")
async def test_messages_of_one_role_in_a_row_are_one_turn_with_all_of_them() -> None:
    messages = await wire(
        UserMessage("yes"), UserMessage("yes"), AssistantMessage("A."), AssistantMessage("B."), UserMessage("no")
    )
    assert messages == [
        {"role": "user", "content": [text("yes"), text("yes")]},
        {"role": "assistant", "content": [text("A."), text("B.")]},
        {"role": "user", "content": [text("no")]},
    ]


@pytest.mark.case("D17")
async def test_nothing_empty_is_sent() -> None:
    messages = await wire(
        UserMessage([TextPart(" \n"), TextPart("Hi")]),
        AssistantMessage(" "),
        AssistantMessage("", reasoning=[ReasoningPart("Hm.", "s", {"type": "thinking"})]),
        UserMessage(""),
        AssistantMessage("\n", tool_calls=[ToolCall("1", "add"), ToolCall("2", "add")]),
        ToolResponseMessage([ToolResponse("1", "add", ""), ToolResponse("2", "add", [], is_error=True)]),
    )
    assert messages == [
        {"role": "user", "content": [text("Hi")]},
        {"role": "assistant", "content": [call("1"), call("2")]},
        {"role": "user", "content": [result("1", "(no output)"), result("2", "(no output)", is_error=True)]},
    ]


@pytest.mark.parametrize("messages", [[], [UserMessage(" ")], [SystemMessage("Be nice.")]])
async def test_a_conversation_that_says_nothing_is_an_error(messages: list[Message]) -> None:
    with pytest.raises(InputError, match="nothing to ask"):
        await wire(*messages)


async def test_the_users_turn_is_the_first() -> None:
    messages = await wire(AssistantMessage("Welcome!"), UserMessage("Hi"))
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"][0]["text"].strip()


async def test_an_answer_to_go_on_with_does_not_end_in_a_blank() -> None:
    messages = await wire(UserMessage("A rhyme."), AssistantMessage("Roses are \n"))
    assert messages[1]["content"] == [text("Roses are")]


async def test_system_messages_are_one_system_prompt() -> None:
    request = ModelRequest(
        system=SystemMessage("Be nice."), messages=[SystemMessage(" "), UserMessage("Hi"), SystemMessage("Be brief.")]
    )
    body = await sent(request)
    assert body["system"] == [text("Be nice.\n\nBe brief.")]
    assert len(body["messages"]) == 1


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        ("[1]", {}),
        ('{"a', {}),
        ("[" * 100_000, {}),
        ('{"a": 12345678901234567890}', {"a": 12345678901234567890}),
        (r'{"a": "\ud83d\ude00 \ud83d"}', {"a": "\U0001f600 \ufffd"}),
    ],
)
@pytest.mark.case("D16")
async def test_the_input_of_a_call_is_an_object_whatever_the_arguments_are(arguments: str, given: Any) -> None:
    messages = await wire(UserMessage("Hi"), AssistantMessage(tool_calls=[ToolCall("1", "add", arguments)]))
    assert messages[1]["content"] == [call("1", **given)]


@pytest.mark.case("D16")
async def test_half_a_surrogate_pair_in_a_message_does_not_keep_the_rest_from_being_sent() -> None:
    (message,) = await wire(UserMessage("a\ud83d \u00e9"))
    assert message["content"] == [text("a\ufffd \u00e9")]


async def test_ids_of_other_servers_are_written_in_letters_that_are_taken() -> None:
    calls = [ToolCall("functions.add:0", "add"), ToolCall("functions.add.0", "add")]
    answers = ToolResponseMessage([ToolResponse(c.id, "add", "x") for c in calls])
    _, asked, answered = await wire(UserMessage("Hi"), AssistantMessage(tool_calls=calls), answers)
    ids = [b["id"] for b in asked["content"]]
    assert ids == ["functions_2e_add_3a_0", "functions_2e_add_2e_0"]
    assert [b["tool_use_id"] for b in answered["content"]] == ids


async def test_images_and_files_are_sent_as_blocks() -> None:
    (message,) = await wire(
        UserMessage(
            [
                TextPart("See:"),
                ImagePart(url="https://x/y.png"),
                ImagePart(url="data:image/gif;base64,cG5n"),
                ImagePart(data=b"png", media_type="image/jpeg"),
                FilePart(data=b"png", media_type="image/png"),
                FilePart(url="https://x/y.pdf"),
                FilePart(data=b"pdf", name="a.pdf"),
                FilePart(data="\u00e9".encode(), media_type="text/markdown"),
            ]
        )
    )

    def base64(media_type: str, data: str) -> dict[str, str]:
        return {"type": "base64", "media_type": media_type, "data": data}

    assert message["content"] == [
        text("See:"),
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "image", "source": base64("image/gif", "cG5n")},
        {"type": "image", "source": base64("image/jpeg", "cG5n")},
        {"type": "image", "source": base64("image/png", "cG5n")},
        {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
        {"type": "document", "source": base64("application/pdf", "cGRm"), "title": "a.pdf"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "\u00e9"}},
    ]


async def test_an_image_in_a_tools_answer_stands_in_it() -> None:
    answers = ToolResponseMessage([ToolResponse("1", "look", [TextPart("Here."), ImagePart(url="https://x/y.png")])])
    messages = await wire(UserMessage("?"), AssistantMessage(tool_calls=[ToolCall("1", "look")]), answers)
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    assert messages[2]["content"][0]["content"] == [text("Here."), image]


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(),
        FilePart(),
        FilePart(data=b"mp3", media_type="audio/mpeg"),
        FilePart(url="https://x/y.txt", media_type="text/plain"),
    ],
)
async def test_a_part_that_cannot_be_sent_is_an_error(part: FilePart | ImagePart) -> None:
    with pytest.raises(InputError):
        await wire(UserMessage([part]))


# -- reasoning


async def test_reasoning_is_sent_back_as_it_came_and_where_it_stood() -> None:
    content = [
        {"type": "thinking", "thinking": "A", "signature": "sa"},
        {"type": "redacted_thinking", "data": "secret"},
        text("Look. "),
        {"type": "thinking", "thinking": "", "signature": "sb"},
        call("1", a=1),
        {"type": "thinking", "thinking": "C", "signature": "sc"},
        call("2", "now"),
    ]
    async with served(answer(*content, stop_reason="tool_use"), HI) as (server, model):
        asked = (await model.generate(ASK)).message
        (kept,) = decode(encode([asked]))  # as a checkpoint keeps it
        answers = ToolResponseMessage([ToolResponse(c.id, c.name, "x") for c in asked.tool_calls])
        await model.generate(ModelRequest(messages=[UserMessage("Hi"), kept, answers]))
    assert server.requests[1].json["messages"][1]["content"] == content


async def test_streamed_reasoning_is_sent_back_with_its_signature() -> None:
    async with served(REASONING, HI) as (server, model):
        response = (await all_of(model))[-1].response
        assert response is not None
        await model.generate(ModelRequest(messages=[UserMessage("6*7?"), response.message, UserMessage("Sure?")]))
    assert server.requests[1].json["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Six times seven.", "signature": "aimock-placeholder-signature"},
        text("42"),
    ]


async def test_reasoning_of_another_server_is_left_out_and_none_stands_last() -> None:
    own = ReasoningPart("Hm.", "s", {"type": "thinking", "after": [3, 0]})
    foreign = [
        ReasoningPart("Hm."),
        ReasoningPart("Hm.", "s"),
        ReasoningPart(data={"type": "reasoning", "id": "r"}),
        ReasoningPart("Hm.", "s", {"type": "thinking", "server": "another"}),
    ]
    messages = await wire(UserMessage("?"), AssistantMessage("42.", reasoning=[*foreign, own]), UserMessage("Sure?"))
    assert messages[1]["content"] == [text("42.")]


# -- caching


async def conversation(**options: Any) -> dict[str, Any]:
    messages: list[Message] = [
        UserMessage("Add."),
        AssistantMessage(tool_calls=[ToolCall("1", "add")]),
        ToolResponseMessage([ToolResponse("1", "add", "2")]),
        AssistantMessage("2."),
        UserMessage("And?"),
    ]
    return await sent(ModelRequest(messages=messages, tools=[ADD], system=SystemMessage("Be nice.")), **options)


@pytest.mark.parametrize(("cache", "mark"), [("5m", {"type": "ephemeral"}), ("1h", {"type": "ephemeral", "ttl": "1h"})])
async def test_what_stays_the_same_is_marked_for_the_cache(cache: Any, mark: dict[str, str]) -> None:
    body = await conversation(cache=cache)
    assert body["system"] == [text("Be nice.", cache_control=mark)]
    assert body["messages"][-1]["content"] == [text("And?", cache_control=mark)]
    assert body["messages"][2]["content"] == [result("1", "2", cache_control=mark)]  # the end, a call ago
    assert json.dumps(body).count("cache_control") == 3


async def test_without_a_system_prompt_the_tools_are_marked() -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD]), cache="5m")
    assert body["tools"][-1]["cache_control"] == {"type": "ephemeral"}


async def test_nothing_is_marked_unasked() -> None:
    assert "cache_control" not in json.dumps(await conversation())


# -- structured output


class Point(msgspec.Struct):
    x: int


async def test_an_output_schema_is_sent_with_its_objects_closed() -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(Point))
    body = await sent(request, options={"output_config": {"effort": "low"}})
    schema = body["output_config"]["format"]["schema"]
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    assert (schema["type"], schema["additionalProperties"], schema["required"]) == ("object", False, ["x"])


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_output_that_is_no_object_is_asked_for_inside_one_and_taken_out_again(streamed: bool) -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(list[Point]))
    told = ['{"answer": [{"x"', ": 1}]}"]
    response = START + said(*told) + END if streamed else answer(text("".join(told)))
    async with served(response) as (server, model):
        reply = await text_of(model, request) if streamed else (await model.generate(request)).message.text
    assert json.loads(reply) == [{"x": 1}]
    schema = server.requests[0].json["output_config"]["format"]["schema"]
    assert schema["properties"]["answer"] == {"type": "array", "items": {"$ref": "#/$defs/Point"}}


async def test_an_output_that_no_closed_schema_describes_is_asked_for_in_words() -> None:
    request = msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(dict[str, int]))
    async with served(answer(text('{"a": 1}'))) as (server, model):
        reply = (await model.generate(request)).message.text
    body = server.requests[0].json
    assert reply == '{"a": 1}'
    assert "output_config" not in body
    assert '"additionalProperties":{"type":"integer"}' in body["messages"][0]["content"][1]["text"]


def test_a_native_schema_is_for_anthropic_itself_or_whoever_says_so() -> None:
    assert AnthropicMessages("m").native_output_schema
    assert AnthropicMessages("m", base_url="https://api.anthropic.com/v1/").native_output_schema
    assert not AnthropicMessages("m", native_output_schema=False).native_output_schema
    assert not AnthropicMessages("m", base_url="http://127.0.0.1").native_output_schema
    assert AnthropicMessages("m", base_url="http://127.0.0.1", native_output_schema=True).native_output_schema


# -- answers


@pytest.mark.parametrize("size", [None, 1, 13])
async def test_a_streamed_answer_comes_in_pieces_and_then_whole(size: int | None) -> None:
    async with served(Transcript(TEXT, chunk_size=size)) as (_, model):
        *deltas, last = await all_of(model, msgspec.structs.replace(ASK, message_id="the id"))
    assert [d.text for d in deltas] == ["Hello", ",", " welcome", " to", " my", " world", "."]
    assert last.response is not None
    message = last.response.message
    assert (message.id, message.text, message.usage) == ("the id", SAID, Usage(26, 8, 15))
    assert last.usage == message.usage


@pytest.mark.case("I13")
async def test_a_call_that_is_not_streamed_gives_the_same() -> None:
    inputs = [call("a", "get_weather", city="Oslo"), call("b", "get_weather", city="Rome")]
    usage = {"input_tokens": 317, "cache_read_input_tokens": 9, "output_tokens": 63}
    async with served(answer(*inputs, stop_reason="tool_use", usage=usage), CALLS) as (_, model):
        whole = await model.generate(ASK)
        streamed = (await all_of(model))[-1].response
    assert streamed is not None
    one, other = whole.message, streamed.message
    assert [(c.name, json.loads(c.arguments)) for c in one.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in other.tool_calls
    ]
    assert one.usage == other.usage == Usage(326, 63, 9)
    assert one.finish_reason == other.finish_reason == "tool_calls"
    assert (whole.raw["id"], streamed.raw) == ("r1", None)


async def test_an_agent_calls_tools_and_answers() -> None:
    seen: list[str] = []

    async def get_weather(city: str) -> str:
        """The weather in a city."""
        seen.append(city)
        return f"rain in {city}"

    async with served(CALLS, TEXT) as (server, model):
        done = await ReactAgent("clerk", model, [get_weather]).run("The weather?")
    assert sorted(seen) == ["Oslo", "Rome"]
    assert done.text == SAID
    _, asked, answered = server.requests[1].json["messages"]
    assert [b["id"] for b in asked["content"]] == [b["tool_use_id"] for b in answered["content"]]
    assert [b["content"][0]["text"] for b in answered["content"]] == ["rain in Oslo", "rain in Rome"]


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with served(Transcript(TEXT, chunk_size=50)) as (server, model):
        assert [await text_of(model), await text_of(model)] == [SAID, SAID]
    assert (len(server.requests), server.connections) == (2, 1)


async def test_an_answer_that_came_whole_though_a_stream_was_asked_for_is_an_answer() -> None:
    async with served(HI) as (_, model):
        assert await text_of(model) == "Hi."


async def test_an_answer_that_is_whole_counts_though_the_connection_breaks_before_the_end() -> None:
    body = START + said("whole") + END.split(b"event: message_stop")[0]
    async with served(Transcript(body, end="close")) as (_, model):
        assert await text_of(model) == "whole"


# -- what goes wrong


@pytest.mark.case("C8")
@pytest.mark.case("I12")
@pytest.mark.parametrize("end", ["complete", "close"])
async def test_a_stream_cut_inside_a_tool_call_gives_no_message(end: Any) -> None:
    deltas: list[Delta] = []

    async def read(model: AnthropicMessages) -> None:
        async for delta in model.stream(ASK):
            deltas.append(delta)  # noqa: PERF401  # the error must not cost what came before it

    async with served(Transcript(CALLS.read_bytes()[:1500], end=end)) as (server, model):
        with pytest.raises(StreamCutError) as raised:
            await read(model)
    assert [d.name for d in deltas if d.name] == ["get_weather"]
    assert not any(d.response for d in deltas)
    assert (len(server.requests), raised.value.retried) == (1, True)
    assert not is_transient(raised.value)


@pytest.mark.case("I12")
@pytest.mark.parametrize("before", [b"", START])
@pytest.mark.parametrize("end", ["complete", "close", "reset"])
@with_clock
async def test_a_stream_cut_before_anything_was_told_is_tried_again_unseen(before: bytes, end: Any) -> None:
    async with served(Transcript(before, end=end, headers={"connection": "close"}), TEXT) as (server, model):
        assert await text_of(model) == SAID
    assert len(server.requests) == 2


@pytest.mark.case("I2")
@with_clock
async def test_a_stream_that_is_refused_at_first_is_tried_again_and_one_that_is_cut_later_is_not() -> None:
    cut = Transcript(START + said("a", "b", "c"), end="close")
    async with served(refusal(429, "rate_limit_error", retry_after="1"), cut, TEXT) as (server, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert raised.value.partial == "abc"
    assert len(server.requests) == 2


@pytest.mark.case("C15")
@with_clock
async def test_an_error_event_before_anything_was_told_is_tried_again_by_its_kind() -> None:
    body = START + events(error("overloaded_error", "Overloaded"))
    overloaded = Transcript(body, headers={"connection": "close", "request-id": "q1"})
    async with served(overloaded, overloaded, TEXT) as (server, model):
        assert await text_of(model) == SAID
    assert len(server.requests) == 3
    async with served(overloaded) as (_, model):
        with pytest.raises(OverloadedError, match="HTTP 529: Overloaded") as raised:
            await all_of(model)
    assert (raised.value.request_id, raised.value.retried) == ("q1", True)


@pytest.mark.case("C15")
async def test_an_error_event_after_deltas_carries_the_partial_text_and_is_not_tried_again() -> None:
    body = START + said("Hel", "lo") + events(error("overloaded_error", "Overloaded"))
    async with served(body) as (server, model):
        with pytest.raises(OverloadedError, match="Overloaded") as raised:
            await all_of(model)
    assert (raised.value.partial, raised.value.retried, len(server.requests)) == ("Hello", True, 1)


@pytest.mark.case("C15")
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_as_a_body_that_says_200_is_an_error(streamed: bool) -> None:
    body = Transcript(
        msgspec.json.encode(error("invalid_request_error", "bad luck")), headers={"content-type": "application/json"}
    )
    async with served(body) as (_, model):
        with pytest.raises(BadRequestError, match="bad luck"):
            await (all_of(model) if streamed else model.generate(ASK))


@pytest.mark.parametrize("kind", ["application/json", "text/html; charset=utf-8", "text/event-stream"])
async def test_a_malformed_answer_that_says_200_is_an_error_and_not_an_empty_answer(kind: str) -> None:
    body = b"data: {malformed\n\n" if kind == "text/event-stream" else b"{malformed"
    async with served(Transcript(body, headers={"content-type": kind})) as (server, model):
        with pytest.raises(MalformedResponseError, match=r"model 'm' at 127\.0\.0\.1:\d+: .*malformed"):
            await all_of(model)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind", "message", "expected"),
    [
        (400, "invalid_request_error", "max_tokens: Field required", BadRequestError),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ContextLengthError),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
            ContextLengthError,
        ),
        (401, "authentication_error", "invalid x-api-key", AuthenticationError),
        (403, "permission_error", "no", AuthenticationError),
        (404, "not_found_error", "model: m", BadRequestError),
        (413, "request_too_large", "no", BadRequestError),
    ],
)
async def test_a_refusal_is_an_error_of_its_kind_and_not_tried_again(
    status: int, kind: str, message: str, expected: type[ProviderError]
) -> None:
    body = msgspec.json.encode(error(kind, message))
    async with served(Transcript(body, status=status, headers={"request-id": "q1"})) as (server, model):
        with pytest.raises(expected, match=rf"model 'm' at 127\.0\.0\.1:\d+: HTTP {status}: ") as raised:
            await all_of(model)
    assert type(raised.value) is expected
    assert (raised.value.code, raised.value.request_id) == (kind, "q1")
    assert (len(server.requests), raised.value.retried) == (1, False)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (429, "rate_limit_error", RateLimitError),
        (500, "api_error", ServerError),
        (529, "overloaded_error", OverloadedError),
    ],
)
@with_clock
async def test_a_refusal_that_may_pass_is_tried_twice_more(
    status: int, kind: str, expected: type[ProviderError]
) -> None:
    async with served(refusal(status, kind)) as (server, model):
        with pytest.raises(expected) as raised:
            await model.generate(ASK)
    assert (len(server.requests), raised.value.retried) == (3, True)


@with_clock
async def test_the_limits_of_time_hold() -> None:
    async with served(stalling(START + said("Hel"), forever), stall_timeout=25) as (_, model):
        with pytest.raises(ModelTimeoutError) as raised:
            await all_of(model)
    assert (raised.value.kind, raised.value.seconds, raised.value.partial) == ("stall_timeout", 25, "Hel")


# -- leaving


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_call_closes_its_connection(streamed: bool) -> None:
    began = asyncio.Event()

    async def before_response() -> None:
        began.set()
        await forever()

    async with served(Transcript(TEXT, before_response=before_response)) as (server, model):
        task = asyncio.create_task(text_of(model) if streamed else asyncio.wait_for(model.generate(ASK), None))
        await asyncio.wait_for(began.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_cancel_in_mid_stream_closes_the_connection() -> None:
    async with served(stalling(START + said("a"), forever)) as (server, model):
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


async def test_a_reader_that_leaves_closes_the_connection() -> None:
    async with served(stalling(START + said("a", "b"), forever)) as (server, model):
        async with aclosing(model.stream(ASK)) as deltas:
            assert (await anext(deltas)).text == "a"
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_callers_own_client_is_used_as_it_is_and_never_closed() -> None:
    async with httpx.AsyncClient(headers={"x-mine": "yes"}) as client, serve_transcript(HI) as server:
        async with AnthropicMessages("m", base_url=server.base_url, http_client=client) as model:
            await model.generate(ASK)
        assert not client.is_closed
    assert server.requests[0].headers["x-mine"] == "yes"


# -- beside the official SDK


@pytest.mark.parametrize(
    "path", [TEXT, CALLS, REASONING, SSE / "aimock-anthropic-tool-calls-two.sse"], ids=lambda p: p.stem
)
async def test_the_official_sdk_reads_the_same_from_our_server(path: Path) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with served(Transcript(path, chunk_size=100)) as (server, model):
        ours = (await all_of(model))[-1].response
        url = server.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(api_key="x", base_url=url, max_retries=0) as client:
            asking = client.messages.stream(model="m", max_tokens=50, messages=[{"role": "user", "content": "Hi"}])
            async with asking as stream:
                theirs = await stream.get_final_message()
    assert ours is not None
    message = ours.message
    blocks = theirs.content
    assert message.text == "".join(b.text for b in blocks if b.type == "text")
    assert [(c.id, c.name, json.loads(c.arguments)) for c in message.tool_calls] == [
        (b.id, b.name, b.input) for b in blocks if b.type == "tool_use"
    ]
    assert [(p.text, p.signature) for p in message.reasoning] == [
        (b.thinking, b.signature) for b in blocks if b.type == "thinking"
    ]
    assert message.usage is not None
    assert message.usage.output_tokens == theirs.usage.output_tokens
    assert message.usage.input_tokens == theirs.usage.input_tokens + (theirs.usage.cache_read_input_tokens or 0)


async def test_what_we_send_is_what_the_official_sdk_would_take() -> None:
    params = pytest.importorskip("anthropic.types.message_create_params")
    from pydantic import TypeAdapter

    thinking = [
        ReasoningPart("Hm.", "s", {"type": "thinking"}),
        ReasoningPart(data={"type": "redacted_thinking", "data": "x"}),
    ]
    request = ModelRequest(
        system=SystemMessage("Be nice."),
        messages=[
            UserMessage([TextPart("See:"), ImagePart(data=b"png"), FilePart(data=b"pdf", name="a.pdf")]),
            AssistantMessage("Look.", reasoning=thinking, tool_calls=[ToolCall("1", "add", '{"a": 1}')]),
            ToolResponseMessage([ToolResponse("1", "add", "2", is_error=True)]),
            UserMessage([TextPart("And?"), FilePart(data=b"text", media_type="text/plain")]),
        ],
        tools=[ADD],
        tool_choice="required",
        parallel_tool_calls=False,
        output_schema=msgspec.json.schema(Point),
    )
    body = await sent(request, cache="1h")
    adapter = TypeAdapter(params.MessageCreateParamsNonStreaming)
    assert read_out(adapter.validate_python(body)) == body  # what it does not know it would leave out


def read_out(value: Any) -> Any:
    """The value with its lists read: pydantic checks them only then."""
    if isinstance(value, dict):
        return {k: read_out(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [read_out(item) for item in cast("Iterable[Any]", value)]
