"""What the strictest provider refuses: each rule is one that some server answers with status 400."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.protocol import ModelError, ModelRequest

__all__ = ["check_request"]


def check_request(request: ModelRequest) -> None:
    """Raise `ModelError` with status 400 where the strictest provider would refuse the request.

    - There is a message; the first is the user's, and the last is not the assistant's.
    - Calls are answered by the message directly after theirs, each once and in their order; nothing else is answered.
    - The ids of calls are unique, their names 1 to 64 letters, digits, "_" and "-", their arguments empty or a JSON
      object.
    - No message and no answer is empty, and all text can be encoded. System messages stand in `request.system` only.

    A use::

        def answer(request):
            check_request(request)
            return "well"


        model = FunctionModel(answer)
    """
    messages = request.messages
    if not messages:
        _refuse("there is no message")
    if not isinstance(messages[0], (UserMessage, InstructionMessage)):
        _refuse(f"the first message is a {type(messages[0]).__name__}, and not the user's")
    if isinstance(messages[-1], AssistantMessage):
        _refuse("the last message is the assistant's: there is nothing to answer")
    ids: set[str] = set()
    asked: AssistantMessage | None = None
    for place, message in enumerate(messages):
        if isinstance(message, ToolResponseMessage):
            if asked is None:
                _refuse(f"message {place} answers calls, and none stand before it")
            if [r.id for r in message.responses] != [c.id for c in asked.tool_calls]:
                _refuse(f"message {place} answers {[r.id for r in message.responses]}, not {_ids(asked)}")
            asked = None
        elif asked is not None:
            _refuse(f"message {place} stands where the answers to {_ids(asked)} belong")
        if isinstance(message, SystemMessage):
            _refuse(f"message {place} is a system message")
        if isinstance(message, AssistantMessage) and message.tool_calls:
            asked = message
            for call in message.tool_calls:
                _check_call(place, call, ids)
        _check_content(place, message)
    if asked is not None:
        _refuse(f"the calls {_ids(asked)} have no answers")


def _check_call(place: int, call: ToolCall, ids: set[str]) -> None:
    id, arguments = call.id, call.arguments
    if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", call.name):
        _refuse(f"message {place}: no tool can have the name of call {id!r}: {call.name!r:.80}")
    if not id or id in ids:
        _refuse(f"message {place}: the id {id!r} of a call is empty or not unique")
    ids.add(id)
    if arguments:
        try:
            msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.DecodeError as error:
            _refuse(f"message {place}: the arguments of call {id!r} are no JSON object: {error}")


def _check_content(place: int, message: Message) -> None:
    if isinstance(message, ToolResponseMessage):
        contents: list[Any] = [r.content for r in message.responses]
    elif isinstance(message, UserMessage):
        contents = [message.content]
    else:
        contents = [message.text] if not (isinstance(message, AssistantMessage) and message.tool_calls) else []
    for content in contents:
        if not content or (isinstance(content, str) and not content.strip()):
            _refuse(f"message {place} is empty")
    try:
        msgspec.json.encode(message)
    except UnicodeEncodeError:
        _refuse(f"message {place} has half a surrogate pair")


def _ids(message: AssistantMessage) -> list[str]:
    return [call.id for call in message.tool_calls]


def _refuse(why: str) -> NoReturn:
    raise ModelError(f"the server refuses the request: {why}", status_code=400)
