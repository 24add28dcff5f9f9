"""Agents that another one may let work: a conversation of its own for each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from agentgraph.config import positive
from agentgraph.errors import ConfigError
from agentgraph.nodes.agent_tool import AgentCall, Task, agent_tool, tool_name
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.tool import Tool, ToolContext
from agentgraph.nodes.turn import Agent, check_agent

__all__ = ["SubAgents"]


class SubAgents:
    """Gives an agent sub-agents: it tells one a task, and gets its answer.

        lead = ReactAgent("lead", model, hooks=[SubAgents([researcher, writer])])

    `agents` are `ReactAgent`s, flows or compiled graphs with `messages`, by their own names or in a mapping by others.
    Each is a tool of its name, described by its `description`, or by `descriptions`, by name. With `tool`, a name such
    as "task", there is one tool for all, which takes an agent's name and the task. `timeout`: seconds a task may take;
    None: as the tool node says. `max_parallel`: most tasks of one tool at work at once in the whole process, or a
    `Limiter`. How many calls of one message run at once is the agent's own `max_parallel`.

    Each call has a conversation of its own, also of one agent called twice at once. It is a part of the caller's run:
    events, usage, questions, cancellation and the limit of steps pass through, and after a pause or a crash it goes on
    where it stood. The caller's state is not the sub-agent's: only the answer comes back.
    """

    name = "sub_agents"

    def __init__(
        self,
        agents: Iterable[Any] | Mapping[str, Any],
        *,
        tool: str | None = None,
        descriptions: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_parallel: int | Limiter | None = None,
    ) -> None:
        if isinstance(agents, Mapping):
            found = {str(n): check_agent(a, "SubAgents") for n, a in cast("Mapping[Any, Any]", agents).items()}
        elif isinstance(agents, Iterable) and not isinstance(agents, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            listed = [check_agent(a, "SubAgents") for a in agents]
            found = {a.name: a for a in listed}
            if len(found) < len(listed):
                raise ConfigError("SubAgents: two agents have one name; give a mapping, with a name for each")
        else:
            raise ConfigError(f"SubAgents: agents come in a list, or in a mapping by name; found {agents!r:.80}")
        if not found:
            raise ConfigError("SubAgents: there are no agents")
        positive("SubAgents(timeout=...)", timeout)
        told = {n: (descriptions or {}).get(n) or getattr(a, "description", "") for n, a in found.items()}
        for given in descriptions or ():
            if given not in found:
                raise ConfigError(f"SubAgents(descriptions=...): there is no agent {given!r}")
        self.agents: dict[str, Agent] = found
        self.tools: tuple[Tool, ...]
        if tool is not None:
            self.tools = (_one(tool, found, told, timeout, max_parallel),)
            return
        self.tools = tuple(
            agent_tool(
                agent,
                name=tool_name(name),
                description=told[name] or f"Let {name} do a task.",
                timeout=timeout,
                max_parallel=max_parallel,
            )
            for name, agent in found.items()
        )

    def __repr__(self) -> str:
        return f"<SubAgents {list(self.agents)}>"


def _one(
    name: str,
    agents: Mapping[str, Agent],
    told: Mapping[str, str],
    timeout: float | None,
    max_parallel: int | Limiter | None,
) -> Tool:
    """One tool for all agents."""
    calls = {n: AgentCall(a) for n, a in agents.items()}
    known: Any = Literal[tuple(agents)]
    who: Any = Annotated[known, msgspec.Meta(description="Who is to do it.")]

    async def delegate(agent: str, task: Task, context: ToolContext) -> Any:
        return await calls[agent](task, context)

    delegate.__annotations__["agent"] = who
    setattr(delegate, "types", tuple(t for call in calls.values() for t in call.types))  # noqa: B010
    lines = [f"- {n}: {text}" if text else f"- {n}" for n, text in told.items()]
    description = "\n".join(["Let another agent do a task, and get its answer. There are:", *lines])
    return Tool(delegate, name=name, description=description, timeout=timeout, max_parallel=max_parallel)
