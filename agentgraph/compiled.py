"""A graph, ready to run: immutable, and safe to share between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Generic, TypeVar, Union

import msgspec

from agentgraph._engine import draw
from agentgraph._engine.child import run_child
from agentgraph._engine.journal import Keeper, head_of
from agentgraph._engine.plan import Plan
from agentgraph._engine.reader import EventBuffer, RunStream
from agentgraph._engine.retention import prune_thread
from agentgraph._engine.run import GraphRun
from agentgraph._engine.start import LeftBehind, run_graph, update_thread
from agentgraph.checkpoint.protocol import Entry, spans
from agentgraph.config import RunConfig, positive
from agentgraph.context import Interrupt, RunContext
from agentgraph.errors import ConfigError, ResumeError, SyncInLoopError, ThreadBusyError
from agentgraph.messages import Usage, new_id
from agentgraph.node import Command, Updates

__all__ = ["Checkpoint", "CompiledGraph", "Input", "Resumed", "RunResult", "RunStream", "ThreadState"]

S = TypeVar("S")

Input = Union[Mapping[str, Any], S, Command[Any], None]
"""What a run is given: an update, a whole state, on a thread also answers, or None to go on where it stood."""

_DEFAULT = RunConfig()


class RunResult(msgspec.Struct, Generic[S], frozen=True):
    """How a run ended."""

    state: S
    """The state after the last step, of the type that the graph was built with."""
    status: str
    """ "done"; "interrupted" where nodes asked something and wait for the answer; "drained" where `drain()` stopped
    it."""
    interrupts: tuple[Interrupt, ...]
    usage: Usage | None
    """Tokens of all model calls of the run; None where there was none."""
    steps: int
    """Steps taken, those of subgraphs included."""
    run_id: str
    thread_id: str | None
    checkpoint_id: str | None = None
    """The thread's newest checkpoint; None for a run that is not kept."""


class ThreadState(msgspec.Struct, Generic[S], frozen=True):
    """A thread at one of its checkpoints."""

    state: S
    next: tuple[str, ...]
    """The nodes that run next; empty where the run came to its end."""
    interrupts: tuple[Interrupt, ...]
    """The questions that were open."""
    checkpoint_id: str
    parent_id: str | None
    """The checkpoint before it; after a fork that of the line it left."""
    step: int
    """The step of its run, from 1; 0 for an input."""
    created: float
    """Seconds since 1970."""
    run_id: str
    status: str
    """The thread's: "new", "running" (also where its process has died), "paused", "done", "failed", "cancelled", or
    "set aside"."""


class Checkpoint(msgspec.Struct, frozen=True):
    """One line of a thread's history."""

    checkpoint_id: str
    parent_id: str | None
    kind: str
    """ "input", "step", "pause" or "update"."""
    step: int
    ran: tuple[str, ...]
    """The nodes of the step."""
    next: tuple[str, ...]
    asked: tuple[str, ...]
    """The ids of the questions that were open."""
    created: float
    """Seconds since 1970."""
    run_id: str


class Resumed(msgspec.Struct, Generic[S], frozen=True):
    """What came of a run that another process had left. Either `result` or `error` is there."""

    thread_id: str
    result: RunResult[S] | None = None
    error: Exception | None = None


