"""Markers that remove or rewrite: given as (part of) an update to a key with `Append` or `Messages`."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class RemoveMessage(msgspec.Struct, frozen=True, tag="remove", tag_field="marker"):
    """Removes the one item whose `id` this is."""

    id: str


class RemoveByHash(msgspec.Struct, frozen=True, tag="remove_by_hash", tag_field="marker"):
    """Removes every item that says the same as `message`: equal in all fields but the `id`."""

    message: Any

    def matches(self, item: Any) -> bool:
        """Tell whether `item` equals the marked message, ids aside."""
        return _without_id(item) == _without_id(self.message)


class RemoveAll(msgspec.Struct, frozen=True, tag="remove_all", tag_field="marker"):
    """Removes every item. Use the instance `REMOVE_ALL`."""


REMOVE_ALL: Final = RemoveAll()


class RewriteMessages(msgspec.Struct, frozen=True, tag="rewrite", tag_field="marker"):
    """For `Messages`: puts `messages` in the place of those whose ids are in `seen`, at the front.

    Unlike `REMOVE_ALL` it takes nothing away that its writer has not seen: what a sibling added meanwhile follows.
    """

    seen: list[str]
    messages: list[Any]


Marker = RemoveMessage | RemoveByHash | RemoveAll

MARKERS: Final = frozenset[type]({RemoveMessage, RemoveByHash, RemoveAll, RewriteMessages})
"""Their types: `MARKERS.isdisjoint(map(type, items))` asks for all items at once."""


def _without_id(item: Any) -> Any:
    if isinstance(item, msgspec.Struct):
        return type(item), {f: getattr(item, f) for f in item.__struct_fields__ if f != "id"}
    return item
