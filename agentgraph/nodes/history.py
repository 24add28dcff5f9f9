"""A conversation that the strictest provider takes: each call answered once, directly after it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from agentgraph.messages import (
    NO_OUTPUT,
    AssistantMessage,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    sound,
)
from agentgraph.nodes.arguments import ArgumentsError, decode

__all__ = [
    "NOTHING_CHECKED",
    "NOT_FINISHED",
    "Checked",
    "answered",
    "open_calls",
    "repair",
    "sound_message",
    "with_own_ids",
]

NOT_FINISHED = "This call did not finish: the run was stopped before it had an answer."

M = TypeVar("M", bound=Message)


class _Object(msgspec.Struct):
    """Any JSON object: what is in it is checked, and not built."""


_object = msgspec.json.Decoder(_Object)


def repair(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """The conversation made valid, and a sentence for each thing that was repaired (none: it was valid).

    - Each assistant message with calls is followed by one message with their answers, in call order. Answers that
      stand further down are brought there; a call without one is answered as not finished.
    - An answer without a call is left out, and so is an assistant message that says nothing.
    - Call ids are unique. Where they were not, an answer belongs to the last message before it that asks by its id.
    - Arguments are empty or a JSON object. What a tool would take for one is written as one, and what no tool takes
      becomes an empty one. An empty answer gets a fixed text.
    - Text has no half of a surrogate pair: it becomes U+FFFD.
    """
    checked, told = NOTHING_CHECKED.beginning(messages).extended(list(messages))
    return checked.messages, told


def open_calls(messages: Sequence[Message]) -> tuple[AssistantMessage | None, list[ToolCall]]:
    """The message whose calls are under way at the conversation's end, and those of its calls without an answer."""
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        return last, list(last.tool_calls)
    if not isinstance(last, ToolResponseMessage):
        return None, []
    asked = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
    answered = {response.id for response in last.responses}
    return asked, [] if asked is None else [call for call in asked.tool_calls if call.id not in answered]


def answered(messages: Sequence[Message], responses: Sequence[ToolResponse]) -> ToolResponseMessage:
    """The message at the conversation's end that answers calls, with these answers too, in call order.

    It takes the place of the one that is there; calls may be left for the tool node.
    """
    asked, _ = open_calls(messages)
    if asked is None:
        raise ValueError("no message is there whose calls could be answered")
    last = messages[-1]
    before = last if isinstance(last, ToolResponseMessage) else ToolResponseMessage([], id=f"{asked.id}-answers")
    found = {response.id: response for response in (*before.responses, *responses)}
    ordered = [found[call.id] for call in asked.tool_calls if call.id in found]
    return msgspec.structs.replace(before, responses=ordered)


class Checked:
    """A conversation that is known to be valid, so that only what follows it needs a look."""

    __slots__ = ("_ids", "messages")

    def __init__(self, messages: list[Message], ids: dict[str, int]) -> None:
        self.messages: list[Message] = messages
        # Each call's id, with the place of the message that asks. Shared with all that was extended from this one,
        # which adds to it: what stands further down than `messages` goes is not this conversation's.
        self._ids = ids

    def beginning(self, messages: Sequence[Message]) -> Checked:
        """This conversation where the messages begin with it, else one of no messages."""
        # quick: lists are compared by identity first
        return self if self.messages and messages[: len(self.messages)] == self.messages else Checked([], {})

    def extended(self, messages: list[Message]) -> tuple[Checked, list[str]]:
        """The messages, which begin with this conversation, made valid, and what was repaired: see `repair`."""
        if _is_valid(messages, len(self.messages), self._ids):
            return Checked(messages, self._ids), []
        repaired, told = _repaired_all(messages)
        ids: dict[str, int] = {}
        _is_valid(repaired, 0, ids)
        return Checked(repaired, ids), told

    def has_call(self, id: str) -> bool:
        """Whether a call of this conversation has the id."""
        return self._ids.get(id, len(self.messages)) < len(self.messages)


NOTHING_CHECKED = Checked([], {})


