"""A run's thread: claimed, read, written to, and given back.

The rules:
- Who has a `Journal` has claimed the thread: nobody else writes to it, or this run is told so and ends.
- What a step's nodes have done is recorded as soon as it is done, under the place that did it. The step's checkpoint
  holds all of it, and takes the records' place; those that a pause rests on stay, for a fork may begin there.
- A value is encoded before control goes back to nodes, which may change what they hold.
- The newest state of a thread may be kept in memory, and counts only where nobody has claimed the thread since.
"""

from __future__ import annotations

import asyncio
import bisect
import copy
import logging
import os
import socket
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentgraph._engine.log import Head, Position, Replayed, change, check_types, replay, whole
from agentgraph._engine.pause import answers_in, is_stop, place_of, question_id, stop
from agentgraph._engine.plan import Plan
from agentgraph.checkpoint.protocol import Checkpointer, Entry, Line, ThreadInfo, spans
from agentgraph.checkpoint.writer import Writer
from agentgraph.config import RunConfig
from agentgraph.context import Interrupt, escaped
from agentgraph.errors import CodecError, ConfigError, FencedError, ResumeError, ThreadBusyError, listed
from agentgraph.strategies import UNSET
from agentgraph.tasks import all_ended
from agentgraph.threads import ThreadCall

if TYPE_CHECKING:
    from agentgraph.checkpoint.codec import Codec
    from agentgraph.checkpoint.kinds import StoredType

log = logging.getLogger("agentgraph")

OWNER = f"{socket.gethostname()}:{os.getpid()}"

_KEPT_STATES = 256
"""Threads of a graph whose newest state is kept in memory."""
_LARGE = 100_000
"""Values of more characters are encoded in a worker thread."""
_ITEM = 10
"""Characters that an item counts."""
_SMALL = 8192
"""Bytes of changes up to which a full checkpoint saves nothing."""

_held: ContextVar[tuple[_Hold, ...]] = ContextVar("agentgraph threads held", default=())
"""The threads that the current task's runs have claimed: to wait for one of these would last for ever."""

_queues: weakref.WeakValueDictionary[tuple[int, int, str], asyncio.Lock] = weakref.WeakValueDictionary()
"""Where the runs of one event loop wait for a thread, first come, first served."""

_head = msgspec.json.Encoder()
_head_of = msgspec.json.Decoder(Head)


class _Hold:
    """That a run has a thread. Tasks that the run's code began, and that outlive it, know it still."""

    __slots__ = ("over", "thread")

    def __init__(self, thread: tuple[int, str]) -> None:
        self.thread = thread
        self.over = False


class _Kept(msgspec.Struct, frozen=True):
    """A thread's newest state, as it was when this process gave it back."""

    epoch: int
    created: float
    replayed: Replayed


