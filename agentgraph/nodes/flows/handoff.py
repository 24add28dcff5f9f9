"""Agents that hand the conversation over to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

import msgspec

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError, unknown
from agentgraph.messages import AssistantMessage, ToolResponseMessage, UserMessage
from agentgraph.node import END, START, Updates
from agentgraph.nodes.agent_tool import tool_name
from agentgraph.nodes.answer import Answer
from agentgraph.nodes.flows.flow import Agents, Conversation, Flow, retold
from agentgraph.nodes.tool import Tool, ToolContext, ToolError
from agentgraph.nodes.turn import Turn, take_turn
from agentgraph.strategies import Messages, Replace, Strategy

__all__ = ["TO", "Handoff", "HandoffAgent", "handed_over", "handoff", "next_agent"]

TO, _TOLD, _ACTIVE = "_to", "_told", "_active"
"""State keys: to whom the conversation goes, with what words, and who had it last."""
_PREFIX = "transfer_to_"

Told = Annotated[str, msgspec.Meta(description="What the other one has to know.")]


class Handoff(Tool):
    """A tool that hands the conversation over to another agent of the same flow: see `handoff`."""

    def __init__(self, to: str, name: str, description: str) -> None:
        self.to = to

        async def transfer(context: ToolContext, message: Told = "") -> Answer:
            return _transfer(to, name, message, context)

        super().__init__(transfer, name=name, description=description, return_direct=True)


def handoff(to: Any, *, name: str | None = None, description: str | None = None) -> Handoff:
    """A tool for an agent of a `HandoffAgent`: calling it hands the conversation over to the agent `to`.

        triage = ReactAgent("triage", model, [handoff("billing", description="Knows all about invoices.")])

    `to` is an agent, or the name that it has in the flow. `name`: the tool's, "transfer_to_billing" if not given.
    Where a message calls it together with other tools, those run, and it is answered that it must be called alone; of
    several handoffs in one message the first one counts.
    """
    known = to if isinstance(to, str) else getattr(to, "name", "")
    if not known:
        raise ConfigError(f"handoff() needs an agent or its name, found {to!r:.80}")
    said = getattr(to, "description", "") if description is None else description
    told = f"Hand the conversation over to {known}, who goes on with it. {said}".strip()
    return Handoff(known, name or tool_name(f"{_PREFIX}{known}"), told)


def _transfer(to: str, name: str, message: str, context: ToolContext) -> Answer:
    asked = next((m for m in reversed(context.state["messages"]) if isinstance(m, AssistantMessage)), None)
    calls = [] if asked is None else asked.tool_calls
    others = [c.name for c in calls if c.name != name and not c.name.startswith(_PREFIX)]
    if others:
        raise ToolError(f"Not done: call {name} alone, when you have the answers of the other tools.")
    if calls and calls[0].id != context.call_id:
        return Answer(f"Not done: {calls[0].name} was called before, and holds.")
    return Answer(f"Handed over to {to}.", metadata={"handoff": to, "message": message})


def handed_over(turn: Turn) -> tuple[str, str] | None:
    """To whom an agent has handed the conversation over, and what it has told; None where it has not."""
    last = turn.answer
    if not isinstance(last, ToolResponseMessage) or last.metadata.get("finish_reason") != "return_direct":
        return None
    kept = cast("Mapping[str, Mapping[str, Any]]", last.metadata.get("answers", {}))
    found = next((kept[r.id] for r in last.responses if "handoff" in kept.get(r.id, {})), None)
    return None if found is None else (found["handoff"], found["message"])


class HandoffAgent(Flow):
    """Agents that hand the conversation over to each other, by tools made by `handoff`; who has it answers.

        billing = ReactAgent("billing", model, [handoff("triage")], description="Knows all about invoices.")
        triage = ReactAgent("triage", model, [handoff(billing)])
        desk = HandoffAgent("desk", [triage, billing])

    The first of `agents`, or `start`, gets the conversation. On a thread, the next turn goes to whoever had it last;
    with `stay=False` to the first again. `conversation="shared"`: all agents have the flow's `messages`, with the
    handoffs in them, which are answered as any call. `"separate"`: each agent has a conversation of its own, kept in
    the state key `<name>.messages`: it is told the user's words, or what was told with the handoff, and `messages` has
    only the user's words and the answers. The other options are as in `Flow`. The limit of a run's steps holds for
    agents that hand over for ever.
    """

    def __init__(
        self,
        name: str,
        agents: Agents,
        *,
        start: str | None = None,
        stay: bool = True,
        conversation: Conversation = "shared",
        description: str = "",
        output_key: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
    ) -> None:
        names = list(agents) if isinstance(agents, Mapping) else [getattr(a, "name", "") for a in agents]
        private: dict[str, Strategy] = {TO: Replace(), _TOLD: Replace(), _ACTIVE: Replace()}
        if conversation == "separate":
            private |= {_own(n): Messages() for n in names}
        super().__init__(
            name,
            agents,
            conversation=conversation,
            description=description,
            output_key=output_key,
            strategies=strategies,
            private=private,
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        if start is not None and start not in self.agents:
            raise ConfigError(f"HandoffAgent(start=...): {unknown('agent', start, self.agents)}")
        self.start: str = start or next(iter(self.agents))
        self.stay = stay
        graph = self.graph
        graph.add_conditional_edges(START, self._first, list(self.agents))
        for each, agent in self.agents.items():
            shared = conversation == "shared"
            self._add(each, agent, self._shared(each) if shared else self._separate(each), shared=shared)
            targets = [t.to for t in getattr(agent, "tools", ()) if isinstance(t, Handoff)]
            for to in targets:
                if to not in self.agents:
                    whom = unknown("agent", to, self.agents)
                    raise ConfigError(f"HandoffAgent: agent {each!r} hands over to an {whom}")
            graph.add_conditional_edges(each, next_agent, [*targets, END])

    def _first(self, state: Mapping[str, Any]) -> str:
        active = state.get(_ACTIVE)
        return active if self.stay and active in self.agents else self.start

    def _shared(self, name: str) -> Any:
        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            turn = await self._go_on(name, self.agents[name], state, run)
            return Updates([*turn.updates, self._ended(name, turn)])

        return take

    def _separate(self, name: str) -> Any:
        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            asked, added = self._question(state, run)
            told = state.get(_TOLD)
            if told is not None and told["asked"] != asked.id:  # by a turn that came to no end
                told = None
            begins = retold(asked if told is None else UserMessage(told["content"], id=told["id"]), name)
            given = {**self._data(state), "messages": [*state[_own(name)], begins]}
            turn = await take_turn(self.agents[name], given, run, conversation=_own(name))
            ended = self._ended(name, turn)
            if (over := handed_over(turn)) is None:
                added = [*added, self._answered(name, turn)]
            else:
                ended[_TOLD] = {
                    "content": over[1] or asked.text,
                    "id": cast("ToolResponseMessage", turn.answer).id,
                    "asked": asked.id,
                }
            return Updates([{_own(name): [begins], "messages": added}, *turn.updates, ended])

        return take

    def _ended(self, name: str, turn: Turn) -> dict[str, Any]:
        """Who has the conversation now."""
        over = handed_over(turn)
        if over is None:
            return {TO: None, _TOLD: None, _ACTIVE: name, self._made: turn.output}
        return {TO: over[0], _TOLD: None, _ACTIVE: over[0]}


def _own(name: str) -> str:
    """Where an agent's own conversation is kept."""
    return f"{name}.messages"


def next_agent(state: Mapping[str, Any]) -> str:
    """Who goes on."""
    return state.get(TO) or END
