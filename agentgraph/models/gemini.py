"""Google's Gemini, and every server that speaks its generateContent (`base_url`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Unpack, cast
from urllib.parse import urlsplit

from agentgraph.errors import InputError
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.assemble_gemini import GEMINI, SIGNATURE, GeminiAssembler
from agentgraph.models.client import ClientOptions, HttpModel, new_call_id
from agentgraph.models.content import arguments_of, base64_of, came_as, request_for_json, system_text
from agentgraph.models.http import Assembler
from agentgraph.models.protocol import ModelRequest, ToolSpec

__all__ = ["Gemini"]

_VERSION = "v1beta"
_UNSIGNED = "skip_thought_signature_validator"

# fields of the request itself; whatever else the options name belongs into its `generationConfig`
_REQUEST_FIELDS = {"safetysettings", "toolconfig", "cachedcontent", "labels", "servicetier", "store"}
_OTHER_NAMES = {"max_tokens": "maxOutputTokens", "max_completion_tokens": "maxOutputTokens", "stop": "stopSequences"}

_MEDIA_TYPES = {
    "jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif",
    "heic": "image/heic", "pdf": "application/pdf", "txt": "text/plain", "mp3": "audio/mp3", "wav": "audio/wav",
    "mp4": "video/mp4", "webm": "video/webm",
}  # fmt: skip

_Part = dict[str, Any]


class Gemini(HttpModel):
    """A model behind Gemini's generateContent. Safe to share between tasks, threads and event loops.

    `api_key` (or GOOGLE_API_KEY, or GEMINI_API_KEY) is the key; `base_url` (or GOOGLE_GEMINI_BASE_URL, with or
    without a version such as `/v1beta`) names another server. The key goes in a header of its own; a server that
    wants another one gets it by `headers`.

    `options` go with each request; a request's own override them. Fields of the request (`safetySettings`,
    `cachedContent`, `toolConfig`) go where they belong, `tools` (`{"googleSearch": {}}`) beside the request's, and
    all others into its `generationConfig`: `temperature`, `topP`, `thinkingConfig`, also `max_tokens` and `stop`.
    `native_output_schema` tells whether a node may send an `output_schema` as `responseJsonSchema`, and need not put
    it in the prompt (None: yes); models before Gemini 3 take none beside tools, and are asked for it in words. The
    protocol has no way to ask for one call at a time. Where one tool is `strict`, the model is held to the schemas of
    all (mode VALIDATED). The other options are those of `ClientOptions`.

    Signatures of thoughts are sent back as they came, with the part that they came with, to the server that made
    them.

    A use::

        async with Gemini("gemini-3-flash", options={"thinkingConfig": {"thinkingLevel": "low"}}) as model:
            response = await model.generate(ModelRequest(messages=[UserMessage("Hi")]))

    Without `async with`, connections are closed when their event loop ends.
    """

    DEFAULT_URL: ClassVar[str] = "https://generativelanguage.googleapis.com"
    URL_VARIABLE: ClassVar[str] = "GOOGLE_GEMINI_BASE_URL"
    KEY_VARIABLE: ClassVar[str] = "GEMINI_API_KEY"

    def __init__(
        self,
        model: str,
        **common: Unpack[ClientOptions],
    ) -> None:
        if common.get("api_key") is None:  # where both are set, the provider's own SDK takes this one
            common["api_key"] = os.environ.get("GOOGLE_API_KEY") or None
        common["native_output_schema"] = common.get("native_output_schema") is not False
        super().__init__(model, **common)
        self._server = urlsplit(self._base_url).netloc
        version = re.search(r"gemini-(\d+)", model)
        self._is_old = version is not None and int(version[1]) < 3
        self._wants_signatures = "gemini" in model and not self._is_old

    def _assembler(self, request: ModelRequest) -> Assembler:
        return GeminiAssembler(self._where, new_call_id, request.message_id, server=self._server)

    def _path(self, *, stream: bool) -> str:
        version = "" if re.search(r"/v\d\w*(?:/|$)", self._base_url) else f"/{_VERSION}"
        name = self._model if "/" in self._model else f"models/{self._model}"
        return f"{version}/{name}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"

    def _protocol_head(self) -> dict[str, str]:
        return {"x-goog-api-key": self._api_key} if self._api_key else {}

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:  # noqa: ARG002  # the address tells
        options: dict[str, Any] = {**self._options, **request.options}
        body: dict[str, Any] = {"contents": _contents(request.messages, self._server, sign=self._wants_signatures)}
        system = system_text(request)
        tools = [_declaration(t) for t in request.tools]
        own_tools: list[Any] = options.pop("tools", None) or []
        config: dict[str, Any] = {}
        if request.output_schema is not None:
            if (tools or own_tools) and self._is_old:
                system = f"{system}\n\n{request_for_json(request.output_schema)}".strip()
            else:
                config["responseMimeType"] = "application/json"
                config["responseJsonSchema"] = clean_schema(request.output_schema)
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if tools or own_tools:
            body["tools"] = [*([{"functionDeclarations": tools}] if tools else []), *own_tools]
        choice = request.tool_choice
        if choice in (None, "auto") and any(t.strict for t in request.tools):
            # nothing strict is said of one tool; of all of them it is by this mode, and by the one of "required"
            body["toolConfig"] = {"functionCallingConfig": {"mode": "VALIDATED"}}
        elif tools and choice is not None:
            body["toolConfig"] = {"functionCallingConfig": _calling(choice)}
        config |= options.pop("generationConfig", None) or {}
        for name, value in options.items():
            if name.replace("_", "").lower() in _REQUEST_FIELDS:
                body[name] = {**body[name], **value} if name == "toolConfig" and name in body else value
            else:
                config[_OTHER_NAMES.get(name, name)] = [value] if name == "stop" and isinstance(value, str) else value
        return body | ({"generationConfig": config} if config else {})


def _declaration(tool: ToolSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters.get("properties"):  # an object without any is refused
        out["parametersJsonSchema"] = clean_schema(tool.parameters)
    return out


def _calling(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


# -- the conversation


def _contents(messages: Sequence[Message], server: str, *, sign: bool) -> list[dict[str, Any]]:
    """The conversation as turns of user and model, none of them empty, the user's first."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolResponseMessage):
            # alone: what shares a turn with answers of functions is taken for the model's own
            turns.append({"role": "user", "parts": [_answer(r) for r in message.responses]})
            if shown := [part for r in message.responses for part in _shown(r)]:
                turns.append({"role": "user", "parts": shown})
            continue
        role = "model" if isinstance(message, AssistantMessage) else "user"
        parts = _parts_of(message, server, sign=sign)
        if turns and parts and turns[-1]["role"] == role and "functionResponse" not in turns[-1]["parts"][0]:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    if not turns:
        raise InputError("there is nothing to ask: the conversation has no message, or only blank ones")
    if turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "parts": [{"text": ""}]})
    return turns