class Keeper:
    """What a compiled graph needs to keep runs: its store, its codec, and the states it remembers."""

    def __init__(self, plan: Plan, store: Checkpointer, types: Iterable[type | StoredType[Any]], lease: float) -> None:
        if isinstance(store, type) or not isinstance(store, Checkpointer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"compile(checkpointer=...) must be a store of threads, such as SqliteSaver('runs.db'); "
                f"found {store!r:.80}"
            )
        from agentgraph.checkpoint.codec import Codec  # noqa: PLC0415  # who keeps no runs does not load it

        self.plan = plan
        self.store = store
        self.lease = lease
        self.codec: Codec = Codec([*types, *_state_types(plan)])
        self.draining = False
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._not_given_back: dict[str, tuple[int, str]] = {}
        """Threads that the store failed to take back, with their epoch and status."""

    @asynccontextmanager
    async def claimed(
        self, config: RunConfig, run_id: str, *, most_deaths: int | None = None
    ) -> AsyncGenerator[Journal]:
        """The thread that `config` names, as nobody else's; waits for it, or raises `ThreadBusyError`, as it says.

        With `most_deaths` only a thread whose run somebody has left; one whose run has killed so many of its processes
        is set aside.
        """
        thread_id = cast("str", config.thread_id)
        me = (id(self.store), thread_id)
        if any(hold.thread == me and not hold.over for hold in _held.get()):
            raise ThreadBusyError(
                thread_id,
                f"thread {thread_id!r} is that of the run which this code is part of, and would wait for itself; "
                f"give the inner run a thread_id of its own, or none",
            )
        key = (*me[:1], id(asyncio.get_running_loop()), thread_id)
        queue = _queues.get(key)
        if queue is None:
            queue = _queues[key] = asyncio.Lock()
        if queue.locked() and config.if_busy == "refuse":
            raise ThreadBusyError(thread_id)
        async with queue:
            info = await self._claim(thread_id, wait=config.if_busy == "wait")
            if most_deaths is not None:
                await self._check_left_behind(info, most_deaths)
            hold = _Hold(me)
            token = _held.set((*_held.get(), hold))
            journal = Journal(self, config, info, run_id)
            try:
                await journal.load(config.checkpoint_id)
                yield journal
            except BaseException as error:
                failed = journal.taken_back() or isinstance(error, Exception)
                if journal.began:
                    journal.status = "failed" if failed else "cancelled"
                hold.over = True
                _held.reset(token)
                failure = await self._given_back(journal)
                if failure is None or failure is error:
                    raise
                if failed:
                    raise failure from error
                log.error("thread %r: what was left to be written is not stored", thread_id, exc_info=failure)
                raise  # a cancellation from outside stays what it is
            hold.over = True
            _held.reset(token)
            failure = await self._given_back(journal)
            if failure is not None:
                raise failure
            if journal.ended is not None:
                self.remember(journal.ended, journal.replayed)

    async def _claim(self, thread_id: str, *, wait: bool) -> ThreadInfo:
        if (mine := self._not_given_back.get(thread_id)) is not None:
            try:
                await self.store.release(thread_id, *mine)
            except FencedError:
                pass  # somebody else has had it since
            self._not_given_back.pop(thread_id, None)
        pause = 0.005
        while (info := await self._try_claim(thread_id)) is None:
            if not wait:
                raise ThreadBusyError(thread_id)
            await asyncio.sleep(pause)  # another process has it: there is nothing to wait on but time
            pause = min(2 * pause, 0.25)
        return info

    async def _try_claim(self, thread_id: str) -> ThreadInfo | None:
        # as a task: a claim that came through after its caller was cancelled would lock the thread for its lease
        claiming = asyncio.ensure_future(self.store.claim(thread_id, self.plan.name, OWNER, self.lease))
        try:
            await all_ended((claiming,))
        except asyncio.CancelledError:
            if not claiming.cancelled() and claiming.exception() is None and (info := claiming.result()) is not None:
                await self.store.release(thread_id, info.epoch)
            raise
        return claiming.result()

    async def _given_back(self, journal: Journal) -> Exception | None:
        """Give the thread back, with all that is written to it. Returns what the store has failed with."""
        writer = journal.writer
        try:
            await writer.close(journal.status)
        finally:
            if writer.failure is not None and not isinstance(writer.failure, FencedError):
                # the run's caller is told; its next run on the thread need not wait for the lease to run out
                status = journal.status if not journal.began or journal.status == "cancelled" else "failed"
                self._not_given_back[journal.thread_id] = journal.info.epoch, status
        return writer.failure

    async def _check_left_behind(self, info: ThreadInfo, most_deaths: int) -> None:
        """Give the thread back and raise `ThreadBusyError` where its run is not to be continued."""
        thread_id = info.thread_id
        if info.status != "running":
            await self.store.release(thread_id, info.epoch)
            raise ThreadBusyError(thread_id, f"thread {thread_id!r} has been continued by somebody else")
        if info.deaths >= most_deaths:
            log.error("thread %r has killed %d processes, and is set aside", thread_id, info.deaths)
            await self.store.release(thread_id, info.epoch, "set aside")
            raise ThreadBusyError(thread_id, f"thread {thread_id!r} is set aside")

    async def replayed(self, info: ThreadInfo, line: int, upto: int) -> Replayed:
        """What the thread comes to at one of its entries."""
        entries = await self.store.read(info.thread_id, spans(info.lines, line, upto))
        return replay(entries, self.plan.schema, self.codec, info.thread_id)

    def remembered(self, info: ThreadInfo) -> Replayed | None:
        """The newest state of a thread that was just claimed, where nobody has claimed it since it was remembered.

        Whoever gets it is the only one who has it.
        """
        kept = self._kept.pop(info.thread_id, None)
        if kept is None or kept.epoch != info.epoch - 1 or kept.created != info.created:
            return None
        return kept.replayed

    def remember(self, info: ThreadInfo, replayed: Replayed) -> None:
        """Keep a thread's newest state. The caller's result shares its values: lists and the like are copied."""
        replayed.state, replayed.records = {k: _own(v) for k, v in replayed.state.items()}, {}
        self._kept[info.thread_id] = _Kept(info.epoch, info.created, replayed)
        if len(self._kept) > _KEPT_STATES:
            self._kept.popitem(last=False)

    async def left_behind(self) -> list[str]:
        """The threads whose run somebody has left, its process having died or been drained."""
        found: list[str] = []
        after = ""
        while page := await self.store.threads(graph=self.plan.name, status="running", after=after):
            after = page[-1].thread_id
            found += [info.thread_id for info in page if not info.claimed]
        return found

    async def found(self, config: RunConfig) -> tuple[ThreadInfo, int, int] | None:
        """The thread, line and entry that `config` names, to be read; None where there is nothing yet."""
        if config.thread_id is None:
            raise ResumeError("no thread is named: give RunConfig(thread_id=...)")
        info = await self.store.thread(config.thread_id)
        if info is None or not info.last:
            if config.checkpoint_id is not None:
                raise ResumeError(
                    f"thread {config.thread_id!r} is not there, nor its checkpoint {config.checkpoint_id!r}"
                )
            return None
        if config.checkpoint_id is None:
            return info, info.line, info.last
        return info, *await self.checkpoint(info, config.checkpoint_id)

    async def checkpoint(self, info: ThreadInfo, checkpoint_id: str) -> tuple[int, int]:
        """The line and number of a checkpoint. Raises `ResumeError` where there is none by that id."""
        line, _, seq = checkpoint_id.partition(".")
        if line.isdecimal() and seq.isdecimal() and any(one.line == int(line) for one in info.lines):
            within = spans(info.lines, int(line), int(seq))[-1:]
            found = await self.store.heads(info.thread_id, within, 1)
            if found and found[0].seq == int(seq):
                return int(line), int(seq)
        newest = await self.store.heads(info.thread_id, spans(info.lines, info.line, info.last), 5)
        raise ResumeError(
            f"thread {info.thread_id!r} has no checkpoint {checkpoint_id!r}; its newest are "
            f"{listed(f'{e.line}.{e.seq}' for e in newest)}"
        )


