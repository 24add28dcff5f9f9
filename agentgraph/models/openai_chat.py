"""OpenAI's chat completions, and every server that speaks them (`base_url`)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Unpack

import msgspec

from agentgraph.errors import ConfigError, InputError
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    InstructionMessage,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.assemble import ChatAssembler
from agentgraph.models.client import ClientOptions, HttpModel, new_call_id
from agentgraph.models.closed_schema import strict_for_openai, strict_parameters
from agentgraph.models.content import data_url, is_strict
from agentgraph.models.http import Assembler
from agentgraph.models.json_mode import JsonModeAssembler, as_object, is_object, rewrite
from agentgraph.models.protocol import ModelRequest, ToolSpec

__all__ = ["OpenAIChat"]


class OpenAIChat(HttpModel):
    """A model behind OpenAI's chat-completions protocol. Safe to share between tasks, threads and event loops.

    `base_url` (or OPENAI_BASE_URL) names another server, `api_key` (or OPENAI_API_KEY) the key; a server of
    one's own needs none. `tool_mode="json"` is for models without native tool calling: tools are described in
    the prompt, and the reply is held to a JSON schema; after `json_rounds` rounds of tools without a word of
    the user only an answer is accepted, so that a small model's loop ends.

    `options` go with each request (`temperature`, `max_tokens`); a request's own override them.
    `native_output_schema` tells whether a node may send an `output_schema` as `response_format`, and need not put it
    in the prompt; None: where the server is OpenAI's own (others may then call no tools, as llama.cpp), or with
    `tool_mode="json"`. The other options are those of `ClientOptions`.

    A use::

        async with OpenAIChat("gpt-4.1-mini") as model:
            response = await model.generate(ModelRequest(messages=[UserMessage("Hi")]))

    Without `async with`, connections are closed when their event loop ends.
    """

    DEFAULT_URL: ClassVar[str] = "https://api.openai.com/v1"
    URL_VARIABLE: ClassVar[str] = "OPENAI_BASE_URL"
    KEY_VARIABLE: ClassVar[str] = "OPENAI_API_KEY"

    def __init__(
        self,
        model: str,
        *,
        tool_mode: Literal["native", "json"] = "native",
        json_rounds: int = 8,
        **common: Unpack[ClientOptions],
    ) -> None:
        if tool_mode not in ("native", "json"):
            raise ConfigError(f"OpenAIChat(tool_mode=...) must be 'native' or 'json'; found {tool_mode!r}")
        if json_rounds < 0:
            raise ConfigError(f"OpenAIChat(json_rounds=...) must not be negative; found {json_rounds!r}")
        if common.get("native_output_schema") is None and tool_mode == "json":
            common["native_output_schema"] = True
        self._json_rounds = json_rounds if tool_mode == "json" else None
        super().__init__(model, **common)

    def _assembler(self, request: ModelRequest) -> Assembler:
        chat = ChatAssembler(self._where, new_call_id, request.message_id)
        schema = request.output_schema
        wrapped = schema is not None and not is_object(schema)
        if wrapped or (self._json_rounds is not None and request.tools):
            return JsonModeAssembler(chat, new_call_id)
        return chat

    def _path(self, *, stream: bool) -> str:  # noqa: ARG002  # one for both
        return "/chat/completions"

    def _protocol_head(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        if self._json_rounds is not None:
            request = rewrite(request, self._json_rounds)
        elif request.output_schema is not None:
            request = msgspec.structs.replace(request, output_schema=as_object(request.output_schema))
        body: dict[str, Any] = {"model": self._model, "messages": _messages(request.system, request.messages)}
        # "none" with tools listed makes some servers leak calls as text
        if request.tools and request.tool_choice != "none":
            body["tools"] = [_tool(t) for t in request.tools]
            if request.tool_choice in ("auto", "required"):
                body["tool_choice"] = request.tool_choice
            elif request.tool_choice is not None:
                body["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        if request.output_schema is not None:
            body["response_format"] = _response_format(request.output_schema)
        body |= {**self._options, **request.options}
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
        return body


def _tool(tool: ToolSpec) -> dict[str, Any]:
    parameters = strict_parameters(tool, strict_for_openai)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {**function, "strict": True} if tool.strict else function}


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": "answer", "schema": schema}
    if is_strict(schema):
        inner["strict"] = True
    return {"type": "json_schema", "json_schema": inner}


def _messages(system: SystemMessage | None, messages: Sequence[Message]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if system is not None:
        out.append({"role": "system", "content": system.text})
    for message in messages:
        if isinstance(message, UserMessage):
            out.append({"role": "user", "content": _content(message.content)})
        elif isinstance(message, AssistantMessage):
            # never null: llama-cpp-python refuses it
            encoded: dict[str, Any] = {"role": "assistant", "content": message.text}
            if message.tool_calls:
                encoded["tool_calls"] = [
                    {
                        "id": c.id,
                        "type": "function",
                        "function": {"name": c.name, "arguments": c.arguments if c.arguments.strip() else "{}"},
                    }
                    for c in message.tool_calls
                ]
            out.append(encoded)
        elif isinstance(message, ToolResponseMessage):
            out.extend(_tool_messages(message))
        elif isinstance(message, InstructionMessage):
            out.append({"role": "user", "content": message.text})
        else:
            out.append({"role": "system", "content": message.text})
    # the system prompt stands first, wherever in the history it was found (a stable sort)
    out.sort(key=lambda m: m["role"] != "system")
    return out


def _tool_messages(message: ToolResponseMessage) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for response in message.responses:
        out.append({"role": "tool", "tool_call_id": response.id, "content": response.text})
        if not isinstance(response.content, str):
            rest = [p for p in response.content if not isinstance(p, TextPart)]
            if rest:
                shown.append({"type": "text", "text": f"From the answer of {response.name} ({response.id}):"})
                shown.extend(_part(p) for p in rest)
    if shown:  # the protocol's tool message takes text only
        out.append({"role": "user", "content": shown})
    return out


def _content(content: str | list[Part]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_part(p) for p in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    if part.data is None:
        raise InputError("OpenAI chat completions take no file by its URL: give FilePart(data=...)")
    if part.media_type.startswith("audio/"):
        kind = part.media_type.removeprefix("audio/").replace("mpeg", "mp3")
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(part.data).decode(), "format": kind}}
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data_url(part)}}
