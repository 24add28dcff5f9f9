"""A conversation: messages are appended, replaced by id, or removed by a marker."""

from __future__ import annotations

from typing import Any, cast

from agentgraph.errors import StrategyError
from agentgraph.strategies.append import remove
from agentgraph.strategies.markers import RemoveAll, RemoveByHash, RemoveMessage, RewriteMessages
from agentgraph.strategies.protocol import UNSET


class MessageList(list[Any]):
    """A conversation that knows the place of each id, so that a turn costs the same however long it is.

    `places` is shared with the lists that this one was made of, and tells of the newest of them: it counts only where
    it has as many ids as the list has messages. An older list makes its own when it is merged into again.
    """

    __slots__ = ("places",)
    places: dict[str, int]

    def known(self) -> dict[str, int] | None:
        """The places, where they are this list's."""
        places: dict[str, int] | None = getattr(self, "places", None)
        return places if places is not None and len(places) == len(self) else None

    def __copy__(self) -> MessageList:
        made = MessageList(self)
        if (places := self.known()) is not None:
            made.places = places
        return made


class Messages:
    """A list of messages. One whose `id` is there already takes the place of the old one, others are appended.

    Nothing is dropped for looking like another: only ids count. An update of several items gives the same
    list as the items one by one. Remove markers: `RemoveMessage(id)`, `RemoveByHash(message)`, `REMOVE_ALL`;
    removing what is not there is an error that names it. `RewriteMessages` rewrites what its writer has seen.
    """

    container = list

    def merge(self, current: Any, update: Any) -> list[Any]:
        """Return a new list. Raises `StrategyError` for an item that is no message or a marker that finds nothing."""
        if current is not UNSET and current is not None and not isinstance(current, list):
            raise StrategyError(f"Messages needs a list to add to, found {type(current).__name__}")
        result = MessageList(cast("list[Any]", current)) if current else MessageList()
        return self._added(result, current.known() if isinstance(current, MessageList) else None, update)

    def grow(self, current: Any, update: Any) -> list[Any]:
        """As `merge`, of a list that nobody else has: it may be changed itself, also where this raises."""
        if isinstance(current, MessageList):
            return self._added(current, current.known(), update)
        return self.merge(current, update)

    def _added(self, result: MessageList, places: dict[str, int] | None, update: Any) -> list[Any]:
        added: list[Any] = cast("list[Any]", update) if isinstance(update, list) else [update]
        for item in added:
            if isinstance(item, (RemoveMessage, RemoveByHash, RemoveAll)):
                result = MessageList(remove(result, item))
                places = None
                continue
            if isinstance(item, RewriteMessages):
                gone = {*item.seen, *(m.id for m in item.messages)}
                result = MessageList([*item.messages, *(m for m in result if m.id not in gone)])
                places = None
                continue
            id = getattr(item, "id", None)
            if not isinstance(id, str):
                raise StrategyError(
                    f"Messages takes messages, found {type(item).__name__}: {item!r:.80}; "
                    f"write agentgraph.messages.UserMessage(...) or another message"
                )
            if places is None:
                places = {m.id: i for i, m in enumerate(result)}
            place = places.get(id)
            if place is None:
                places[id] = len(result)
                result.append(item)
            else:
                result[place] = item
        if places is not None:
            result.places = places
        return result

    def empty(self) -> list[Any]:
        """A conversation starts empty."""
        return []

    def __repr__(self) -> str:
        return "Messages()"
