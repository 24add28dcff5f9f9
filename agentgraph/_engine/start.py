"""How a run begins and ends: from nothing or on its thread, with an input, with answers, or where the last one stood.

What is decided here is what the run stands on when its loop begins; the loop itself is run.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from agentgraph import events
from agentgraph._engine.child import settled
from agentgraph._engine.journal import Journal, Keeper
from agentgraph._engine.plan import Plan
from agentgraph._engine.run import GraphRun
from agentgraph._engine.state import begin, merge
from agentgraph.config import RunConfig
from agentgraph.context import EventSink, Shared
from agentgraph.errors import ResumeError, RunTimeoutError, UpdateError, unknown
from agentgraph.node import START, Command
from agentgraph.strategies import UNSET

log = logging.getLogger("agentgraph")


class LeftBehind(msgspec.Struct, frozen=True):
    """As input: go on, unless somebody else has done so since, or the run has killed so many processes."""

    most_deaths: int


async def run_graph(
    plan: Plan,
    keeper: Keeper | None,
    given: Any,
    config: RunConfig,
    context: Any,
    run_id: str,
    sink: EventSink | None,
) -> GraphRun:
    """Run a graph from its start, or on its thread. Returns the run, ended; raises what ended it."""
    shared = Shared(config, context, asyncio.get_running_loop(), run_id, sink)
    if sink is not None:
        await sink.put(events.RunStarted(thread_id=config.thread_id), ())
    try:
        if keeper is None or config.thread_id is None:
            run = _fresh(plan, given, shared)
            await _timed(run)
        else:
            most_deaths = given.most_deaths if isinstance(given, LeftBehind) else None
            async with keeper.claimed(config, run_id, most_deaths=most_deaths) as journal:
                run = await _on_thread(plan, given, shared, journal)
    except Exception as error:
        if sink is not None:
            told = events.RunFailed(error_type=type(error).__name__, message=events.shown(error, str))
            await sink.put(told, ())
        raise
    if sink is not None:
        await sink.put(events.RunFinished(status=run.status, steps=shared.steps, usage=shared.usage), ())
    return run


def _fresh(plan: Plan, given: Any, shared: Shared) -> GraphRun:
    """A run that nothing came before, and nothing comes after."""
    if given is None or isinstance(given, Command):
        what = "None" if given is None else "a Command"
        raise ResumeError(
            f"{what} as input continues a thread: compile(checkpointer=...) and RunConfig(thread_id=...) are needed"
        )
    return GraphRun(plan, shared, begin(plan.schema, given), None)


async def _on_thread(plan: Plan, given: Any, shared: Shared, journal: Journal) -> GraphRun:
    shared.journal = journal
    run = await _continued(plan, given, shared, journal)
    journal.began = True
    await _timed(run)
    if run.interrupts:
        await journal.pause(run.interrupts)
    journal.end({"interrupted": "paused", "drained": "running"}.get(run.status, "done"), run.state)
    return run


async def _continued(plan: Plan, given: Any, shared: Shared, journal: Journal) -> GraphRun:
    """A run on a thread: with a new input, with answers, or from where the last one stood."""
    run = GraphRun(plan, shared, journal.replayed.state, None)
    position = journal.position
    journal.check_types(run.state)
    if isinstance(given, Command):
        command = cast("Command[Any]", given)
        if command.resume is UNSET or command.update is not None or command.goto is not None:
            raise ResumeError("a Command as input answers questions: Command(resume={id: answer}), and nothing else")
        run.stand(position)
        journal.answer(command.resume)
    elif given is None or isinstance(given, LeftBehind):
        # a process may have died between the last step and saying that it was the last
        if not position.names() and not position.waiting and journal.info.status != "running":
            raise ResumeError(
                f"thread {journal.thread_id!r} has nothing to go on with: its last run came to its end, or it has none "
                f"yet; give it an input"
            )
        run.stand(position)
        if given is None:  # nobody has said that a run that was left behind may pass the stop that it had come to
            journal.pass_stops()
    else:
        updates: list[Mapping[str, Any]] = []
        for update in await settled(run, position) if position.names() else ():
            trial = run.state.copy()
            try:
                merge(plan.schema, trial, (update,), "what was cut off")
            except UpdateError as error:  # the graph may have changed since, and its step is given up anyway
                log.warning("thread %r: what its last run had done is lost in part: %s", journal.thread_id, error)
            else:
                run.state = trial
                updates.append(update)
        state = begin(plan.schema, given, run.state, owned=not position.names())
        whole = plan.schema.whole(given) is not None
        journal.given = ([] if whole else [*updates, plan.schema.input_update(given)], whole)
        return GraphRun(plan, shared, state, None)
    journal.writer.write(status="running")
    return run


async def _timed(run: GraphRun) -> None:
    """Run to the end, within the time that the config allows."""
    seconds = run.shared.config.timeout
    if seconds is None:
        await run.run()
        return
    scope = asyncio.timeout(seconds)
    failure: Exception | None = None
    try:
        async with scope:
            await run.run()
    except Exception as error:
        failure = error
    if scope.expired():
        raise RunTimeoutError(seconds, run.step, run.running()) from failure
    if failure is not None:
        raise failure


async def update_thread(
    plan: Plan, keeper: Keeper, values: Mapping[str, Any], config: RunConfig, as_node: str | None, run_id: str
) -> str:
    """Write values to a thread's state, as if a node had. Returns the checkpoint's id."""
    shared = Shared(config, None, asyncio.get_running_loop(), run_id, None)
    async with keeper.claimed(config, run_id) as journal:
        shared.journal = journal
        run = GraphRun(plan, shared, journal.replayed.state.copy(), None)
        who = "update_state()" if as_node is None else as_node
        merge(plan.schema, run.state, (plan.schema.input_update(values),), who)
        journal.check_types(run.state)
        if as_node is None:
            return await journal.checkpoint("update", journal.position, [values], run.state, keeps=True)
        if as_node not in plan.index and as_node != START:
            raise ResumeError(f"update_state(as_node=...): {unknown('node', as_node, plan.names)}")
        number = plan.index.get(as_node, plan.start)
        run.step = journal.position.step + 1
        active, sends = await run.routed(number)
        position = run.position(active, sends)
        return await journal.checkpoint("update", position, [values], run.state)
