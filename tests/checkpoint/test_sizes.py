"""What threads take: bytes, entries and decoding, told by counts and never by time."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from agentgraph import END, START, Command, CompiledGraph, RunConfig, RunContext, Send, StateGraph
from agentgraph.checkpoint import Checkpointer, MemorySaver, Span, SqliteSaver, spans
from agentgraph.checkpoint.codec import Codec
from agentgraph.errors import StoreError
from agentgraph.messages import AssistantMessage, UserMessage
from agentgraph.strategies import Append, Messages, Replace
from tests.checkpoint.wrapped import Wrapped

T = RunConfig(thread_id="t")


def chat(saver: Checkpointer, size: int) -> CompiledGraph[Any]:
    """Answers each question with so many characters; keeps `document` as it was given."""

    async def answer(state: Any) -> dict[str, Any]:
        return {"messages": [AssistantMessage("a" * size)]}

    graph: StateGraph[Any] = StateGraph(strategies={"messages": Messages(), "document": Replace()})
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


async def converse(app: CompiledGraph[Any], turns: int, size: int, thread: str = "t") -> None:
    for _ in range(turns):
        await app.invoke({"messages": [UserMessage("q" * size)]}, RunConfig(thread_id=thread))


async def size_of(path: Path) -> int:
    return (await asyncio.to_thread(path.stat)).st_size


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was decoded, by where it stood."""
    found: list[str] = []
    decode = Codec.decode

    def counted(self: Codec, data: bytes, where: str = "") -> Any:
        found.append(where)
        return decode(self, data, where)

    monkeypatch.setattr(Codec, "decode", counted)
    return found


@pytest.mark.case("F1")
async def test_two_thousand_turns_of_400_bytes_take_less_than_4_mb(tmp_path: Path) -> None:
    async with SqliteSaver(tmp_path / "runs.db") as saver:
        await converse(chat(saver, 200), 2000, 200)
    assert await size_of(tmp_path / "runs.db") < 4_000_000


