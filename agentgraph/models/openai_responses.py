"""OpenAI's responses, and every server that speaks them (`base_url`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Unpack
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
from agentgraph.models.assemble_responses import RESPONSES, ResponsesAssembler
from agentgraph.models.client import ClientOptions, HttpModel, new_call_id
from agentgraph.models.closed_schema import strict_for_openai, strict_parameters
from agentgraph.models.content import base64_of, came_as, data_url, is_strict, system_text
from agentgraph.models.http import Assembler
from agentgraph.models.json_mode import JsonModeAssembler, as_object, is_object
from agentgraph.models.protocol import ModelRequest, ToolSpec

__all__ = ["OpenAIResponses"]

# others refuse to be asked for encrypted reasoning
_REASONING_MODEL = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat)|codex)")
_ENCRYPTED = "reasoning.encrypted_content"

_MESSAGE = "message"
_CALL = "function_call"

_Item = dict[str, Any]


class OpenAIResponses(HttpModel):
    """A model behind OpenAI's responses protocol. Safe to share between tasks, threads and event loops.

    `base_url` (or OPENAI_BASE_URL) names another server, `api_key` (or OPENAI_API_KEY) the key; a server of
    one's own needs none. Nothing is stored at the provider (`store` is false unless the options say otherwise): the
    conversation goes with each request, and the reasoning of models that encrypt it goes back as it came, in its
    place among text and calls.

    `options` go with each request (`reasoning`, `temperature`, `max_output_tokens`); a request's own override
    them. `max_tokens` is sent under the name it has here; `tools` are the provider's own (`web_search`), told beside
    the request's; what is said of `text` joins the output schema. `native_output_schema` tells whether a node may
    send an `output_schema` as `text.format`, and need not put it in the prompt; None: where the server is
    OpenAI's own. The other options are those of `ClientOptions`.

    A use::

        async with OpenAIResponses("gpt-5-mini", options={"reasoning": {"summary": "auto"}}) as model:
            response = await model.generate(ModelRequest(messages=[UserMessage("Hi")]))

    Without `async with`, connections are closed when their event loop ends.
    """

    DEFAULT_URL: ClassVar[str] = "https://api.openai.com/v1"
    URL_VARIABLE: ClassVar[str] = "OPENAI_BASE_URL"
    KEY_VARIABLE: ClassVar[str] = "OPENAI_API_KEY"

    def __init__(
        self,
        model: str,
        **common: Unpack[ClientOptions],
    ) -> None:
        super().__init__(model, **common)
        self._server = urlsplit(self._base_url).netloc

    def _assembler(self, request: ModelRequest) -> Assembler:
        responses = ResponsesAssembler(self._where, new_call_id, request.message_id, server=self._server)
        schema = request.output_schema
        return responses if schema is None or is_object(schema) else JsonModeAssembler(responses, new_call_id)

    def _path(self, *, stream: bool) -> str:  # noqa: ARG002  # one for both
        return "/responses"

    def _protocol_head(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"store": False, **self._options, **request.options}
        for name in ("max_tokens", "max_completion_tokens"):
            if name in options:
                options.setdefault("max_output_tokens", options.pop(name))
        items = _input(request.messages, self._server, stored=bool(options["store"]))
        body: dict[str, Any] = {"model": self._model, "input": items}
        if system := system_text(request):
            body["instructions"] = system
        if not options["store"] and (_REASONING_MODEL.match(self._model) or "reasoning" in options):
            body["include"] = [_ENCRYPTED]
        # "none" with tools listed makes some servers leak calls as text
        tools = [] if request.tool_choice == "none" else [_tool(t) for t in request.tools]
        if tools:
            if request.tool_choice in ("auto", "required"):
                body["tool_choice"] = request.tool_choice
            elif request.tool_choice is not None:
                body["tool_choice"] = {"type": "function", "name": request.tool_choice}
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        tools += options.pop("tools", None) or []
        if tools:
            body["tools"] = tools
        if request.output_schema is not None:
            schema = as_object(request.output_schema)
            form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}
            body["text"] = {"format": form, **(options.pop("text", None) or {})}
        return body | options | ({"stream": True} if stream else {})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # strict is said aloud, for here true is the default, and changes what is optional
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": strict_parameters(tool, strict_for_openai),
        "strict": tool.strict,
    }


def _input(messages: Sequence[Message], server: str, *, stored: bool) -> list[_Item]:
    items: list[_Item] = []
    for message in messages:
        if isinstance(message, UserMessage):
            items.append({"role": "user", "content": _content(message.content)})
        elif isinstance(message, AssistantMessage):
            items += _said(message, server, stored=stored)
        elif isinstance(message, ToolResponseMessage):
            items += [_output(r) for r in message.responses]
        elif not isinstance(message, SystemMessage):
            items.append({"role": "user", "content": message.text})
    return items


def _said(message: AssistantMessage, server: str, *, stored: bool) -> list[_Item]:
    """The items that the message came as, in their order, with the text and the calls that it has now."""
    if not message.text and not message.tool_calls:
        return []  # reasoning is refused where nothing follows from it
    heads = came_as(message, RESPONSES, server, "items")
    own = message.reasoning if heads else []  # other servers cannot read it
    kept = [part.data for part in own if part.data is not None and _may_return(part.data, stored=stored)]
    kinds = [h["type"] for h in heads]
    fits = kinds.count(_CALL) == len(message.tool_calls) and (_MESSAGE in kinds or not message.text)
    if not fits or len(kinds) - kinds.count(_CALL) - kinds.count(_MESSAGE) != len(kept):
        # ids are refused beside an item that is missing
        heads = [*({"type": "kept"} for _ in kept), {"type": _MESSAGE}, *({"type": _CALL} for _ in message.tool_calls)]
    texts, calls, others = _texts(message.text, heads), iter(message.tool_calls), iter(kept)
    items: list[_Item] = []
    for head in heads:
        if head["type"] == _CALL:
            items.append(_call(next(calls), head))
        elif head["type"] != _MESSAGE:
            items.append(next(others))
        elif text := next(texts):
            items.append(_message(text, head))
    return items


def _may_return(item: _Item, *, stored: bool) -> bool:
    """Whether the server knows what the item stands for, or is told it by the item."""
    return stored or item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _texts(text: str, heads: list[dict[str, Any]]) -> Iterator[str]:
    """The message's text, shared out as it came; if it was changed, all of it in the last."""
    lengths = [h.get("length", 0) for h in heads if h["type"] == _MESSAGE]
    if sum(lengths) != len(text):
        lengths = [0] * (len(lengths) - 1) + [len(text)]
    start = 0
    for length in lengths:
        yield text[start : start + length]
        start += length


def _message(text: str, head: dict[str, Any]) -> _Item:
    item: _Item = {"type": "message", "role": "assistant", "content": text}
    if "phase" in head:
        item["phase"] = head["phase"]
    if "id" in head:
        item |= {"id": head["id"], "status": "completed"}
        item["content"] = [{"type": "output_text", "text": text, "annotations": []}]
    return item


def _call(call: ToolCall, head: dict[str, Any]) -> _Item:
    arguments = call.arguments if call.arguments.strip() else "{}"
    item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
    return item | ({"id": head["id"]} if "id" in head else {})


def _output(response: ToolResponse) -> _Item:
    parts = response.content
    told = response.text if isinstance(parts, str) or all(isinstance(p, TextPart) for p in parts) else _content(parts)
    return {"type": "function_call_output", "call_id": response.id, "output": told}


def _content(content: str | list[Part]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_part(p) for p in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart) or part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    return _file(part)


def _file(part: FilePart) -> dict[str, Any]:
    if part.media_type.startswith(("audio/", "video/")):
        raise InputError(f"OpenAI responses take no {part.media_type}: OpenAIChat and Gemini do")
    if base64_of(part) is None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": data_url(part)}
