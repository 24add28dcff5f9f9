"""What limits of calls have in common: how they count, and how they tell that they were reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agentgraph.config import positive
from agentgraph.errors import AgentGraphError, ConfigError, unknown
from agentgraph.messages import AssistantMessage
from agentgraph.nodes.result import LIMIT

__all__ = ["CallLimitError", "Limits", "checked", "ended", "key_of", "told_calls"]


class CallLimitError(AgentGraphError):
    """An agent has made all the calls that it may make: see `ModelCallLimit` and `ToolCallLimit`.

    `what` is what was counted ("model calls", "calls of tool 'search'"), `limit` how many of them there may be, and
    `per` in what: "run" or "thread".
    """

    def __init__(self, what: str, limit: int, per: str) -> None:
        super().__init__(f"the limit of {told_calls(what, limit)} per {per} is reached; raise it by per_{per}=")
        self.what = what
        self.limit = limit
        self.per = per


class Limits(msgspec.Struct, frozen=True):
    """The most calls per run and per thread, and how those counts are kept in the state."""

    key: str
    """The state key of the counts."""
    per_run: int | None
    per_thread: int | None

    @classmethod
    def of(cls, owner: str, per_run: Any, per_thread: Any) -> Limits:
        """The limits of `owner`, which gets its key by `bound`. Raises `ConfigError` for numbers that are none."""
        positive(f"{owner}(per_run=...)", per_run, whole=True)
        positive(f"{owner}(per_thread=...)", per_thread, whole=True)
        if per_run is None and per_thread is None:
            raise ConfigError(f"{owner} limits nothing: give it per_run=, per_thread=, or both")
        return cls("", per_run, per_thread)

    def bound(self, agent: str, hook: str) -> Limits:
        """The same with a key of their own: an agent that is a node of another one's graph shares keys with it."""
        return msgspec.structs.replace(self, key=key_of(agent, hook))

    def counts(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """How many calls were made in this run, and on this thread."""
        kept: Mapping[str, int] = state.get(self.key) or {}
        return kept.get("run", 0), kept.get("thread", 0)

    def new_run(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """The update with which a run begins to count."""
        run, thread = self.counts(state)
        return {self.key: {"run": 0, "thread": thread}} if run else None

    def more(self, state: Mapping[str, Any], calls: int) -> dict[str, Any]:
        """The update that counts so many more calls."""
        run, thread = self.counts(state)
        return {self.key: {"run": run + calls, "thread": thread + calls}}

    def left(self, state: Mapping[str, Any]) -> tuple[int, int, Literal["run", "thread"]]:
        """How many more calls there may be, by the limit that is reached first, and that limit."""
        run, thread = self.counts(state)
        found: list[tuple[int, int, Literal["run", "thread"]]] = []
        if self.per_run is not None:
            found.append((max(0, self.per_run - run), self.per_run, "run"))
        if self.per_thread is not None:
            found.append((max(0, self.per_thread - thread), self.per_thread, "thread"))
        return min(found, key=lambda limit: limit[0])


def key_of(agent: str, hook: str) -> str:
    """The state key under which a hook's counts are kept for an agent."""
    return f"_{agent}.{hook}"


def told_calls(what: str, count: int) -> str:
    """Say `3 model calls`, or `1 call of tool 'search'`."""
    return f"{count} {what if count != 1 else what.replace('calls', 'call', 1)}"


def ended(what: str, limit: int, per: str) -> AssistantMessage:
    """The message with which a limit ends a turn."""
    where = "one turn" if per == "run" else "one conversation"
    text = f"The limit of {told_calls(what, limit)} in {where} was reached, and the work ended there."
    return AssistantMessage(
        text,
        finish_reason=LIMIT,
        metadata={"limit": {"what": what, "limit": limit, "per": per}},
    )


def checked(owner: str, at_limit: str, known: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `at_limit` is one of the known."""
    if at_limit not in known:
        raise ConfigError(f"{owner}(at_limit=...): {unknown('choice', at_limit, known)}")
