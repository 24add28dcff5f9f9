"""Anthropic's messages, and every server that speaks them (`base_url`)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Unpack
from urllib.parse import urlsplit

from agentgraph.errors import ConfigError, InputError
from agentgraph.messages import (
    NO_OUTPUT,
    AssistantMessage,
    FilePart,
    ImagePart,
    InstructionMessage,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.assemble_anthropic import REDACTED, THINKING, AnthropicAssembler
from agentgraph.models.client import ClientOptions, HttpModel, new_call_id
from agentgraph.models.closed_schema import closed, strict_for_anthropic, strict_parameters
from agentgraph.models.content import arguments_of, base64_of, request_for_json, system_text
from agentgraph.models.http import Assembler
from agentgraph.models.json_mode import JsonModeAssembler, as_object, is_object
from agentgraph.models.protocol import ModelRequest, ToolSpec

__all__ = ["AnthropicMessages"]

# the later version differs by refusing `temperature` and its like, which older models still take
_VERSION = "2023-06-01"

_BEGINNING = "(The conversation goes on.)"

_Block = dict[str, Any]


class AnthropicMessages(HttpModel):
    """A model behind Anthropic's messages protocol. Safe to share between tasks, threads and event loops.

    `base_url` (or ANTHROPIC_BASE_URL; with or without its `/v1`) names another server, `api_key` (or
    ANTHROPIC_API_KEY) the key; where there is none, ANTHROPIC_AUTH_TOKEN is sent as a bearer token. `max_tokens`
    bounds each answer: the protocol wants a bound. `cache` marks what stays the same from call to call, so that
    the provider keeps it for that long: tools and system prompt, and the conversation so far.

    `options` go with each request (`thinking`, `output_config`, `stop_sequences`); a request's own override
    them. `native_output_schema` tells whether a node may send an `output_schema` as `output_config.format`, and
    need not put it in the prompt; None: where the server is Anthropic's own. A schema that cannot be sent so (of
    mappings, tuples, recursive types) is put in the prompt anyway. The other options are those of `ClientOptions`.

    Reasoning is sent back as it came, and where it stood: a `ReasoningPart` whose `data` names its type. That of
    other servers is left out, and so is text that is blank: Anthropic refuses it.

    A use::

        async with AnthropicMessages("claude-sonnet-5-5", cache="5m") as model:
            response = await model.generate(ModelRequest(messages=[UserMessage("Hi")]))

    Without `async with`, connections are closed when their event loop ends.
    """

    DEFAULT_URL: ClassVar[str] = "https://api.anthropic.com"
    URL_VARIABLE: ClassVar[str] = "ANTHROPIC_BASE_URL"
    KEY_VARIABLE: ClassVar[str] = "ANTHROPIC_API_KEY"

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int = 8192,
        cache: Literal["5m", "1h"] | None = None,
        **common: Unpack[ClientOptions],
    ) -> None:
        if max_tokens < 1:
            raise ConfigError(f"AnthropicMessages(max_tokens=...) must be at least 1; found {max_tokens!r}")
        if cache not in (None, "5m", "1h"):
            raise ConfigError(f"AnthropicMessages(cache=...) must be '5m', '1h' or None; found {cache!r}")
        url = common.get("base_url") or os.environ.get(self.URL_VARIABLE) or self.DEFAULT_URL
        common["base_url"] = url.rstrip("/").removesuffix("/v1")
        super().__init__(model, **common)
        self._max_tokens = max_tokens
        self._cache = cache
        self._server = urlsplit(self._base_url).netloc
        self._auth_token = os.environ.get("ANTHROPIC_AUTH_TOKEN") if self._api_key is None else None

    def _path(self, *, stream: bool) -> str:  # noqa: ARG002  # one for both
        return "/v1/messages"

    def _protocol_head(self) -> dict[str, str]:
        head = {"anthropic-version": _VERSION}
        if self._api_key:
            head["x-api-key"] = self._api_key
        elif self._auth_token:
            head["authorization"] = f"Bearer {self._auth_token}"
        return head

    def _assembler(self, request: ModelRequest) -> Assembler:
        messages = AnthropicAssembler(self._where, new_call_id, request.message_id, server=self._server)
        schema = request.output_schema
        if schema is not None and not is_object(schema) and closed(as_object(schema)) is not None:
            return JsonModeAssembler(messages, new_call_id)
        return messages

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        messages = _messages(request.messages, self._server)
        options = {**self._options, **request.options}
        body: dict[str, Any] = {"model": self._model, "max_tokens": self._max_tokens, "messages": messages}
        if system := system_text(request):
            body["system"] = [_text(system)]
        if request.tools or "tools" not in options:
            body |= _tools(request, messages)
        if request.output_schema is not None:
            schema = closed(as_object(request.output_schema))
            if schema is None:
                _ask_for(request.output_schema, messages)
            else:
                output: dict[str, Any] = {"format": {"type": "json_schema", "schema": schema}}
                options["output_config"] = output | (options.get("output_config") or {})
        if self._cache is not None:
            _mark(body, {"type": "ephemeral"} if self._cache == "5m" else {"type": "ephemeral", "ttl": self._cache})
        return body | options | ({"stream": True} if stream else {})


def _tools(request: ModelRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if not request.tools:
        # calls in the conversation are refused where no tools are defined
        called = {b["name"]: None for m in messages for b in m["content"] if b["type"] == "tool_use"}
        stubs = [{"name": name, "input_schema": {"type": "object"}} for name in called]
        return {"tools": stubs, "tool_choice": {"type": "none"}} if stubs else {}
    out: dict[str, Any] = {"tools": [_tool(t) for t in request.tools]}
    chosen: dict[str, Any] | None = None
    if choice in ("auto", "none"):
        chosen = {"type": choice}
    elif choice == "required":
        chosen = {"type": "any"}
    elif choice is not None:
        chosen = {"type": "tool", "name": choice}
    if parallel is not None and choice != "none":
        chosen = {**(chosen or {"type": "auto"}), "disable_parallel_tool_use": not parallel}
    if chosen is not None:
        out["tool_choice"] = chosen
    return out


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = strict_parameters(tool, strict_for_anthropic)
    out = {"name": tool.name, "description": tool.description, "input_schema": schema}
    return {**out, "strict": True} if tool.strict else out


def _ask_for(schema: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    """Ask in words for an answer that fits the schema."""
    asked = next(m for m in reversed(messages) if m["role"] == "user")
    asked["content"].append(_text(request_for_json(schema)))


def _mark(body: dict[str, Any], mark: dict[str, str]) -> None:
    """Mark where the provider shall keep what came until there: three places of the four that it allows.

    The end of the conversation was marked in the call before, too. Without that mark again, a turn of many blocks
    would hide it: the provider looks back no further than 20.
    """
    fixed = body.get("system") or body.get("tools")
    if fixed:
        fixed[-1]["cache_control"] = mark
    asked = [m for m in body["messages"] if m["role"] == "user"]
    for message in asked[-2:]:
        message["content"][-1]["cache_control"] = mark


def _messages(messages: Sequence[Message], server: str) -> list[dict[str, Any]]:
    """The conversation as turns of user and assistant, none of them empty, the user's first."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = "user", _blocks_of(message, server)
        if isinstance(message, AssistantMessage):
            role = "assistant"
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise InputError("there is nothing to ask: the conversation has no message, or only blank ones")
    if turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [_text(_BEGINNING)]})
    for turn in turns:
        if turn["role"] == "user":  # answers to calls come before all else (a stable sort)
            turn["content"].sort(key=_is_no_result)
    last = turns[-1]["content"][-1]
    if turns[-1]["role"] == "assistant" and last["type"] == "text":
        last["text"] = last["text"].rstrip()  # an answer to go on with may not end in a blank
    return turns


