"""One session with an MCP server, from its start to its end.

The rules of this file:
- A connection has one task of its own, which opens it, holds it and closes it: the SDK's task groups and cancel scopes
  never reach into a task of the user's, and a call that is cancelled takes nothing else with it.
- That task is ended by events and by its scope, never by `Task.cancel`, which would break into the SDK's clean-up and
  leave a server's process behind.
- A connection is lost once, and replaced by the next call. A call under way when it is lost is never sent again.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast

import anyio
import mcp
from mcp import types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

from agentgraph.nodes.mcp_server import Address, Process, Said
from agentgraph.tasks import all_ended

__all__ = ["Connection", "error_text"]

log: logging.Logger = logging.getLogger("agentgraph")

_CLOSING_SECONDS = 5.0  # for the goodbye over HTTP; what a process may take to end, about 6 s, is the SDK's own

_DEATH_SECONDS = 1.0  # how long a call whose connection was lost waits to learn why


class Connection:
    """One session with a server, and the task that owns it. It begins at once, when `old` has ended."""

    def __init__(
        self,
        server: Process | Address,
        start_timeout: float | None,
        listed: Callable[[Sequence[types.Tool]], None],
        context: contextvars.Context,
        old: Connection | None,
    ) -> None:
        self._server = server
        self._start_timeout = start_timeout
        self._listed = listed
        self._said = Said()
        self._scope = anyio.CancelScope()
        self._over = asyncio.Event()
        self._is_open = False
        self.ready: asyncio.Event = asyncio.Event()
        """The start has ended, well or not."""
        self.client: mcp.Client | None = None
        """None: it is not ready, or has failed."""
        self.failure: str = ""
        """Why it is over, where it was not closed, or has never been ready."""
        self.names: list[str] = []
        self.server_name: str | None = None
        self.instructions: str | None = None
        # the calls' own context is nothing of a connection that outlives them
        name = f"MCP server {server.where}"
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            self._own(old), name=name, context=context
        )

    @property
    def lost(self) -> bool:
        """Whether it can take no further calls."""
        return self._over.is_set() or self.task.done()

    def close(self) -> None:
        """Let the task end."""
        self._over.set()
        if self._is_open and self.client is None:
            self._scope.cancel()

    def _opened(self) -> None:
        """From now on the start can be ended: a process that is just being made would be left to end by itself."""
        self._is_open = True
        if self._over.is_set():
            self._scope.cancel()
        self._limit(self._start_timeout)

    async def _own(self, old: Connection | None) -> None:
        try:
            if old is not None:
                await all_ended([old.task])
            if self._over.is_set():
                return
            with self._scope:
                streams = _watched(self._server.streams(self._said), self._opened, self._over)
                async with mcp.Client(streams, cache=None, message_handler=self._hear) as client:
                    self.server_name = client.server_info.name if client.server_info is not None else None
                    self.instructions = client.instructions
                    await self._list(client)
                    self.client = client
                    self._limit(None)
                    self.ready.set()
                    await self._hold(client)
                    self._limit(_CLOSING_SECONDS)
            if self._scope.cancelled_caught and self.client is None:
                self.failure = f"no answer within {self._start_timeout or 0:g} s{self._said}"
        except Exception as error:
            self.failure = f"{error_text(error)}{self._said}"
        finally:
            self._over.set()
            self.ready.set()

    def _limit(self, seconds: float | None) -> None:
        self._scope.deadline = math.inf if seconds is None else anyio.current_time() + seconds

    async def _hold(self, client: mcp.Client) -> None:
        """Until the connection is over. Newer servers tell of changes only while that is subscribed to."""
        tools = client.server_capabilities.tools
        async with anyio.create_task_group() as tasks:
            if tools is not None and tools.list_changed:
                tasks.start_soon(self._follow, client)
            await self._over.wait()
            tasks.cancel_scope.cancel()

    async def _follow(self, client: mcp.Client) -> None:
        with suppress(ListenNotSupportedError, SubscriptionLost, mcp.MCPError):
            async with client.listen(tools_list_changed=True) as changes:
                await self._list_again()  # they may have changed since the first time
                async for _ in changes:
                    pass  # `_hear` gets them too, as from older servers

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            await self._list_again()

    async def _list_again(self) -> None:
        if self.client is not None:
            try:
                await self._list(self.client)
            except (mcp.MCPError, ValueError) as error:
                log.warning("MCP server %s has changed its tools, and cannot list them: %s", self._server.where, error)

    async def list(self) -> None:
        """Ask for the tools."""
        await self._list(cast("mcp.Client", self.client))

    async def _list(self, client: mcp.Client) -> None:
        specs: list[types.Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await client.list_tools(cursor=cursor)
            specs += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
            if cursor in seen:
                raise ValueError(f"its pages of tools have no end: {cursor!r:.80} comes a second time")
            seen.add(cursor)
        self.names = [spec.name for spec in specs]
        self._listed(specs)

    async def call(self, tool: str, arguments: dict[str, Any], progress: Any) -> types.CallToolResult:
        """Call a tool. After cancellation the server has been told."""
        return await cast("mcp.Client", self.client).call_tool(tool, arguments, progress_callback=progress)

    async def why_lost(self, error: mcp.MCPError) -> str:
        """What is known of the end, a moment later."""
        if self._over.is_set():
            await asyncio.wait([self.task], timeout=_DEATH_SECONDS)
        return self.failure or f"{error.message}{self._said}"

    def refused(self, error: mcp.MCPError) -> str:
        """What an error says; where a server over HTTP does not know the session any more, the connection is over."""
        text = error.message
        if isinstance(self._server, Address) and _REFUSED.search(text):
            text += str(self._said)
            if self._said.status in (None, 400, 404):
                self._over.set()
                return f"the session is over, and the next call begins a new one ({text})"
        return text


_REFUSED = re.compile(r"session (terminated|expired|not found)|no valid session|an error response", re.IGNORECASE)
"""How the SDKs, and servers made from their examples, say so: only the HTTP status is laid down, which is not told us.

The last is the SDK's word for any status without an answer that it understands.
"""


@asynccontextmanager
async def _watched(
    streams: AbstractAsyncContextManager[Any], opened: Callable[[], None], over: asyncio.Event
) -> AsyncGenerator[Any]:
    """A server's streams: `opened` is called when they are there, and `over` set when nothing more comes from it."""
    async with streams as (read, write), anyio.create_task_group() as tasks:
        opened()
        send, receive = anyio.create_memory_object_stream[Any]()

        async def hand_on() -> None:
            async with send:
                try:
                    async for message in read:
                        await send.send(message)
                except anyio.BrokenResourceError:
                    pass  # the session is closed
                finally:
                    over.set()

        tasks.start_soon(hand_on)
        try:
            async with receive:
                yield receive, write
        finally:
            tasks.cancel_scope.cancel()


def error_text(error: BaseException) -> str:
    """An error's text; that of its first leaf where it is a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, (mcp.MCPError, OSError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
