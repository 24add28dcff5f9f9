"""What a node may do with its run: `RunContext`, and the token that tells it to stop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from agentgraph import events
from agentgraph.config import RunConfig
from agentgraph.errors import RunEndedError
from agentgraph.messages import Usage
from agentgraph.strategies import UNSET
from agentgraph.threads import call_in_loop, in_loop_thread

__all__ = ["CancellationToken", "Interrupt", "Interrupted", "RunContext"]

log: logging.Logger = logging.getLogger("agentgraph")

C = TypeVar("C")
T = TypeVar("T")

_EVENT_TYPES = cast("tuple[type, ...]", events.Event.__args__)


class CancellationToken:
    """Tells work to stop. May be read, waited for and cancelled from any thread; cancelling is for good."""

    __slots__ = ("_callbacks", "_cancelled", "_detach", "reason")

    def __init__(self) -> None:
        self._cancelled = False
        self._callbacks: list[Callable[[], object]] = []
        self._detach: Callable[[], object] | None = None
        self.reason: str | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the work is to stop."""
        return self._cancelled

    def cancel(self, reason: str = "cancelled") -> None:
        """Tell everyone who holds the token to stop. A second call does nothing."""
        if self._cancelled:
            return
        self.reason = reason
        self._cancelled = True
        while True:
            try:  # not asked before: another thread may take the last one back meanwhile
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                log.exception("a callback of a cancellation token failed; the others are called all the same")

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call `callback` once, at cancellation (at once if that has been). Returns a function that takes it back."""
        self._callbacks.append(callback)
        remove = _Remove(self._callbacks, callback)
        if self._cancelled and remove():  # cancelled between the two lines, or before
            callback()
        return remove

    def child(self) -> CancellationToken:
        """A token that is cancelled with this one, and can be cancelled without it."""
        token = CancellationToken()
        token._detach = self.on_cancel(lambda: token.cancel(self.reason or "cancelled"))
        return token

    def detach(self) -> None:
        """Let go of the parent: for work that has ended, so that the parent does not keep its token."""
        if self._detach is not None:
            self._detach()
            self._detach = None

    def raise_if_cancelled(self) -> None:
        """Raise `asyncio.CancelledError` where the work is to stop."""
        if self._cancelled:
            raise asyncio.CancelledError(self.reason)

    async def wait_cancelled(self) -> None:
        """Return once the token is cancelled."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        remove = self.on_cancel(lambda: loop.call_soon_threadsafe(woken.set))
        try:
            await woken.wait()
        finally:
            remove()

    def wait(self, timeout: float | None = None) -> bool:
        """For worker threads: block until the token is cancelled, or `timeout` seconds. Returns `cancelled`."""
        woken = threading.Event()
        remove = self.on_cancel(woken.set)
        try:
            woken.wait(timeout)
        finally:
            remove()
        return self._cancelled

    def __repr__(self) -> str:
        return f"<CancellationToken {'cancelled: ' + str(self.reason) if self._cancelled else 'open'}>"


class _Remove:
    """Takes a callback back, once; tells whether it was still there."""

    __slots__ = ("callback", "callbacks")

    def __init__(self, callbacks: list[Callable[[], object]], callback: Callable[[], object]) -> None:
        self.callbacks = callbacks
        self.callback = callback

    def __call__(self) -> bool:
        try:
            self.callbacks.remove(self.callback)
        except ValueError:
            return False
        return True