def _is_no_result(block: _Block) -> bool:
    return block["type"] != "tool_result"


def _blocks_of(message: Message, server: str) -> list[_Block]:
    if isinstance(message, UserMessage):
        return _blocks(message.content)
    if isinstance(message, AssistantMessage):
        return _said(message, server)
    if isinstance(message, ToolResponseMessage):
        return [_result(r) for r in message.responses]
    return _blocks(message.text) if isinstance(message, InstructionMessage) else []


def _said(message: AssistantMessage, server: str) -> list[_Block]:
    """Thinking where it stood, text between, and calls last."""
    blocks: list[_Block] = []
    text_told = calls_told = 0
    ends = [
        *(_thinking(part, server) for part in message.reasoning),
        (None, len(message.text), len(message.tool_calls)),
    ]
    for thinking, text_end, calls_end in ends:
        blocks += _blocks(message.text[text_told:text_end])
        blocks += map(_call, message.tool_calls[calls_told:calls_end])
        text_told, calls_told = max(text_told, text_end), max(calls_told, calls_end)
        if thinking is not None:
            blocks.append(thinking)
    while blocks and blocks[-1]["type"] in (THINKING, REDACTED):  # a turn may not end in it
        blocks.pop()
    return blocks


def _thinking(part: ReasoningPart, server: str) -> tuple[_Block | None, int, int]:
    """The block, and how much text and how many calls come before it. None where this server did not make it."""
    data = part.data or {}
    after_text, after_calls = data.get("after", (0, 0))
    if data.get("server", server) != server:
        return None, 0, 0
    if data.get("type") == THINKING:
        return {"type": THINKING, "thinking": part.text, "signature": part.signature or ""}, after_text, after_calls
    if data.get("type") == REDACTED:
        return {"type": REDACTED, "data": data.get("data")}, after_text, after_calls
    return None, 0, 0


