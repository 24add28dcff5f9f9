"""The encrypted store: it keeps what the store keeps, and only who has the key can read it."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentgraph import END, START, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer, Entry, Line, MemorySaver, Span, SqliteSaver
from agentgraph.checkpoint.encrypted import Encrypted
from agentgraph.errors import CheckpointError, ConfigError, StoreError
from agentgraph.strategies import Append
from agentgraph.testing import CheckpointerSuite
from agentgraph.testing.checkpointer_suite import compare_with_model

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
ALL = [Span(0, 0, 99)]
STEP = Entry(1, 0, "step", "", b"the head", b"the data", full=True)
RECORD = Entry(2, 0, "record", "the key", b"", b"the value")
HIDDEN = "xyzzy-4711"


class TestEncrypted(CheckpointerSuite):
    kept = Encrypted(MemorySaver(), KEY)

    def saver(self) -> Checkpointer:
        return self.kept


class TestEncryptedSqlite(CheckpointerSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    def saver(self) -> Checkpointer:
        return Encrypted(SqliteSaver(self.path), [KEY, OTHER])


@pytest.mark.parametrize("seed", range(10))
async def test_any_sequence_of_operations_gives_what_the_model_gives(seed: int) -> None:
    async with Encrypted(MemorySaver(), KEY) as saver:
        await compare_with_model(saver, random.Random(seed), 15)


@pytest.fixture
async def store() -> AsyncIterator[MemorySaver]:
    async with MemorySaver() as store:
        yield store


async def put(saver: Checkpointer, *entries: Entry, name: str = "t", **options: Any) -> None:
    info = await saver.claim(name, "graph", "test", 60)
    assert info is not None
    await saver.append(name, info.epoch, entries, lease=60, **options)
    await saver.release(name, info.epoch)


async def test_what_lies_in_the_store_shows_nothing_of_it(store: MemorySaver) -> None:
    await put(Encrypted(store, KEY), STEP, RECORD)
    for kept in await store.read("t", ALL):
        for part in (kept.key.encode(), kept.head, kept.data):
            assert b"the" not in part
    assert await Encrypted(store, KEY).read("t", ALL) == [STEP, RECORD]
    assert await Encrypted(store, KEY).heads("t", ALL, 9) == [msgspec.structs.replace(STEP, data=b"")]


async def test_the_same_text_is_stored_as_another_each_time(store: MemorySaver) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, RECORD)
    (first,) = await store.read("t", ALL)
    await put(saver, RECORD)
    (second,) = await store.read("t", ALL)
    assert first.data != second.data
    assert first.key != second.key


@pytest.mark.parametrize("wrap", [False, True])
async def test_no_secret_of_a_run_is_in_the_file(tmp_path: Path, wrap: bool) -> None:
    class State(TypedDict):
        notes: Annotated[list[str], Append()]

    async def note(state: State, run: RunContext[Any]) -> Any:
        await run.once(f"record {HIDDEN}", lambda: HIDDEN)
        return {"notes": [f"note {HIDDEN}"]}

    graph = StateGraph(State)
    graph.add_node("note", note)
    graph.add_edge(START, "note")
    graph.add_edge("note", END)
    plain = SqliteSaver(tmp_path / "runs.db")
    async with Encrypted(plain, KEY) if wrap else plain as saver:
        app = graph.compile(checkpointer=saver)
        await app.invoke({"notes": [HIDDEN]}, RunConfig(thread_id="t"))
        result = await app.invoke({"notes": [HIDDEN]}, RunConfig(thread_id="t"))
    assert result.state["notes"] == [HIDDEN, f"note {HIDDEN}"] * 2
    files = await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.iterdir()])
    assert any(HIDDEN.encode() in content for content in files) is not wrap


# --- keys


async def test_what_an_older_key_encrypted_is_read_and_the_first_encrypts(store: MemorySaver) -> None:
    await put(Encrypted(store, OTHER), STEP)
    both = Encrypted(store, [KEY, OTHER])
    await put(both, RECORD)
    assert await both.read("t", ALL) == [STEP, RECORD]
    assert await Encrypted(store, KEY).read("t", [Span(0, 1, 9)]) == [RECORD]


async def test_another_key_is_told_from_changed_bytes_and_names_thread_and_entry(store: MemorySaver) -> None:
    await put(Encrypted(store, KEY), STEP)
    for read in (Encrypted(store, OTHER).read("t", ALL), Encrypted(store, OTHER).heads("t", ALL, 9)):
        with pytest.raises(StoreError, match=r"thread 't', entry 1 \(step\).*encrypted by another key") as caught:
            await read
        assert isinstance(caught.value, CheckpointError)


async def test_what_was_never_encrypted_is_told_as_such(store: MemorySaver) -> None:
    await put(store, STEP, RECORD)
    with pytest.raises(StoreError, match=r"entry 1.*it is not encrypted"):
        await Encrypted(store, KEY).read("t", ALL)


def test_a_new_key_is_32_random_bytes() -> None:
    assert len(Encrypted.new_key()) == 32
    assert Encrypted.new_key() != Encrypted.new_key()
    Encrypted(MemorySaver(), Encrypted.new_key())


@pytest.mark.parametrize("key", [b"", b"short", KEY.hex(), [], [KEY, b"short"], [5], "", [None]])
def test_what_is_no_key_is_a_config_error(key: Any) -> None:
    with pytest.raises(ConfigError, match="key"):
        Encrypted(MemorySaver(), key)


def test_no_key_is_in_a_repr_or_an_error() -> None:
    assert repr(Encrypted(MemorySaver(), KEY)) == "<Encrypted <MemorySaver of 0 threads>>"
    with pytest.raises(ConfigError) as caught:
        Encrypted(MemorySaver(), KEY + b"x")
    assert KEY.hex() not in str(caught.value)
    assert repr(KEY)[2:-1] not in str(caught.value)


# --- what somebody has changed


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


async def changed(store: MemorySaver, **changes: Any) -> None:
    """Put an entry in the place of the one that is there, as somebody does who can write to the store."""
    (entry,) = await store.read("t", ALL)
    line = Line(changes["line"], 0, 0) if "line" in changes else None
    await put(store, msgspec.structs.replace(entry, **changes), new_line=line)


@pytest.mark.parametrize("part", ["data", "head"])
async def test_a_bit_that_was_changed_anywhere_is_found(store: MemorySaver, part: str) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, STEP)
    (sealed,) = await store.read("t", ALL)
    content = getattr(sealed, part)
    for at in range(len(content)):
        await changed(store, **{part: flipped(content, at)})
        with pytest.raises(StoreError, match=rf"thread 't', entry 1 \(step\): its {part} cannot be decrypted"):
            await saver.read("t", ALL)
    await changed(store, **{part: content})
    assert await saver.read("t", ALL) == [STEP]


@pytest.mark.parametrize("content", [b"", b"\x01\xc0", b"\xa1"])
@pytest.mark.parametrize("part", ["data", "head"])
async def test_content_that_was_taken_away_or_replaced_by_plain_text_is_found(
    store: MemorySaver, part: str, content: bytes
) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, STEP)
    await changed(store, **{part: content})
    with pytest.raises(StoreError, match=f"its {part} cannot be decrypted: it is not encrypted, or was cut"):
        await saver.read("t", ALL)


@pytest.mark.parametrize("key", ["", "the key", "\ud800", "0" * 80, "~~~~~"])
async def test_a_records_key_that_was_changed_is_found(store: MemorySaver, key: str) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, RECORD)
    await changed(store, key=key)
    with pytest.raises(StoreError, match=r"entry 2 \(record\): its key cannot be decrypted"):
        await saver.read("t", ALL)


MOVES: dict[str, Callable[[Entry], Entry]] = {
    "to another number": lambda e: msgspec.structs.replace(e, seq=7),
    "to another line": lambda e: msgspec.structs.replace(e, line=1),
    "to another kind": lambda e: msgspec.structs.replace(e, kind="update"),
    "full no more": lambda e: msgspec.structs.replace(e, full=False),
    "head and data exchanged": lambda e: msgspec.structs.replace(e, head=e.data, data=e.head),
}


@pytest.mark.parametrize("move", MOVES)
async def test_an_entry_that_was_moved_is_found(store: MemorySaver, move: str) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, STEP)
    (sealed,) = await store.read("t", ALL)
    await store.delete("t")
    await put(store, MOVES[move](sealed), new_line=Line(1, 0, 0))
    with pytest.raises(StoreError, match="was changed, or moved here from elsewhere"):
        await saver.read("t", [Span(0, 0, 9), Span(1, 0, 9)])


async def test_an_entry_of_another_thread_is_found(store: MemorySaver) -> None:
    saver = Encrypted(store, KEY)
    await put(saver, STEP, name="mine")
    await put(store, *await store.read("mine", ALL), name="yours")
    with pytest.raises(StoreError, match="thread 'yours', entry 1"):
        await saver.read("yours", ALL)


# --- the rest


async def test_large_entries_come_back_too(store: MemorySaver) -> None:
    saver = Encrypted(store, KEY)
    entry = msgspec.structs.replace(STEP, data=bytes(2_000_000))
    await put(saver, entry)
    assert await saver.read("t", ALL) == [entry]


@pytest.mark.parametrize("text", ["", "é\ud800", "a" * 500])
async def test_any_key_and_any_threads_name_can_be_used(store: MemorySaver, text: str) -> None:
    saver = Encrypted(store, KEY)
    entries = [msgspec.structs.replace(STEP, head=b"", data=b""), msgspec.structs.replace(RECORD, key=text)]
    await put(saver, *entries, name=text)
    assert await saver.read(text, ALL) == entries


async def test_an_entry_takes_about_a_hundred_bytes_more(store: MemorySaver) -> None:
    await put(Encrypted(store, KEY), STEP)
    (sealed,) = await store.read("t", ALL)
    assert len(sealed.data) - len(STEP.data) == len(sealed.head) - len(STEP.head) == 33


def test_the_extra_is_named_where_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    spec = importlib.util.find_spec("agentgraph.checkpoint.encrypted")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=re.escape('pip install "agentgraph-engine[encryption]"')):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
