"""A limit of how often an agent may call its tools, or one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from agentgraph.messages import ToolResponse
from agentgraph.nodes.history import answered, open_calls
from agentgraph.nodes.hooks.call_limit import CallLimitError, Limits, checked, ended, key_of, told_calls
from agentgraph.nodes.hooks.hook import AgentParts, Jump
from agentgraph.nodes.tool import Tool, names_of
from agentgraph.strategies import Replace, Strategy

__all__ = ["ToolCallLimit"]


class ToolCallLimit:
    """Lets an agent call its tools, or one of them, only so often.

        hooks=[ToolCallLimit("search", per_run=3), ToolCallLimit(per_thread=100, at_limit="end")]

    `tool` is the one that is limited, by its name or as it is; None: all together. `per_run`: most calls in one turn,
    from a new input to the answer, however often it was paused, continued or taken over by another process.
    `per_thread`: most calls in all turns of a thread. Calls count in their order, before any of them runs: which of a
    message's calls are over the limit does not depend on how fast the others are. One that is tried again (`ToolRetry`)
    counts once; one that is over the limit does not count, nor does one that another hook has answered before. For an
    agent that is a node of another graph see `ModelCallLimit`.

    `at_limit`: "continue" answers calls that are over the limit as refused, and runs the others. "end" ends the turn:
    none of the message's open calls runs, each is answered as refused, and a message (`finish_reason` is "limit") says
    why. "error" raises `CallLimitError` before any of them runs. The next turn begins to count anew, but for
    `per_thread`.

    Put it before hooks that answer calls or change them, such as human approval: it then counts what is left to run.
    Put behind it, nobody is asked about calls that are refused, and one that a human rejects has been counted.
    Raises `ConfigError` for limits that cannot be meant.
    """

    jumps: tuple[str, ...] = ("end",)

    def __init__(
        self,
        tool: str | Tool | Callable[..., Any] | None = None,
        *,
        per_run: int | None = None,
        per_thread: int | None = None,
        at_limit: Literal["continue", "end", "error"] = "continue",
        name: str | None = None,
    ) -> None:
        checked("ToolCallLimit", at_limit, ("continue", "end", "error"))
        self._tool = None if tool is None else names_of([tool], "ToolCallLimit")[0]
        self.name: str = name or ("ToolCallLimit" if self._tool is None else f"ToolCallLimit({self._tool})")
        self._limits = Limits.of("ToolCallLimit", per_run, per_thread)
        self._at_limit = at_limit
        self._what = "tool calls" if self._tool is None else f"calls of tool {self._tool!r}"

    def bind(self, agent: AgentParts) -> Self:
        """The hook that counts for this agent."""
        if self._tool is not None:
            agent.tell_unknown(self.name, [self._tool])
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

    async def after_model(self, state: Mapping[str, Any]) -> Mapping[str, Any] | Jump | None:
        """Count the calls that may run, and answer those that may not."""
        messages: list[Any] = state.get("messages") or []
        _, calls = open_calls(messages)
        mine = [call for call in calls if self._tool in (None, call.name)]
        if not mine:
            return None
        left, limit, per = self._limits.left(state)
        over = mine[left:]
        if not over:
            return self._limits.more(state, len(mine))
        if self._at_limit == "error":
            raise CallLimitError(self._what, limit, per)
        if self._at_limit == "end":
            why = "This call did not run: the limit of calls was reached, and the work ended."
            refused = [ToolResponse(call.id, call.name, why, is_error=True) for call in calls]
            return Jump("end", {"messages": [answered(messages, refused), ended(self._what, limit, per)]})
        told, which = told_calls(self._what, limit), "any tool" if self._tool is None else repr(self._tool)
        why = f"This call did not run: the limit of {told} is reached. Do not call {which} again."
        refused = [ToolResponse(call.id, call.name, why, is_error=True) for call in over]
        return {"messages": [answered(messages, refused)], **self._limits.more(state, len(mine) - len(over))}

    def __repr__(self) -> str:
        return f"<{self.name} per_run={self._limits.per_run} per_thread={self._limits.per_thread} {self._at_limit}>"