def _call(call: ToolCall) -> _Block:
    return {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": arguments_of(call)}


def _result(response: ToolResponse) -> _Block:
    content = _blocks(response.content) or [_text(NO_OUTPUT)]
    block: _Block = {"type": "tool_result", "tool_use_id": _id(response.id), "content": content}
    if response.is_error:
        block["is_error"] = True
    return block


def _id(id: str) -> str:
    """The id in letters that Anthropic takes; other servers also use dots and colons."""
    return re.sub(r"[^a-zA-Z0-9_-]", lambda found: f"_{ord(found[0]):x}_", id)


def _blocks(content: str | list[Part]) -> list[_Block]:
    """The parts as blocks. Blank text is left out: it is refused."""
    if isinstance(content, str):
        return [_text(content)] if content.strip() else []
    return [_part(p) for p in content if not isinstance(p, TextPart) or p.text.strip()]


def _text(text: str) -> _Block:
    return {"type": "text", "text": text}


def _part(part: Part) -> _Block:
    if isinstance(part, TextPart):
        return _text(part.text)
    if isinstance(part, ImagePart):
        return {"type": "image", "source": _source(part)}
    if part.media_type.startswith("image/"):
        return {"type": "image", "source": _source(part)}
    is_text = part.media_type.startswith("text/") or part.media_type == "application/json"
    if part.data is not None and is_text:
        text = part.data.decode("utf-8", "replace")
        block: _Block = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    elif part.media_type == "application/pdf":
        block = {"type": "document", "source": _source(part)}
    else:
        raise InputError(
            f"Anthropic messages take files that are PDF, text or images, and those of text by their data only; "
            f"found {part.media_type!r} by its {'URL' if part.data is None else 'data'}"
        )
    return {**block, "title": part.name} if part.name else block


def _source(part: ImagePart | FilePart) -> dict[str, Any]:
    inline = base64_of(part)
    if inline is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": inline[0], "data": inline[1]}
