"""The rules of `Store` as tests: a store of items that passes them all may be used in place of ours.

A store of your own is tested by a class with one method, with pytest and any plugin that runs `async def` tests (each
method is a test), or without it (`asyncio.run(TestMyStore().run())`)::

    class TestMyStore(StoreSuite):
        def store(self):
            return MyStore("an empty place for tests")

What a namespace, a key, a value and a filter may be is checked by `agentgraph.store.values`, and so may it be in yours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, cast

from agentgraph.errors import ConfigError
from agentgraph.store.memory import MemoryStore
from agentgraph.store.protocol import Item, Namespace, Order, Put, Store

__all__ = ["StoreSuite", "compare_with_memory"]

ADA: Namespace = ("users", "ada", "notes")
BOB: Namespace = ("users", "bob", "notes")

_VALUES: list[dict[str, Any]] = [
    {},
    {"": {"": [[], {}, None]}},
    {"b": True, "a": False, "n": None},
    {"int": 1, "float": 1.0, "less": -0.5, "large": 2**200, "larger": 1e300, "least": 5e-324},
    {"text": "\n\t\x7f\u0085\u2028 é 𝄞 ' \" \\ % $1 {}"},
]

_FILTERED: list[dict[str, Any]] = [
    {},
    {"x": None},
    {"x": 1},
    {"x": 1.0, "y": "z"},
    {"x": 1.5},
    {"x": True},
    {"x": ""},
    {"x": "1"},
    {"x": "a"},
    {"x": "é"},
    {"x": [1, {"a": 2}]},
    {"x": {"b": [], "a": 2}},
    {"x": {"$gt": 1}},
    {"x": {}},
    {"x": -1},
    {"x": 10**30},
]
"""Their keys are their places, in hexadecimal."""

_FILTERS: list[tuple[Any, ...]] = [
    ({}, "0123456789abcdef"),
    ({"x": 1}, "23"),
    ({"x": 1.0}, "23"),
    ({"x": True}, "5"),
    ({"x": "1"}, "7"),
    ({"x": None}, "01"),
    ({"x": {"$ne": None}}, "23456789abcdef"),
    ({"x": {"$ne": 1}}, "01456789abcdef"),
    ({"x": [1, {"a": 2}]}, "a"),
    ({"x": {"a": 2.0, "b": []}}, "b"),
    ({"x": {"$eq": {"$gt": 1}}}, "c"),
    ({"x": {}}, "d"),
    ({"x": {"$gt": 1}}, "4f"),
    ({"x": {"$gte": 1}}, "234f"),
    ({"x": {"$lt": 1}}, "e"),
    ({"x": {"$lte": 1.0, "$gt": -2}}, "23e"),
    ({"x": {"$gte": "1"}}, "789"),
    ({"x": {"$gt": "a"}}, "9"),
    ({"x": {"$lt": "a"}}, "67"),
    ({"x": {"$in": [1, None, "a", [1, {"a": 2}]]}}, "01238a"),
    ({"x": {"$in": []}}, ""),
    ({"x": {"$in": [1, 2]}, "y": {"$ne": None}}, "3"),
    ({"y": "z", "x": 1}, "3"),
    ({"nowhere": 1}, ""),
    ({"": None, "'": None, "a.b": None, "$x": None}, "0123456789abcdef"),
]


class StoreSuite:
    """Tests of a store; a subclass says of which by `store`."""

    def store(self) -> Store:
        """An empty store that is not open yet, another one at every call."""
        raise NotImplementedError("a subclass of StoreSuite must have a method `store`")

    async def pass_time(self, seconds: float) -> None:
        """Let that many seconds pass for the store. Where its clock can be set, setting it makes the tests faster."""
        await asyncio.sleep(seconds)

    async def run(self) -> None:
        """Run all tests in turn. Raises the first failure, with the test's name as a note."""
        for name in dir(self):
            if name.startswith("test_"):
                try:
                    await getattr(self, name)()
                except Exception as error:
                    error.add_note(f"in {type(self).__name__}.{name}")
                    raise

    async def test_it_is_a_store(self) -> None:
        async with self.store() as store:
            _same(isinstance(cast("object", store), Store), True, "whether it has the methods of Store")

    # --- one item ---

    async def test_what_was_put_is_got(self) -> None:
        async with self.store() as store:
            put = await store.put(ADA, "a", {"text": "likes tea"})
            _same(put, Item(ADA, "a", {"text": "likes tea"}, put.created, put.created, None, put.version))
            _same(await store.get(ADA, "a"), put)

    async def test_what_is_not_there_is_none(self) -> None:
        async with self.store() as store:
            await store.put(ADA, "a", {})
            _same(await store.get(ADA, "b"), None)
            _same(await store.get(BOB, "a"), None)
            _same(await store.get(ADA[:2], "a"), None)

    async def test_a_second_put_takes_the_place_of_the_first(self) -> None:
        async with self.store() as store:
            first = await store.put(ADA, "a", {"n": 1, "old": True})
            await self.pass_time(0.01)
            second = await store.put(ADA, "a", {"n": 2})
            _same(second.value, {"n": 2})
            _same(second.created, first.created)
            _true(second.changed > first.changed, "`changed` must be later after a later write")
            _true(second.version != first.version, "each write gives another version")
            _same(await store.get(ADA, "a"), second)

    async def test_a_value_comes_back_with_its_types_and_order(self) -> None:
        async with self.store() as store:
            for value in _VALUES:
                await store.put(ADA, "a", value)
                got = _there(await store.get(ADA, "a"))
                _same(repr(got.value), repr(value))

    async def test_what_was_given_and_what_was_got_may_be_changed(self) -> None:
        async with self.store() as store:
            value = {"tags": ["x"]}
            put = await store.put(ADA, "a", value)
            value["tags"].append("y")
            put.value["tags"].append("z")
            got = _there(await store.get(ADA, "a"))
            got.value.clear()
            again = _there(await store.get(ADA, "a"))
            _same(again.value, {"tags": ["x"]})

    async def test_a_large_value_comes_back(self) -> None:
        async with self.store() as store:
            value = {"text": "long " * 200_000, "list": list(range(10_000))}
            await store.put(ADA, "a", value)
            got = _there(await store.get(ADA, "a"))
            _same(got.value, value)

    async def test_names_may_be_any_text(self) -> None:
        async with self.store() as store:
            names = ["a", "a b", "a.b", "A", "%", "_", "*", "'", '"', "\\", "/", "é", "𝄞", "a" * 1024]
            for name in names:
                await store.put((name,), name, {"name": name})
            for name in names:
                got = _there(await store.get((name,), name))
                _same((got.namespace, got.key, got.value), ((name,), name, {"name": name}))

    async def test_the_longest_names_fit_together(self) -> None:
        async with self.store() as store:
            namespace = ("é" * 16,) * 32
            await store.put(namespace, "é" * 512, {})
            _same([item.namespace for item in await store.search(namespace)], [namespace])

    async def test_delete_removes_one_item(self) -> None:
        async with self.store() as store:
            await store.put(ADA, "a", {})
            await store.put(ADA, "b", {})
            _same(await store.delete(ADA, "a"), True)
            _same(await store.delete(ADA, "a"), False)
            _same([item.key for item in await store.search(ADA)], ["b"])

    async def test_clear_removes_what_is_below_a_namespace(self) -> None:
        async with self.store() as store:
            for namespace in (ADA, BOB, ("users", "ada"), ("users", "ada2"), ("users",)):
                await store.put(namespace, "a", {})
                await store.put(namespace, "b", {})
            _same(await store.clear(("users", "ada")), 4)
            _same(await store.namespaces(), [("users",), ("users", "ada2"), BOB])
            _same(await store.clear(("nobody",)), 0)
            _same(await store.clear(()), 6)
            _same(await store.search(), [])

    # --- several writers ---

    async def test_put_if_writes_over_the_version_that_it_knows(self) -> None:
        async with self.store() as store:
            first = await store.put(ADA, "a", {"n": 1})
            second = _there(await store.put_if(ADA, "a", {"n": 2}, version=first.version))
            _same(second.value, {"n": 2})
            _same(await store.put_if(ADA, "a", {"n": 3}, version=first.version), None)
            _same(await store.get(ADA, "a"), second)

    async def test_put_if_with_version_0_writes_only_where_nothing_is(self) -> None:
        async with self.store() as store:
            first = _there(await store.put_if(ADA, "a", {"n": 1}, version=0))
            _same(await store.put_if(ADA, "a", {"n": 2}, version=0), None)
            _same(await store.get(ADA, "a"), first)

    async def test_put_if_knows_an_item_that_was_removed_and_written_again(self) -> None:
        async with self.store() as store:
            first = await store.put(ADA, "a", {"n": 1})
            await store.delete(ADA, "a")
            _same(await store.put_if(ADA, "a", {"n": 2}, version=first.version), None)
            again = await store.put(ADA, "a", {"n": 1})
            _true(again.version != first.version, "a version is never used twice")
            _same(await store.put_if(ADA, "a", {"n": 2}, version=first.version), None)

    async def test_fifty_tasks_that_count_by_put_if_lose_nothing(self) -> None:
        async with self.store() as store:

            async def count() -> None:
                while True:
                    old = await store.get(ADA, "count")
                    n, version = (old.value["n"], old.version) if old is not None else (0, 0)
                    if await store.put_if(ADA, "count", {"n": n + 1}, version=version) is not None:
                        return

            async with asyncio.TaskGroup() as tasks:
                for _ in range(50):
                    tasks.create_task(count())
            got = _there(await store.get(ADA, "count"))
            _same(got.value, {"n": 50})

    async def test_fifty_tasks_that_write_at_once_are_all_stored(self) -> None:
        async with self.store() as store:
            async with asyncio.TaskGroup() as tasks:
                for n in range(50):
                    tasks.create_task(store.put(ADA, f"{n:02}", {"n": n}))
                    tasks.create_task(
                        store.put_many([Put(BOB, f"{k:02}", {"n": n}) for k in sorted({n % 7, n % 5, 3})])
                    )
            found = await store.search(ADA)
            _same([item.value["n"] for item in found], list(range(50)))
            _same(len({item.version for item in found}), 50)
            _same(len(await store.search(BOB)), 7)

    async def test_after_a_cancelled_write_the_item_is_whole_and_the_store_works(self) -> None:
        async with self.store() as store:
            await store.put(ADA, "a", {"n": 0})
            for turns in range(12):
                many = [Put(ADA, f"{turns}-{n}", {}) for n in range(5)]
                task = asyncio.ensure_future(store.put_many(many))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                # a write whose cancelled caller has gone may still be under way; another one comes after it
                await store.put(ADA, "a", {"n": turns})
                written = [item.key for item in await store.search(ADA) if item.key.startswith(f"{turns}-")]
                _true(written in ([], [one.key for one in many]), f"a cancelled write was stored in part: {written}")

    # --- several items ---

    async def test_put_many_writes_all(self) -> None:
        async with self.store() as store:
            first = await store.put(ADA, "b", {"n": 0})
            await store.put_many([Put(ADA, "c", {"n": 1}), Put(BOB, "a", {"n": 2}), Put(ADA, "b", {"n": 3})])
            found = await store.search()
            _same([(i.namespace, i.key, i.value["n"]) for i in found], [(ADA, "b", 3), (ADA, "c", 1), (BOB, "a", 2)])
            _same(found[0].created, first.created)
            _same(len({item.version for item in found}), 3)

    async def test_put_many_takes_the_last_of_a_key_and_may_be_empty(self) -> None:
        async with self.store() as store:
            await store.put_many([])
            await store.put_many([Put(ADA, "a", {"n": 1}, ttl=1), Put(ADA, "a", {"n": 2})])
            (found,) = await store.search()
            _same((found.value, found.expires), ({"n": 2}, None))

    async def test_put_many_writes_nothing_where_one_is_wrong(self) -> None:
        async with self.store() as store:
            await _refused(store.put_many([Put(ADA, "a", {}), Put(ADA, "", {})]), "a batch with an empty key")
            _same(await store.search(), [])

    # --- search ---

    async def test_search_finds_what_is_below_a_namespace_part_by_part(self) -> None:
        async with self.store() as store:
            namespaces = [("a",), ("a", "b"), ("a", "b", "c"), ("a", "bc"), ("a b",), ("ab",), ("b",)]
            await store.put_many(Put(namespace, "k", {}) for namespace in reversed(namespaces))
            _same([i.namespace for i in await store.search()], namespaces)
            _same([i.namespace for i in await store.search(("a",))], namespaces[:4])
            _same([i.namespace for i in await store.search(("a", "b"))], namespaces[1:3])
            _same(await store.search(("a", "c")), [])

    async def test_search_gives_the_page_that_is_asked_for(self) -> None:
        async with self.store() as store:
            await store.put_many(Put(ADA, f"{n:02}", {"odd": n % 2}) for n in range(30))
            _same([i.key for i in await store.search(limit=3)], ["00", "01", "02"])
            _same([i.key for i in await store.search(limit=3, offset=28)], ["28", "29"])
            _same([i.key for i in await store.search(limit=3, offset=30)], [])
            found = await store.search(filter={"odd": 1}, limit=2, offset=3)
            _same([i.key for i in found], ["07", "09"])

    async def test_search_orders_by_key_or_by_the_last_write(self) -> None:
        async with self.store() as store:
            for key in ("b", "é", "a", "B", "𝄞", "\uffff"):
                await store.put(ADA, key, {})
            await store.put(ADA, "b", {})
            written = ["é", "a", "B", "𝄞", "\uffff", "b"]
            _same([i.key for i in await store.search()], ["B", "a", "b", "é", "\uffff", "𝄞"])
            _same([i.key for i in await store.search(order="oldest")], written)
            _same([i.key for i in await store.search(order="newest")], written[::-1])
            _same([i.key for i in await store.search(order="newest", limit=2, offset=1)], written[::-1][1:3])

    async def test_filters_compare_json_values(self) -> None:
        async with self.store() as store:
            await store.put_many(Put(ADA, f"{n:x}", value) for n, value in enumerate(_FILTERED))
            for filter, found in _FILTERS:
                _same("".join(i.key for i in await store.search(ADA, filter=filter)), found, f"keys for {filter}")

    async def test_numbers_compare_as_they_are_written(self) -> None:
        async with self.store() as store:
            numbers = [2**53, 2.0**53, 2**53 + 1, 10**23, 1e23, 0.1, 0.30000000000000004, -0.0, 0]
            await store.put_many(Put(ADA, str(n), {"x": x}) for n, x in enumerate(numbers))

            async def found(condition: Any) -> str:
                return "".join(i.key for i in await store.search(ADA, filter={"x": condition}))

            _same(await found(2**53), "01")
            _same(await found({"$gt": 2.0**53}), "234")
            _same(await found(10**23), "34")
            _same(await found({"$gt": 0.3, "$lt": 1}), "6")
            _same(await found(0), "78")

    async def test_texts_compare_by_code_points(self) -> None:
        async with self.store() as store:
            await store.put_many(Put(ADA, text, {"x": text}) for text in ("a", "B", "é", "z", "Z", "\uffff", "𝄞"))
            _same([i.key for i in await store.search(filter={"x": {"$lt": "a"}})], ["B", "Z"])
            _same([i.key for i in await store.search(filter={"x": {"$gt": "z"}})], ["é", "\uffff", "𝄞"])
            _same([i.key for i in await store.search(filter={"x": {"$gt": "\uffff"}})], ["𝄞"])

    # --- namespaces ---

    async def test_namespaces_are_told_once_in_order_and_cut(self) -> None:
        async with self.store() as store:
            namespaces = [
                ("a",),
                ("a", "b"),
                ("a", "b", "c"),
                ("a", "bc"),
                ("a b",),
                ("ab", "x", "y"),
                ("ab", "x", "z"),
            ]
            await store.put_many(Put(namespace, key, {}) for namespace in namespaces for key in "kl")
            _same(await store.namespaces(), namespaces)
            _same(await store.namespaces(depth=1), [("a",), ("a b",), ("ab",)])
            _same(await store.namespaces(depth=2), [("a",), ("a", "b"), ("a", "bc"), ("a b",), ("ab", "x")])
            _same(await store.namespaces(("a",), depth=2), [("a",), ("a", "b"), ("a", "bc")])
            _same(await store.namespaces(("ab", "x"), depth=1), [("ab",)])
            _same(await store.namespaces(limit=2, offset=2), namespaces[2:4])
            _same(await store.namespaces(depth=2, limit=2, offset=3), [("a b",), ("ab", "x")])
            _same(await store.namespaces(("nobody",)), [])

    # --- time ---

    async def test_an_item_whose_time_is_over_is_not_there(self) -> None:
        async with self.store() as store:
            put = await store.put(ADA, "a", {"n": 1}, ttl=0.2)
            _same(round((put.expires or 0) - put.changed, 3), 0.2)
            await store.put(BOB, "a", {"n": 1}, ttl=3600)
            await self.pass_time(0.3)
            _same(await store.get(ADA, "a"), None)
            _same([i.namespace for i in await store.search()], [BOB])
            _same([i.namespace for i in await store.search(filter={"n": 1}, order="newest")], [BOB])
            _same(await store.namespaces(), [BOB])
            _same(await store.delete(ADA, "a"), False)
            _same(await store.clear(ADA), 0)

    async def test_what_is_written_where_an_item_has_ended_is_new(self) -> None:
        async with self.store() as store:
            ended = [await store.put(ADA, key, {}, ttl=0.1) for key in "abc"]
            await self.pass_time(0.2)
            _same(await store.put_if(ADA, "a", {}, version=ended[0].version), None)
            again = [await store.put(ADA, "a", {}), await store.put_if(ADA, "b", {}, version=0)]
            await store.put_many([Put(ADA, "c", {})])
            again.append(await store.get(ADA, "c"))
            for one, before in zip(again, ended, strict=True):
                _true(_there(one).created > before.created, "what is written where an item has ended is new")
                _same(_there(one).expires, None)

    async def test_each_put_says_anew_how_long_an_item_stays(self) -> None:
        async with self.store() as store:
            first = await store.put(ADA, "a", {}, ttl=0.1)
            await store.put(ADA, "a", {})
            await store.put(ADA, "b", {}, ttl=0.1)
            await store.put_many([Put(ADA, "b", {}, ttl=3600)])
            await self.pass_time(0.2)
            a, b = await store.search(ADA)
            _same((a.created, a.expires), (first.created, None))
            _same(round((b.expires or 0) - b.changed), 3600)

    async def test_sweep_removes_what_has_ended(self) -> None:
        async with self.store() as store:
            await store.put_many([Put(ADA, str(n), {}, ttl=0.1) for n in range(25)])
            await store.put_many([Put(BOB, "a", {}), Put(BOB, "b", {}, ttl=3600)])
            await self.pass_time(0.2)
            _same(await store.sweep(), 25)
            _same(await store.sweep(), 0)
            _same([i.key for i in await store.search()], ["a", "b"])

    async def test_writes_remove_what_has_ended_bit_by_bit(self) -> None:
        async with self.store() as store:
            await store.put_many([Put(ADA, str(n), {}, ttl=0.1) for n in range(200)])
            await self.pass_time(0.2)
            for n in range(100):
                await store.put(BOB, str(n), {})
            _true(await store.sweep() < 200, "100 writes must have removed some of 200 that have ended")

    # --- what is refused ---

    async def test_namespaces_that_cannot_be_are_refused(self) -> None:
        async with self.store() as store:
            wrong: list[Any] = ["users", ["users"], ("users", 42), ("users", ""), ("a\x1fb",), ("\ud800",), ("a",) * 33]
            for namespace in [*wrong, ("é" * 513,)]:
                await _refused(store.put(namespace, "a", {}), f"the namespace {namespace!r}")
                await _refused(store.get(namespace, "a"), f"the namespace {namespace!r}")
                await _refused(store.search(namespace), f"the namespace {namespace!r}")
            await _refused(store.put((), "a", {}), "the empty namespace")

    async def test_keys_that_cannot_be_are_refused(self) -> None:
        async with self.store() as store:
            wrong: list[Any] = ["", 1, None, "a\0", "\ud800", "é" * 513]
            for key in wrong:
                await _refused(store.put(ADA, key, {}), f"the key {key!r}")
                await _refused(store.put_many([Put(ADA, "a", {}), Put(ADA, key, {})]), f"the key {key!r}")
                await _refused(store.get(ADA, key), f"the key {key!r}")
                await _refused(store.delete(ADA, key), f"the key {key!r}")
            _same(await store.search(), [])

    async def test_values_that_json_cannot_hold_are_refused(self) -> None:
        async with self.store() as store:
            itself: dict[str, Any] = {}
            itself["itself"] = itself
            held: list[Any] = [
                {2},
                (1, 2),
                {1: 2},
                b"",
                float("nan"),
                float("inf"),
                "\ud800",
                "x\0",
                {"x\0": 1},
                2**1024,
            ]
            wrong: list[Any] = [[1], itself, *({"a": [one]} for one in held)]
            for value in wrong:
                await _refused(store.put(ADA, "a", value), f"the value {value!r:.100}")
            _same(await store.search(), [])

    async def test_filters_that_cannot_be_are_refused(self) -> None:
        async with self.store() as store:
            operators: list[Any] = [{"$gr": 1}, {"$gt": 1, "y": 2}, {"$in": "abc"}, {"$gt": None}, {"$lt": True}, {1}]
            wrong: list[Any] = ["x", {1: 1}, {"x\0": 1}, *({"x": one} for one in operators)]
            for filter in wrong:
                await _refused(store.search(ADA, filter=filter), f"the filter {filter!r}")

    async def test_numbers_that_cannot_be_meant_are_refused(self) -> None:
        async with self.store() as store:
            order: Any = "best"
            await _refused(store.put(ADA, "a", {}, ttl=0), "ttl=0")
            await _refused(store.put(ADA, "a", {}, ttl=float("inf")), "an endless ttl")
            await _refused(store.search(limit=0), "limit=0")
            await _refused(store.search(offset=-1), "offset=-1")
            await _refused(store.search(order=order), "an unknown order")
            await _refused(store.namespaces(depth=0), "depth=0")

    # --- all together ---

    async def test_whatever_is_done_the_store_does_what_a_memory_store_does(self) -> None:
        for seed in range(3):
            async with self.store() as store:
                await compare_with_memory(store, random.Random(seed), 60)  # noqa: S311  # no secret


