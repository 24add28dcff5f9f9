"""The superstep loop: what was decided is awaited here.

The rules:
- One step: all active nodes run on one snapshot; their updates merge in node order, Sends after them in the order
  in which they were sent; then routing runs on the merged state. Nothing depends on who finished first.
- `_commit` is the one place through which every step's updates pass.
- One active node is awaited in place; several run as tasks, which have ended before anything else is done.
- The run's own cancellation is asked for after every step (`cancelling`), since a node may have swallowed it.
- A loop of nodes that never wait for anything still lets the event loop turn now and then.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any, cast

import msgspec

from agentgraph import events
from agentgraph._engine.attempt import Debug, StrayCancelError, attempt, check_stray, sorted_out, truthful
from agentgraph._engine.frontier import Frontier
from agentgraph._engine.journal import Journal
from agentgraph._engine.kept import Kept
from agentgraph._engine.log import Position, check_names
from agentgraph._engine.pause import stop
from agentgraph._engine.plan import UNDECLARED, Plan, RouterSpec, bits, mask_of
from agentgraph._engine.state import Outcome, Writes, merge, read, several, targets_of
from agentgraph.context import CancellationToken, EventSink, Interrupt, Interrupted, RunContext, Shared
from agentgraph.errors import AgentGraphError, RecursionLimitError, RoutingError, RunNote, note_once
from agentgraph.node import END, START, Send
from agentgraph.tasks import NotAllWellError, run_all

_TURN_EVERY = 64
"""Steps after which the event loop gets a turn, where no node has waited for anything."""

_LAST_NODES = 5
"""How many of the latest nodes a recursion error names."""

SHORT_WAY = True
"""Tests switch `_short_way` off to see that it changes nothing."""


class Task(msgspec.Struct, frozen=True, gc=False):  # not tracked: a fan-out makes hundreds
    """A node to run in this step: on the snapshot, or on what a Send gave it."""

    node: int
    number: int
    """0, or which Send of the step it is, from 1."""
    send: Send | None


class GraphRun:
    """One graph, running once. Owns its state; `shared` is what it has in common with its subgraphs."""

    __slots__ = (
        "_active", "_debug", "_host", "_host_cancelling", "_last", "_next", "_ran", "drained", "frontier",
        "interrupts", "iterations", "kept", "number", "parent", "paths", "plan", "records", "scratch", "shared",
        "state", "step", "token", "writes",
    )  # fmt: skip

    def __init__(self, plan: Plan, shared: Shared, state: dict[str, Any], parent: RunContext[Any] | None) -> None:
        self.plan = plan
        self.shared = shared
        self.state = state
        self.parent = parent
        prefix = parent.path if parent is not None else ()
        self.paths = tuple((*prefix, name) for name in (*plan.names, START))
        self.frontier = Frontier(plan)
        self.step = 0
        self.token: CancellationToken | None = None
        self.scratch: dict[str, Any] = {}
        self.iterations: dict[str, int] = {}
        self.records: dict[Any, Any] = {}
        self.writes: Writes | None = None
        self.interrupts: list[Interrupt] = []
        self.drained = False
        """Whether it has stopped between two steps, to be continued by another process."""
        journal = cast("Journal | None", shared.journal)
        self.kept: Kept | None = None if journal is None else Kept(journal, plan, parent)
        """What is recorded of it, if anything is."""
        self._next: tuple[int, tuple[Send, ...]] | None = None
        self._ran = 0
        self.number: int = 1
        """As how manyeth of its node's graphs it runs."""
        self._active: tuple[int, tuple[Send, ...]] = (0, ())
        self._last: deque[int] = deque(maxlen=_LAST_NODES)
        self._debug = Debug() if plan.debug else None
        self._host = cast("asyncio.Task[Any]", asyncio.current_task())
        self._host_cancelling = self._host.cancelling()

    def cancellation(self) -> CancellationToken:
        """The graph run's own token: made when somebody asks for it."""
        if self.token is None:
            self.token = self.parent.cancellation.child() if self.parent is not None else CancellationToken()
        return self.token

    def place(self) -> str:
        """Where in the whole run this graph runs: in which node, and as how manyeth of the graphs that it runs."""
        if self.parent is None:
            return ""
        return self.parent.place if self.number == 1 else f"{self.parent.place}~{self.number}"

    def address(self, step: int | str) -> str:
        """The place with the step, and that of each graph around it."""
        over = "" if self.parent is None else "." + self.parent.address.rpartition("@")[2]
        return f"{self.place()}@{step}{over}"

    async def run(self) -> None:
        """Run to the end, or until a step has only questions left. After cancellation nothing runs any more."""
        try:
            await truthful(self._loop())
        except BaseException:
            if self.token is not None:
                self.token.cancel("the run ended")
            raise
        finally:
            if self.token is not None:
                self.token.detach()

    async def _loop(self) -> None:
        plan, shared, kept = self.plan, self.shared, self.kept
        stops = bool(plan.stop_before or plan.stop_after)
        quick = SHORT_WAY and shared.sink is None and shared.permits is None and not (plan.debug or kept or stops)
        active, sends = self._next or await self._route((plan.start,), (None,))
        if kept is not None and self._next is None and self.parent is None:
            id = await kept.begin(self.position(active, sends), self.state)
            if shared.sink is not None:
                await self._tell_checkpoint(shared.sink, id)
        while active or sends:
            if quick and not sends:
                active, sends = await self._short_way(active)
                if self.interrupts or not (active or sends):
                    return
            if kept is not None and kept.journal.keeper.draining:
                self.drained = True
                return
            if stops and await self._stops(active, sends):
                return
            self._begin_step(active, sends)
            tasks = [Task(n, 0, None) for n in bits(active)]
            tasks += [Task(plan.index[s.node], k, s) for k, s in enumerate(sends, 1)]
            if shared.sink is not None:
                names = [plan.names[t.node] for t in tasks]
                await shared.sink.put(events.StepStarted(step=self.step, nodes=names), self._path())
            results = [await self._alone(tasks[0])] if len(tasks) == 1 else await self._together(tasks, quick)
            self._check_cancelled()
            if self.interrupts or self.drained:
                return
            ran = [t.node for t in tasks]
            new = self.state.copy()
            outcomes = self._take_all(new, tasks, results)
            self._commit(new)
            if shared.sink is not None:
                await self._tell_updates(tasks, outcomes)
            if kept is None:
                active, sends = await self._route(ran, [o.goto for o in outcomes])
            else:
                active, sends = await self._route_and_keep(tasks, outcomes)
            if not self.step % _TURN_EVERY:
                await asyncio.sleep(0)

    async def _short_way(self, active: int) -> tuple[int, tuple[Send, ...]]:
        """Run on for as long as one node without policies is active, nobody reads, and nothing waits for another.

        The same steps as in `_loop`, and the same results; only what such a step does not need is not done.
        """
        plan, shared = self.plan, self.shared
        view, limit = plan.schema.view, shared.config.recursion_limit
        host, cancelling = self._host, self._host_cancelling
        while active and not active & (active - 1):
            number = active.bit_length() - 1
            spec = plan.nodes[number]
            if not spec.plain:
                break
            if shared.steps >= limit:
                raise self._limit_error(limit)
            shared.steps += 1
            self.step += 1
            self._last.append(number)
            self._active = (active, ())
            run: RunContext[Any] | None = None
            try:
                if spec.wants_run:
                    run = RunContext(self, self.paths[number], self.step)
                    result = await spec.fn(view(self.state), run)
                    run.close("it ended")
                else:
                    result = await spec.fn(view(self.state))
            except BaseException as caught:
                error = sorted_out(caught)
                if isinstance(error, Interrupted):
                    if run is not None:
                        run.close("it ended", cancel=True)
                    self.interrupts.extend(error.interrupts)
                    return active, ()
                if run is not None:
                    run.close("it failed", cancel=isinstance(error, asyncio.CancelledError))
                self._fail(error, number)
                if error is not caught:
                    raise error from None
                raise
            if host.cancelling() > cancelling:
                raise asyncio.CancelledError
            if result is None:
                goto = None
                self._commit(self.state)
            else:
                new = self.state.copy()
                goto = self._take(new, number, result).goto
                self._commit(new)
            if goto is None and plan.simple:
                active, sends = plan.edge_mask[number], ()
                for router in plan.routers[number]:
                    hit, sent = await self._ask_router(router, number)
                    active |= hit
                    sends += sent
            else:
                active, sends = await self._route((number,), (goto,))
            if not self.step % _TURN_EVERY:
                await asyncio.sleep(0)
            if sends:
                return active, sends
        return active, ()

    async def _alone(self, task: Task) -> Any:
        try:
            return await (self._attempt(task) if self.kept is None else self._recorded(self.kept, task, alone=True))
        except Interrupted as asked:
            await self._asked(asked.interrupts)
            return None
        except BaseException as error:
            self._fail(error, task.node)
            raise

    def _attempt(self, task: Task) -> Any:
        send, view, state = task.send, self.plan.schema.view, self.state
        snapshot = (lambda: view(state)) if send is None else (lambda: copied(send.state))
        spec = self.plan.nodes[task.node]
        return attempt(self, spec, self.paths[task.node], self.step, task.number, snapshot, self._debug)

    def _recorded(self, kept: Kept, task: Task, *, alone: bool) -> Any:
        return kept.result(self.context_of(task, self.step), partial(self._attempt, task), alone=alone)

    async def _together(self, tasks: list[Task], quick: bool) -> list[Any]:
        """Run the step's tasks beside each other; their results in order.

        The first task to fail cancels the others, which are waited for. Then the first error in order is raised,
        and carries the others in its notes.
        """
        plan, view, state = self.plan, self.plan.schema.view, self.state
        asked: dict[int, tuple[Interrupt, ...]] = {}

        async def branch(k: int, task: Task) -> Any:
            work = self._attempt(task) if self.kept is None else self._recorded(self.kept, task, alone=False)
            try:
                return await truthful(work)
            except Interrupted as question:  # the siblings go on
                asked[k] = question.interrupts

        def start(k: int) -> Any:
            task = tasks[k]
            spec = plan.nodes[task.node]
            if quick and spec.short:  # what `branch` comes to
                return spec.fn(view(state) if task.send is None else copied(task.send.state))
            return branch(k, task)

        try:
            results = await run_all(len(tasks), start)
        except NotAllWellError as ended:
            self._check_cancelled()
            raise self._first(tasks, ended.tasks) from None
        self._check_cancelled()
        for k in sorted(asked):
            await self._asked(asked[k])
        return results

    def _first(self, tasks: list[Task], ended: list[asyncio.Task[Any]]) -> BaseException:
        """The first error in order, with the others in its notes."""
        errors: list[tuple[int, BaseException]] = []
        for task, ran in zip(tasks, ended, strict=True):
            if ran.cancelled():
                if ran.cancelling() == 0:
                    errors.append((task.node, StrayCancelError("/".join(self.paths[task.node]))))
            elif (error := ran.exception()) is not None:
                errors.append((task.node, error))
        if not errors:  # somebody cancelled a node's own task, which is nobody's business but ours
            node = next(task.node for task, ran in zip(tasks, ended, strict=True) if ran.cancelled())
            errors.append((node, StrayCancelError("/".join(self.paths[node]))))
        (node, first), *others = errors
        for place, other in others:
            first.add_note(
                f"also failed: node {'/'.join(self.paths[place])!r}: {type(other).__name__}: {events.shown(other, str)}"
            )
        self._fail(first, node)
        return first

    def _fail(self, error: BaseException, number: int) -> None:
        """Note where the error came up.

        Where the run was cancelled that is raised here, whatever a node made of it; and a `CancelledError` that
        nobody asked for is raised as the error that it is.
        """
        shared = self.shared
        note = RunNote.at(self.paths[number], self.step, shared.config.thread_id, shared.run_id)
        cancelled = self._host.cancelling() > self._host_cancelling
        if not isinstance(error, asyncio.CancelledError):
            note_once(error, note)
            if cancelled and isinstance(error, Exception):
                raise asyncio.CancelledError from error
        elif not cancelled:
            try:
                check_stray(error, "/".join(self.paths[number]))
            except StrayCancelError as stray:
                note_once(stray, note)
                raise

    async def _asked(self, questions: Sequence[Interrupt]) -> None:
        self.interrupts.extend(questions)
        self.drained = self.drained or not questions  # then a graph further inside has stopped between two steps
        if self.shared.sink is not None and self.parent is None:
            for question in questions:
                value = events.plain(question.value)
                told = events.InterruptRaised(id=question.id, value=value, error=question.error)
                await self.shared.sink.put(told, question.node)

    def _take_all(self, new: dict[str, Any], tasks: Sequence[Task], results: Sequence[Any]) -> list[Outcome]:
        """Merge what the step's tasks returned into `new`, in order."""
        writers: dict[str, tuple[int, str]] | None = {} if len(tasks) > 1 else None
        outcomes: list[Outcome] = []
        try:
            for k, (task, result) in enumerate(zip(tasks, results, strict=True)):
                outcomes.append(self._take(new, task.node, result, writers, k))
        except Exception as error:
            if self.kept is not None:
                tried = [self.context_of(task, self.step) for task in tasks[: len(outcomes) + 1]]
                self.kept.take_back(error, tried, results)
            raise
        return outcomes

    def _take(
        self,
        new: dict[str, Any],
        number: int,
        result: Any,
        writers: dict[str, tuple[int, str]] | None = None,
        k: int = 0,
    ) -> Outcome:
        """Merge what task `k` returned into `new`, and return what it said."""
        name = self.plan.names[number]
        try:
            outcome = read(result, name)
            if outcome.updates:
                merge(self.plan.schema, new, outcome.updates, name, writers, k)
                if self.writes is not None:
                    self.writes.add(outcome.updates)
        except Exception as error:
            self._fail(error, number)
            raise
        return outcome

    def _commit(self, new: dict[str, Any]) -> None:
        """End a step with its merged state: the one place through which every step passes."""
        self.state = new
        if self.records:
            self.records.clear()
        if self.parent is not None:
            self.parent.heartbeat()  # a graph whose steps end is not idle

    # --- a run that can be continued ---

    def context_of(self, task: Task, step: int) -> RunContext[Any]:
        """What tells under which address a task records."""
        return RunContext(self, self.paths[task.node], step, task.number)

    async def _route_and_keep(self, tasks: list[Task], outcomes: list[Outcome]) -> tuple[int, tuple[Send, ...]]:
        """Decide what runs next, and write the step."""
        kept = cast("Kept", self.kept)
        try:
            active, sends = await self._route([t.node for t in tasks], [o.goto for o in outcomes])
        except (Exception, asyncio.CancelledError):
            if len(tasks) == 1:  # else it is recorded already: what a node has done is not lost by its router
                await kept.record(self.context_of(tasks[0], self.step), outcomes[0])
            raise
        self._ran = mask_of(t.node for t in tasks)
        updates = [update for o in outcomes for update in o.updates if update]
        await self._keep(updates, active, sends)
        return active, sends

    async def _keep(self, updates: Sequence[Mapping[str, Any]], active: int, sends: tuple[Send, ...]) -> None:
        """Write what a step has changed, and where the run stands."""
        kept, position = cast("Kept", self.kept), self.position(active, sends)
        if self.parent is not None:
            await kept.step_inside(self.address(f">{self.step}"), self.place(), position, updates)
            return
        id = await kept.journal.checkpoint("step", position, updates, self.state)
        if self.shared.sink is not None:
            await self._tell_checkpoint(self.shared.sink, id)

    async def _tell_checkpoint(self, sink: EventSink, id: str) -> None:
        await sink.put(events.CheckpointWritten(checkpoint_id=id, step=self.step), ())

    def position(self, active: int, sends: tuple[Send, ...]) -> Position:
        """Where the run stands before its next step."""
        plan = self.plan
        joins, waiting = self.frontier.said()
        return Position(
            step=self.step,
            ran=tuple(plan.names[n] for n in bits(self._ran)),
            next=tuple(plan.names[n] for n in bits(active)),
            sends=sends,
            joins=joins,
            waiting=waiting,
            iterations=self.iterations.copy(),
        )

    def stand(self, position: Position) -> None:
        """Go on from a position. Raises `ResumeError` where it names what this graph does not have."""
        index = self.plan.index
        check_names(position, self.plan.names, str(self.shared.config.thread_id))
        self.step = position.step
        self.iterations = dict(position.iterations)
        self.frontier.restore(position.joins, position.waiting)
        self._ran = mask_of(index[n] for n in position.ran if n in index)
        self._next = mask_of(index[n] for n in position.next), tuple(position.sends)

    async def _stops(self, active: int, sends: tuple[Send, ...]) -> bool:
        """Whether the run is to stop here, before or after nodes, and nobody has passed that stop yet."""
        plan, address = self.plan, self.address(self.step)
        coming = active | mask_of(plan.index[s.node] for s in sends)
        found: list[Interrupt] = []
        for when, mask in (("before", coming & plan.stop_before), ("after", self._ran & plan.stop_after)):
            names = [plan.names[n] for n in bits(mask)]
            if self.kept is not None:
                found += self.kept.journal.stops(address, when, names, self._path())
            else:
                found += [Interrupt(stop(self.place(), when, n), None, (*self._path(), n)) for n in names]
        if found:
            await self._asked(found)
        return bool(found)

    async def _tell_updates(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        sink = cast("EventSink", self.shared.sink)
        for task, outcome in zip(tasks, outcomes, strict=True):
            for update in outcome.updates:
                if update:
                    await sink.put(events.StateUpdate(update=_plain(update)), self.paths[task.node])

    async def _route(
        self, ran: Sequence[int], gotos: Sequence[tuple[str | Send, ...] | None]
    ) -> tuple[int, tuple[Send, ...]]:
        """Decide what runs next: the nodes as bits, and the Sends in the order in which they were sent."""
        plan = self.plan
        hit = 0
        sends: tuple[Send, ...] = ()
        held: list[int] = []
        for node, goto in zip(ran, gotos, strict=True):
            if goto is not None:
                more, sent = self._follow(goto, node)
                hit |= more
                sends += sent
                continue
            if node in held:
                continue  # several Sends of one node: its edges hold once
            held.append(node)
            hit |= plan.edge_mask[node]
            for router in plan.routers[node]:
                more, sent = await self._ask_router(router, node)
                hit |= more
                sends += sent
        if plan.simple:
            return hit, sends
        sent_mask = 0
        for send in sends:
            sent_mask |= 1 << plan.index[send.node]
        return self.frontier.advance(held, hit, sent_mask), sends

    async def routed(self, node: int) -> tuple[int, tuple[Send, ...]]:
        """What would run next, had this node just run."""
        self._ran = 0 if node == self.plan.start else 1 << node
        return await self._route((node,), (None,))

    def _follow(self, goto: tuple[str | Send, ...], node: int) -> tuple[int, tuple[Send, ...]]:
        plan = self.plan
        allowed = plan.gotos[node]
        hit, sends, bad = targets_of(plan.index, goto, None, allowed)
        if bad:
            names = (*plan.names, END) if allowed is None else sorted(allowed)
            remedy = f"say where it may go: add_node({plan.names[node]!r}, ..., ends=[...])"
            error = RoutingError(
                plan.names[node], "Command(goto=...)", bad[0], names, remedy=remedy if allowed is UNDECLARED else ""
            )
            self._fail(error, node)
            raise error
        return hit, sends

    async def _ask_router(self, router: RouterSpec, node: int) -> tuple[int, tuple[Send, ...]]:
        plan = self.plan
        run: RunContext[Any] | None = None
        try:
            view = plan.schema.view(self.state)
            if router.wants_run:
                run = RunContext(self, self.paths[node], self.step)
                answer = router.fn(view, run)
            else:
                answer = router.fn(view)
            if type(answer) is str and (hit := plan.tables[router].get(answer)) is not None:
                return hit, ()
            if inspect.isawaitable(answer):
                answer = await answer
                self._check_cancelled()
            hit, sends, bad = targets_of(plan.index, several(answer), router.mapping, router.targets)
            if bad:
                allowed = router.mapping or router.targets or plan.names
                names = [str(a) for a in dict.fromkeys((*allowed, END))]
                raise RoutingError(self.paths[node][-1], "the router", bad[0], names)
        except Interrupted:
            error = AgentGraphError(
                f"the router of node {self.paths[node][-1]!r} called run.interrupt(), and only a node can ask; "
                f"let a node ask, and route on what it writes"
            )
            self._fail(error, node)
            raise error from None
        except BaseException as error:
            self._fail(error, node)
            raise
        finally:
            if run is not None:
                run.close("it ended")
        return hit, sends

    def _begin_step(self, active: int, sends: tuple[Send, ...]) -> None:
        shared = self.shared
        if shared.steps >= shared.config.recursion_limit:
            raise self._limit_error(shared.config.recursion_limit)
        shared.steps += 1
        self.step += 1
        self._active = (active, sends)
        self._last.extend(bits(active))
        self._last.extend(self.plan.index[s.node] for s in sends)

    def _limit_error(self, limit: int) -> RecursionLimitError:
        paths = ["/".join(self.paths[n]) for n in self._last]
        outermost = self
        while outermost.parent is not None:
            outermost = cast("GraphRun", outermost.parent._graph)  # pyright: ignore[reportPrivateUsage]
        return RecursionLimitError(limit, paths, outermost.plan.schema.view(outermost.state))

    def _check_cancelled(self) -> None:
        """Raise where the run was cancelled, also if a node has swallowed that."""
        if self._host.cancelling() > self._host_cancelling:
            raise asyncio.CancelledError

    @property
    def status(self) -> str:
        """How it ended, as its result says."""
        return "interrupted" if self.interrupts else "drained" if self.drained else "done"

    def running(self) -> list[str]:
        """The nodes of the step under way."""
        active, sends = self._active
        return [self.plan.names[n] for n in bits(active)] + [s.node for s in sends]

    def _path(self) -> tuple[str, ...]:
        return self.parent.path if self.parent is not None else ()

    def __repr__(self) -> str:
        return f"<GraphRun {self.plan.name} step {self.step} {self.frontier!r}>"


def copied(state: Any) -> Any:
    """A shallow copy of what a Send gives its node; what is no container of state is given as it is."""
    if type(state) is dict:
        return state.copy()  # pyright: ignore[reportUnknownVariableType]  # a cast is a call
    if isinstance(state, (Mapping, list, msgspec.Struct)) or is_dataclass(state):
        return copy.copy(cast("Any", state))
    return state


def _plain(update: Mapping[str, Any]) -> dict[str, Any]:
    return {events.plain(key): events.plain(value) for key, value in update.items()}
