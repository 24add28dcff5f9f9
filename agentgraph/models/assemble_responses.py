"""Events of OpenAI's responses in, deltas and the whole message out.

Rules of this file: those of `assemble`. An item is known by its id, else by its place in the output, else it is the
last one: servers leave out either, and some give a new id in each event. What was told stands; a whole item that
comes later only adds what it goes on with. Items that are neither text nor calls (reasoning, a provider's own tools)
are kept verbatim, for they are sent back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import msgspec

from agentgraph.messages import AssistantMessage, ReasoningPart, ToolCall, Usage, sound
from agentgraph.models.assemble import Growing, StreamAssembler, count_in
from agentgraph.models.errors import ContentFilterError, provider_error
from agentgraph.models.protocol import Delta

__all__ = ["RESPONSES", "ResponsesAssembler"]

RESPONSES = "responses"
"""The key of a message's metadata with the heads of its `items`, in order: what text and calls alone do not tell.

Of a message that is its id and phase, and the `length` of its text; of a call its id. There only where the order
matters: beside items of other types, or where there are several messages. `server` is the only one that takes the
items back: others cannot read them.
"""

# What is read. `Any` stands where servers differ: a field of the wrong type must not cost the answer.


class _Event(msgspec.Struct):
    type: Any = None
    delta: Any = None
    item: Any = None  # its own fields, whatever they are
    item_id: Any = None
    output_index: Any = None
    summary_index: Any = None
    response: Any = None
    error: Any = None


class _Response(msgspec.Struct):
    id: Any = None
    model: Any = None
    status: Any = None
    output: list[Any] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_event_decoder = msgspec.json.Decoder(_Event)
_response_decoder = msgspec.json.Decoder(_Response)

_FINISH = {"max_output_tokens": "length", "max_tokens": "length"}
_ADDED = "response.output_item.added"
_DONE = "response.output_item.done"
_MESSAGE = "message"
_CALL = "function_call"
_HEADS = {_MESSAGE: ("type", "id", "phase"), _CALL: ("type", "id")}


class _Item:
    """One item under way. `index` is a call's place among the calls, `length` how much text of it was told."""

    __slots__ = ("arguments", "call_id", "data", "done", "index", "kind", "length", "name", "said", "told")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.data: dict[str, Any] = {}
        self.done = False
        self.length = 0
        self.said = Growing()
        self.index = 0
        self.call_id = ""
        self.name = ""
        self.arguments = Growing()
        self.told = False

    def head(self) -> dict[str, Any]:
        """What `RESPONSES` has of it."""
        head = {k: self.data[k] for k in _HEADS.get(self.kind, ("type", "id")) if self.data.get(k)}
        return head | {"type": self.kind} | ({"length": self.length} if self.kind == _MESSAGE else {})