class Interrupt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question that a run waits for. `node` is the path of the node that asks.

    `error` says what was wrong with the answer that it was given, where it has to be answered again.
    """

    id: str
    value: Any
    node: tuple[str, ...]
    error: str = ""


class Interrupted(BaseException):
    """Ends an attempt that asked something. No `Exception`, so that no node's `except Exception` takes it.

    Code that runs several things for one node may gather their interrupts and raise them as one.
    """

    def __init__(self, interrupts: tuple[Interrupt, ...]) -> None:
        super().__init__(interrupts)
        self.interrupts = interrupts


class EventSink(Protocol):
    """Where a run's events go: a reader's bounded buffer."""

    def put(self, event: Any, path: tuple[str, ...]) -> Awaitable[None]:
        """Take the event, at once or as soon as there is room: what is returned, awaited, waits for the room."""
        ...

    def put_then(self, event: Any, path: tuple[str, ...], done: Callable[[], None]) -> None:
        """Take the event, and call `done` as soon as there was room."""
        ...


class Recorder(Protocol):
    """What keeps what the step under way has done, for a run that can be continued."""

    def get(self, key: str) -> Any:
        """What is recorded under this key; `UNSET` where nothing is."""
        ...

    async def put(self, key: str, value: Any, where: str) -> None:
        """Record a value. Raises `CodecError` naming `where` for one that cannot be stored."""
        ...

    def ask(self, address: str, value: Any, before: list[bytes]) -> tuple[str, Any]:
        """The id of a question from this address, and its answer: `UNSET` where there is none yet.

        `before` is what this attempt has asked already, and gets this one added.
        """
        ...

    def refuse(self, id: str) -> None:
        """Forget an answer that does not do."""
        ...

    def waiting(self, place: str) -> tuple[Interrupt, ...]:
        """The open questions of whoever is at this place."""
        ...


class _Ready:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


READY = _Ready()


class _Turn:
    """An awaitable that lets the event loop turn once."""

    def __await__(self) -> Generator[Any, None, None]:
        yield


TURN = _Turn()


class Shared:
    """What one run and all its subgraphs have in common. Owned by the engine."""

    __slots__ = ("config", "context", "journal", "loop", "permits", "run_id", "sink", "steps", "usage")

    def __init__(
        self, config: RunConfig, context: Any, loop: asyncio.AbstractEventLoop, run_id: str, sink: EventSink | None
    ) -> None:
        self.config: RunConfig = config
        self.context: Any = context
        self.loop: asyncio.AbstractEventLoop = loop
        self.run_id: str = run_id
        self.sink: EventSink | None = sink
        self.permits: asyncio.Semaphore | None = (
            None if config.max_concurrency is None else asyncio.Semaphore(config.max_concurrency)
        )
        self.steps: int = 0
        self.usage: Usage | None = None
        self.journal: Recorder | None = None


class GraphRun(Protocol):
    """What a context needs of the graph run it belongs to."""

    shared: Shared
    token: CancellationToken | None
    parent: RunContext[Any] | None
    scratch: dict[str, Any]
    iterations: dict[str, int]
    records: dict[Any, Any]

    def cancellation(self) -> CancellationToken:
        """The graph run's own token."""
        ...

    def place(self) -> str:
        """Where in the whole run this graph runs; "" for the outermost."""
        ...


class Pulse(Protocol):
    """What measures a node's silence."""

    def beat(self) -> None:
        """The node lives. May come from any thread."""
        ...


class Permit(Protocol):
    """A node's share of `max_concurrency`."""

    async def lend(self) -> None:
        """Give it back while a child works; calls nest."""
        ...

    async def reclaim(self) -> None:
        """Take it again when the last child has ended."""
        ...


class Done:
    """What one attempt has asked, and which graphs it has run: a run that can be continued must tell these apart."""

    __slots__ = ("asked", "graphs", "running")

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.graphs: int = 0
        self.running: bool = False


