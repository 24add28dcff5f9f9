"""The stores against a plain model, with time: whatever is done, they tell what a dict of dicts would."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph.store import Item, MemoryStore, PostgresStore, Put, SqliteStore, Store
from tests.services.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]

NAMES = st.lists(st.sampled_from(["a", "b", "a b", "é"]), min_size=1, max_size=3).map(tuple)
KEYS = st.sampled_from(["k", "l", "K"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(2**52, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xy", max_size=1), inner, max_size=2)
)
OBJECTS = st.dictionaries(st.sampled_from(["x", "y"]), VALUES, max_size=2)
TTLS = st.one_of(st.none(), st.integers(1, 5))
PUTS = st.builds(Put, NAMES, KEYS, OBJECTS, TTLS)
STEPS = st.lists(
    st.one_of(
        PUTS,
        st.lists(PUTS, max_size=3).map(tuple),
        st.tuples(st.just("delete"), NAMES, KEYS),
        st.tuples(st.just("pass"), st.integers(0, 3)),
        st.tuples(st.just("sweep")),
    ),
    max_size=12,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Model:
    """What is there, and until when."""

    def __init__(self) -> None:
        self.kept: dict[tuple[tuple[str, ...], str], tuple[dict[str, Any], float | None]] = {}

    def put(self, one: Put, now: float) -> None:
        self.kept[one.namespace, one.key] = (dict(one.value), None if one.ttl is None else now + one.ttl)

    def live(self, now: float) -> list[tuple[tuple[str, ...], str, str, float | None]]:
        kept = sorted(self.kept.items(), key=lambda pair: pair[0])
        return [(*name, repr(value), end) for name, (value, end) in kept if end is None or end > now]


def told(items: list[Item]) -> list[tuple[tuple[str, ...], str, str, float | None]]:
    return [(item.namespace, item.key, repr(item.value), item.expires) for item in items]


async def follow(store: Store, clock: Clock, steps: list[Any]) -> None:
    model = Model()
    for step in steps:
        match step:
            case Put():
                await store.put(step.namespace, step.key, step.value, ttl=step.ttl)
                model.put(step, clock.now)
            case ("delete", namespace, key):
                live = {(one[0], one[1]) for one in model.live(clock.now)}
                assert await store.delete(namespace, key) == ((namespace, key) in live)
                model.kept.pop((namespace, key), None)
            case ("pass", seconds):
                clock.now += seconds
            case ("sweep",):
                await store.sweep()
            case _:
                await store.put_many(step)
                for one in step:
                    model.put(one, clock.now)
        assert told(await store.search()) == model.live(clock.now)
        assert await store.namespaces() == sorted({one[0] for one in model.live(clock.now)})


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_memory_store_does_what_the_model_does(steps: list[Any]) -> None:
    clock = Clock()
    asyncio.run(follow(MemoryStore(clock=clock), clock, steps))


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_a_sqlite_store_does_what_the_model_does(steps: list[Any]) -> None:
    async def run(folder: str) -> None:
        clock = Clock()
        async with SqliteStore(Path(folder) / "memory.db", clock=clock) as store:
            await follow(store, clock, steps)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_postgres_store_does_what_the_model_does(postgres_dsn: str, steps: list[Any]) -> None:
    async def run() -> None:
        clock = Clock()
        async with PostgresStore(postgres_dsn, clock=clock, min_size=0) as store:
            await store.clear(())
            await follow(store, clock, steps)

    asyncio.run(run())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    operator=st.sampled_from(["$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte"]),
    other=VALUES,
    draw=st.data(),
)
def test_postgres_compares_values_as_the_others_do(
    postgres_dsn: str, values: list[Any], operator: str, other: Any, draw: st.DataObject
) -> None:
    operand = draw.draw(st.sampled_from([*values, other]), label="operand")
    if operator == "$in":
        operand = [operand, other]
    elif operator not in ("$eq", "$ne") and (isinstance(operand, bool) or not isinstance(operand, int | float | str)):
        with pytest.raises(ValueError, match="expected a number or a text"):
            asyncio.run(MemoryStore().search(filter={"x": {operator: operand}}))
        return

    async def keys(store: Store) -> list[str]:
        await store.clear(())
        await store.put_many(Put(("a",), str(n), {"x": value}) for n, value in enumerate(values))
        return [item.key for item in await store.search(filter={"x": {operator: operand}})]

    async def run() -> None:
        async with PostgresStore(postgres_dsn, min_size=0) as store:
            assert await keys(store) == await keys(MemoryStore())

    asyncio.run(run())
