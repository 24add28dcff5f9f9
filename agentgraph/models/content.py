"""Parts of a conversation as more than one provider takes them. Values in, values out."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, cast

import msgspec

from agentgraph.errors import InputError
from agentgraph.messages import AssistantMessage, FilePart, ImagePart, SystemMessage, ToolCall, sound
from agentgraph.models.protocol import ModelRequest

__all__ = [
    "arguments_of",
    "base64_of",
    "came_as",
    "data_url",
    "encoded",
    "is_strict",
    "request_for_json",
    "system_text",
]

_encoder = msgspec.json.Encoder()


def encoded(value: Any) -> bytes:
    """Plain values as JSON."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair in somebody's text
        return sound(json.dumps(value, ensure_ascii=False)).encode()


def base64_of(part: ImagePart | FilePart) -> tuple[str, str] | None:
    """Media type and base64 of a part that brings its bytes, also in a `data:` URL; None where it has another URL."""
    if part.data is not None:
        return part.media_type, base64.b64encode(part.data).decode()
    if part.url is None:
        raise InputError(f"{type(part).__name__} needs a url or data")
    inline = re.fullmatch(r"data:([^;,]+);base64,(.*)", part.url, re.DOTALL)
    return None if inline is None else (inline[1], inline[2])


def data_url(part: ImagePart | FilePart) -> str:
    """The part's URL; where it brings its bytes, a `data:` URL."""
    inline = base64_of(part)
    return cast("str", part.url) if inline is None else f"data:{inline[0]};base64,{inline[1]}"


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as an object; an empty one where they are none."""
    try:
        value: Any = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:  # half a surrogate pair, which msgspec refuses, is legal
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):  # a model may well end in thousands of brackets
            return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def came_as(message: AssistantMessage, protocol: str, server: str, name: str) -> list[dict[str, Any]]:
    """What a message's metadata keeps under `name` to be sent back; none of it where another server made it."""
    kept: dict[str, Any] = message.metadata.get(protocol) or {}
    return kept[name] if kept.get("server") == server else []


def system_text(request: ModelRequest) -> str:
    """All that the model is told to be, for protocols that have one place for it outside the conversation."""
    systems = [m.text for m in (request.system, *request.messages) if isinstance(m, SystemMessage)]
    return "\n\n".join(text for text in systems if text.strip())


def request_for_json(schema: dict[str, Any]) -> str:
    """Words that ask for an answer of that schema, where the provider takes none."""
    return f"Answer with JSON only, no other text, that fits this JSON schema:\n{encoded(schema).decode()}"


def is_strict(node: Any) -> bool:
    """Whether OpenAI's strict mode takes this schema: each object closed, and all its properties required."""
    if isinstance(node, list):
        return all(is_strict(item) for item in cast("list[Any]", node))
    if not isinstance(node, dict):
        return True
    fields = cast("dict[str, Any]", node)
    if fields.get("type") == "object":
        names = set(fields.get("properties", {}))
        if fields.get("additionalProperties") is not False or names != set(fields.get("required", [])):
            return False
    return all(is_strict(value) for value in fields.values())
