"""A limit of how often an agent may ask its model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, Self

from agentgraph.messages import ToolResponse
from agentgraph.nodes.history import NOT_FINISHED, answered, open_calls
from agentgraph.nodes.hooks.call_limit import CallLimitError, Limits, checked, ended, key_of
from agentgraph.nodes.hooks.hook import AgentParts, Jump
from agentgraph.strategies import Replace, Strategy

__all__ = ["ModelCallLimit"]

_WHAT = "model calls"


class ModelCallLimit:
    """Ends a turn in which the model was asked often enough.

        agent = ReactAgent("clerk", model, tools, hooks=[ModelCallLimit(per_run=10)])

    `per_run`: most calls in one turn, from a new input to the answer, however often it was paused, continued or taken
    over by another process. `per_thread`: most calls in all turns of a thread. A call is a question that was put to the
    model: what its client, a `ModelRetry` or a `ModelFallback` tries again until it is answered counts once, and so
    does one that failed. An agent that is called by this one counts for itself. Where the agent is a node of another
    graph, `per_thread` counts over that graph's thread if it has the key `limit.key("clerk")` too, with `Replace()`;
    without, over one turn.

    `at_limit`: "end" ends the turn by a message that says so (`finish_reason` is "limit"), with calls of tools that are
    still open answered as not finished; "error" raises `CallLimitError`. The next turn on the thread begins to count
    anew, but for `per_thread`.

    Put it first among the hooks: a hook before it that jumps to the model is not counted. Raises `ConfigError` for
    limits that cannot be meant.
    """

    jumps: tuple[str, ...] = ("end",)

    def __init__(
        self,
        *,
        per_run: int | None = None,
        per_thread: int | None = None,
        at_limit: Literal["end", "error"] = "end",
        name: str = "ModelCallLimit",
    ) -> None:
        checked("ModelCallLimit", at_limit, ("end", "error"))
        self.name = name
        self._limits = Limits.of("ModelCallLimit", per_run, per_thread)
        self._at_limit = at_limit

    def bind(self, agent: AgentParts) -> Self:
        """The hook that counts for this agent."""
        bound = copy.copy(self)
        bound._limits = self._limits.bound(agent.name, self.name)
        return bound

    def key(self, agent: str) -> str:
        """The state key of its counts for the agent of that name."""
        return key_of(agent, self.name)

    @property
    def strategies(self) -> Mapping[str, Strategy]:
        """The state key of its counts."""
        return {self._limits.key: Replace()}

    async def before_agent(self, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Begin to count anew."""
        return self._limits.new_run(state)

    async def before_model(self, state: Mapping[str, Any]) -> Mapping[str, Any] | Jump:
        """Count a call, or end the turn."""
        left, limit, per = self._limits.left(state)
        if left:
            return self._limits.more(state, 1)
        if self._at_limit == "error":
            raise CallLimitError(_WHAT, limit, per)
        messages: list[Any] = state.get("messages") or []
        _, calls = open_calls(messages)
        refused = [ToolResponse(call.id, call.name, NOT_FINISHED, is_error=True) for call in calls]
        closing = [answered(messages, refused)] if refused else []
        return Jump("end", {"messages": [*closing, ended(_WHAT, limit, per)]})

    def __repr__(self) -> str:
        return f"<{self.name} per_run={self._limits.per_run} per_thread={self._limits.per_thread} {self._at_limit}>"
