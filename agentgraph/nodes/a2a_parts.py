"""The parts of A2A's messages and artifacts, and what they are here. Waits for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from a2a.types import Message as A2aMessage
from a2a.types import Part as A2aPart
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from agentgraph.events import plain
from agentgraph.messages import FilePart, ImagePart, Message, Part, TextPart, UserMessage

__all__ = ["as_parts", "as_user_message", "data_in", "data_part", "files_in", "text_in", "text_part"]

_WHOLE = 2**53
"""Up to here a double holds each whole number; A2A's data has no other numbers than doubles."""


def text_part(text: str) -> A2aPart:
    """A text."""
    return A2aPart(text=text, media_type="text/plain")


def data_part(value: Any) -> A2aPart:
    """Any value, by its JSON form; what has none by its `repr`."""
    made = msgspec.to_builtins(plain(value), str_keys=True)
    return A2aPart(data=ParseDict(made, Value()), media_type="application/json")


def text_in(parts: Iterable[A2aPart]) -> str:
    """The texts, one behind the other: a streamed text comes in many."""
    return "".join(part.text for part in parts if part.HasField("text"))


def data_in(parts: Iterable[A2aPart]) -> list[Any]:
    """The values of the data parts, with whole numbers as such."""
    return [_with_whole_numbers(MessageToDict(part.data)) for part in parts if part.HasField("data")]


def as_user_message(message: A2aMessage) -> UserMessage | None:
    """What a client says, for an agent; None where that is nothing."""
    parts = [made for part in message.parts if (made := _part(part)) is not None]
    if not parts:
        return None
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return UserMessage("\n".join(texts) if len(texts) == len(parts) else parts)


def as_parts(message: Message | str) -> list[A2aPart]:
    """A message's text and files, as A2A has them."""
    content: str | list[Part] = message if isinstance(message, str) else getattr(message, "content", "")
    if not content and not isinstance(message, str):
        content = message.text
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return [_a2a_part(part) for part in content]


def files_in(parts: Iterable[A2aPart]) -> list[str]:
    """How each file among the parts is told in words: its name and where it is to be had, or how large it is."""
    told: list[str] = []
    for part in parts:
        if part.HasField("url"):
            told.append(f"[{part.filename or 'file'}: {part.url}]")
        elif part.HasField("raw"):
            told.append(f"[{part.filename or 'file'}: {part.media_type or 'data'}, {len(part.raw):,} bytes]")
    return told


def _part(part: A2aPart) -> Part | None:
    if part.HasField("text"):
        return TextPart(part.text) if part.text else None
    if part.HasField("data"):
        value = _with_whole_numbers(MessageToDict(part.data))
        return TextPart(msgspec.json.encode(value, order="sorted").decode())  # A2A keeps no order of keys
    url = part.url if part.HasField("url") else None
    data = part.raw if part.HasField("raw") else None
    if not url and not data:
        return None
    if part.media_type.startswith("image/"):
        return ImagePart(url=url, data=data, media_type=part.media_type)
    return FilePart(
        url=url, data=data, media_type=part.media_type or "application/octet-stream", name=part.filename or None
    )


def _a2a_part(part: Part) -> A2aPart:
    if isinstance(part, TextPart):
        return text_part(part.text)
    name = (part.name if isinstance(part, FilePart) else None) or ""
    if part.url is not None:
        return A2aPart(url=part.url, media_type=part.media_type, filename=name)
    return A2aPart(raw=part.data or b"", media_type=part.media_type, filename=name)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[Any]", value)]
    return value