def _is_valid(messages: list[Message], start: int, ids: dict[str, int]) -> bool:
    """Whether the messages from `start` on are valid, after those before; adds their calls to `ids`.

    What `_repaired_all` would leave as it is, at a fraction of its cost.
    """
    asked: AssistantMessage | None = None
    for place in range(start, len(messages)):
        message = messages[place]
        if not _reads_sound(message):
            return False
        if asked is not None:
            if not isinstance(message, ToolResponseMessage) or not _fits(message.responses, asked.tool_calls):
                return False
            asked = None
        elif isinstance(message, AssistantMessage):
            if message.tool_calls:
                asked = message
                for call in message.tool_calls:
                    if not call.id or call.id in ids or not _is_object(call.arguments):
                        return False
                    ids[call.id] = place
            elif not message.text.strip():
                return False
        elif isinstance(message, ToolResponseMessage):
            return False
    return asked is None


def _repaired_all(messages: list[Message]) -> tuple[list[Message], list[str]]:
    told: list[str] = []
    result: list[Message] = []
    ids: set[str] = set()
    paired = _Paired()
    sound_ones = [sound_message(m) for m in messages]
    for place, message in enumerate(sound_ones):
        if message is not messages[place]:
            told.append(f"mended half a surrogate pair in message {message.id!r}")
        if isinstance(message, ToolResponseMessage):
            told += paired.left_out(place, message)
        elif not isinstance(message, AssistantMessage):
            result.append(message)
        elif message.tool_calls:
            calls = [_repaired(call, ids, told) for call in message.tool_calls]
            same = calls == message.tool_calls
            result.append(message if same else msgspec.structs.replace(message, tool_calls=calls))
            result.append(_answers(message, calls, sound_ones, place, paired, told))
        elif message.text.strip():
            result.append(message)
        else:
            told.append(f"left out assistant message {message.id!r}, which says nothing")
    return result, told


class _Paired:
    """Which answers have found their call, by place, and which messages with answers live on."""

    def __init__(self) -> None:
        self.responses: set[tuple[int, int]] = set()
        self.homes: set[int] = set()
        self.whole: set[int] = set()

    def left_out(self, place: int, message: ToolResponseMessage) -> list[str]:
        """A sentence for each answer of this message that no call took: those before it have had their turn."""
        if place in self.whole:
            return []
        if not message.responses:
            return [f"left out message {message.id!r}, which answers nothing"]
        left = [r for k, r in enumerate(message.responses) if (place, k) not in self.responses]
        return [f"left out an answer to call {r.id!r}, which nobody waits for" for r in left]


def _answers(
    message: AssistantMessage,
    calls: list[ToolCall],
    messages: Sequence[Message],
    place: int,
    paired: _Paired,
    told: list[str],
) -> ToolResponseMessage:
    """The answers to this message's calls, one each, in call order. `calls` are the same calls, repaired."""
    following = messages[place + 1] if place + 1 < len(messages) else None
    if isinstance(following, ToolResponseMessage) and _fits(following.responses, calls):
        paired.whole.add(place + 1)
        return following
    before = len(told)
    waiting: dict[str, list[int]] = {}
    for k, call in enumerate(message.tool_calls):
        waiting.setdefault(call.id, []).append(k)
    found: dict[int, ToolResponse] = {}
    home: int | None = None
    for later in range(place + 1, len(messages)):
        if not waiting:
            break
        other = messages[later]
        if isinstance(other, AssistantMessage):
            for call in other.tool_calls:  # servers repeat ids: from here on one means this message's call
                waiting.pop(call.id, None)
        elif isinstance(other, ToolResponseMessage):
            for k, response in enumerate(other.responses):
                if response.id not in waiting:
                    continue
                asked = waiting[response.id]
                found[asked.pop(0)] = response
                if not asked:
                    del waiting[response.id]
                paired.responses.add((later, k))
                if home is None and later not in paired.homes:
                    home = later
    responses = [_response(call, found.get(k), told) for k, call in enumerate(calls)]
    if home is None:
        made = ToolResponseMessage(responses, id=f"{message.id}-answers")
    else:
        paired.homes.add(home)
        made = cast("ToolResponseMessage", messages[home])
        if made.responses != responses:
            made = msgspec.structs.replace(made, responses=responses)
    if found and home != place + 1:
        told.append(f"brought the answers to message {message.id!r} to directly after it")
    elif len(told) == before:
        told.append(f"made the answers to message {message.id!r} fit its calls")
    return made


