"""Tries a failed call of a tool again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

from agentgraph.config import Retry
from agentgraph.errors import ConfigError, unknown
from agentgraph.events import shown
from agentgraph.messages import ToolResponse
from agentgraph.nodes.batch import leaves
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.interceptors.backoff import seconds_to_wait
from agentgraph.nodes.interceptors.model_retry import checked_retry
from agentgraph.nodes.tool import Tool, ToolError, names_of
from agentgraph.nodes.tool_request import ToolHandler, ToolRequest

__all__ = ["ToolRetry"]

log: logging.Logger = logging.getLogger("agentgraph")


class ToolRetry:
    """Calls a tool again where it has failed.

        agent = ReactAgent("clerk", model, [search, book], interceptors=[ToolRetry([search], Retry(attempts=4))])

    `tools` are those whose calls are tried again, by their names or as they are; None: all. Name those that may run
    twice without harm: a tool that failed may have done its work. `retry` says after which errors, how often, and how
    long to wait; by itself it is after errors that may pass (connections, timeouts, HTTP 408, 409, 429 and 5xx). A
    `ToolError` is meant for the model, and is a reason only where `retry.on` names it; wrong arguments never are.

    A call that ran into its timeout is tried again, each time with the whole timeout, but not while the worker thread
    that was left behind still runs. Of several attempts only what the last one wrote to the state is kept. A wait
    keeps what the call has taken (its turn among the message's calls, a `Limiter`).

    `at_end`: what becomes of the last error. "answer" tells it to the model as without this interceptor; "error" fails
    the run by a `ToolError` that has the tool's own as its cause.
    """

    def __init__(
        self,
        tools: Iterable[str | Tool | Callable[..., Any]] | None = None,
        retry: Retry | None = None,
        *,
        at_end: Literal["answer", "error"] = "answer",
        name: str = "ToolRetry",
    ) -> None:
        self.name = name
        self._tools = None if tools is None else names_of(tools, "ToolRetry")
        self._retry = checked_retry("ToolRetry", retry)
        if at_end not in ("answer", "error"):
            raise ConfigError(f"ToolRetry(at_end=...): {unknown('choice', at_end, ('answer', 'error'))}")
        self._at_end = at_end

    def bind(self, agent: AgentParts) -> Self:
        """The same for every agent; names that its tools do not have are told in the log."""
        agent.tell_unknown(self.name, self._tools or ())
        return self

    async def wrap_tool(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        """Call until the tool answers. After cancellation nothing is tried again."""
        if self._tools is not None and request.call.name not in self._tools:
            return await call(request)
        attempt = 1
        while True:
            raised: Exception | None = None
            response: ToolResponse | None = None
            try:
                response = await call(request)
            except Exception as error:  # an interceptor's, or one that must fail the run
                raised = error
            try:
                failure = request.last.error or raised
                wait = None if failure is None else self._wait(attempt, failure)
                if failure is not None and wait is not None:
                    log.warning(
                        "%s: attempt %d of %d of tool %r failed, the next one comes in %.3g s: %s",
                        self.name, attempt, self._retry.attempts, request.call.name, wait, shown(failure, repr),
                    )  # fmt: skip
                elif raised is not None:
                    raise raised
                elif failure is not None and self._at_end == "error":
                    why = f"{type(failure).__name__}: {shown(failure, str)}"
                    told = f"tool {request.call.name!r} failed in attempt {attempt}: {why}"
                    raise ToolError(told, always_raise=True) from failure
                elif response is not None:
                    return response
            finally:
                raised = failure = None  # else they and this frame hold each other
            await asyncio.sleep(wait or 0)
            attempt += 1

    def _wait(self, attempt: int, error: Exception) -> float | None:
        """Seconds until the next attempt; None where there is none."""
        if attempt >= self._retry.attempts or getattr(error, "thread_runs", False):
            return None
        wanted = all(isinstance(e, Exception) and self._wants(e) for e in leaves(error))
        return seconds_to_wait(self._retry, attempt, error) if wanted else None

    def _wants(self, error: Exception) -> bool:
        is_for_model = isinstance(error, ToolError) and self._retry.on is None
        return not is_for_model and self._retry.wants(error)

    def __repr__(self) -> str:
        return f"<{self.name} {'all tools' if self._tools is None else list(self._tools)} {self._retry!r}>"
