"""Gemini over real HTTP on loopback: what it sends, and what it makes of answers and of what goes wrong."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

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
    UserMessage,
    decode,
    encode,
)
from agentgraph.models import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    Delta,
    Gemini,
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
from agentgraph.models.gemini import clean_schema
from agentgraph.nodes import ReactAgent, tool
from agentgraph.testing import Transcript, TranscriptServer, serve_transcript, with_clock

SSE = Path(__file__).parent.parent / "sse"
CALLS = SSE / "aimock-gemini-tool-calls-two.sse"
REASONING = SSE / "aimock-gemini-reasoning.sse"
ASK = ModelRequest(messages=[UserMessage("Hi")])
HELLO = [{"role": "user", "parts": [{"text": "Hi"}]}]
OLD, NEW = "gemini-2.5-flash", "gemini-3-flash"

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def chunk(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(c) + b"\r\n\r\n" for c in chunks)


def said(*texts: str) -> bytes:
    return events(*(chunk({"text": text}) for text in texts))


END = events(chunk(finish="STOP"))


def whole(body: dict[str, Any]) -> Transcript:
    """An answer that is not streamed."""
    return Transcript(msgspec.json.encode(body), headers={"content-type": "application/json"})


HI = whole(chunk({"text": "Hi."}, finish="STOP"))


def error(code: int, status: str, message: str = "no", **fields: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, **fields}}


def refusal(code: int, status: str, message: str = "no", *, listed: bool = False, **fields: Any) -> Transcript:
    # closed, as servers that refuse do: the jumping clock takes an idle connection for work under way
    body: Any = error(code, status, message, **fields)
    headers = {"connection": "close", "x-request-id": "q1"}
    return Transcript(msgspec.json.encode([body] if listed else body), status=code, headers=headers)


def stalling(first: bytes) -> Transcript:
    """Sends `first`, then nothing more."""

    async def before_chunk(number: int) -> None:
        if number == 1:
            await forever()

    return Transcript(first, before_chunk=before_chunk)


async def forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def served(*responses: Any, model: str = NEW, **options: Any) -> AsyncGenerator[tuple[TranscriptServer, Gemini]]:
    """A server that answers with these, and a model that asks it."""
    async with serve_transcript(*responses) as server, Gemini(model, base_url=server.base_url, **options) as gemini:
        yield server, gemini


async def all_of(model: Gemini, request: ModelRequest = ASK) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


async def answer_of(model: Gemini, request: ModelRequest = ASK) -> AssistantMessage:
    """The streamed answer; what was told in pieces is the same."""
    *deltas, last = await all_of(model, request)
    assert last.response is not None
    assert "".join(d.text for d in deltas) == last.response.message.text
    return last.response.message


async def sent(request: ModelRequest = ASK, **options: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    async with served(HI, **options) as (server, model):
        await model.generate(request)
    return server.requests[0].json


async def wire(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    return (await sent(ModelRequest(messages=list(messages)), **options))["contents"]


async def resent(response: Any, change: Any = None, **options: Any) -> list[dict[str, Any]]:
    """The parts that an answer goes back with to the server that gave it, after it was stored."""
    async with served(response, HI, **options) as (server, model):
        message = await answer_of(model)
        (stored,) = decode(encode([message if change is None else change(message)]))
        await model.generate(ModelRequest(messages=[UserMessage("Hi"), stored]))
    turns = server.requests[1].json["contents"]
    return turns[1]["parts"] if len(turns) > 1 else []


# -- what is sent


async def test_a_request_goes_to_the_models_own_address_with_the_key_in_its_header() -> None:
    async with served(said("x") + END, HI, api_key="secret", headers={"X-Team": "a"}) as (server, model):
        await all_of(model)
        await model.generate(ASK)
    streamed, one = server.requests
    assert (streamed.method, streamed.path) == ("POST", f"/v1/models/{NEW}:streamGenerateContent?alt=sse")
    assert one.path == f"/v1/models/{NEW}:generateContent"
    assert (streamed.headers["x-goog-api-key"], streamed.headers["x-team"]) == ("secret", "a")
    assert streamed.json == one.json == {"contents": HELLO}


@pytest.mark.parametrize(
    ("end", "model", "path"),
    [
        ("", "gemini-x", "/v1beta/models/gemini-x:generateContent"),
        ("/", "models/gemini-x", "/v1beta/models/gemini-x:generateContent"),
        ("/v1alpha", "tunedModels/mine", "/v1alpha/tunedModels/mine:generateContent"),
        ("/v1/projects/p", "publishers/google/models/x", "/v1/projects/p/publishers/google/models/x:generateContent"),
    ],
)
async def test_a_version_is_added_where_the_base_url_has_none(end: str, model: str, path: str) -> None:
    async with serve_transcript(HI) as server:
        gemini = Gemini(model, base_url=server.base_url.removesuffix("/v1") + end)
        await gemini.generate(ASK)
        await gemini.aclose()
    assert server.requests[0].path == path


@pytest.mark.parametrize(
    ("set_", "expected"),
    [
        ({"GEMINI_API_KEY": "a"}, "a"),
        ({"GOOGLE_API_KEY": "b"}, "b"),
        ({"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b"}, "b"),
        ({"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": ""}, "a"),
    ],
)
async def test_base_url_and_key_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, set_: dict[str, str], expected: str
) -> None:
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    async with serve_transcript(HI) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.base_url.removesuffix("v1"))
        async with Gemini("m") as model:
            await model.generate(ASK)
    assert server.requests[0].headers["x-goog-api-key"] == expected
    assert server.requests[0].path == "/v1beta/models/m:generateContent"


async def test_without_a_key_google_is_not_asked() -> None:
    told = r"model 'm' at generativelanguage\.googleapis\.com: no API key; set GEMINI_API_KEY"
    with pytest.raises(AuthenticationError, match=told):
        await Gemini("m").generate(ASK)
    with pytest.raises(RealModelRefusedError):
        await Gemini("m", api_key="x").generate(ASK)


def test_a_setting_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Gemini\(base_url="):
        Gemini("m", base_url="localhost:8000")
    with pytest.raises(ConfigError):
        Gemini("m", stall_timeout=-1)


async def test_options_go_where_the_protocol_has_them_and_a_requests_override_the_models() -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    own = {"safetySettings": safety, "cached_content": "cachedContents/1", "temperature": 0, "max_tokens": 5}
    more = {"temperature": 1, "stop": "END", "thinkingConfig": {"includeThoughts": True}, "mediaResolution": "LOW"}
    body = await sent(msgspec.structs.replace(ASK, options=more), options=own)
    assert body == {
        "contents": HELLO,
        "safetySettings": safety,
        "cached_content": "cachedContents/1",
        "generationConfig": {
            "temperature": 1,
            "maxOutputTokens": 5,
            "stopSequences": ["END"],
            "thinkingConfig": {"includeThoughts": True},
            "mediaResolution": "LOW",
        },
    }


async def test_a_generation_config_in_the_options_joins_the_rest() -> None:
    request = msgspec.structs.replace(ASK, output_schema={"type": "object"}, options={"topK": 3})
    body = await sent(request, options={"generationConfig": {"topP": 0.5}})
    assert body["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
        "topP": 0.5,
        "topK": 3,
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
async def test_tools_are_sent_with_the_choice(choice: str, expected: Any) -> None:
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice=choice, parallel_tool_calls=False))
    declaration = {"name": "add", "description": "Adds.", "parametersJsonSchema": ADD.parameters}
    assert body["tools"] == [{"functionDeclarations": [declaration]}]
    assert body["toolConfig"] == {"functionCallingConfig": expected}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"mode": "VALIDATED"}),
        ("auto", {"mode": "VALIDATED"}),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
async def test_a_strict_tool_has_the_calls_of_all_validated(choice: str | None, expected: Any) -> None:
    strict = msgspec.structs.replace(ADD, strict=True)
    other = msgspec.structs.replace(ADD, name="other")
    body = await sent(msgspec.structs.replace(ASK, tools=[other, strict], tool_choice=choice))
    assert body["toolConfig"] == {"functionCallingConfig": expected}
    assert body["tools"][0]["functionDeclarations"][1]["parametersJsonSchema"] == ADD.parameters


async def test_a_tool_without_parameters_is_sent_without_a_schema() -> None:
    now = ToolSpec("now", "The time.", {"type": "object", "properties": {}})
    body = await sent(msgspec.structs.replace(ASK, tools=[now]))
    assert body["tools"] == [{"functionDeclarations": [{"name": "now", "description": "The time."}]}]
    assert "toolConfig" not in body


async def test_the_providers_own_tools_and_settings_stand_beside_the_requests() -> None:
    retrieval = {"retrievalConfig": {"languageCode": "de"}}
    options: dict[str, Any] = {"tools": [{"googleSearch": {}}], "toolConfig": retrieval}
    body = await sent(msgspec.structs.replace(ASK, tools=[ADD], tool_choice="auto"), options=options)
    assert [list(t) for t in body["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}, **retrieval}
    assert (await sent(options=options))["tools"] == [{"googleSearch": {}}]


async def test_a_turn_with_tools_is_sent_as_the_protocol_has_it() -> None:
    messages: list[Message] = [
        UserMessage("Add."),
        AssistantMessage("Well.", tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "now", "")]),
        ToolResponseMessage([ToolResponse("1", "add", "2"), ToolResponse("2", "now", "broken", is_error=True)]),
        InstructionMessage("Be brief.", rendered=True),
        UserMessage("Please."),
        SystemMessage("You add."),
    ]
    body = await sent(ModelRequest(messages=messages, system=SystemMessage("You are a clerk.")), model=OLD)
    assert body["systemInstruction"] == {"parts": [{"text": "You are a clerk.\n\nYou add."}]}
    calls: list[dict[str, Any]] = [{"id": "1", "name": "add", "args": {"a": 1}}, {"id": "2", "name": "now", "args": {}}]
    answers = [
        {"id": "1", "name": "add", "response": {"output": "2"}},
        {"id": "2", "name": "now", "response": {"error": "broken"}},
    ]
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Add."}]},
        {"role": "model", "parts": [{"text": "Well."}, *({"functionCall": c} for c in calls)]},
        {"role": "user", "parts": [{"functionResponse": a} for a in answers]},  # alone, or it is taken for the model's
        {"role": "user", "parts": [{"text": "Be brief."}, {"text": "Please."}]},
    ]


async def test_images_and_files_are_sent_as_parts() -> None:
    parts = [
        TextPart("See:"),
        ImagePart(data=b"png"),
        ImagePart(url="data:image/gif;base64,Z2lm"),
        ImagePart(url="https://x/y.JPG?size=2"),
        FilePart(data=b"mp3", media_type="audio/mp3"),
        FilePart(url="https://x/files/abc", media_type="video/mp4"),
        FilePart(url="https://x/y.odd"),
        FilePart(url="https://x/y.mp3", media_type="text/plain"),
    ]
    (turn,) = await wire(UserMessage(parts))
    assert turn["parts"] == [
        {"text": "See:"},
        {"inlineData": {"mimeType": "image/png", "data": "cG5n"}},
        {"inlineData": {"mimeType": "image/gif", "data": "Z2lm"}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x/y.JPG?size=2"}},
        {"inlineData": {"mimeType": "audio/mp3", "data": "bXAz"}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://x/files/abc"}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/y.odd"}},
        {"fileData": {"mimeType": "text/plain", "fileUri": "https://x/y.mp3"}},
    ]


async def test_an_image_in_a_tools_answer_follows_as_the_users() -> None:
    response = ToolResponse("1", "look", [TextPart("Here."), ImagePart(data=b"png")])
    call = AssistantMessage("", tool_calls=[ToolCall("1", "look")])
    *_, answers, shown = await wire(UserMessage("Look."), call, ToolResponseMessage([response]), UserMessage("And?"))
    assert answers["parts"][0]["functionResponse"]["response"] == {"output": "Here."}
    label, image, question = shown["parts"]
    assert (shown["role"], label) == ("user", {"text": "From the answer of look (1):"})
    assert (image["inlineData"]["data"], question) == ("cG5n", {"text": "And?"})


async def test_a_conversation_begins_with_the_user_and_has_no_empty_turn() -> None:
    turns = await wire(AssistantMessage("Hello."), UserMessage(""), AssistantMessage("Still here."), UserMessage("Hi"))
    assert [t["role"] for t in turns] == ["user", "model", "user"]
    assert turns[1]["parts"] == [{"text": "Hello."}, {"text": "Still here."}]


@pytest.mark.parametrize("message", [UserMessage([ImagePart()]), UserMessage(""), SystemMessage("Be brief.")])
async def test_what_cannot_be_sent_is_an_error(message: Message) -> None:
    with pytest.raises(InputError):
        await wire(message)


@pytest.mark.case("D16")
async def test_half_a_surrogate_pair_in_a_message_does_not_keep_the_rest_from_being_sent() -> None:
    (turn,) = await wire(UserMessage("a\ud83d \u00e9"))
    assert turn["parts"] == [{"text": "a\ufffd \u00e9"}]


# -- schemas


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int
    kind: Literal["a"] = "a"


async def test_an_output_schema_is_sent_natively() -> None:
    assert Gemini("m").native_output_schema
    assert not Gemini("m", native_output_schema=False).native_output_schema
    body = await sent(msgspec.structs.replace(ASK, output_schema=msgspec.json.schema(list[Point])))
    schema = body["generationConfig"]["responseJsonSchema"]
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert (schema["type"], schema["items"]) == ("array", {"$ref": "#/$defs/Point"})
    assert schema["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}


async def test_beside_tools_an_old_model_is_asked_for_the_schema_in_words() -> None:
    request = msgspec.structs.replace(ASK, tools=[ADD], output_schema={"type": "object"}, system=SystemMessage("Hm."))
    old, new = await sent(request, model=OLD), await sent(request, model=NEW)
    (told,) = old["systemInstruction"]["parts"]
    assert told["text"].startswith("Hm.\n\nAnswer with JSON only")
    assert '{"type":"object"}' in told["text"]
    assert "generationConfig" not in old
    assert "responseJsonSchema" in new["generationConfig"]


def test_a_schema_is_sent_without_what_gemini_refuses() -> None:
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "P",
        "type": "object",
        "properties": {
            "title": {"const": "x", "title": "T"},
            "n": {"type": "integer", "exclusiveMinimum": 0, "minimum": 1, "default": 3},
            "on": {"type": "string", "format": "date-time"},
            "at": {"type": "string", "format": "uri", "description": "Where."},
            "any": {"anyOf": [{"const": True}, {"type": "null", "examples": []}]},
            "list": {"type": "array", "prefixItems": [{"const": 1.5}], "items": {"const": None}},
        },
        "patternProperties": {},
        "additionalProperties": False,
        "$defs": {"D": {"discriminator": {}, "enum": ["const"]}},
        "required": ["title"],
    }
    assert clean_schema(schema) == {
        "type": "object",
        "properties": {
            "title": {"enum": ["x"], "type": "string"},
            "n": {"type": "integer", "minimum": 1, "default": 3},
            "on": {"type": "string", "format": "date-time"},
            "at": {"type": "string", "description": "Where. (format: uri)"},
            "any": {"anyOf": [{"enum": [True], "type": "boolean"}, {"type": "null"}]},
            "list": {"type": "array", "prefixItems": [{"enum": [1.5], "type": "number"}], "items": {"enum": [None]}},
        },
        "additionalProperties": False,
        "$defs": {"D": {"enum": ["const"]}},
        "required": ["title"],
    }


# -- what goes back

SIGNED = {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "c2lnMQ=="}
CALL = {"functionCall": {"id": "c2", "name": "add", "args": {"a": 2}}}
LAST = {"text": "", "thoughtSignature": "c2lnMg=="}
TURN = events(chunk({"text": "Let me "}), chunk({"text": "see."}), chunk(SIGNED, CALL), chunk(LAST, finish="STOP"))
DUMMY = "skip_thought_signature_validator"


async def test_signatures_go_back_with_the_parts_that_they_came_with() -> None:
    assert await resent(TURN) == [{"text": "Let me see."}, SIGNED, CALL, LAST]


async def test_text_and_calls_go_back_as_they_are_now() -> None:
    def change(message: AssistantMessage) -> AssistantMessage:
        renamed = [msgspec.structs.replace(c, id="other") for c in message.tool_calls]
        return msgspec.structs.replace(message, text="[redacted]", tool_calls=renamed, reasoning=[])

    text, signed, call = await resent(TURN, change)
    assert text == {"text": "[redacted]", "thoughtSignature": "c2lnMg=="}
    assert (signed["thoughtSignature"], signed["functionCall"]["id"]) == ("c2lnMQ==", "other")
    assert call == {"functionCall": {**CALL["functionCall"], "id": "other"}}


async def test_of_calls_that_were_taken_away_no_signature_goes_back() -> None:
    def one(message: AssistantMessage) -> AssistantMessage:
        return msgspec.structs.replace(message, tool_calls=message.tool_calls[:1])

    assert await resent(TURN, one) == [{"text": "Let me see.", "thoughtSignature": "c2lnMg=="}, SIGNED]


async def test_calls_that_nobody_signed_are_marked_for_models_that_want_a_signature() -> None:
    turn = AssistantMessage("", tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "add", '{"a": 2}')])
    _, new = await wire(UserMessage("Hi"), turn, model=NEW)
    assert [p.get("thoughtSignature") for p in new["parts"]] == [DUMMY, None]
    _, latest = await wire(UserMessage("Hi"), turn, model="gemini-flash-latest")
    assert [p.get("thoughtSignature") for p in latest["parts"]] == [DUMMY, None]
    for name in (OLD, "gemma-3"):
        _, old = await wire(UserMessage("Hi"), turn, model=name)
        assert not any("thoughtSignature" in p for p in old["parts"])


async def test_signatures_of_another_server_and_reasoning_stay_here() -> None:
    async with served(TURN) as (_, model):
        message = await answer_of(model)
    _, turn = await wire(UserMessage("Hi"), msgspec.structs.replace(message, reasoning=[ReasoningPart("Hm.", "A")]))
    assert turn["parts"] == [{"text": "Let me see."}, {**SIGNED, "thoughtSignature": DUMMY}, CALL]


async def test_parts_of_other_kinds_go_back_as_they_came() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "S"}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}
    thought = {"text": "Hm.", "thought": True}
    assert await resent(events(chunk(thought, code, result, {"text": "Two."}, finish="STOP"))) == [
        code,
        result,
        {"text": "Two."},
    ]


@settings(max_examples=50)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["text", "call", "code"]), st.text(st.characters(codec="utf-8"), min_size=1)),
        min_size=1,
        max_size=6,
    ),
    signed=st.lists(st.booleans(), min_size=6, max_size=6),
    size=st.integers(1, 60),
)
def test_any_order_of_signed_parts_goes_back_the_same(
    parts: list[tuple[str, str]], signed: list[bool], size: int
) -> None:
    made: list[dict[str, Any]] = []
    for place, (kind, text) in enumerate(parts):
        part: dict[str, Any] = {
            "text": {"text": text},
            "call": {"functionCall": {"id": f"c{place}", "name": "f", "args": {"a": text}}},
            "code": {"executableCode": {"code": text}},
        }[kind]
        # unsigned texts in a row would be one
        sign = signed[place] or kind == "text"
        made.append(part | ({"thoughtSignature": f"S{place}"} if sign else {}))
    body = events(*(chunk(p) for p in made)) + END
    assert asyncio.run(resent(Transcript(body, chunk_size=size), model=OLD)) == made


# -- answers


@pytest.mark.parametrize("size", [None, 1, 13])
async def test_a_streamed_answer_comes_in_pieces_and_then_whole(size: int | None) -> None:
    async with served(Transcript(REASONING, chunk_size=size)) as (_, model):
        *deltas, last = await all_of(model, msgspec.structs.replace(ASK, message_id="the id"))
    assert [(d.reasoning, d.text) for d in deltas] == [("Six times seven.", ""), ("", "42")]
    assert last.response is not None
    assert (last.response.message.id, last.response.message.text) == ("the id", "42")


@pytest.mark.case("I13")
async def test_a_call_that_is_not_streamed_gives_the_same() -> None:
    body = msgspec.json.decode(CALLS.read_bytes().removeprefix(b"data: "))
    request = msgspec.structs.replace(ASK, message_id="the id")
    async with served(whole(body), CALLS) as (_, model):
        response = await model.generate(request)
        assert response.message == await answer_of(model, request)
    assert [json.loads(c.arguments) for c in response.message.tool_calls] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert response.raw == body


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with served(Transcript(said("a", "b") + END, chunk_size=50)) as (server, model):
        assert [(await answer_of(model)).text, (await answer_of(model)).text] == ["ab", "ab"]
        assert (len(server.requests), server.connections) == (2, 1)


async def test_an_agent_calls_tools_and_answers() -> None:
    @tool
    async def get_weather(city: str) -> str:
        """Current weather of a city."""
        return f"Sunny in {city}."

    async with served(CALLS, said("Sunny.") + END, model=OLD) as (server, model):
        result = await ReactAgent("a", model, [get_weather]).run("How is the weather?")
    assert (result.text, len(server.requests)) == ("Sunny.", 2)
    _, calls, answers = server.requests[1].json["contents"]
    assert [p["functionCall"]["id"] for p in calls["parts"]] == ["call_a", "call_b"]
    assert [p["functionResponse"] for p in answers["parts"]] == [
        {"id": "call_a", "name": "get_weather", "response": {"output": "Sunny in Paris."}},
        {"id": "call_b", "name": "get_weather", "response": {"output": "Sunny in Oslo."}},
    ]


# -- what goes wrong


@pytest.mark.case("C8")
@pytest.mark.parametrize("end", ["complete", "close", "reset"])
async def test_a_stream_that_is_cut_gives_no_message(end: Any) -> None:
    body = Transcript(said("Hel", "lo"), end=end, chunk_size=40)
    async with served(body, max_retries=0) as (server, model):
        with pytest.raises(StreamCutError, match=rf"model '{NEW}' at 127\.0\.0\.1:\d+: ") as raised:
            await all_of(model)
    assert (raised.value.retried, len(server.requests)) == (True, 1)
    assert raised.value.partial == "Hello" or (end == "reset" and raised.value.partial == "Hel")


@pytest.mark.case("I12")
@with_clock
async def test_a_stream_that_is_cut_before_anything_was_told_is_tried_again_unseen() -> None:
    cut = Transcript(events({"usageMetadata": {}}), end="close", headers={"connection": "close"})
    async with served(cut, REASONING) as (server, model):
        assert (await answer_of(model)).text == "42"
    assert len(server.requests) == 2


@pytest.mark.case("C9")
@with_clock
async def test_an_error_before_anything_was_told_is_tried_again_by_its_code() -> None:
    busy = Transcript(events(error(503, "UNAVAILABLE", "busy")), headers={"connection": "close"})
    async with served(busy, REASONING) as (server, model):
        assert (await answer_of(model)).text == "42"
    async with served(busy) as (server, model):
        with pytest.raises(OverloadedError, match=r"at 127\.0\.0\.1:\d+: HTTP 503: busy") as raised:
            await all_of(model)
    assert (len(server.requests), raised.value.retried, raised.value.code) == (3, True, "UNAVAILABLE")


@pytest.mark.case("C15")
async def test_an_error_after_deltas_carries_the_partial_text_and_is_not_tried_again() -> None:
    async with served(said("Hel", "lo") + events(error(500, "INTERNAL", "ran away"))) as (server, model):
        with pytest.raises(ServerError, match="ran away") as raised:
            await all_of(model)
    assert (raised.value.partial, raised.value.retried, len(server.requests)) == ("Hello", True, 1)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_blocked_prompt_is_an_error_and_not_an_empty_answer(streamed: bool) -> None:
    body = {"promptFeedback": {"blockReason": "SAFETY"}}
    async with served(events(body) if streamed else whole(body)) as (server, model):
        with pytest.raises(ContentFilterError, match=r"the prompt was blocked \(SAFETY\)"):
            await (all_of(model) if streamed else model.generate(ASK))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "INVALID_ARGUMENT", "no", BadRequestError),
        (400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens", ContextLengthError),
        (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", AuthenticationError),
        (403, "PERMISSION_DENIED", "no", AuthenticationError),
        (404, "NOT_FOUND", "no", BadRequestError),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
async def test_a_refusal_is_an_error_of_its_kind_and_not_tried_again(
    status: int, code: str, message: str, kind: type[ProviderError], listed: bool
) -> None:
    async with served(refusal(status, code, message, listed=listed)) as (server, model):
        with pytest.raises(kind, match=f": HTTP {status}: {message[:9]}") as raised:
            await all_of(model)
    assert type(raised.value) is kind
    assert (raised.value.status_code, raised.value.code, raised.value.request_id) == (status, code, "q1")
    assert len(server.requests) == 1


@pytest.mark.case("I1")
@pytest.mark.parametrize(("delay", "least"), [("7s", 7), ("1.5s", 1.5), ("0s", 0.25), ("soon", 0.25)])
@with_clock
async def test_the_wait_that_stands_in_a_refusals_details_is_kept(delay: str, least: float) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    async with served(refusal(429, "RESOURCE_EXHAUSTED", details=[info]), REASONING) as (server, model):
        assert (await answer_of(model)).text == "42"
        assert least <= asyncio.get_running_loop().time() < least * 1.1 + 0.4
    assert len(server.requests) == 2


@pytest.mark.case("I11")
@with_clock
async def test_a_wait_above_the_cap_is_not_begun() -> None:
    info = {"retryDelay": "3600s"}
    async with served(refusal(429, "RESOURCE_EXHAUSTED", details=[info])) as (server, model):
        with pytest.raises(RateLimitError) as raised:
            await model.generate(ASK)
    assert (raised.value.retry_after, len(server.requests)) == (3600, 1)


@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/event-stream"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_malformed_answer_that_says_200_is_an_error_and_not_an_empty_answer(kind: str, streamed: bool) -> None:
    body = b"{malformed json: <<<chaos>>>" if kind != "text/event-stream" else b"data: {malformed\n\n"
    async with served(Transcript(body, headers={"content-type": kind})) as (_, model):
        with pytest.raises(MalformedResponseError, match="malformed"):
            await (all_of(model) if streamed else model.generate(ASK))


async def test_an_empty_stream_is_an_error_that_may_pass() -> None:
    async with served(b"", max_retries=0) as (_, model):
        with pytest.raises(StreamCutError) as raised:
            await all_of(model)
    assert is_transient(raised.value)


@with_clock
async def test_a_stream_that_stalls_ends_at_its_stall_timeout_with_the_partial_text() -> None:
    async with served(stalling(said("Hel", "lo")), stall_timeout=25) as (_, model):
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

    async with served(Transcript(REASONING, before_response=before_response)) as (server, model):
        task = asyncio.create_task(answer_of(model) if streamed else asyncio.wait_for(model.generate(ASK), None))
        await asyncio.wait_for(began.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_reader_that_leaves_closes_the_connection_and_leaves_no_task() -> None:
    async with served(stalling(said("a", "b"))) as (server, model):
        async with aclosing(model.stream(ASK)) as deltas:
            assert (await anext(deltas)).text == "a"
        await asyncio.wait_for(server.disconnected.wait(), 5)
