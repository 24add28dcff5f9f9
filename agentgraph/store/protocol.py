"""What remembers across threads: the contract of a store of items.

An item is a JSON object under a key in a namespace, such as `("users", "42", "notes")`. The rules, which
`agentgraph.testing.store_suite` holds a store to:
- A namespace is a tuple of texts, one at least and 32 at most. A key and each part of a namespace are texts that are
  not empty and have no control character; the key has at most 1,024 bytes, and so has the namespace.
- A value is what JSON can hold: it comes back equal and with its types, and shares nothing with what was given.
- An item whose time is over is not there, whether it has been removed yet or not. Each write removes a few such items.
- A write happens as a whole or not at all, and is stored when the call returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, Self, runtime_checkable

import msgspec

__all__ = ["Item", "Namespace", "Order", "Put", "Store"]

Namespace = tuple[str, ...]

Order = Literal["key", "newest", "oldest"]
"""By namespace and key, character by character; or by when an item was last written."""


class Item(msgspec.Struct, frozen=True):
    """What is stored under a key."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    created: float
    """When there was nothing by this key before: seconds since 1970."""
    changed: float
    """When it was written last: seconds since 1970."""
    expires: float | None
    """When it ends: seconds since 1970, or None."""
    version: int
    """Another number after each write, never used twice in a store."""


class Put(msgspec.Struct, frozen=True):
    """One of several items to write."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any]
    ttl: float | None = None
    """Seconds until it ends; None: it stays."""


@runtime_checkable
class Store(Protocol):
    """A store of items. Used by `async with`; safe to share between tasks, runs and graphs.

    All methods raise `StoreError` where the store fails, and `ConfigError` for a namespace, key, value or filter that
    cannot be. After cancellation what was under way is stored wholly or not at all.
    """

    async def __aenter__(self) -> Self:
        """Open the store; what an older version of this library has left is brought up to date."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        ...

    async def put(self, namespace: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None) -> Item:
        """Write an item, in place of the one by that key if there is one.

        It ends after `ttl` seconds, or stays with None, whatever was said of the one before.
        """
        ...

    async def put_if(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, version: int, ttl: float | None = None
    ) -> Item | None:
        """Write an item if the one that is there has this version still, or with 0 if there is none.

        None where that is not so: somebody else has written or removed it, and nothing was done.
        """
        ...

    async def put_many(self, items: Iterable[Put]) -> None:
        """Write several items: all of them or none. Of two with the same key the later one counts."""
        ...

    async def get(self, namespace: Namespace, key: str) -> Item | None:
        """The item; None where there is none."""
        ...

    async def delete(self, namespace: Namespace, key: str) -> bool:
        """Remove an item. Tells whether there was one."""
        ...

    async def clear(self, prefix: Namespace) -> int:
        """Remove all items whose namespaces begin with `prefix`, and tell how many there were. `()` means all."""
        ...

    async def search(
        self,
        prefix: Namespace = (),
        *,
        filter: Mapping[str, Any] | None = None,
        order: Order = "key",
        limit: int = 100,
        offset: int = 0,
    ) -> list[Item]:
        """Items whose namespaces begin with `prefix`, whose values match `filter`: `limit` of them after `offset`.

        A filter names fields of the value, and what holds for each: `{"kind": "note", "score": {"$gte": 3}}`. All of
        it must hold. A plain value means equality; else it is an object of `$eq`, `$ne`, `$in` (a list of values),
        `$gt`, `$gte`, `$lt` and `$lte` (a number or a text). Values compare as JSON: numbers by what they are worth
        as they are written, so that 1 equals 1.0; texts by their characters' code points; true is no number. Only
        numbers, and only texts, have an order among themselves. A field that is not there counts as null.
        """
        ...

    async def namespaces(
        self, prefix: Namespace = (), *, depth: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[Namespace]:
        """Namespaces that begin with `prefix` and have items: in order, each once, and cut to `depth` parts."""
        ...

    async def sweep(self) -> int:
        """Remove all items whose time is over, and tell how many there were."""
        ...
