"""Lists that grow at the end."""

from __future__ import annotations

from typing import Any

from agentgraph.errors import StrategyError, listed
from agentgraph.strategies.markers import MARKERS, RemoveAll, RemoveByHash, RemoveMessage, RewriteMessages
from agentgraph.strategies.protocol import UNSET


class Append:
    """A list grows by the update: a list's items one by one, anything else as one item.

    Remove markers in an update take items away; removing what is not there is an error.
    """

    container = list

    def merge(self, current: Any, update: Any) -> list[Any]:
        """Return a new list. Raises `StrategyError` where `current` is no list or a marker finds nothing."""
        # unknown to the checker, and not cast: this is done for each branch of a fan-out, and a cast is a call
        added: list[Any] = update if isinstance(update, list) else [update]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(current, list):
            held: list[Any] = current  # pyright: ignore[reportUnknownVariableType]
        elif current is UNSET or current is None:
            held = []
        else:
            raise StrategyError(f"{type(self).__name__} needs a list to add to, found {type(current).__name__}")
        return held + added if MARKERS.isdisjoint(map(type, added)) else self._one_by_one(held, added)

    def empty(self) -> list[Any]:
        """The key starts as an empty list."""
        return []

    def _one_by_one(self, held: list[Any], added: list[Any]) -> list[Any]:
        result = list(held)
        for item in added:
            if isinstance(item, RewriteMessages):
                raise StrategyError("RewriteMessages is for keys with the strategy Messages")
            if isinstance(item, (RemoveMessage, RemoveByHash, RemoveAll)):
                result = remove(result, item)
            else:
                result.append(item)
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def remove(items: list[Any], marker: RemoveMessage | RemoveByHash | RemoveAll) -> list[Any]:
    """The items without what `marker` names. Raises `StrategyError` where it names nothing."""
    if isinstance(marker, RemoveAll):
        return []
    if isinstance(marker, RemoveMessage):
        kept = [i for i in items if getattr(i, "id", None) != marker.id]
        if len(kept) == len(items):
            ids = [i.id for i in items if hasattr(i, "id")]
            raise StrategyError(f"RemoveMessage({marker.id!r}) names nothing that is there; ids: {listed(ids)}")
        return kept
    kept = [i for i in items if not marker.matches(i)]
    if len(kept) == len(items):
        raise StrategyError(f"RemoveByHash names nothing that is there: {marker.message!r:.200}")
    return kept