class CompiledGraph(Generic[S]):
    """A graph, ready to run. Made by `StateGraph.compile()`; as a node of another graph it is a subgraph."""

    __slots__ = ("keeper", "plan")
    plan: Plan
    keeper: Keeper | None

    def __init__(self, plan: Plan, keeper: Keeper | None = None) -> None:
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "keeper", keeper)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a compiled graph is shared between runs and cannot be changed; put {name!r} in the state, "
            f"or in the context: invoke(..., context=...)"
        )

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.plan.name

    async def invoke(self, input: Input[S], config: RunConfig | None = None, *, context: Any = None) -> RunResult[S]:
        """Run the graph on `input`, and return how it ended.

        A dict is an update of the empty state, or of the thread's (see `RunConfig.thread_id`); an instance of the
        state's class is the whole state. On a thread, `Command(resume={id: answer})` answers what was asked, and None
        goes on where the last run stood, however it ended. `context` is the caller's own object, handed to the nodes.

        Raises `InputError` for what is no input, a node's own exception with a note that says where,
        `RecursionLimitError`, `RunTimeoutError`; on a thread `ResumeError`, `ThreadBusyError`, `StoreError`,
        `FencedError`, `CodecError`. Whatever the outcome, and after cancellation, nothing of the run runs any more,
        and what was recorded is stored.
        """
        config = _checked(config)
        run_id = config.run_id or new_id()
        return self._result(await run_graph(self.plan, self.keeper, input, config, context, run_id, None))

    def stream(
        self,
        input: Input[S],
        config: RunConfig | None = None,
        *,
        context: Any = None,
        buffer: int = 256,
    ) -> RunStream[RunResult[S]]:
        """Run the graph and read its events as they come.

            async with app.stream({"question": "..."}) as events:
                async for event in events: ...
            events.result

        At most `buffer` events wait for the reader; then the run waits. Leaving the block ends the run. An error
        of the run is raised after its last event.
        """
        positive("stream(buffer=...)", buffer, whole=True, needed=True)
        config = _checked(config)
        run_id = config.run_id or new_id()

        async def run(sink: EventBuffer) -> RunResult[S]:
            return self._result(await run_graph(self.plan, self.keeper, input, config, context, run_id, sink))

        return RunStream(run, run_id, buffer)

    def invoke_sync(self, input: Input[S], config: RunConfig | None = None, *, context: Any = None) -> RunResult[S]:
        """`invoke` for code without an event loop. Raises `SyncInLoopError` where one runs in this thread."""
        return run_sync(lambda: self.invoke(input, config, context=context), "invoke_sync()", "await app.invoke(...)")

    async def __call__(
        self,
        state: Any,
        run: RunContext[Any],
        /,
        *,
        input: Mapping[str, str] | None = None,
        output: Mapping[str, str] | None = None,
    ) -> Updates:
        """Run as a node of another graph: returns this graph's updates, never its whole state."""
        return await run_child(self.plan, state, run, input, output)

    async def state(self, config: RunConfig) -> ThreadState[S] | None:
        """A thread's newest state, or that at `config.checkpoint_id`; None where nothing is stored yet.

        Raises `ResumeError` for a checkpoint that is not there.
        """
        keeper = self._keeper("state()")
        found = await keeper.found(config)
        if found is None:
            return None
        info, line, upto = found
        replayed = await keeper.replayed(info, line, upto)
        newest = await keeper.store.heads(info.thread_id, spans(info.lines, line, upto), 1)
        if not newest:  # it was deleted meanwhile
            return None
        told = _checkpoint(newest[0])
        return ThreadState(
            state=self.plan.schema.view(replayed.state),
            next=replayed.position.names(),
            interrupts=tuple(q for q in replayed.asked if f"?{q.id}" not in replayed.records),
            checkpoint_id=told.checkpoint_id,
            parent_id=told.parent_id,
            step=told.step,
            created=told.created,
            run_id=told.run_id,
            status=info.status,
        )

    async def history(self, config: RunConfig, *, limit: int = 100) -> list[Checkpoint]:
        """The newest checkpoints of a thread's line, the newest first; their states are not read.

        The line is the newest, or that of `config.checkpoint_id`, up to there.
        """
        positive("history(limit=...)", limit, whole=True, needed=True)
        keeper = self._keeper("history()")
        found = await keeper.found(config)
        if found is None:
            return []
        info, line, upto = found
        return [_checkpoint(e) for e in await keeper.store.heads(info.thread_id, spans(info.lines, line, upto), limit)]

    async def update_state(
        self, config: RunConfig, values: Mapping[str, Any], *, as_node: str | None = None
    ) -> RunConfig:
        """Write `values` to a thread's state, each key by its strategy. Returns the config of the new checkpoint.

        With `as_node`, as if that node had just run: the thread goes on along its edges. Without, the thread goes on
        where it stood. With `config.checkpoint_id` a new line of the thread begins there. Raises as `invoke` does.
        """
        keeper = self._keeper("update_state()")
        _thread(config, "update_state()")
        id = await update_thread(self.plan, keeper, values, config, as_node, config.run_id or new_id())
        return msgspec.structs.replace(config, checkpoint_id=id)

    async def resume_pending(
        self, config: RunConfig | None = None, *, context: Any = None, most_deaths: int = 3, at_once: int = 8
    ) -> list[Resumed[S]]:
        """Continue all runs of this graph that a dead process has left, or a drained one; return what came of each.

        Runs that another process works on are left alone. One that has killed its process `most_deaths` times without
        a further step is set aside: its thread's status says so, and it goes on only by an `invoke(None, ...)`.
        `config` is that of each run, but for its thread.
        """
        positive("resume_pending(most_deaths=...)", most_deaths, whole=True, needed=True)
        positive("resume_pending(at_once=...)", at_once, whole=True, needed=True)
        keeper = self._keeper("resume_pending()")
        config = msgspec.structs.replace(_checked(config), if_busy="refuse", checkpoint_id=None, run_id=None)
        found = await keeper.left_behind()
        permits = asyncio.Semaphore(at_once)

        async def resume(thread_id: str) -> Resumed[S] | None:
            async with permits:
                own = msgspec.structs.replace(config, thread_id=thread_id)
                try:
                    run = await run_graph(self.plan, keeper, LeftBehind(most_deaths), own, context, new_id(), None)
                except ThreadBusyError:
                    return None  # somebody else was quicker
                except Exception as error:
                    return Resumed(thread_id, error=error)
                return Resumed(thread_id, self._result(run))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(resume(thread_id)) for thread_id in found]
        return [resumed for task in tasks if (resumed := task.result()) is not None]

    def drain(self) -> None:
        """Stop all runs that have a thread between two steps, for another process to continue: for SIGTERM.

            loop.add_signal_handler(signal.SIGTERM, app.drain)

        They end with status "drained", as do those that are begun later. What is under way comes to its end first.
        """
        self._keeper("drain()").draining = True

    async def delete(self, thread_id: str) -> None:
        """Remove a thread with all that is stored of it."""
        await self._keeper("delete()").store.delete(thread_id)

    async def prune(self, thread_id: str, *, keep: int | None = None, older_than: float | None = None) -> int:
        """Remove checkpoints of a thread but the newest `keep`, or those that are older than so many seconds.

        The newest stays, and what it rests on. Returns how many were removed.
        """
        positive("prune(keep=...)", keep, whole=True)
        positive("prune(older_than=...)", older_than)
        if keep is None and older_than is None:
            raise ConfigError("prune() needs keep=, how many checkpoints stay, or older_than=, seconds")
        return await prune_thread(self._keeper("prune()"), thread_id, keep, older_than)

    def _keeper(self, call: str) -> Keeper:
        if self.keeper is None:
            raise ConfigError(f"{call} is about threads, and this graph keeps none: compile(checkpointer=...)")
        return self.keeper

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return draw.mermaid(self.plan)

    def _result(self, run: GraphRun) -> RunResult[S]:
        config = run.shared.config
        return RunResult(
            state=self.plan.schema.view(run.state),
            status=run.status,
            interrupts=tuple(run.interrupts),
            usage=run.shared.usage,
            steps=run.shared.steps,
            run_id=run.shared.run_id,
            thread_id=config.thread_id,
            checkpoint_id=None if run.kept is None else run.kept.journal.checkpoint_id,
        )

    def __str__(self) -> str:
        return draw.text(self.plan)

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.plan.name}: {list(self.plan.names)}>"


def _checked(config: RunConfig | None) -> RunConfig:
    if config is None:
        return _DEFAULT
    if not isinstance(config, RunConfig):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
        raise ConfigError(f"config must be a RunConfig, found {type(config).__name__}: write RunConfig(thread_id=...)")
    return config


def _thread(config: RunConfig, call: str) -> str:
    if config.thread_id is None:
        raise ResumeError(f"{call}: no thread is named: give RunConfig(thread_id=...)")
    return config.thread_id


def _checkpoint(entry: Entry) -> Checkpoint:
    head = head_of(entry)
    return Checkpoint(
        checkpoint_id=f"{entry.line}.{entry.seq}",
        parent_id=f"{head.parent_line}.{head.parent}" if head.parent else None,
        kind=entry.kind,
        step=head.step,
        ran=head.ran,
        next=head.next,
        asked=head.asked,
        created=head.at,
        run_id=head.run_id,
    )


R = TypeVar("R")


def run_sync(make: Any, call: str, instead: str) -> Any:
    """Run the coroutine that `make()` gives in a new event loop. Raises `SyncInLoopError` where one runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        coroutine: Coroutine[Any, Any, Any] = make()
        return asyncio.run(coroutine)
    raise SyncInLoopError(call, instead)
