"""Agents one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.context import RunContext
from agentgraph.node import END, START, Updates
from agentgraph.nodes.flows.flow import HAND_ON, Agents, Conversation, Flow
from agentgraph.strategies import Replace, Strategy

__all__ = ["SequentialAgent"]

_HANDED = "_handed"


class SequentialAgent(Flow):
    """Agents one after the other, each on what the one before has made; the last one's answer is the flow's.

        report = SequentialAgent("report", [researcher, writer, critic])
        result = await report.run("Lighthouses")

    `conversation="shared"`: all agents have the flow's `messages`; from the second on, each is told `hand_on`
    (`{agent}` stands for its name) where the conversation ends with an answer. `"separate"`: each is told the answer of
    the one before as its question, and only the last answer joins the flow's `messages`. `agents` and the other options
    are as in `Flow`.
    """

    def __init__(
        self,
        name: str,
        agents: Agents,
        *,
        conversation: Conversation = "shared",
        hand_on: str = HAND_ON,
        description: str = "",
        output_key: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
    ) -> None:
        shared = conversation == "shared"
        super().__init__(
            name,
            agents,
            conversation=conversation,
            description=description,
            output_key=output_key,
            strategies=strategies,
            private={} if shared else {_HANDED: Replace()},
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        self.hand_on = hand_on
        before = START
        for each in self.agents:
            self._add(each, self.agents[each], self._shared(each) if shared else self._separate(each), shared=shared)
            self.graph.add_edge(before, each)
            before = each
        self.graph.add_edge(before, END)

    def _shared(self, name: str) -> Any:
        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            turn = await self._go_on(name, self.agents[name], state, run, self.hand_on)
            return Updates([*turn.updates, {self._made: turn.output}])

        return take

    def _separate(self, name: str) -> Any:
        names = list(self.agents)
        first, last = names[0], names[-1]

        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            asked, added = self._question(state, run) if name == first else (state[_HANDED], [])
            turn = await self._ask(name, self.agents[name], state, run, asked)
            answer = self._answered(name, turn)
            said = {"messages": [*added, *([answer] if name == last else [])]}
            handed = {_HANDED: None if name == last else answer, self._made: turn.output}
            return Updates([said, *turn.updates, handed])

        return take
