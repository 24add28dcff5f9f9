"""An agent as a tool of another one."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from agentgraph.messages import UserMessage
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.tool import Tool, ToolContext
from agentgraph.nodes.turn import Agent, Named, check_agent, take_turn

__all__ = ["agent_tool", "tool_name"]


Task = Annotated[
    str, msgspec.Meta(description="What is to be done, with all that must be known for it: nothing else is told.")
]


class AgentCall:
    """Lets an agent do a task, in a conversation of the call's own."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.types: tuple[Any, ...] = tuple(getattr(agent, "types", ()))
        """What its states hold: they are kept with the caller's."""
        self._named = Named(agent, agent.name)

    async def __call__(self, task: Task, context: ToolContext) -> Any:
        """Let the agent do the task, as a part of the caller's run; its answer."""
        asked = UserMessage(task, id=f"{context.call_id}-task")  # the same when the call is gone on with
        turn = await take_turn(self._named, {"messages": [asked]}, context.run)
        for update in turn.updates:
            context.update(**{k: v for k, v in update.items() if k == "_token_usage"})
        return turn.output


def agent_tool(
    agent: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    return_direct: bool = False,
    max_parallel: int | Limiter | None = None,
) -> Tool:
    """An agent as a tool that takes a task, as text, and answers what the agent has answered: see `ReactAgent.as_tool`.

    Raises `ConfigError` for what is no agent.
    """
    call = AgentCall(check_agent(agent, "as_tool()"))
    said = getattr(agent, "description", "") if description is None else description
    return Tool(
        call,
        name=tool_name(agent.name) if name is None else name,
        description=said or f"Let {agent.name} do a task.",
        timeout=timeout,
        return_direct=return_direct,
        max_parallel=max_parallel,
    )


def tool_name(text: str) -> str:
    """A name that providers take for a tool, made of an agent's."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:64]