def _parts_of(message: Message, server: str, *, sign: bool) -> list[_Part]:
    if isinstance(message, AssistantMessage):
        return list(_said(message, server, sign=sign))
    if isinstance(message, UserMessage):
        return _parts(message.content)
    return [] if isinstance(message, (SystemMessage, ToolResponseMessage)) else _parts(message.text)


def _said(message: AssistantMessage, server: str, *, sign: bool) -> Iterator[_Part]:
    """The parts that the message came as, in their order, with the text and the calls that it has now.

    Gemini 3 wants the first call of a turn signed; one that another model made is marked as such.
    """
    came = came_as(message, GEMINI, server, "parts")
    texts = [p for p in came if "length" in p]
    calls = [p for p in came if "call" in p]
    if sum(p["length"] for p in texts) != len(message.text) or len(calls) != len(message.tool_calls):
        # what was changed since goes with the signatures that there are
        last = {**(texts[-1] if texts else {}), "length": len(message.text)}
        calls = [{**(calls[i] if i < len(calls) else {}), "call": i} for i in range(len(message.tool_calls))]
        came = [*(p for p in came if not p.keys() & {"length", "call"}), last, *calls]
    start = 0
    wanted = sign
    for part in came:
        signature = {SIGNATURE: part[SIGNATURE]} if SIGNATURE in part else {}
        if "length" in part:
            text = message.text[start : start + part["length"]]
            start += part["length"]
            if text or signature:
                yield {"text": text, **signature}
        elif "call" in part:
            if wanted and not signature:
                signature = {SIGNATURE: _UNSIGNED}
            wanted = False
            place: int = part["call"]
            yield {"functionCall": _call(message.tool_calls[place]), **signature}
        else:
            yield part


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "args": arguments_of(call)}


def _answer(response: ToolResponse) -> _Part:
    told = {"error" if response.is_error else "output": response.text}
    return {"functionResponse": {"id": response.id, "name": response.name, "response": told}}


def _shown(response: ToolResponse) -> list[_Part]:
    """What an answer shows beside its text."""
    if isinstance(response.content, str):
        return []
    rest = [p for p in response.content if not isinstance(p, TextPart)]
    label = {"text": f"From the answer of {response.name} ({response.id}):"}
    return [label, *map(_part, rest)] if rest else []


def _parts(content: str | list[Part]) -> list[_Part]:
    if isinstance(content, str):
        return [{"text": content}] if content else []
    return [_part(p) for p in content if not isinstance(p, TextPart) or p.text]


def _part(part: Part) -> _Part:
    if isinstance(part, TextPart):
        return {"text": part.text}
    inline = base64_of(part)
    if inline is not None:
        return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}
    return {"fileData": {"mimeType": _media_type(part), "fileUri": part.url}}


def _media_type(part: ImagePart | FilePart) -> str:
    """What a URL names by its ending, where the part itself says no more than what it is by default."""
    ending = re.search(r"\.(\w+)(?:[?#]|$)", part.url or "")
    if ending is None or part.media_type != type(part)().media_type:
        return part.media_type
    return _MEDIA_TYPES.get(ending[1].lower(), part.media_type)


# -- schemas

_KEYWORDS = {
    "$id", "$defs", "$ref", "$anchor", "type", "description", "default", "enum", "items", "prefixItems", "minItems",
    "maxItems", "minimum", "maximum", "minLength", "maxLength", "pattern", "minProperties", "maxProperties", "anyOf",
    "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
}  # fmt: skip
_FORMATS = ("date-time", "date", "time")
_TYPES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def clean_schema(schema: Any) -> Any:
    """The schema without keywords that Gemini refuses. A constant becomes an enum of one, a format is described."""
    if not isinstance(schema, dict):
        return schema  # true or false
    given = cast("dict[str, Any]", schema)
    out = {key: _clean(key, value) for key, value in given.items() if key in _KEYWORDS}
    if "const" in given:
        out["enum"] = [given["const"]]
        kind = _TYPES.get(type(given["const"]))
        if kind is not None:
            out.setdefault("type", kind)
    told = given.get("format")
    if told in _FORMATS:
        out["format"] = told
    elif told is not None:
        out["description"] = f"{out.get('description', '')} (format: {told})".strip()
    return out


def _clean(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: clean_schema(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if key in ("anyOf", "oneOf", "prefixItems"):
        return [clean_schema(inner) for inner in cast("list[Any]", value)]
    return clean_schema(value) if key in ("items", "additionalProperties") else value
