"""Tool calling for models that have none: the reply is held to a JSON schema, and read back as calls or text.

Rules of this file: values in, values out; no I/O, no ids of its own.
Found by trying it on a model of 135M parameters: a description of the tools alone makes it invent calls, and
call again after each result. A few worked turns with tools of other names, as real messages before the
conversation, make it call what is needed, twice where two things are asked, and answer after the results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from agentgraph.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
    sound,
)
from agentgraph.models.assemble import StreamAssembler
from agentgraph.models.protocol import Delta, ModelRequest, ModelResponse, ToolSpec

__all__ = ["JsonModeAssembler", "as_object", "is_object", "rewrite"]

MAX_STRING = 1000
"""Bound of strings that have none of their own: a small model rambles until it is stopped."""
MAX_ITEMS = 20
MAX_CALLS = 8


def _exchange(question: str, calls: list[tuple[str, dict[str, str], str]], answer: str) -> list[Message]:
    made = [ToolCall(f"example_{i}", name, json.dumps(arguments)) for i, (name, arguments, _) in enumerate(calls)]
    messages: list[Message] = [UserMessage(id="example", content=question)]
    if made:
        messages.append(AssistantMessage(id="example", tool_calls=made))
        results = "\n".join(f"Result of {name}: {result}" for name, _, result in calls)
        messages.append(UserMessage(id="example", content=results))
    messages.append(AssistantMessage(id="example", text=answer))
    return messages


_EXAMPLES = [
    *_exchange("Hi!", [], "Hi, how can I help you?"),
    *_exchange(
        "How many letters has the word apple?",
        [("count_letters", {"word": "apple"}, "5")],
        "The word apple has 5 letters.",
    ),
    *_exchange(
        "Who wrote Emma, and how many letters has the word pear?",
        [("find_author", {"title": "Emma"}, "Jane Austen"), ("count_letters", {"word": "pear"}, "4")],
        "Emma was written by Jane Austen, and pear has 4 letters.",
    ),
    *_exchange(
        "How many letters has the word plum, and who wrote Ivanhoe?",
        [("count_letters", {"word": "plum"}, "4"), ("find_author", {"title": "Ivanhoe"}, "Walter Scott")],
        "Plum has 4 letters, and Ivanhoe was written by Walter Scott.",
    ),
]


def rewrite(request: ModelRequest, rounds: int) -> ModelRequest:
    """The same request for a model that knows no tools: they stand in the system prompt, the reply in a schema.

    Once tools have answered `rounds` times since the user spoke, only an answer is accepted.
    """
    if not request.tools:
        schema = request.output_schema and as_object(request.output_schema)
        return msgspec.structs.replace(request, messages=_plain(request.messages, as_json=False), output_schema=schema)
    return msgspec.structs.replace(
        request,
        system=SystemMessage(_prompt(request.system.text if request.system else "", request.tools)),
        messages=_plain([*_EXAMPLES, *request.messages], as_json=True),
        tools=[],
        output_schema=_reply(request, rounds),
    )


def is_object(schema: dict[str, Any]) -> bool:
    """Whether what the schema describes is a JSON object."""
    return _root(schema).get("type") == "object"


def as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with an object at its root, as OpenAI wants it; any other value stands in `{"answer": ...}`."""
    root = _root(schema)
    if root.get("type") == "object":
        return root
    return _with_definitions(_object(answer={k: v for k, v in root.items() if k != "$defs"}), root.get("$defs", {}))


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself where its root is only a reference to a definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name)
    return schema if definition is None else {**definition, "$defs": schema["$defs"]}


def _reply(request: ModelRequest, rounds: int) -> dict[str, Any]:
    """The schema of a reply: calls, or an answer."""
    definitions: dict[str, Any] = {}
    choice = request.tool_choice or "auto"
    tools = [t for t in request.tools if t.name == choice] or request.tools
    kinds = [_object(name={"const": t.name}, arguments=_bounded(_parameters(t), t.name, definitions)) for t in tools]
    most = 1 if request.parallel_tool_calls is False else MAX_CALLS
    calls = _object(tool_calls={"type": "array", "minItems": 1, "maxItems": most, "items": _one_of(kinds)})
    answer = _object(answer=_bounded(request.output_schema or {"type": "string"}, "answer", definitions))
    done = sum(isinstance(m, ToolResponseMessage) for m in request.messages[_turn(request.messages) :])
    if choice == "none" or done >= rounds:
        reply = answer
    elif done > 0:
        # what comes first is what some servers prefer; after results the answer should be at hand
        reply = _one_of([answer, calls])
    else:
        reply = _one_of([calls, answer]) if choice == "auto" else calls
    return _with_definitions(reply, definitions)