class Journal:
    """One claimed thread, under one run."""

    def __init__(self, keeper: Keeper, config: RunConfig, info: ThreadInfo, run_id: str) -> None:
        self.keeper = keeper
        self.info = info
        self.thread_id = info.thread_id
        self.status = info.status
        self.began = False
        """Whether the run has begun, so that its end says something of the thread."""
        self.ended: ThreadInfo | None = None
        """What the thread's newest state may be remembered with."""
        self.position = Position()
        self.replayed: Replayed
        """What the thread came to when it was loaded."""
        self.asked: tuple[Interrupt, ...] = ()
        self.given: tuple[list[Mapping[str, Any]], bool] = ([], False)
        """The input's updates, and whether it is a whole state instead."""
        self._run_id = run_id
        self._codec = keeper.codec
        self._line = info.line
        self._seq = info.last
        self._new_line: Line | None = None
        self._origin: tuple[int, int] = (0, 0)
        self._parent = (0, 0)
        self._records: dict[str, Entry] = {}
        self._keys: list[str] = []
        """Of the records, sorted: those of a place and of all that is inside it stand side by side."""
        self._rests = 0
        self._waiting: dict[str, tuple[Interrupt, ...]] = {}
        self._aside: list[Mapping[str, Any]] = []
        """Updates for keys that the state does not know any more, to be kept with the step that they came of."""
        self._host = cast("asyncio.Task[Any]", asyncio.current_task())
        self._cancelling = self._host.cancelling()
        self._over = False
        self._stopped = False
        self.writer = Writer(
            keeper.store,
            info.thread_id,
            info.epoch,
            lease=keeper.lease,
            durability=config.durability,
            failed=self._stop,
        )

    async def load(self, checkpoint_id: str | None) -> None:
        """Read what the thread comes to: at its end, or at a checkpoint, from which a new line then begins."""
        keeper, info = self.keeper, self.info
        line, upto = info.line, info.last
        if checkpoint_id is not None:
            line, upto = await keeper.checkpoint(info, checkpoint_id)
            if (line, upto) == (info.line, info.checkpoint):
                upto = info.last
            else:
                self._line = max(one.line for one in info.lines) + 1
                self._new_line = Line(self._line, line, upto)
        replayed = keeper.remembered(info) if checkpoint_id is None else None
        if replayed is None:
            replayed = await keeper.replayed(info, line, upto)
            if replayed.aside:
                self._tell_aside(replayed.aside)
        self.replayed = replayed
        self.position = replayed.position
        self.asked = replayed.asked
        self._records = replayed.records
        self._keys = sorted(self._records)
        self._rests = replayed.last
        self._parent = (line, replayed.last)
        self._origin = replayed.origin or (self._line, replayed.base)
        self._open_again()

    def check_types(self, state: Mapping[str, Any]) -> None:
        """Raise `CodecError` where a value does not fit its key's type, which has changed since it was stored.

        Nobody is kept from writing what a type does not say, and what was taken once is not refused later.
        """
        schema = self.keeper.plan.schema
        if self.replayed.last and self.replayed.types != schema.digest():
            check_types(schema, state, self.thread_id)

    def put_aside(self, update: Mapping[str, Any], gone: Iterable[str]) -> None:
        """Keep an update for keys that the state does not know any more with the next checkpoint; tell of `gone`."""
        self._tell_aside(gone)
        if update:
            self._aside.append(update)

    def _tell_aside(self, keys: Iterable[str]) -> None:
        log.warning(
            "thread %r has values for %s, which the state does not know any more; they are kept aside",
            self.thread_id,
            listed(keys),
        )

    # --- what was asked ---

    def answer(self, resume: Any) -> None:
        """Take the answers in `Command(resume=...)`. Raises `ResumeError`, with nothing answered."""
        answers = answers_in(resume, self.asked, self.thread_id)
        data = {id: self._codec.encode(a, f"the answer to {id!r}") for id, a in answers.items()}
        for id, encoded in data.items():
            self._record(f"?{id}", encoded)
        self._open_again()

    def pass_stops(self) -> None:
        """Go on past the stops before and after nodes."""
        for question in self.asked:
            if is_stop(question):
                self._record(f"?{question.id}", self._codec.encode(None))
        self._open_again()

    def _open_again(self) -> None:
        """Whoever asked what is still open need not ask again."""
        self._waiting = {}
        for question in self.asked:
            if f"?{question.id}" not in self._records:
                place = place_of(question)
                self._waiting[place] = (*self._waiting.get(place, ()), question)

    def waiting(self, place: str) -> tuple[Interrupt, ...]:
        """The open questions of whoever is at this place."""
        return self._waiting.get(place, ())

    @property
    def asks(self) -> bool:
        """Whether any question of an earlier run is open."""
        return bool(self._waiting)

    def ask(self, address: str, value: Any, before: list[bytes]) -> tuple[str, Any]:
        """See `Recorder.ask`."""
        shown = self._codec.encode(value, f"what {address.rpartition('@')[0]!r} asks")
        id = question_id(address, *self._origin, shown, before.count(shown))
        before.append(shown)
        return id, self.get(f"?{id}")

    def refuse(self, id: str) -> None:
        """See `Recorder.refuse`."""
        self.forget(f"?{id}", exactly=True)

    def stops(self, address: str, when: str, names: Iterable[str], path: tuple[str, ...]) -> list[Interrupt]:
        """The stops "before" or "after" these nodes that nobody has passed yet, of the graph step at this address."""
        place, _, steps = address.rpartition("@")
        found: list[Interrupt] = []
        for name in names:
            id = question_id(f"{stop(place, when, escaped(name))}@{steps}", *self._origin, b"", 0)
            if f"?{id}" not in self._records:
                found.append(Interrupt(id=id, value=None, node=(*path, name)))
        return found

    # --- records ---

    def get(self, key: str) -> Any:
        """See `Recorder.get`."""
        entry = self._records.get(key)
        return UNSET if entry is None else self._codec.decode(entry.data, f"thread {self.thread_id!r}, record {key!r}")

    async def put(self, key: str, value: Any, where: str) -> None:
        """See `Recorder.put`. After cancellation the record is written all the same."""
        data, cut = await self._encoded(value, where)
        self._record(key, data)
        if cut is not None:
            raise cut
        await self.writer.settle()

    def _record(self, key: str, data: bytes) -> None:
        before = self._records.get(key)
        self._seq += 1
        entry = self._records[key] = Entry(self._seq, self._line, "record", key, b"", data)
        if before is None:
            bisect.insort(self._keys, key)
        self._write(entry, [before] if before is not None else [])

    def forget(self, prefix: str, *, exactly: bool = False) -> None:
        """Drop the records of all places that begin so."""
        first = end = bisect.bisect_left(self._keys, prefix)
        while end < len(self._keys) and (self._keys[end] == prefix if exactly else self._keys[end].startswith(prefix)):
            end += 1
        if end > first:
            gone = [self._records.pop(key) for key in self._keys[first:end]]
            del self._keys[first:end]
            self._write(None, gone)

    # --- checkpoints ---

    async def checkpoint(
        self,
        kind: str,
        position: Position,
        updates: Sequence[Mapping[str, Any]],
        state: Mapping[str, Any],
        *,
        full: bool = False,
        keeps: bool = False,
        status: str | None = None,
    ) -> str:
        """Write what a step, an input or an update has made of the state. Returns the checkpoint's id.

        With `keeps` the step under way stays as it is, with its records and its questions.
        """
        held = self.replayed
        data, cut = b"", None
        if not keeps:
            updates = [*self._aside, *updates]
            for key, value in ((k, v) for update in self._aside for k, v in update.items()):
                held.aside.setdefault(key, []).append(value)
            self._aside = []
        digest = self.keeper.plan.schema.digest()
        types, held.types = "" if held.types == digest else digest, digest
        if not full:
            try:
                data, cut = await self._encoded(change(position, updates, keeps=keeps, types=types), "the step")
            except CodecError:
                self._blame(position, updates)
                raise
            held.changed += len(data)
            full = held.changed > max(_SMALL, 2 * held.held) and not keeps
        full = full and cut is None
        if full:
            everything, cut = await self._encoded(whole(position, state, held.aside, held.types), "the state")
            held.held = len(everything)
            # changes that only add are no longer than what they add up to: then all of it would save nothing
            if full := not data or held.changed > 2 * held.held:
                data, held.changed = everything, 0
        self._seq += 1
        asked = tuple(q.id for q in self.asked) if keeps else ()
        entry = Entry(self._seq, self._line, kind, "", self._headed(position, asked), data, full)
        gone: list[Entry] = []
        if not keeps:
            gone = list(self._records.values())
            self._records, self._keys, self.asked, self._waiting = {}, [], (), {}
            self._origin = (self._line, self._seq)
            held.base = self._seq
        self._write(entry, gone, status)
        self.position = position
        self._stand(entry)
        if cut is not None:
            raise cut
        await self.writer.settle()
        return self.checkpoint_id

    async def pause(self, asked: Sequence[Interrupt]) -> str:
        """Write which questions are open. Returns the checkpoint's id."""
        self.asked = tuple(asked)
        content = {"asked": list(asked), "origin": list(self._origin)}
        data, cut = await self._encoded(content, "the questions")
        self._seq += 1
        head = self._headed(self.position, tuple(q.id for q in asked))
        entry = Entry(self._seq, self._line, "pause", "", head, data)
        self._write(entry, (), "paused")  # at once: else whoever continues a dead process' run would find it running
        self._stand(entry)
        if cut is not None:
            raise cut
        await self.writer.settle()
        return self.checkpoint_id

    @property
    def checkpoint_id(self) -> str:
        """The newest checkpoint's id."""
        return f"{self._parent[0]}.{self._parent[1]}"

    def end(self, status: str, state: dict[str, Any]) -> None:
        """The run has come to this end."""
        self._over = True
        self.status = status
        if not self._records and not self.asked and self.writer.failure is None:
            held = self.replayed
            held.state, held.position, held.asked, held.origin = state, self.position, (), None
            held.last = self._parent[1]
            self.ended = self.info

    def _stop(self, _: Exception) -> None:
        """The first write that fails ends the run."""
        if self.began and not self._over:
            self._stopped = True
            self._host.cancel()

    def taken_back(self) -> bool:
        """Whether the run ended because its store failed, and nobody else has cancelled it. It has ended now."""
        self._over = True
        return self._stopped and self._host.uncancel() <= self._cancelling

    def _stand(self, entry: Entry) -> None:
        self._parent = (entry.line, entry.seq)
        self._rests = entry.seq

    def _headed(self, position: Position, asked: tuple[str, ...]) -> bytes:
        line, parent = self._parent
        return _head.encode(
            Head(
                round(time.time(), 3),
                parent,
                line,
                position.step,
                position.ran,
                position.names(),
                self._run_id,
                asked,
            )
        )

    def _write(self, entry: Entry | None, gone: Iterable[Entry], status: str | None = None) -> None:
        drop = [(e.line, e.seq) for e in gone if e.line == self._line and e.seq > self._rests]
        self.writer.write(() if entry is None else (entry,), drop=drop, new_line=self._new_line, status=status)
        self._new_line = None

    async def _encoded(self, value: Any, where: str) -> tuple[bytes, asyncio.CancelledError | None]:
        """The bytes, also after cancellation, which the caller raises when it has written them."""
        if not _is_large(value):
            return self._codec.encode(value, where), None
        encoding = asyncio.ensure_future(ThreadCall().run(self._codec.encode, value, where))
        cut: asyncio.CancelledError | None = None
        try:
            await all_ended((encoding,))
        except asyncio.CancelledError as error:
            cut = error
        return encoding.result(), cut

    def _blame(self, position: Position, updates: Sequence[Mapping[str, Any]]) -> None:
        """Raise the error of the one value that cannot be stored, by the key it was written to."""
        who = " and ".join(position.ran) or "the input"
        for update in updates:
            for key, value in update.items():
                self._codec.encode(value, f"what {who} wrote: state[{key!r}]")
        for send in position.sends:
            self._codec.encode(send.state, f"what {who} sent to {send.node!r}: state")

    def __repr__(self) -> str:
        return f"<Journal {self.thread_id!r} line {self._line} entry {self._seq} records={len(self._records)}>"


