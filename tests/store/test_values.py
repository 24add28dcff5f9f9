"""What is refused is told, with what was found, what was expected, and where it stands."""

import asyncio
from typing import Any

import pytest

from agentgraph.errors import ConfigError
from agentgraph.store import MemoryStore
from agentgraph.store.values import Condition, matches


def told(**asked: Any) -> str:
    """What `put` or, where a filter is given, `search` says."""
    store = MemoryStore()
    namespace, key, value = asked.pop("namespace", ("users",)), asked.pop("key", "a"), asked.pop("value", {})
    searches = any(name in asked for name in ("filter", "limit", "offset", "order"))
    call = store.search(namespace, **asked) if searches else store.put(namespace, key, value, **asked)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(call)
    return str(caught.value)


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        ((), "the namespace is empty: expected a tuple of one text or more, such as ('users', '42')"),
        ("users", "the namespace is of type str: 'users'; expected a tuple of texts (write ('users',))"),
        (["users"], "the namespace is of type list: ['users']; expected a tuple of texts"),
        (("users", 42), "a namespace's part is of type int: 42; expected a text"),
        (
            ("",),
            "a namespace's part is '': expected a text that is not empty, without control characters and surrogates",
        ),
        (
            ("a",) * 33,
            "a namespace of 33 parts and 33 bytes is too long: expected at most 32 parts and 1024 bytes",
        ),
    ],
)
def test_a_namespace_that_cannot_be_is_told(namespace: Any, said: str) -> None:
    assert told(namespace=namespace) == said


def test_a_key_that_cannot_be_is_told() -> None:
    assert told(key=1) == "the key is of type int: 1; expected a text"
    assert "the key is '': expected a text that is not empty" in told(key="")
    assert told(key="é" * 513) == f"the key {'é' * 40!r}... has 1026 bytes: expected at most 1024"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "the value of 'a' is of type list; expected an object (a dict)"),
        ({"a": [1, {"b": {2}}]}, "a[1].b is of type set, which would not come back from JSON as it is: expected"),
        ({"a": (1, 2)}, "a is of type tuple, which would not come back"),
        ({"a": {1: 2}}, "a has the field 1, of type int; expected a text"),
        ({1: 2}, "the value has the field 1, of type int; expected a text"),
        ({"a": float("nan")}, "a is nan, which JSON cannot hold"),
        ({"a": "\ud800"}, "a has a NUL or half of a surrogate pair"),
        ({"x\0": 1}, "the value's field 'x\\x00' has a NUL"),
        ({"a": 2**1024}, "a is a whole number of 1025 bits: expected at most 1024"),
    ],
)
def test_a_value_that_json_cannot_hold_is_told_with_its_path(value: Any, said: str) -> None:
    assert told(value=value).startswith(said)


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"x": {"$gr": 1}}, "filter['x']: unknown operator '$gr'; did you mean '$gt'? known: '$eq', '$ne', '$in', "),
        ({"x": {"$gt": 1, "y": 2}}, "filter['x']: unknown operator 'y'; known: "),
        ({"x": {"$in": "abc"}}, "filter['x']: $in is of type str; expected a list of values"),
        ({"x": {"$gt": None}}, "filter['x']: $gt is None; expected a number or a text"),
        ({"x": {"$lt": True}}, "filter['x']: $lt is of type bool; expected a number or a text"),
        ({"x": {"$in": [1, {2}]}}, "filter['x']: $in[1] is of type set, "),
        ({1: 1}, "filter has the field 1, of type int; expected a text"),
        ("x", "the filter is of type str; expected an object (a dict) of fields"),
    ],
)
def test_a_filter_that_cannot_be_is_told(filter: Any, said: str) -> None:
    assert told(filter=filter).startswith(said)


def test_a_number_that_cannot_be_meant_is_told() -> None:
    assert told(ttl=0) == "ttl=0: expected a number of seconds above 0, or None for an item that stays"
    assert told(limit=0) == "limit=0: expected a whole number, 1 or more and below 2**31"
    assert told(order="best") == "unknown order 'best'; did you mean 'oldest'? known: 'key', 'newest', 'oldest'"


def test_a_field_that_is_not_there_counts_as_null() -> None:
    assert matches({}, [Condition("x", "$eq", None), Condition("x", "$ne", 1), Condition("x", "$in", [None])])
    assert not matches({}, [Condition("x", "$lt", 1)])
