"""Messages of a conversation: immutable msgspec Structs, told apart in JSON by `role`.

`decode` and `encode` are their JSON form. A message is never changed in place: use `msgspec.structs.replace`.
"""

from __future__ import annotations

import os
from typing import Any, Union

import msgspec

from agentgraph.errors import AgentGraphError
from agentgraph.strategies import REMOVE_ALL, RemoveAll, RemoveByHash, RemoveMessage, RewriteMessages

__all__ = [
    "NO_OUTPUT",
    "REMOVE_ALL",
    "AssistantMessage",
    "FilePart",
    "ImagePart",
    "InstructionMessage",
    "Message",
    "MessageError",
    "Part",
    "ReasoningPart",
    "RemoveAll",
    "RemoveByHash",
    "RemoveMessage",
    "RewriteMessages",
    "SystemMessage",
    "TextPart",
    "ToolCall",
    "ToolResponse",
    "ToolResponseMessage",
    "Usage",
    "UserMessage",
    "convert",
    "decode",
    "encode",
    "new_id",
    "sound",
]


class MessageError(AgentGraphError, ValueError):
    """Something that was to be a message is none: the text names the path (`$[2].role`)."""


NO_OUTPUT = "(no output)"
"""What stands in the place of an empty answer to a call: servers refuse one."""


def new_id() -> str:
    """A new random id: 24 hex digits."""
    return os.urandom(12).hex()


def sound(text: str) -> str:
    """The text with surrogate pairs joined, and halves without their other half as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens that model calls took. None: the server did not say. Sums by `+`."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Part of `input_tokens` that came from the provider's cache."""
    reasoning_tokens: int | None = None
    """Part of `output_tokens` that was reasoning."""
    calls: int = 1
    """How many model calls these numbers are the sum of."""

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; None where neither is known."""
        return _sum(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            self.calls + other.calls,
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text in a message of several parts."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image", omit_defaults=True):
    """An image: a `url`, or `data` (the raw bytes; base64 in JSON) with its `media_type`."""

    url: str | None = None
    data: bytes | None = None
    media_type: str = "image/png"


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file", omit_defaults=True):
    """A file: a `url`, or `data` (the raw bytes; base64 in JSON) with its `media_type`."""

    url: str | None = None
    data: bytes | None = None
    media_type: str = "application/pdf"
    name: str | None = None


Part = Union[TextPart, ImagePart, FilePart]


class ReasoningPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's reasoning: its text, and what the provider wants back verbatim (`signature`, `data`)."""

    text: str = ""
    signature: str | None = None
    data: dict[str, Any] | None = None
    """The provider's own block, where the text alone is not enough to send it back."""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that the model asks for. `arguments` is the JSON text as the model sent it."""

    id: str
    name: str
    arguments: str = ""


class ToolResponse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to the call with the same `id`."""

    id: str
    name: str
    content: str | list[Part]
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of the answer; other parts are left out."""
        return _text(self.content)


def _text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(p.text for p in content if isinstance(p, TextPart))


class _Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", omit_defaults=True):
    id: str = msgspec.field(default_factory=new_id)
    metadata: dict[str, Any] = {}


class SystemMessage(_Base, frozen=True, tag="system"):
    """What the model is to be."""

    text: str


class UserMessage(_Base, frozen=True, tag="user"):
    """What the user says: text, or parts."""

    content: str | list[Part]

    @property
    def text(self) -> str:
        """The text; images and files are left out."""
        return _text(self.content)


class InstructionMessage(_Base, frozen=True, tag="instruction"):
    """A user message that is a template: `rendered` tells whether it was filled in."""

    text: str
    rendered: bool = False


class AssistantMessage(_Base, frozen=True, tag="assistant"):
    """What the model answered: text, calls of tools, or both.

    `finish_reason` is one of "stop", "tool_calls", "length", "content_filter", or the provider's own word.
    """

    text: str = ""
    tool_calls: list[ToolCall] = []
    reasoning: list[ReasoningPart] = []
    finish_reason: str | None = None
    usage: Usage | None = None


class ToolResponseMessage(_Base, frozen=True, tag="tool"):
    """The answers to one assistant message's calls, in the order of the calls.

    `metadata["finish_reason"] == "return_direct"` where the agent must stop after them.
    """

    responses: list[ToolResponse]

    @property
    def text(self) -> str:
        """The answers' texts, a line each."""
        return "\n".join(r.text for r in self.responses)


Message = Union[SystemMessage, UserMessage, InstructionMessage, AssistantMessage, ToolResponseMessage]

_decoder = msgspec.json.Decoder(list[Message])
_encoder = msgspec.json.Encoder()


def encode(messages: list[Message]) -> bytes:
    """The messages as a JSON array."""
    return _encoder.encode(messages)


def decode(data: bytes | str) -> list[Message]:
    """Messages from a JSON array. Raises `MessageError` naming the path of what does not fit."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise MessageError(f"no list of messages: {error}") from error


def convert(data: Any) -> list[Message]:
    """Messages from plain lists and dicts. Raises `MessageError` naming the path of what does not fit."""
    try:
        return msgspec.convert(data, list[Message])
    except msgspec.ValidationError as error:
        raise MessageError(f"no list of messages: {error}") from error