def _prompt(system: str, tools: Sequence[ToolSpec]) -> str:
    lines = [f"{system or 'You are a helpful assistant.'} You reply in JSON.", "Tools:"]
    for tool in tools:
        arguments = json.dumps(_parameters(tool).get("properties", {}), ensure_ascii=False)
        lines.append(f"- {tool.name}: {' '.join(tool.description.split()).rstrip('.')}. Arguments: {arguments}")
    lines.append(
        'To use tools reply {"tool_calls": [{"name": "...", "arguments": {...}}]}. '
        'To answer the user reply {"answer": "..."}.'
    )
    return "\n".join(lines)


def _plain(messages: Sequence[Message], *, as_json: bool) -> list[Message]:
    """The conversation without tool roles: calls as the JSON they came as, results as the user's text.

    With `as_json` answers are told as the JSON that is asked for.
    """
    plain: list[Message] = []
    for message in messages:
        if isinstance(message, AssistantMessage) and message.tool_calls:
            calls = [{"name": c.name, "arguments": _arguments(c.arguments)} for c in message.tool_calls]
            plain.append(AssistantMessage(id=message.id, text=json.dumps({"tool_calls": calls}, ensure_ascii=False)))
        elif isinstance(message, AssistantMessage) and as_json:
            plain.append(AssistantMessage(id=message.id, text=json.dumps({"answer": message.text}, ensure_ascii=False)))
        elif isinstance(message, ToolResponseMessage):
            text = "\n".join(f"{'Error' if r.is_error else 'Result'} of {r.name}: {r.text}" for r in message.responses)
            parts = [p for r in message.responses if not isinstance(r.content, str) for p in r.content]
            images = [p for p in parts if not isinstance(p, TextPart)]
            plain.append(UserMessage(id=message.id, content=[TextPart(text), *images] if images else text))
        else:
            plain.append(message)
    return plain


class JsonModeAssembler:
    """Turns a JSON reply into deltas: an answer's text while it comes, calls when they are whole."""

    def __init__(self, inner: StreamAssembler, new_call_id: Callable[[], str]) -> None:
        self._inner = inner
        self._new_call_id = new_call_id
        self._scanner = _AnswerScanner()

    @property
    def done(self) -> bool:
        """The end mark was seen."""
        return self._inner.done

    @property
    def finished(self) -> bool:
        """The answer is whole."""
        return self._inner.finished

    @property
    def partial(self) -> str:
        """The answer's text so far."""
        return self._scanner.told

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Take the stream's next bytes and give the pieces that they complete."""
        return filter(None, map(self._read, self._inner.feed(chunk)))

    def finish(self) -> list[Delta]:
        """The stream is over: the rest, and last the whole message."""
        return self._end(self._inner.finish())

    def whole(self, body: bytes) -> list[Delta]:
        """The reply that came in one piece."""
        return self._end(self._inner.whole(body))

    def _read(self, delta: Delta) -> Delta | None:
        if not delta.text:
            return delta
        text = self._scanner.feed(delta.text)
        return Delta(text) if text else None

    def _end(self, deltas: list[Delta]) -> list[Delta]:
        *rest, last = deltas
        out = list(filter(None, map(self._read, rest)))
        response = cast("ModelResponse", last.response)
        message = _message(response.message, self._new_call_id)
        told = self._scanner.told
        if not message.text.startswith(told):  # an answer that was given twice: what was told holds
            message = msgspec.structs.replace(message, text=told)
        if len(message.text) > len(told):
            out.append(Delta(message.text.removeprefix(told)))
        if not response.message.tool_calls:  # else they are the server's own, and told
            for index, call in enumerate(message.tool_calls):
                out.append(Delta(index=index, call_id=call.id, name=call.name, arguments=call.arguments))
        out.append(Delta(usage=message.usage, response=msgspec.structs.replace(response, message=message)))
        return out