def _fits(responses: list[ToolResponse], calls: list[ToolCall]) -> bool:
    """Whether these are the answers to the calls, as they should be: the usual, and quick to see."""
    if len(responses) != len(calls):
        return False
    for response, call in zip(responses, calls, strict=True):
        if response.id != call.id or response.name != call.name or not response.content:
            return False
    return True


def _response(call: ToolCall, response: ToolResponse | None, told: list[str]) -> ToolResponse:
    if response is None:
        told.append(f"answered call {call.id!r} of {call.name!r} as not finished")
        return ToolResponse(call.id, call.name, NOT_FINISHED, is_error=True)
    content = response.content
    if not content:
        told.append(f"gave the empty answer to call {call.id!r} a text")
        content = NO_OUTPUT
    if (response.id, response.name, response.content) == (call.id, call.name, content):
        return response
    return msgspec.structs.replace(response, id=call.id, name=call.name, content=content)


def _repaired(call: ToolCall, ids: set[str], told: list[str]) -> ToolCall:
    id, arguments = _own_id(call.id, ids), call.arguments
    if not _is_object(arguments):
        try:
            arguments = msgspec.json.encode(decode(arguments, call.name)).decode()
            told.append(f"wrote the arguments of call {id!r} of {call.name!r} as a JSON object")
        except (ArgumentsError, RecursionError):  # a model may well end in thousands of brackets
            arguments = "{}"
            told.append(f"emptied the arguments of call {id!r} of {call.name!r}, which are no JSON object")
    if id != call.id:
        told.append(f"renamed call {call.id!r} of {call.name!r} to {id!r}: another one has its id")
    elif arguments is call.arguments:
        return call
    return ToolCall(id, call.name, arguments)


def with_own_ids(message: AssistantMessage) -> AssistantMessage:
    """The message with an id of its own for each of its calls; itself where it is so already."""
    ids = {call.id for call in message.tool_calls}
    if len(ids) == len(message.tool_calls) and "" not in ids:
        return message
    ids.clear()
    calls = [ToolCall(_own_id(call.id, ids), call.name, call.arguments) for call in message.tool_calls]
    return msgspec.structs.replace(message, tool_calls=calls)


def _own_id(given: str, ids: set[str]) -> str:
    """The id, or one made of it where it is empty or among `ids`; adds it to them."""
    id, n = given, 1
    while not id or id in ids:
        n += 1
        id = f"{given or 'call'}_{n}"
    ids.add(id)
    return id


def _is_object(text: str) -> bool:
    """Whether a call's arguments are as they should be: empty or a JSON object."""
    if text == "" or text == "{}":
        return True
    try:
        _object.decode(text)
    except (msgspec.DecodeError, RecursionError, TypeError):  # the last: not even a text
        return False
    return True


def sound_message(message: M) -> M:
    """The message without halves of surrogate pairs in its text; itself where it has none."""
    return message if _reads_sound(message) else _mended(message)


def _reads_sound(message: Message) -> bool:
    """Whether all that a model gets to read of it is sound."""
    if isinstance(message, ToolResponseMessage):
        return all(_is_sound(response.content) and _is_sound(response.id) for response in message.responses)
    if isinstance(message, UserMessage):
        return _is_sound(message.content)
    if not _is_sound(message.text):
        return False
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls:
            if not (_is_sound(call.arguments) and _is_sound(call.name) and _is_sound(call.id)):
                return False
        for part in message.reasoning:
            if not _is_sound(part.text):
                return False
    return True


def _is_sound(content: str | list[Part]) -> bool:
    if isinstance(content, str):
        if not content.isascii():
            try:
                content.encode()
            except UnicodeEncodeError:
                return False
        return True
    return all(_is_sound(part.text) for part in content if isinstance(part, TextPart))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[Any]", value)]
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: _mended(getattr(value, name)) for name in value.__struct_fields__})
    return value
