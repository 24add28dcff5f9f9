"""A call on its way to its tool, and what may stand round it: the contract of a tool node's interceptors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from agentgraph.context import RunContext
from agentgraph.messages import ToolCall, ToolResponse
from agentgraph.nodes.tool import Tool, ToolError

__all__ = ["ErrorProcessor", "LastAttempt", "ToolHandler", "ToolInterceptor", "ToolRequest"]


class LastAttempt:
    """What became of the last attempt of a call, for the interceptors round it."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: Exception | None = None
        """What the tool raised, a `ToolTimeoutError`, or what was wrong with the arguments; None: it has answered."""

    def __repr__(self) -> str:
        return f"<LastAttempt {self.error!r:.80}>"


class ToolRequest(msgspec.Struct, frozen=True, gc=False):
    """One call on its way to its tool. Immutable: change it by `msgspec.structs.replace`."""

    call: ToolCall
    tool: Tool | None
    """None: nothing by that name was found; the model is told so, unless an interceptor answers."""
    state: Any
    run: RunContext[Any]
    index: int
    """Which call of the message, from 0."""
    last: LastAttempt = msgspec.field(default_factory=LastAttempt)
    """After `call` has returned: the error that the answer tells of. Until this call's interceptors have returned."""


ToolHandler = Callable[[ToolRequest], Awaitable[ToolResponse]]

ToolInterceptor = Callable[[ToolRequest, ToolHandler], Awaitable[ToolResponse]]
"""`async def (request, call) -> response`: may change the request, answer itself, or call on several times.

One after the other: what the last attempt wrote to the state is what is kept.
"""

ErrorProcessor = Callable[[ToolError, ToolCall], Any]
"""`(error, call) -> content of the answer`, sync or async; what it raises fails the run."""
