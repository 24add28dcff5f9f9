"""A graph as a node of another: run, continued, and, where its step was given up, settled."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, cast

from agentgraph._engine.kept import Kept
from agentgraph._engine.log import Position
from agentgraph._engine.plan import Plan
from agentgraph._engine.run import GraphRun, Task, copied
from agentgraph._engine.state import Writes, merge, read
from agentgraph.context import Interrupted, RunContext
from agentgraph.errors import AgentGraphError, CheckpointError
from agentgraph.node import Updates, as_mapping

log = logging.getLogger("agentgraph")


async def run_child(
    plan: Plan,
    state: Any,
    parent: RunContext[Any],
    input: Mapping[str, str] | None,
    output: Mapping[str, str] | None,
) -> Updates:
    """Run a graph as a node of another: on the keys that both know, or as `input` (parent's key -> own key) says.

    Returns its updates for the keys that both know, or as `output` (own key -> parent's key) says.
    """
    parent.check_open(f"runs graph {plan.name!r}")
    run, writes = _child(plan, state, parent, input, output)
    permit = parent._permit  # pyright: ignore[reportPrivateUsage]
    if run.kept is not None:
        _begin(run, parent)
    if permit is not None:
        await permit.lend()
    try:
        await run.run()
    finally:
        if permit is not None:
            await permit.reclaim()
        if run.kept is not None:
            parent.done.running = False
    if run.interrupts or run.drained:
        raise Interrupted(tuple(run.interrupts))
    return writes.updates()


def _child(
    plan: Plan,
    state: Any,
    parent: RunContext[Any],
    input: Mapping[str, str] | None,
    output: Mapping[str, str] | None,
) -> tuple[GraphRun, Writes]:
    graph = cast("GraphRun", parent._graph)  # pyright: ignore[reportPrivateUsage]
    outer = graph.plan.schema
    schema = plan.schema
    given = as_mapping(state)
    own = schema.initial()
    if input is None:
        own.update({k: v for k, v in given.items() if schema.knows(k)})
    else:
        own.update({inner: given[key] for key, inner in input.items() if key in given})
    schema.check_complete(own)
    run = GraphRun(plan, graph.shared, own, parent)
    writes = run.writes = Writes(schema, outer, output)
    return run, writes


def _begin(run: GraphRun, parent: RunContext[Any]) -> Position | None:
    """Begin as a node's graph: with the steps that it has taken already, before the process ended.

    Returns where they have come to; None where it has taken none.

    Raises `CheckpointError` where the node runs two graphs at once that nothing tells apart.
    """
    kept, done = cast("Kept", run.kept), parent.done
    if done.running:
        raise CheckpointError(
            f"node {'/'.join(parent.path)!r} runs graph {run.plan.name!r} while another of its graphs runs; what "
            f"they do is recorded, and must be told apart: give each a part, graph(state, run.part(name))"
        )
    done.running = True
    done.graphs += 1
    run.number = done.graphs
    position: Position | None = None
    while (taken := kept.taken(run.address(f">{run.step + 1}"))) is not None:
        position, updates = taken
        new = run.state.copy()
        merge(run.plan.schema, new, updates, run.plan.name)
        if run.writes is not None:
            run.writes.add(updates)
        run.state = new
        run.step = position.step
    if position is not None:
        run.stand(position)
    return position


async def settled(run: GraphRun, position: Position) -> list[Mapping[str, Any]]:
    """What the step that was cut off has come to, for a thread that goes on with something else.

    Of nodes that had finished their updates; of others what their `settle(state, run)` makes of the records, and of
    graphs the steps that they had taken, and the same of the one under way.
    """
    plan, kept = run.plan, cast("Kept", run.kept)
    tasks = [Task(plan.index[n], 0, None) for n in position.next if n in plan.index]
    tasks += [Task(plan.index[s.node], k, s) for k, s in enumerate(position.sends, 1) if s.node in plan.index]
    updates: list[Mapping[str, Any]] = []
    for task in tasks:
        context = run.context_of(task, position.step + 1)
        outcome = kept.recorded(context)
        spec = plan.nodes[task.node]
        settle = getattr(spec.fn, "settle", None)
        given = plan.schema.view(run.state) if task.send is None else copied(task.send.state)
        if outcome is not None:
            updates += outcome.updates
        elif spec.is_graph:
            updates += await _settle_child(spec.fn.plan, given, context, spec.input, spec.output)
        elif callable(settle):
            result: Any = settle(given, context)
            updates += read(await result if inspect.isawaitable(result) else result, plan.names[task.node]).updates
        context.close("its step was given up")
    return updates


async def _settle_child(
    plan: Plan,
    state: Any,
    parent: RunContext[Any],
    input: Mapping[str, str] | None,
    output: Mapping[str, str] | None,
) -> Updates:
    """What a node's graph that was cut off has come to: see `settled`."""
    run, writes = _child(plan, state, parent, input, output)
    try:
        position = _begin(run, parent)
    except AgentGraphError as error:  # the graph may have changed since, and its run is given up anyway
        log.warning("node %r: what its graph had done is lost: %s", "/".join(parent.path), error)
        return Updates()
    if position is not None:
        writes.add(tuple(await settled(run, position)))
    return writes.updates()