@pytest.mark.case("F13")
async def test_bytes_grow_with_the_turns_and_a_large_constant_is_stored_a_bounded_number_of_times(
    tmp_path: Path,
) -> None:
    sizes: list[int] = []
    for turns in (400, 800):
        path = tmp_path / f"{turns}.db"
        async with SqliteSaver(path) as saver:
            await chat(saver, 100).invoke({"document": "d" * 100_000}, T)
            for _ in range(4):  # as after restarts, which know nothing of what was written before
                await converse(chat(saver, 100), turns // 4, 100)
            info = await saver.thread("t")
            assert info is not None
        with closing(sqlite3.connect(path)) as db:
            ((copies,),) = db.execute("SELECT count(*) FROM entries WHERE length(data) > 100000").fetchall()
        assert copies <= 4
        sizes.append(await size_of(path))
    assert sizes[1] / sizes[0] < 2.2


@pytest.mark.case("F13")
async def test_listing_a_history_decodes_nothing(saver: Checkpointer, decoded: list[str]) -> None:
    await converse(chat(saver, 100), 30, 100)
    decoded.clear()
    history = await chat(saver, 100).history(T, limit=10)
    assert (len(history), decoded) == (10, [])


@pytest.mark.case("F13")
async def test_a_deleted_thread_leaves_no_row(tmp_path: Path) -> None:
    async with SqliteSaver(tmp_path / "runs.db") as saver:
        app = chat(saver, 100)
        await converse(app, 3, 100)
        checkpoint = (await app.history(T))[2].checkpoint_id
        await app.invoke({"messages": [UserMessage("a fork")]}, RunConfig(thread_id="t", checkpoint_id=checkpoint))
        await converse(app, 1, 100, "another")
        await app.delete("t")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
        left = {t: db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("threads", "lines", "entries")}  # noqa: S608
    assert left == {"threads": 1, "lines": 0, "entries": 2}


async def test_a_turn_reads_nothing_and_decodes_nothing_where_the_newest_state_is_known(decoded: list[str]) -> None:
    saver = Wrapped(MemorySaver())
    app = chat(saver, 100)
    await converse(app, 1, 100)
    saver.read_entries = 0
    await converse(app, 50, 100)
    assert (saver.read_entries, decoded) == (0, [])


async def test_a_turn_reads_nothing_also_where_other_threads_have_turns_between(saver: Checkpointer) -> None:
    looked = Wrapped(saver)
    app = chat(looked, 100)
    for thread in "ab":
        await converse(app, 1, 100, thread)
    looked.read_entries = 0
    for thread in "abab":
        await converse(app, 1, 100, thread)
    assert looked.read_entries == 0


async def test_the_records_of_a_wide_step_are_dropped_as_a_whole() -> None:
    async def work(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"n": [await run.once("n", lambda: state["n"])]}

    graph: StateGraph[Any] = StateGraph(strategies={"n": Append()})
    graph.add_node("work", work)
    graph.add_conditional_edges(START, lambda s: [Send("work", {"n": k}) for k in range(100)], ["work"])
    graph.add_edge("work", END)
    saver = Wrapped(MemorySaver())
    result = await graph.compile(checkpointer=saver).invoke({}, RunConfig(thread_id="t", durability="sync"))
    assert result.state["n"] == list(range(100))
    assert (len(saver.dropped), sum(s.upto - s.after for s in saver.dropped)) == (1, 200)


async def test_each_turn_writes_as_much_as_the_first(saver: Checkpointer) -> None:
    looked = Wrapped(saver)
    app = chat(looked, 200)
    written: list[int] = []
    for _ in range(200):
        looked.appended.clear()
        await converse(app, 1, 200)
        written.append(sum(len(e.data) + len(e.head) for entries in looked.appended for e in entries))
    assert max(written[1:]) <= written[0] * 1.2
    assert sum(written) / len(written) < 1200


class Counter(TypedDict):
    n: int
    text: str


def counter(saver: Checkpointer, size: int) -> CompiledGraph[Counter]:
    """Replaces the same two keys again and again."""

    async def add(state: Counter) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1, "text": str(state.get("n", 0)).rjust(size)}

    graph = StateGraph(Counter)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_edge("add", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.case("F13")
@pytest.mark.parametrize("size", [10, 1000, 20_000])
async def test_an_old_thread_loads_from_one_snapshot_and_the_changes_since(saver: Checkpointer, size: int) -> None:
    looked = Wrapped(saver)
    app = counter(looked, size)
    for _ in range(300):
        await app.invoke({}, T)
    looked.read_entries = 0
    anew = counter(looked, size)
    found = await anew.state(T)
    assert found is not None
    assert found.state["n"] == 300
    assert looked.read_entries < 350
    info = await saver.thread("t")
    assert info is not None
    entries = await saver.read("t", spans(info.lines, info.line, info.last))
    assert sum(len(e.data) for e in entries) < 9000 + 5 * size
    assert [e.full for e in entries[1:]] == [False] * (len(entries) - 1)


async def test_a_long_run_of_many_steps_writes_each_step_alone(saver: Checkpointer) -> None:
    looked = Wrapped(saver)

    async def step(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        await run.once("call", lambda: "x" * 50)
        return {"log": ["y" * 50]}

    class Log(TypedDict):
        log: Annotated[list[str], Append()]

    graph = StateGraph(Log)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda s: END if len(s["log"]) == 300 else "step", ["step", END])
    await graph.compile(checkpointer=looked).invoke({}, RunConfig(thread_id="t", recursion_limit=1000))
    info = await saver.thread("t")
    assert info is not None
    kept = await saver.read("t", spans(info.lines, 0, info.last))
    assert ("record" in {e.kind for e in kept}, len(kept) <= 301) == (False, True)
    assert sum(len(e.data) for entries in looked.appended for e in entries) < 300 * 250 + 50_000


async def test_a_pruned_thread_is_small_and_goes_on(tmp_path: Path) -> None:
    async with SqliteSaver(tmp_path / "runs.db") as saver:
        app = counter(saver, 1000)
        for _ in range(200):
            await app.invoke({}, T)
        await app.prune("t", keep=2)
        await saver.vacuum()
        assert await size_of(tmp_path / "runs.db") < 60_000
        assert (await counter(saver, 1000).invoke({}, T)).state["n"] == 201


class Log(TypedDict):
    log: Annotated[list[str], Append()]


def asking(saver: Checkpointer) -> CompiledGraph[Log]:
    """Says something, and asks two things at once."""

    def ask(name: str) -> Any:
        async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
            return {"log": [f"{name}: {run.interrupt(name)}"]}

        return node

    graph = StateGraph(Log)
    graph.add_node("say", lambda s: {"log": [f"said {len(s['log'])}"]})
    graph.add_edge(START, "say")
    for name in ("left", "right"):
        graph.add_node(name, ask(name))
        graph.add_edge("say", name)
        graph.add_edge(name, END)
    return graph.compile(checkpointer=saver)


async def test_pruning_spares_what_an_open_question_rests_on(saver: Checkpointer) -> None:
    app = asking(saver)
    first = await app.invoke({"log": ["one"]}, T)
    await app.invoke(Command(resume={q.id: "yes" for q in first.interrupts}), T)
    second = await app.invoke({"log": ["two"]}, T)
    left, right = second.interrupts
    await app.invoke(Command(resume={left.id: "no"}), T)
    await app.prune("t", keep=1)
    found = await app.state(T)
    assert found is not None
    assert found.interrupts == (right,)
    result = await asking(saver).invoke(Command(resume={right.id: "yes"}), T)
    assert result.state["log"] == [
        "one",
        "said 1",
        "left: yes",
        "right: yes",
        "two",
        "said 5",
        "left: no",
        "right: yes",
    ]


async def test_pruning_keeps_the_newest_line_and_frees_what_the_line_before_the_fork_had(
    saver: Checkpointer,
) -> None:
    app = asking(saver)
    for word in ("one", "two", "three"):
        paused = await app.invoke({"log": [word]}, T)
        await app.invoke(Command(resume={q.id: "yes" for q in paused.interrupts}), T)
    history = await app.history(T)
    before = [c for c in history if c.ran == ("say",) and c.kind == "step"][1]
    fork = await app.invoke(None, RunConfig(thread_id="t", checkpoint_id=before.checkpoint_id))
    assert [q.value for q in fork.interrupts] == ["left", "right"]
    removed = await app.prune("t", keep=1)
    found = await app.state(T)
    assert found is not None
    assert (found.interrupts, found.state["log"]) == (fork.interrupts, fork.state["log"])
    kept = await app.history(T)
    assert [c.checkpoint_id for c in kept] == [fork.checkpoint_id, before.checkpoint_id]
    assert removed == len(history) + 1 - len(kept)
    info = await saver.thread("t")
    assert info is not None
    everything = [Span(line.line, 0, 1 << 31) for line in info.lines]
    assert len(await saver.heads("t", everything, 1000)) == len(kept)
    result = await asking(saver).invoke(Command(resume={q.id: "no" for q in fork.interrupts}), T)
    assert result.state["log"][-2:] == ["left: no", "right: no"]


async def test_all_that_pruning_keeps_reads_as_before(saver: Checkpointer) -> None:
    app = asking(saver)
    paused = await app.invoke({"log": ["one"]}, T)
    await app.invoke(Command(resume={q.id: "yes" for q in paused.interrupts}), T)
    for checkpoint in (paused.checkpoint_id, (await app.history(T))[-1].checkpoint_id):
        await app.update_state(RunConfig(thread_id="t", checkpoint_id=checkpoint), {"log": ["by hand"]})
        again = await app.invoke(None, T)
        await app.invoke(Command(resume={q.id: "no" for q in again.interrupts}), T)
    before = {id: await at(app, id) for id in await every_checkpoint(saver)}
    for keep in (8, 6, 4, 2, 1):
        newest = await app.state(T)
        await app.prune("t", keep=keep)
        kept = await every_checkpoint(saver)
        assert keep <= len(kept) <= keep + 4
        assert {id: await at(app, id) for id in kept} == {id: before[id] for id in kept}
        assert await asking(saver).state(T) == newest


async def every_checkpoint(saver: Checkpointer) -> list[str]:
    """The ids of all that the thread has, on all of its lines."""
    info = await saver.thread("t")
    assert info is not None
    heads = await saver.heads("t", [Span(line.line, 0, 1 << 31) for line in info.lines], 1000)
    return [f"{e.line}.{e.seq}" for e in heads]


async def at(app: CompiledGraph[Log], id: str) -> Any:
    """The thread at a checkpoint."""
    found = await app.state(RunConfig(thread_id="t", checkpoint_id=id))
    assert found is not None
    return found.state, found.next, found.interrupts


async def test_pruning_keeps_the_checkpoint_that_a_fork_without_one_of_its_own_stands_on(saver: Checkpointer) -> None:
    app = asking(saver)
    paused = await app.invoke({"log": ["one"]}, T)
    answers = {q.id: "yes" for q in paused.interrupts}
    await app.invoke(Command(resume=answers), T)
    await app.invoke({"log": ["two"]}, T)
    looked = Wrapped(saver)

    async def dies() -> None:
        if looked.appended:
            raise StoreError("dead")

    looked.hooks["write"] = dies
    at_pause = RunConfig(thread_id="t", checkpoint_id=paused.checkpoint_id, durability="sync")
    with pytest.raises(StoreError, match="dead"):
        await asking(looked).invoke(Command(resume=answers), at_pause)
    info = await saver.thread("t")
    assert info is not None
    await saver.release("t", info.epoch)
    await app.prune("t", keep=1)
    (resumed,) = await asking(saver).resume_pending()
    assert resumed.result is not None
    assert resumed.result.state["log"] == ["one", "said 1", "left: yes", "right: yes"]