async def compare_with_memory(store: Store, draw: random.Random, operations: int) -> None:
    """Do random operations on an open and empty store, and on a `MemoryStore`; compare what both tell.

    Raises `AssertionError` at the first difference, with all that was done before as a note.
    """
    model = MemoryStore()
    done: list[str] = []
    versions: dict[int, int] = {}
    """The store's by the model's."""
    try:
        for _ in range(operations):
            await _compare_one(store, model, draw, versions, done)
    except AssertionError as error:
        error.add_note("after:\n" + "\n".join(done))
        raise


async def _compare_one(
    store: Store, model: Store, draw: random.Random, versions: dict[int, int], done: list[str]
) -> None:
    def a_name() -> tuple[Namespace, str]:
        return tuple(draw.choice(["a", "b", "a b", "é"]) for _ in range(draw.randint(1, 3))), draw.choice("klm")

    def a_scalar() -> Any:
        return draw.choice([None, True, 0, 1, 1.0, -2, 0.5, 10**20, 1e20, "", "1", "a", "é", [1], [], {"y": 1}])

    def remember(a: Item | None, b: Item | None) -> None:
        _same(a is None, b is None, "whether it was written")
        if a is not None and b is not None:
            versions[b.version] = a.version

    namespace, key = a_name()
    prefix = namespace[: draw.randint(0, len(namespace))]
    value = {field: a_scalar() for field in draw.sample("xyz", draw.randint(0, 3))}
    page = {"limit": draw.randint(1, 6), "offset": draw.choice([0, 0, 1, 5])}
    kind = draw.choice(
        ["put", "put", "put", "put_if", "put_many", "get", "delete", "clear", "search", "search", "names"]
    )
    done.append(f"{kind} {namespace!r} {key!r} {value!r} prefix {prefix!r} {page}")
    match kind:
        case "put":
            remember(await store.put(namespace, key, value), await model.put(namespace, key, value))
        case "put_if":
            old = await model.get(namespace, key)
            version = 0 if old is None or draw.random() < 0.3 else old.version
            wrote = await store.put_if(namespace, key, value, version=versions.get(version, version))
            remember(wrote, await model.put_if(namespace, key, value, version=version))
        case "put_many":
            many = [Put(*a_name(), value) for _ in range(draw.randint(0, 4))]
            await store.put_many(many)
            await model.put_many(many)
            for one in many:
                remember(await store.get(one.namespace, one.key), await model.get(one.namespace, one.key))
        case "get":
            found, expected = await store.get(namespace, key), await model.get(namespace, key)
            _same(_told([found] if found else []), _told([expected] if expected else []), "what `get` gave")
        case "delete":
            _same(await store.delete(namespace, key), await model.delete(namespace, key), "what `delete` told")
        case "clear" if draw.random() < 0.3:
            _same(await store.clear(prefix), await model.clear(prefix), "what `clear` told")
        case "names":
            depth = draw.choice([None, 1, 2, 3, 4])
            told = await store.namespaces(prefix, depth=depth, **page)
            _same(told, await model.namespaces(prefix, depth=depth, **page), f"namespaces to depth {depth}")
        case _:
            operator = draw.choice(["$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte"])
            plain = draw.choice([0, 1, 1.0, "", "a", 1e20, 10**20])
            operand = {"$eq": a_scalar(), "$ne": a_scalar(), "$in": [a_scalar(), a_scalar()]}.get(operator, plain)
            filter = draw.choice([None, {}, {draw.choice("xyz"): {operator: operand}}])
            order: Order = draw.choice(["key", "newest", "oldest"])
            found = await store.search(prefix, filter=filter, order=order, **page)
            expected = await model.search(prefix, filter=filter, order=order, **page)
            _same(_told(found), _told(expected), f"what `search` gave with {filter} by {order}")


def _told(items: list[Item]) -> list[Any]:
    return [(item.namespace, item.key, repr(item.value), item.expires) for item in items]


def _there(item: Item | None) -> Item:
    if item is None:
        raise AssertionError("there must be an item, and there is none")
    return item


def _same(found: object, expected: object, what: str = "what was found") -> None:
    if found != expected:
        raise AssertionError(f"{what}:\n  expected {expected!r:.2000}\n  found    {found!r:.2000}")


def _true(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def _refused(call: Awaitable[object], what: str) -> None:
    try:
        await call
    except ConfigError:
        return
    raise AssertionError(f"{what} must be refused by ConfigError; it was not")