def head_of(entry: Entry) -> Head:
    """What is told of a checkpoint."""
    return _head_of.decode(entry.head)


def _own(value: Any) -> Any:
    return copy.copy(cast("Any", value)) if isinstance(value, (list, dict, set)) else value


_FLAT = frozenset[type]({type(None), bool, int, float})


def _is_large(value: Any) -> bool:
    """Whether there is so much to encode that the event loop should not be held up by it."""
    left = _LARGE
    level: list[Any] = [value]
    while level:
        deeper: list[Any] = []
        for item in level:
            if type(item) in _FLAT:
                continue
            if isinstance(item, (str, bytes)):
                left -= len(item)
                continue
            found: Sequence[Any] | Iterable[Any] = ()
            if isinstance(item, (list, tuple, set, frozenset)):
                found = cast("Sequence[Any]", item)
                left -= _ITEM * len(found)
            elif isinstance(item, dict):
                found = cast("dict[Any, Any]", item).values()
                left -= _ITEM * len(found)
            elif isinstance(item, msgspec.Struct):
                found = msgspec.structs.astuple(item)
                left -= _ITEM * len(found)
            elif isinstance(held := getattr(item, "__dict__", None), dict):  # a dataclass, a model
                found = cast("dict[str, Any]", held).values()
                left -= _ITEM * len(found)
            if left < 0:
                return True
            deeper.extend(found)
        level = deeper
    return left < 0


def _state_types(plan: Plan) -> set[Any]:
    """The types that the states of a graph and its subgraphs name, or that a subgraph's node says (`types`)."""
    from agentgraph.checkpoint.codec import types_in  # noqa: PLC0415  # as above

    found: set[Any] = set()
    for annotation in plan.schema.types.values():
        found |= types_in(annotation)
    for spec in plan.nodes:
        if spec.is_graph:
            found |= {*getattr(spec.fn, "types", ()), *_state_types(spec.fn.plan)}
    return found