class RunContext(Generic[C]):
    """What a node that takes `(state, run)` gets: its run, as seen from this one attempt.

    When the attempt has ended it can no longer be used to touch the run: `emit` and the like then raise
    `RunEndedError`, which is what stops a worker thread that was left behind.
    """

    __slots__ = (
        "_closed", "_done", "_graph", "_parts", "_permit", "_pulse", "_task", "_token", "_whole", "attempt", "path",
        "step",
    )  # fmt: skip

    def __init__(
        self,
        graph: GraphRun,
        path: tuple[str, ...],
        step: int,
        task: int = 0,
        attempt: int = 1,
        pulse: Pulse | None = None,
        permit: Permit | None = None,
    ) -> None:
        self._graph = graph
        self.path: tuple[str, ...] = path
        """The node's path, from the outermost graph inwards; its last part is `node`."""
        self.step: int = step
        """The step of the node's graph, from 1."""
        self.attempt: int = attempt
        """Which attempt this is, from 1 (see `Retry`)."""
        self._task = task
        self._pulse = pulse
        self._permit = permit
        self._token: CancellationToken | None = None
        self._closed: str | None = None
        self._whole: RunContext[C] | None = None
        self._parts: tuple[str, ...] = ()
        self._done: Done | None = None

    def part(self, name: str) -> RunContext[C]:
        """A context of its own for a part of this attempt's work, such as one tool call.

        It ends by `close`, without the attempt: what outlives it can touch nothing of the run any more. Its token is
        cancelled with the attempt's, and can be cancelled without it; what it asks and records is its own, by `name`.
        """
        if self._ended():
            self.check_open(f"begins its part {name!r}")
        made: RunContext[C] = RunContext(
            self._graph, self.path, self.step, self._task, self.attempt, self._pulse, self._permit
        )
        made._whole = self
        made._parts = (*self._parts, name)
        return made

    @property
    def node(self) -> str:
        """The node's name."""
        return self.path[-1]

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self._graph.shared.config

    @property
    def context(self) -> C:
        """The caller's own object, as given to `invoke(..., context=...)`."""
        return self._graph.shared.context

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._graph.shared.run_id

    @property
    def usage(self) -> Usage | None:
        """Tokens that the whole run has taken so far; None before the first model call."""
        return self._graph.shared.usage

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when this attempt has to stop: the run was cancelled, or a timeout was reached."""
        if self._token is None:
            over = self._graph.cancellation() if self._whole is None else self._whole.cancellation
            self._token = over.child()
            if self._closed:
                self._token.detach()
                self._token.cancel(self._closed)
        return self._token

    @property
    def iterations(self) -> int:
        """How often this node has called its model in this run, counted by `next_iteration`; -1 before the first."""
        return self._graph.iterations.get(self.path[-1], -1)

    def next_iteration(self) -> int:
        """Count one more round of this node, and return its number: 0 for the first."""
        self.check_open("counts a round")
        count = self._graph.iterations[self.path[-1]] = self.iterations + 1
        return count

    @property
    def scratch(self) -> dict[str, Any]:
        """What the nodes of this graph tell each other during this run. Never stored, never seen by another run."""
        self.check_open("asks for the run's scratch")
        return self._graph.scratch

    @property
    def has_reader(self) -> bool:
        """Whether somebody reads this run's events; where nobody does there is no need to build any."""
        return self._graph.shared.sink is not None

    def add_usage(self, usage: Usage) -> None:
        """Count a model call's tokens into the run's sum."""
        self.check_open("counts tokens")
        shared = self._graph.shared
        shared.usage = usage if shared.usage is None else shared.usage + usage

    def heartbeat(self) -> None:
        """Tell that the node lives: its `idle_timeout` starts anew, and that of each graph it is a node of.

        May be called from a worker thread.
        """
        run: RunContext[Any] | None = None if self._ended() else self
        while run is not None:
            if run._pulse is not None:
                run._pulse.beat()
            run = run._graph.parent

    def emit(self, event: Any) -> Awaitable[None]:
        """Tell the run's reader: an event of `agentgraph.events`, or any JSON value (it becomes a `Custom`).

        In async code, await what is returned: it waits while the reader is behind. In a worker thread the
        call itself blocks for as long. Without a reader nothing happens. What has no JSON form is told by its
        `repr`. Raises `RunEndedError` after the attempt has ended.
        """
        self.check_open("emits an event")
        self.heartbeat()
        shared = self._graph.shared
        sink = shared.sink
        if sink is None:
            return READY
        if not isinstance(event, _EVENT_TYPES):
            event = events.Custom(data=event)
        if type(event) is not events.ModelDelta:
            event = events.encodable(event)
        if in_loop_thread(shared.loop):
            return sink.put(event, self.path)

        def put(done: Callable[[], None]) -> None:
            if self._ended():  # since this thread asked
                done()
            else:
                sink.put_then(event, self.path, done)

        call_in_loop(shared.loop, put)
        return READY

    def interrupt(self, value: Any, *, schema: Any = None) -> Any:
        """Ask something from outside, and return the answer, once there is one.

        Without an answer this attempt ends, and the run with status "interrupted"; siblings of the same step finish
        first. What is raised for it, `Interrupted`, passes through `except Exception`. `value` is what is shown to
        whoever answers. When `Command(resume={id: answer})` has brought the answer, the node runs again from its
        beginning and gets it here: what must not be done twice belongs into `once`. Asking something else than before
        is another question. With `schema`, a type that msgspec knows, the answer is converted to it; one that does not
        fit is asked for again, and `Interrupt.error` says why.
        """
        self.check_open("asks something")
        journal = self._graph.shared.journal
        if journal is None:
            raise Interrupted((Interrupt(id=self.place, value=value, node=self.path),))
        id, answer = journal.ask(self.address, value, self.done.asked)
        if answer is UNSET:
            raise Interrupted((Interrupt(id=id, value=value, node=self.path),))
        if schema is None:
            return answer
        try:
            return msgspec.convert(answer, schema)
        except msgspec.ValidationError as error:
            self._refuse(journal, id)
            raise Interrupted((Interrupt(id=id, value=value, node=self.path, error=str(error)),)) from None

    def _refuse(self, journal: Recorder, id: str) -> None:
        loop = self._graph.shared.loop
        if in_loop_thread(loop):
            journal.refuse(id)
            return

        def refuse(done: Callable[[], None]) -> None:
            if not self._ended():  # since this thread asked
                journal.refuse(id)
            done()

        call_in_loop(loop, refuse)

    @property
    def done(self) -> Done:
        """The engine's: what this attempt has done so far that its records depend on."""
        if self._done is None:
            self._done = Done()
        return self._done

    @property
    def place(self) -> str:
        """Where in the run this is, told apart from all else: each node on the way, which of its Sends, which part."""
        over = self._graph.place()
        task = f"#{self._task}" if self._task else ""
        own = escaped(self.path[-1]) + task + "".join(f":{escaped(part)}" for part in self._parts)
        return f"{over}/{own}" if over else own

    @property
    def address(self) -> str:
        """The place with the step of each graph on the way, the innermost first: a loop comes to no address twice."""
        steps: list[str] = []
        run: RunContext[Any] | None = self
        while run is not None:
            steps.append(str(run.step))
            run = run._graph.parent
        return f"{self.place}@{'.'.join(steps)}"

    @property
    def keeps(self) -> bool:
        """Whether what `once` records outlives this process: the run has a thread, and the graph a checkpointer."""
        return self._graph.shared.journal is not None

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """A block in which this node waits for what another may have: it is not at work, as `max_concurrency` counts.

        When the block is left it waits until it may work again.
        """
        if self._permit is None:
            yield
            return
        await self._permit.lend()
        try:
            yield
        finally:
            await self._permit.reclaim()

    def recorded(self, key: str) -> Any:
        """What `once` has recorded under `key`, by this attempt or one before it; `UNSET` where nothing is."""
        journal = self._graph.shared.journal
        if journal is not None:
            return journal.get(f"{self.address}={key}")
        return self._graph.records.get((self.path, self.step, self._task, self._parts, key), UNSET)

    def open_questions(self) -> tuple[Interrupt, ...]:
        """What was asked here, in an earlier run on the thread, and has no answer yet."""
        journal = self._graph.shared.journal
        return () if journal is None else journal.waiting(self.place)

    async def once(self, key: str, fn: Callable[[], Awaitable[T] | T]) -> T:
        """Call `fn` and keep its result under `key` for this node and step; a further attempt gets it without a call.

        So does another process that continues the run, where it has a thread and the graph a checkpointer: the result
        is then stored before this returns (see `RunConfig.durability`). `fn` may be sync (it then must not block) or
        async. A failed call is not kept. Raises `CodecError` for a result that cannot be stored.
        """
        self.check_open(f"runs {key!r}")
        kept = self.recorded(key)
        if kept is not UNSET:
            return kept
        result = fn()
        value = await cast("Awaitable[T]", result) if inspect.isawaitable(result) else cast("T", result)
        self.check_open(f"records {key!r}")
        journal = self._graph.shared.journal
        if journal is None:
            self._graph.records[self.path, self.step, self._task, self._parts, key] = value
        else:  # and there alone: a further attempt must not see what this one does to the value
            where = f"the result of once({key!r}) in node {'/'.join(self.path)!r}"
            await journal.put(f"{self.address}={key}", value, where)
        return value

    def _ended(self) -> str | None:
        return self._closed or (None if self._whole is None else self._whole._ended())

    def check_open(self, does: str) -> None:
        """Raise `RunEndedError` where the attempt has ended; `does` says what it was about to do."""
        if reason := self._ended():
            raise RunEndedError(f"node {self.node!r} {does}, but this attempt has ended: {reason}")

    def close(self, reason: str, *, cancel: bool = False) -> None:
        """The work has ended, says whoever made this context. With `cancel`, its token tells so. Once is enough."""
        if self._closed:
            return
        self._closed = reason
        if self._token is not None:
            self._token.detach()
            if cancel:
                self._token.cancel(reason)

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<RunContext {'/'.join(self.path)} step {self.step} attempt {self.attempt}{closed}>"


def escaped(name: str) -> str:
    """A name as part of a `place`."""
    if name.isalnum():
        return name
    for sign in "%/:#@=~?":
        name = name.replace(sign, f"%{ord(sign):02X}")
    return name
