"""A supervisor, and the agents that it lets work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError
from agentgraph.graph import StateGraph
from agentgraph.models.protocol import ChatModel
from agentgraph.node import END, START, Updates
from agentgraph.nodes.agent import ReactAgent
from agentgraph.nodes.agent_tool import agent_tool, tool_name
from agentgraph.nodes.flows.flow import Agents, Conversation, Flow
from agentgraph.nodes.flows.handoff import TO, handed_over, handoff, next_agent
from agentgraph.nodes.hooks.hook import Hook
from agentgraph.nodes.tool import Tool
from agentgraph.strategies import Replace, Strategy

__all__ = ["SupervisorAgent"]

_BACK = "{agent}, go on: give the work to another one, or answer."


class SupervisorAgent(Flow):
    """A model that gives work to agents, sees what they answer, and answers in the end itself.

        team = SupervisorAgent("team", model, [researcher, writer], system_prompt="You lead a team.")

    `conversation="separate"`: the agents are tools of the supervisor, each call a conversation of its own that begins
    with the task: several at once, as `max_parallel` says, each for at most `tool_timeout` seconds. `"shared"`: there
    is one conversation, all of which all see; the supervisor hands it over to an agent, one at a time, and gets it back
    when that has answered. `descriptions`: by name, in place of the agents' own. `tools` are the supervisor's; `model`,
    `system_prompt`, `instruction`, `options`, `output_type`, `hooks`, `interceptors` and `parallel` are as in
    `ReactAgent`. `agents` and the other options are as in `Flow`.
    """

    def __init__(
        self,
        name: str,
        model: ChatModel | str,
        agents: Agents,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        descriptions: Mapping[str, str] | None = None,
        system_prompt: str | None = None,
        instruction: str | None = None,
        options: Mapping[str, Any] | None = None,
        output_type: Any = None,
        hooks: Sequence[Hook] = (),
        interceptors: Sequence[Any] = (),
        parallel: bool = True,
        max_parallel: int | None = 5,
        tool_timeout: float | None = None,
        conversation: Conversation = "separate",
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
            private={TO: Replace()},
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        told = {n: (descriptions or {}).get(n) or getattr(a, "description", "") for n, a in self.agents.items()}
        for given in descriptions or ():
            if given not in self.agents:
                raise ConfigError(f"SupervisorAgent(descriptions=...): there is no agent {given!r}")
        work = [
            handoff(n, description=told[n])
            if shared
            else agent_tool(a, name=tool_name(n), description=told[n] or f"Let {n} do a task.")
            for n, a in self.agents.items()
        ]
        self.supervisor: ReactAgent = ReactAgent(
            name,
            model,
            [*tools, *work],
            system_prompt=system_prompt,
            instruction=instruction,
            options=options,
            output_type=output_type,
            output_key=output_key,
            strategies=strategies,
            hooks=hooks,
            interceptors=interceptors,
            parallel=parallel,
            max_parallel=max_parallel,
            tool_timeout=tool_timeout,
            types=types,
        )
        """The agent that gives the work."""
        self.types: tuple[type | StoredType[Any], ...] = (*self.types, *self.supervisor.types)
        if not shared:
            self.graph: StateGraph[dict[str, Any]] = self.supervisor.graph
            return
        own = "supervisor"
        self._add(own, self.supervisor, self._lead, shared=True)
        self.graph.add_edge(START, own)
        for each, agent in self.agents.items():
            self._add(each, agent, self._work(each), shared=True)
            self.graph.add_edge(each, own)
        self.graph.add_conditional_edges(own, next_agent, [*self.agents, END])

    async def _lead(self, state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
        turn = await self._go_on(self.name, self.supervisor, state, run, _BACK)
        over = handed_over(turn)
        ended = {TO: None, self._made: turn.output} if over is None else {TO: over[0]}
        return Updates([*turn.updates, ended])

    def _work(self, name: str) -> Any:
        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            turn = await self._go_on(name, self.agents[name], state, run)
            return turn.updates

        return take
