"""Which nodes run next: edges, joins and waits. Pure.

The rules, and all of them live here:
- An edge hits its target each time its source has run. What is hit runs in the next step, except
- a node with `wait=True`: it is hit once and then waits until nothing else can still reach it;
- a join (`add_edge([a, b], c)`) hits its target when every source has run, or when no source that has not run
  can still come. If none of them has run it never hits. After it has hit it counts anew.
- "Can still come" is asked of the nodes that run next and of those that wait, by bit sets made at compile time;
  the way through the waiting node itself does not count.
- Where only waiting nodes are left and each can be reached from another, the first in node order goes.

This file does not know what a node is, nor what ran when: it gets numbers and gives numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentgraph._engine.plan import Plan, bits, mask_of
from agentgraph.node import START


class Frontier:
    """What waits, between two steps of one run."""

    __slots__ = ("arrived", "plan", "waiting")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.arrived = [0] * len(plan.joins)
        """For each join the sources that have run since it last hit."""
        self.waiting = 0
        """Nodes with `wait=True` that were hit."""

    def advance(self, ran: Iterable[int], hit: int, sent: int) -> int:
        """Decide the next step.

        `ran`: nodes that have run and whose edges hold. `hit`: what their edges and routers name. `sent`: nodes
        that run next by a `Send`. Returns the nodes that run next besides those.
        """
        plan = self.plan
        if plan.simple:
            return hit
        for node in ran:
            for j in plan.joins_of[node]:
                self.arrived[j] |= 1 << node
        for j, join in enumerate(plan.joins):
            if self.arrived[j] == join.sources:
                self.arrived[j] = 0
                hit |= 1 << join.target
        self.waiting |= hit & plan.wait_mask
        active = hit & ~plan.wait_mask
        while (freed := self._free(active | sent)) is not None:
            active |= freed
        if not active and not sent and (rest := self._waiters()):
            active = self._take(rest & -rest)
        return active

    def _waiters(self) -> int:
        mask = self.waiting
        for j, join in enumerate(self.plan.joins):
            if self.arrived[j]:
                mask |= 1 << join.target
        return mask

    def _free(self, running: int) -> int | None:
        """Take out of the waiting ones all that nothing can reach any more; None where there is none."""
        waiters = self._waiters()
        free = 0
        for node in bits(self.waiting):
            if not self.plan.wait_reach[node] & (running | waiters):
                free |= 1 << node
        ready = [j for j in range(len(self.arrived)) if self.arrived[j] and not self._can_come(j, running | waiters)]
        if not free and not ready:
            return None
        # only now: a decision must not depend on the order in which they are looked at
        self.waiting &= ~free
        for j in ready:
            self.arrived[j] = 0
            target = 1 << self.plan.joins[j].target
            if target & self.plan.wait_mask & ~free:
                self.waiting |= target
            else:
                free |= target
        return free

    def _can_come(self, j: int, others: int) -> bool:
        """Whether a source of this join that has not run still can."""
        join = self.plan.joins[j]
        return any(join.reach[s] & others for s in bits(join.sources & ~self.arrived[j]))

    def _take(self, node: int) -> int:
        self.waiting &= ~node
        for j, join in enumerate(self.plan.joins):
            if 1 << join.target == node:
                self.arrived[j] = 0
        return node

    def said(self) -> tuple[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...], tuple[str, ...]]:
        """What waits, by names: each join's target, sources and those that have come; and the nodes that wait."""
        names = (*self.plan.names, START)
        joins = tuple(
            (names[join.target], tuple(names[s] for s in bits(join.sources)), tuple(names[s] for s in bits(come)))
            for join, come in zip(self.plan.joins, self.arrived, strict=True)
            if come
        )
        return joins, tuple(names[n] for n in bits(self.waiting))

    def restore(self, joins: Iterable[tuple[str, Iterable[str], Iterable[str]]], waiting: Iterable[str]) -> None:
        """Wait for what `said` has told. A join that the graph does not have any more is left out."""
        place = {**self.plan.index, START: self.plan.start}
        known = {(join.target, join.sources): j for j, join in enumerate(self.plan.joins)}
        for target, sources, come in joins:
            j = known.get((place[target], mask_of(place[s] for s in sources)))
            if j is not None:
                self.arrived[j] = mask_of(place[s] for s in come)
        self.waiting = mask_of(place[n] for n in waiting)

    def __repr__(self) -> str:
        names = (*self.plan.names, "START")
        waiting = [names[n] for n in bits(self.waiting)]
        joins = [
            f"{names[j.target]} has {[names[s] for s in bits(a)]}"
            for j, a in zip(self.plan.joins, self.arrived, strict=True)
            if a
        ]
        return f"<Frontier waiting={waiting} joins={joins}>"
