"""A store that lasts as long as its process, for tests and for trying things out."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Self

import msgspec

from agentgraph.store.protocol import Item, Namespace, Order, Put
from agentgraph.store.values import (
    Written,
    checked_key,
    checked_namespace,
    checked_page,
    checked_prefix,
    conditions,
    decoded,
    matches,
    written,
)

__all__ = ["MemoryStore"]

_SWEPT_AT_ONCE = 10


class _Kept(msgspec.Struct, frozen=True):
    namespace: Namespace
    key: str
    value: bytes
    created: float
    changed: float
    expires: float | None
    version: int

    def item(self) -> Item:
        value = decoded(self.value)
        return Item(self.namespace, self.key, value, self.created, self.changed, self.expires, self.version)


class MemoryStore:
    """Keeps items in memory. What the methods do: `Store`. `clock` gives the seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[Namespace, dict[str, _Kept]] = {}
        self._ends: list[tuple[float, int, Namespace, str]] = []
        """A heap. An item that was written anew has its old end in it until that comes, or the heap is made anew."""
        self._most_ends = 64
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass  # what is kept stays for the next block

    async def put(self, namespace: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None) -> Item:
        """See `Store.put`."""
        (one,) = written((Put(namespace, key, value, ttl),))
        with self._lock:
            return self._write(one, self._clock()).item()

    async def put_if(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, version: int, ttl: float | None = None
    ) -> Item | None:
        """See `Store.put_if`."""
        (one,) = written((Put(namespace, key, value, ttl),))
        with self._lock:
            now = self._clock()
            old = self._live(namespace, key, now)
            if version != (0 if old is None else old.version):
                return None
            return self._write(one, now).item()

    async def put_many(self, items: Iterable[Put]) -> None:
        """See `Store.put_many`."""
        good = written(items)
        with self._lock:
            now = self._clock()
            for one in good:
                self._write(one, now)

    async def get(self, namespace: Namespace, key: str) -> Item | None:
        """See `Store.get`."""
        checked_namespace(namespace)
        checked_key(key)
        with self._lock:
            found = self._live(namespace, key, self._clock())
        return None if found is None else found.item()

    async def delete(self, namespace: Namespace, key: str) -> bool:
        """See `Store.delete`."""
        checked_namespace(namespace)
        checked_key(key)
        with self._lock:
            now = self._clock()
            was_there = self._live(namespace, key, now) is not None
            self._remove(namespace, key)
            self._sweep(now, _SWEPT_AT_ONCE)
        return was_there

    async def clear(self, prefix: Namespace) -> int:
        """See `Store.clear`."""
        checked_prefix(prefix)
        with self._lock:
            found = list(self._below(prefix, self._clock()))
            for namespace in [n for n in self._kept if n[: len(prefix)] == prefix]:
                del self._kept[namespace]
        return len(found)

    async def search(
        self,
        prefix: Namespace = (),
        *,
        filter: Mapping[str, Any] | None = None,
        order: Order = "key",
        limit: int = 100,
        offset: int = 0,
    ) -> list[Item]:
        """See `Store.search`."""
        checked_prefix(prefix)
        checked_page(limit, offset, order)
        wanted = conditions(filter)
        with self._lock:
            found = list(self._below(prefix, self._clock()))
        if order == "key":
            found.sort(key=lambda one: (one.namespace, one.key))
        else:
            found.sort(key=lambda one: one.version, reverse=order == "newest")
        good = (item for one in found if matches((item := one.item()).value, wanted))
        return list(itertools.islice(good, offset, offset + limit))

    async def namespaces(
        self, prefix: Namespace = (), *, depth: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[Namespace]:
        """See `Store.namespaces`."""
        checked_prefix(prefix)
        checked_page(limit, offset, depth=depth)
        with self._lock:
            found = {one.namespace[:depth] for one in self._below(prefix, self._clock())}
        return sorted(found)[offset : offset + limit]

    async def sweep(self) -> int:
        """See `Store.sweep`."""
        with self._lock:
            return self._sweep(self._clock(), None)

    def _live(self, namespace: Namespace, key: str, now: float) -> _Kept | None:
        found = self._kept.get(namespace, {}).get(key)
        return None if found is None or (found.expires is not None and found.expires <= now) else found

    def _below(self, prefix: Namespace, now: float) -> Iterator[_Kept]:
        for namespace, kept in self._kept.items():
            if namespace[: len(prefix)] == prefix:
                yield from (one for one in kept.values() if one.expires is None or one.expires > now)

    def _write(self, one: Written, now: float) -> _Kept:
        old = self._live(one.namespace, one.key, now)
        expires = None if one.ttl is None else now + one.ttl
        created = now if old is None else old.created
        kept = _Kept(one.namespace, one.key, one.value, created, now, expires, next(self._numbers))
        self._kept.setdefault(one.namespace, {})[one.key] = kept
        if expires is not None:
            heapq.heappush(self._ends, (expires, kept.version, one.namespace, one.key))
            if len(self._ends) > self._most_ends:
                self._ends = [end for end in self._ends if self._is_end(end)]
                heapq.heapify(self._ends)
                self._most_ends = 2 * len(self._ends) + 64
        self._sweep(now, _SWEPT_AT_ONCE)
        return kept

    def _remove(self, namespace: Namespace, key: str) -> None:
        kept = self._kept.get(namespace, {})
        kept.pop(key, None)
        if not kept:
            self._kept.pop(namespace, None)

    def _sweep(self, now: float, most: int | None) -> int:
        swept = 0
        while self._ends and self._ends[0][0] <= now and swept != most:
            end = heapq.heappop(self._ends)
            if self._is_end(end):
                self._remove(end[2], end[3])
                swept += 1
        return swept

    def _is_end(self, end: tuple[float, int, Namespace, str]) -> bool:
        found = self._kept.get(end[2], {}).get(end[3])
        return found is not None and found.version == end[1]

    def __repr__(self) -> str:
        return f"<MemoryStore items={sum(map(len, self._kept.values()))}>"
