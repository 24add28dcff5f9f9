"""What is recorded of one graph's run, so that it can be continued: what its tasks returned, and where its steps stand.

The rules:
- A task's record is found by its context's address, that of a step by the graph's: no counter and no order is in it.
- A step takes its tasks' records' place: the outermost graph's is the thread's checkpoint (journal.py), that of a
  graph inside a node a record of its own.
- Keys that the state has lost since are put aside, and never merged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentgraph._engine.journal import Journal
from agentgraph._engine.log import Position, change, position_in
from agentgraph._engine.plan import Plan
from agentgraph._engine.state import Outcome, read
from agentgraph.context import Interrupted, RunContext
from agentgraph.errors import ConflictError
from agentgraph.strategies import UNSET


class Kept:
    """One graph's part of its run's journal."""

    __slots__ = ("_parent", "_plan", "journal")

    def __init__(self, journal: Journal, plan: Plan, parent: RunContext[Any] | None) -> None:
        self.journal: Journal = journal
        self._plan = plan
        self._parent = parent

    # --- tasks ---

    async def result(self, task: RunContext[Any], work: Callable[[], Awaitable[Any]], *, alone: bool) -> Any:
        """A task's result, from the record where there is one. What is asked already is not asked again."""
        outcome = self.recorded(task)
        if outcome is not None:
            return outcome
        if self.journal.asks and (waiting := self.journal.waiting(task.place)):
            raise Interrupted(waiting)
        result = await work()
        if alone:  # its step follows at once
            return result
        outcome = read(result, task.path[-1])
        await self.record(task, outcome)
        return outcome

    def recorded(self, task: RunContext[Any]) -> Outcome | None:
        """What a task has returned before, if it has."""
        kept = self.journal.get(task.address)
        if kept is UNSET:
            return None
        updates, goto = kept
        return Outcome(self._known(updates), None if goto is None else tuple(goto))

    async def record(self, task: RunContext[Any], outcome: Outcome) -> None:
        """Record what a task has returned."""
        plain = [[dict(u) for u in outcome.updates], None if outcome.goto is None else list(outcome.goto)]
        await self.journal.put(task.address, plain, f"what node {'/'.join(task.path)!r} returned")

    def take_back(self, error: Exception, tasks: Sequence[RunContext[Any]], results: Sequence[Any]) -> None:
        """Forget the results that cannot be merged: else they were the thread's for ever, whatever the node does.

        The last of these tasks is the one whose result failed.
        """
        for k, task in enumerate(tasks, 1):
            clashes = isinstance(error, ConflictError) and any(error.key in u for u in read(results[k - 1], "").updates)
            if k == len(tasks) or clashes:
                self.journal.forget(task.address, exactly=True)

    def _known(self, updates: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Recorded updates without the keys that the state has lost since; the thread keeps these aside."""
        schema = self._plan.schema
        known: list[Mapping[str, Any]] = []
        for update in updates:
            gone = {key: value for key, value in update.items() if not schema.knows(key)}
            if gone:
                self.journal.put_aside(gone if self._parent is None else {}, gone)
                update = {key: value for key, value in update.items() if key not in gone}  # noqa: PLW2901
            known.append(update)
        return tuple(known)

    # --- steps ---

    async def begin(self, position: Position, state: Mapping[str, Any]) -> str:
        """Write the input, and what the state is with it. Returns the checkpoint's id."""
        updates, full = self.journal.given
        return await self.journal.checkpoint("input", position, updates, state, full=full, status="running")

    async def step_inside(
        self, address: str, place: str, position: Position, updates: Sequence[Mapping[str, Any]]
    ) -> None:
        """Record a step of a node's graph, in place of all that its tasks have recorded."""
        what = f"step {position.step} of graph {self._plan.name!r}"
        await self.journal.put(address, change(position, updates), what)
        self.journal.forget(place + "/")

    def taken(self, address: str) -> tuple[Position, tuple[Mapping[str, Any], ...]] | None:
        """Where a node's graph stood after a step that it has taken before, and its updates, if it has."""
        said = self.journal.get(address)
        return None if said is UNSET else (position_in(said), self._known(said.get("u", ())))