def _message(message: AssistantMessage, new_call_id: Callable[[], str]) -> AssistantMessage:
    """The model's JSON reply as an ordinary message: text, or tool calls.

    A reply that is no such JSON (a server that does not enforce the schema) stands as text; one that the
    output limit cut keeps the text of its answer, and has no calls. The same call said again is not made again:
    a small model repeats itself until it is stopped.
    """
    value = _json_in(message.text)
    told = dict.fromkeys((name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in _calls_in(value))
    calls = [ToolCall(new_call_id(), sound(name), sound(arguments)) for name, arguments in told]
    if not calls:
        return msgspec.structs.replace(message, text=sound(_answer_in(value, message.text)))
    finish = "tool_calls" if message.finish_reason in ("stop", None) else message.finish_reason
    text = sound(_answer_in(value, ""))
    return msgspec.structs.replace(message, text=text, tool_calls=calls, finish_reason=finish)


_OPENING = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
# a piece of a JSON string that ends neither inside an escape nor between the two halves of a surrogate pair
_STRING_PIECE = re.compile(
    r"""(?: [^"\\] | \\[^u] | \\u(?![dD][89abAB])[0-9a-fA-F]{4} | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4} )*""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"""\\(["\\/bfnrtu]?)""")


class _AnswerScanner:
    """Finds the text of `{"answer": "...` while it grows. Never tells half an escape."""

    def __init__(self) -> None:
        self.told = ""
        self._held = ""
        self._open = False
        self._over = False

    def feed(self, text: str) -> str:
        if self._over:
            return ""
        self._held += text
        if not self._open:
            opening = _OPENING.match(self._held)
            if opening is None:
                # an opening is short: what is longer is something else, and is read when it is whole
                self._over = len(self._held.strip()) > 64 or not '{"answer":"'.startswith(re.sub(r"\s", "", self._held))
                return ""
            self._open = True
            self._held = self._held[opening.end() :]
        piece = _STRING_PIECE.match(self._held)
        end = piece.end() if piece else 0
        raw, self._held = self._held[:end], self._held[end:]
        self._over = self._held.startswith('"')
        # a backslash that is no escape (a path of Windows) stands for itself
        raw = _ESCAPE.sub(lambda escape: escape[0] if escape[1] else r"\\", raw)
        new: str = sound(json.loads(f'"{raw}"', strict=False))
        self.told += new
        return new


def _json_in(text: str) -> Any:
    text = text.strip()
    fence = re.match(r"```(?:json)?\s*(.*?)\s*(?:```)?$", text, re.DOTALL)
    if fence:
        text = fence[1]
    try:
        return json.JSONDecoder(strict=False).raw_decode(text)[0]
    except (ValueError, RecursionError):  # a model may well go on with brackets until it is stopped
        return None


def _calls_in(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, Any]", value)
    listed: Any = fields.get("tool_calls", fields.get("tool_call"))
    if listed is None and "name" in fields and "arguments" in fields:
        listed = fields
    calls: list[tuple[str, Any]] = []
    for call in cast("list[Any]", listed) if isinstance(listed, list) else [listed]:
        if isinstance(call, dict) and isinstance(cast("dict[str, Any]", call).get("name"), str):
            call = cast("dict[str, Any]", call)
            arguments = call.get("arguments")
            calls.append((call["name"], _arguments(arguments) if isinstance(arguments, str) else arguments or {}))
    return calls


def _answer_in(value: Any, text: str) -> str:
    if isinstance(value, dict) and "answer" in value:
        answer = cast("dict[str, Any]", value)["answer"]
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    if value is None:
        scanner = _AnswerScanner()
        scanner.feed(text)
        return scanner.told or text
    return text


def _arguments(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return {}


def _turn(messages: Sequence[Message]) -> int:
    """Where the present turn begins: after the last message that neither model nor tool wrote."""
    for i in range(len(messages) - 1, -1, -1):
        if not isinstance(messages[i], AssistantMessage | ToolResponseMessage):
            return i + 1
    return 0


def _parameters(tool: ToolSpec) -> dict[str, Any]:
    return tool.parameters or {"type": "object", "properties": {}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _one_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _with_definitions(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "$defs": definitions} if definitions else schema


def _bounded(node: Any, prefix: str, definitions: dict[str, Any]) -> Any:
    """The schema with bounds on strings and arrays, and its definitions moved to where references will find them."""
    if isinstance(node, list):
        return [_bounded(item, prefix, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", node).items():
        if key in ("$defs", "definitions") and isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                definitions[f"{prefix}.{name}"] = _bounded(inner, prefix, definitions)
        elif key == "$ref" and isinstance(value, str):
            out[key] = re.sub(r"^#/(?:\$defs|definitions)/", lambda _: f"#/$defs/{prefix}.", value)
        elif key in ("enum", "const", "default", "examples", "required"):
            out[key] = value
        elif key in ("properties", "patternProperties") and isinstance(value, dict):  # names, not keywords
            out[key] = {n: _bounded(v, prefix, definitions) for n, v in cast("dict[str, Any]", value).items()}
        else:
            out[key] = _bounded(value, prefix, definitions)
    kinds = out.get("type")
    kinds = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
    if "string" in kinds and not out.keys() & {"maxLength", "enum", "const", "format", "pattern"}:
        out["maxLength"] = MAX_STRING
    if "array" in kinds and "maxItems" not in out:
        out["maxItems"] = max(MAX_ITEMS, out.get("minItems", 0))
    return out