class ResponsesAssembler(StreamAssembler):
    """Assembles an answer of OpenAI's responses. `server` is told in what is to go back to it."""

    def __init__(
        self, where: str, new_call_id: Callable[[], str], message_id: str | None = None, *, server: str = ""
    ) -> None:
        super().__init__(where, new_call_id, message_id)
        self._server = server
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_place: dict[int, _Item] = {}
        self._calls: list[_Item] = []
        self._usage: Any = None

    def _event(self, data: str, deltas: list[Delta]) -> None:
        event = self._read(_event_decoder, data)
        kind = event.type
        if kind == "response.output_text.delta":
            self._say(self._item(event, _MESSAGE), event.delta, deltas)
        elif kind == "response.function_call_arguments.delta":
            self._argue(self._item(event, _CALL), event.delta, deltas)
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self._think(self._item(event, "reasoning"), event.delta, deltas)
        elif kind == "response.reasoning_summary_part.added":
            if event.summary_index:
                self._think(self._item(event, "reasoning"), "\n\n", deltas)
        elif kind == "response.refusal.delta":
            self._say(self._item(event, _MESSAGE), event.delta, deltas)
            self._meta["refusal"] = True
        elif kind in (_ADDED, _DONE):
            given: Any = event.item
            if isinstance(given, dict):
                given = cast("dict[str, Any]", given)
                self._take(self._item(event, str(given.get("type")), given), given, deltas, whole=kind == _DONE)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._end(event.response, data, deltas)
            self.done = True
        elif kind == "response.created":
            self._name(event.response)
        elif kind == "error" or event.error is not None:
            raise provider_error(self.where, data)

    def _whole(self, text: str, deltas: list[Delta]) -> None:
        response = self._read(_response_decoder, text)
        if response.error is None and response.output is None:
            self._malformed("the response has no message in it", text)
        self._end(response, text, deltas)

    def _end(self, given: Any, text: str, deltas: list[Delta]) -> None:
        """Take the response as it is at its end. `text` is the JSON that it came in."""
        try:
            response = given if isinstance(given, _Response) else msgspec.convert(given, _Response)
        except msgspec.ValidationError as error:
            self._malformed(f"this is no response ({error})", text)
        if response.error is not None or response.status in ("failed", "cancelled"):
            raise provider_error(self.where, json.dumps({"error": response.error}) if response.error else text)
        if response.status in ("queued", "in_progress"):
            self._malformed(f"the response has not ended ({response.status})", text)
        self._name(response)
        output = [cast("dict[str, Any]", item) for item in response.output or () if isinstance(item, dict)]
        streamed = bool(self._items)
        for place, item in enumerate(output):
            known = self._by_id.get(str(item.get("id")))
            if known is None and len(output) == len(self._items):
                known = self._items[place]
            if known is None and not streamed:
                known = self._open(str(item.get("type")))
            if known is not None and not known.done:
                self._take(known, item, deltas, whole=True)
        self._usage = response.usage
        if response.status == "incomplete":
            why = response.incomplete_details
            reason = cast("dict[str, Any]", why).get("reason") if isinstance(why, dict) else None
            self._finish = _FINISH.get(str(reason), str(reason or "incomplete"))

    def _name(self, response: Any) -> None:
        if isinstance(response, dict):
            response = cast("dict[str, Any]", response)
            named = {"model": response.get("model"), "response_id": response.get("id")}
        elif isinstance(response, _Response):
            named = {"model": response.model, "response_id": response.id}
        else:
            return
        self._meta |= {k: v for k, v in named.items() if v}

    # -- items

    def _item(self, event: _Event, kind: str, given: dict[str, Any] | None = None) -> _Item:
        """The item that an event is about; a new one where it is about none that is known."""
        id = event.item_id if given is None else given.get("id")
        id = id if isinstance(id, str) else ""
        place = event.output_index if isinstance(event.output_index, int) else None
        item = self._by_id.get(id) or (None if place is None else self._by_place.get(place))
        if item is None and place is None and event.type != _ADDED:
            item = next((i for i in reversed(self._items) if i.kind == kind and not i.done), None)
        if item is None:
            item = self._open(kind)
        if id:
            self._by_id[id] = item
        if place is not None:
            self._by_place[place] = item
        return item

    def _open(self, kind: str) -> _Item:
        item = _Item(kind)
        self._items.append(item)
        if kind == _CALL:
            item.index = len(self._calls)
            self._calls.append(item)
        return item

    def _take(self, item: _Item, given: dict[str, Any], deltas: list[Delta], *, whole: bool) -> None:
        """Take what is given of an item: at its beginning, or `whole`."""
        item.data = given
        if item.kind == _CALL:
            self._name_call(item, given, deltas)
            if whole and isinstance(given.get("arguments"), str):
                self._argue(item, _rest(given["arguments"], str(item.arguments)), deltas)
        elif whole and item.kind == _MESSAGE:
            self._take_text(item, _dicts(given.get("content")), deltas)
        elif whole and item.kind == "reasoning":
            parts = _dicts(given.get("summary")) or _dicts(given.get("content"))
            text = "\n\n".join(p["text"] for p in parts if isinstance(p.get("text"), str))
            self._think(item, _rest(text, str(item.said)), deltas)
        if whole:
            item.done = True

    def _take_text(self, item: _Item, parts: list[dict[str, Any]], deltas: list[Delta]) -> None:
        text = ""
        for part in parts:
            piece = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
            if isinstance(piece, str):
                text += piece
            if part.get("type") == "refusal":
                self._meta["refusal"] = True
            if annotations := part.get("annotations"):
                self._meta.setdefault("annotations", []).extend(_dicts(annotations))
        self._say(item, _rest(text, str(item.said)), deltas)

    def _say(self, item: _Item, text: Any, deltas: list[Delta]) -> None:
        if isinstance(text, str) and (text := self._text.add(text)):
            item.said.add(text)
            item.length += len(text)
            deltas.append(Delta(text))

    def _think(self, item: _Item, text: Any, deltas: list[Delta]) -> None:
        if isinstance(text, str) and (text := item.said.add(text)):
            deltas.append(Delta(reasoning=text))

    def _argue(self, item: _Item, text: Any, deltas: list[Delta]) -> None:
        if isinstance(text, str) and (text := item.arguments.add(text)) and item.told:
            deltas.append(Delta(index=item.index, arguments=text))

    def _name_call(self, item: _Item, given: dict[str, Any], deltas: list[Delta]) -> None:
        name, id = given.get("name"), given.get("call_id")
        if item.told or not isinstance(name, str) or not name:
            return
        item.name = sound(name)
        item.call_id = id if isinstance(id, str) else ""
        deltas.append(self._tell(item))

    def _tell(self, item: _Item) -> Delta:
        item.call_id = self._ids.unique(item.call_id)
        item.told = True
        return Delta(index=item.index, call_id=item.call_id, name=item.name, arguments=str(item.arguments))

    # -- the end

    def _held_back(self) -> list[Delta]:
        deltas: list[Delta] = []
        for item in self._calls:
            if not item.done and not item.arguments.pieces:  # whole in its beginning, and nothing came after
                self._argue(item, item.data.get("arguments"), deltas)
            if not item.told:
                deltas.append(self._tell(item))
        return deltas

    def _message(self) -> AssistantMessage:
        text = str(self._text)
        finish = self._finish
        if finish == "content_filter" and not text and not self._calls:
            raise ContentFilterError(f"{self.where}: the provider's filter refused the answer", code=finish)
        if self._calls and finish in (None, "stop"):
            finish = "tool_calls"
        if any(i.kind not in (_MESSAGE, _CALL) for i in self._items) or self._has_phases():
            self._meta[RESPONSES] = {"server": self._server, "items": [item.head() for item in self._items]}
        return AssistantMessage(
            text=text,
            tool_calls=[ToolCall(c.call_id, c.name, str(c.arguments)) for c in self._calls],
            reasoning=[
                ReasoningPart(str(item.said), data=item.data or None)
                for item in self._items
                if item.kind not in (_MESSAGE, _CALL)
            ],
            finish_reason=finish or "stop",
            usage=_usage(self._usage),
            metadata=self._meta,
        )

    def _has_phases(self) -> bool:
        messages = [i for i in self._items if i.kind == _MESSAGE]
        return len(messages) > 1 or any(i.data.get("phase") for i in messages)


def _rest(whole: str, told: str) -> str:
    """What a whole text adds to what was told of it; nothing where it is another text."""
    return whole[len(told) :] if whole.startswith(told) else ""


def _dicts(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        return []
    return [cast("dict[str, Any]", v) for v in cast("list[Any]", values) if isinstance(v, dict)]


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        count_in(usage, "input_tokens"),
        count_in(usage, "output_tokens"),
        count_in(usage, "input_tokens_details", "cached_tokens"),
        count_in(usage, "output_tokens_details", "reasoning_tokens"),
    )
