"""Tools of MCP servers. An extra: `pip install "agentgraph-engine[mcp]"`.

The rules:
- A connection has one task of its own, which opens it, holds it and closes it: the SDK's task groups and cancel scopes
  never reach into a task of the user's, and a call that is cancelled takes nothing else with it.
- That task is ended by events and by its scope, never by `Task.cancel`, which would break into the SDK's clean-up and
  leave a server's process behind.
- A connection is lost once, and replaced by the next call. A call under way when it is lost is never sent again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextvars
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO, cast, overload
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec

try:
    import httpx2
    import jsonschema.validators  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the SDK does so in a call
    import mcp
    from mcp import types
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
except ImportError as _absent:
    raise ImportError('agentgraph.nodes.mcp needs the MCP SDK: pip install "agentgraph-engine[mcp]"') from _absent

from agentgraph.config import positive
from agentgraph.errors import AgentGraphError, ConfigError, RunEndedError, unknown
from agentgraph.messages import FilePart, ImagePart, Part, TextPart
from agentgraph.nodes.names import clean_name, unique_name
from agentgraph.nodes.tool import Answer, Tool, ToolContext, ToolError
from agentgraph.tasks import all_ended

__all__ = ["McpError", "McpTools"]

log: logging.Logger = logging.getLogger("agentgraph")

_CLOSING_SECONDS = 5.0  # for the goodbye over HTTP; what a process may take to end, about 6 s, is the SDK's own
_DEATH_SECONDS = 1.0  # how long a call whose connection was lost waits to learn why
_SAID_BYTES = 2000
_PIPE_READS = 16  # a full pipe at most, though something that the server has started may go on writing
_EVENT_BYTES = 2**26  # the SDK's own limit, a megabyte, is less than a photograph
_CONNECT_SECONDS = 30.0


class McpError(AgentGraphError):
    """An MCP server cannot be started, was lost, or refused a request.

    `server` is its name, `tool` the tool whose call it was, where it was one.
    """

    def __init__(self, message: str, *, server: str, tool: str | None = None) -> None:
        super().__init__(message)
        self.server = server
        self.tool = tool


class McpTools:
    """The tools of an MCP server, for the time of an `async with` block.

        async with McpTools(command="uvx", args=["mcp-server-time"]) as tools:
            agent = ReactAgent("clerk", model, [*tools, add])

    A server is a process that is started (`command`, `args`, `env`, `cwd`; of this process's environment it gets what
    the SDK holds to be safe, such as PATH and HOME) or is reached by streamable HTTP (`url`, `headers`, or an
    `http_client`: an `httpx2.AsyncClient`, which stays open). The names are those of the usual JSON configuration:
    `McpTools(**config["mcpServers"]["time"])`.

    Iterating gives `Tool`s with the server's names, after a `prefix` and in the letters and the length (64) that
    providers take, and its descriptions and schemas as they are.
    Only those in `include`, none of those in `exclude`: the server's own names, without the prefix. `name` is what
    errors call the server, in place of its own name. `start_timeout` is the seconds a start may take.

    A call ends as its tool node says: at its timeout or cancellation the server is told, and the connection stays. What
    the server says of its progress goes to the run's reader. When the server dies, the calls under way get an error,
    and the next call starts it again. When the block is left, the process has ended, killed if need be.

    It belongs to the event loop in which the block was entered, and to any of its tasks. Raises `ConfigError` for
    options that cannot be meant; entering the block raises `McpError` where the server cannot be started.
    """

    @overload
    def __init__(
        self,
        *,
        command: str | Path,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        name: str | None = None,
        prefix: str = "",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        start_timeout: float | None = 30.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        url: str,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        name: str | None = None,
        prefix: str = "",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        start_timeout: float | None = 30.0,
    ) -> None: ...
    def __init__(
        self,
        *,
        command: str | Path | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        name: str | None = None,
        prefix: str = "",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        start_timeout: float | None = 30.0,
    ) -> None:
        if (command is None) == (url is None):
            raise ConfigError("McpTools: give either command=, a server to start, or url=, a server to reach")
        if command is None and (args or env or cwd):
            raise ConfigError("McpTools: args, env and cwd belong to a command; a url has headers or an http_client")
        if url is None and (headers or http_client is not None):
            raise ConfigError("McpTools: headers and http_client belong to a url; a command has args, env and cwd")
        if headers and http_client is not None:
            raise ConfigError("McpTools: an http_client has headers of its own: httpx2.AsyncClient(headers=...)")
        texts: dict[str, Any] = {"command": command, "url": url}
        for option, given in texts.items():
            if not isinstance(given, str | Path | None):
                raise ConfigError(
                    f"McpTools({option}=...) takes a text, and a command's arguments go into args=[...]; "
                    f"found {given!r:.80}"
                )
        lists: dict[str, Any] = {"args": args, "include": include, "exclude": exclude}
        for option, given in lists.items():
            if given is not None and (isinstance(given, str) or not _are_texts(given)):
                raise ConfigError(f"McpTools({option}=...) takes a list of texts, found {given!r:.80}")
        dicts: dict[str, Any] = {"env": env, "headers": headers}
        for option, given in dicts.items():
            if given is not None and not (isinstance(given, Mapping) and _are_texts(cast("Any", given).values())):
                raise ConfigError(f"McpTools({option}=...) takes a dict of texts")  # what it is instead may be secret
        positive("McpTools(start_timeout=...)", start_timeout)
        self._server = (
            _Process(str(command), list(args), dict(env or {}), cwd)
            if url is None
            else _Address(url, dict(headers or {}), http_client)
        )
        self._name = name
        self._prefix = prefix
        self._include = None if include is None else frozenset(include)
        self._exclude = frozenset(exclude)
        self._start_timeout = start_timeout
        self._tools: tuple[Tool, ...] = ()
        self._said_name: str | None = None
        self._instructions: str | None = None
        self._connection: _Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.Context()

    @property
    def name(self) -> str:
        """The server's name: as given, as the server says, or else its command or URL."""
        return self._name or self._said_name or self._server.where

    @property
    def instructions(self) -> str | None:
        """What the server says about its use, if it does: for a system prompt."""
        return self._instructions

    async def __aenter__(self) -> Self:
        """Start the server and list its tools. After cancellation nothing of it runs any more."""
        if self._connection is not None:
            raise RuntimeError(f"the block of MCP server {self.name!r} has been entered already; make another McpTools")
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._connection = self._connect(None)
        try:
            await self._ready(self._connection)
            known = self._connection.names
            for given in sorted((self._include or frozenset()) | self._exclude):
                if given not in known:
                    raise ConfigError(f"MCP server {self.name!r}: {unknown('tool', given, known)}")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection, and return when the server's process has ended."""
        await self._end()

    async def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await all_ended([connection.task])

    def __iter__(self) -> Iterator[Tool]:
        """The tools as the server has listed them last."""
        self._open()
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    async def refresh(self) -> None:
        """List the tools anew: the next iteration gives them.

        That is done by itself where the server tells that its tools have changed. Raises `McpError` where it fails.
        """
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._start_timeout):
                await connection.list()
        except (mcp.MCPError, ValueError, TimeoutError) as error:
            raise McpError(
                f"MCP server {self.name!r} cannot list its tools: {_told(error)}", server=self.name
            ) from error

    def _open(self) -> _Connection:
        if self._connection is None:
            raise RuntimeError(f"MCP server {self.name!r}: its tools are there inside its `async with` block only")
        return self._connection

    def _here(self) -> _Connection:
        connection = self._open()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"MCP server {self.name!r} belongs to the event loop in which its block was entered")
        return connection

    def _connect(self, old: _Connection | None) -> _Connection:
        return _Connection(self._server, self._start_timeout, self._listed, self._context, old)

    async def _connected(self) -> _Connection:
        """The connection, a new one where the last was lost."""
        connection = self._here()
        if connection.lost:
            connection = self._connection = self._connect(connection)
        await self._ready(connection)
        return connection

    async def _ready(self, connection: _Connection) -> None:
        await connection.ready.wait()
        if connection.client is not None:
            self._said_name = connection.server_name or self._said_name
            self._instructions = connection.instructions
            return
        where = "" if self._said_name or not self._name else f" ({self._server.where})"
        raise McpError(
            f"MCP server {self.name!r}{where} cannot be {self._server.verb}: {connection.failure or 'cancelled'}",
            server=self.name,
        )

    def _listed(self, specs: Sequence[types.Tool]) -> None:
        names: set[str] = set()
        named = [(spec, unique_name(clean_name(self._prefix + spec.name), names)) for spec in specs]
        self._tools = tuple(
            self._made(spec, name)
            for spec, name in named
            if spec.name not in self._exclude and (self._include is None or spec.name in self._include)
        )

    def _made(self, spec: types.Tool, name: str) -> Tool:
        # a keyword beside the model's own: its name is one that no server has for an argument
        async def call(agentgraph_tool_context: ToolContext, **arguments: Any) -> Any:
            return await self._call(spec.name, arguments, agentgraph_tool_context)

        return Tool(call, name=name, description=spec.description or spec.title or "", parameters=spec.input_schema)

    async def _call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        async def progress(done: float, total: float | None, text: str | None) -> None:
            with suppress(RunEndedError):  # it comes after the answer
                await context.progress(done, total, text or "")

        try:
            connection = await self._connected()
        except RuntimeError as error:  # a fault of the program, which no model can mend
            raise ToolError(str(error), always_raise=True) from error
        try:
            return _answer(await connection.call(tool, arguments, progress))
        except mcp.MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                why = await connection.why_lost(error)
                text = f"the server died or was lost during the call; what the call has done is not known ({why})"
            else:
                text = connection.refused(error)
            raise McpError(f"MCP server {self.name!r}, tool {tool!r}: {text}", server=self.name, tool=tool) from error
        except (ValueError, RuntimeError) as error:  # not what the protocol or the tool's own schema says
            text = f"the answer is not valid: {error}"
            raise McpError(f"MCP server {self.name!r}, tool {tool!r}: {text}", server=self.name, tool=tool) from error

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else "lost" if self._connection.lost else "open"
        return f"<McpTools {self.name!r} {state} tools={len(self._tools)}>"


def _are_texts(given: Any) -> bool:
    return isinstance(given, Collection) and all(isinstance(one, str) for one in cast("Collection[Any]", given))


class _Connection:
    """One session with a server, and the task that owns it. It begins at once, when `old` has ended."""

    def __init__(
        self,
        server: _Process | _Address,
        start_timeout: float | None,
        listed: Callable[[Sequence[types.Tool]], None],
        context: contextvars.Context,
        old: _Connection | None,
    ) -> None:
        self._server = server
        self._start_timeout = start_timeout
        self._listed = listed
        self._said = _Said()
        self._scope = anyio.CancelScope()
        self._over = asyncio.Event()
        self._is_open = False
        self.ready = asyncio.Event()
        """The start has ended, well or not."""
        self.client: mcp.Client | None = None
        """None: it is not ready, or has failed."""
        self.failure = ""
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

    async def _own(self, old: _Connection | None) -> None:
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
            self.failure = f"{_told(error)}{self._said}"
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
        if isinstance(self._server, _Address) and _REFUSED.search(text):
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


class _Said:
    """What a server said last: the end of its stderr, or the HTTP status by which it refused."""

    def __init__(self) -> None:
        self.status: int | None = None
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data
        del self._data[:-_SAID_BYTES]

    def answered(self, response: httpx2.Response) -> None:
        self._data.clear()
        self.status = response.status_code
        if response.is_error:
            self.add(f"HTTP {response.status_code} {response.reason_phrase}".encode())

    def __str__(self) -> str:
        text = self._data.decode(errors="replace").strip()
        return f"; it last said: {text}" if text else ""


class _Process:
    """A server to be started."""

    verb: ClassVar[str] = "started"

    def __init__(self, command: str, args: list[str], env: dict[str, str], cwd: str | Path | None) -> None:
        self.where = shlex.join([command, *args])
        # bytes that are no UTF-8 are garbage like any other: one line that is not understood
        self._parameters = mcp.StdioServerParameters(
            command=command, args=args, env=env, cwd=cwd, encoding_error_handler="replace"
        )

    @asynccontextmanager
    async def streams(self, said: _Said) -> AsyncGenerator[Any]:
        with _stderr(said, self.where) as stderr:
            async with mcp.stdio_client(self._parameters, errlog=stderr) as streams:
                if stderr is not sys.stderr:
                    stderr.close()  # the process has its own end
                yield streams


@contextmanager
def _stderr(said: _Said, where: str) -> Generator[TextIO]:
    """What a process is given for its stderr: read as it comes, for errors and for the log."""
    if sys.platform == "win32":  # its event loop reads no pipes of this kind
        yield sys.stderr
        return
    loop = asyncio.get_running_loop()
    read, write = os.pipe()
    os.set_blocking(read, False)

    def take() -> bool:
        try:
            data = os.read(read, 65_536)
        except BlockingIOError:
            return False
        said.add(data)
        if not data:
            loop.remove_reader(read)
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("MCP server %s: %s", where, data.decode(errors="replace").rstrip())
        return bool(data)

    loop.add_reader(read, take)
    try:
        with os.fdopen(write, "w") as file:
            yield file
    finally:
        for _ in range(_PIPE_READS):
            if not take():
                break
        loop.remove_reader(read)
        os.close(read)


class _Address:
    """A server to be reached by streamable HTTP."""

    verb: ClassVar[str] = "reached"

    def __init__(self, url: str, headers: dict[str, str], client: httpx2.AsyncClient | None) -> None:
        parts = urlsplit(url)
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # no secrets
        self._url = url
        self._headers = headers
        self._client = client

    @asynccontextmanager
    async def streams(self, said: _Said) -> AsyncGenerator[Any]:
        async def note(response: httpx2.Response) -> None:
            if response.request.method == "POST":
                said.answered(response)

        async with AsyncExitStack() as stack:
            client = self._client
            if client is None:
                timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)  # what an answer may take says the tool node
                hooks = {"response": [note]}
                tls = await anyio.to_thread.run_sync(httpx2.create_ssl_context)  # it reads the certificates
                own = httpx2.AsyncClient(headers=self._headers, timeout=timeout, event_hooks=hooks, verify=tls)
                client = await stack.enter_async_context(own)
            yield await stack.enter_async_context(
                streamable_http_client(self._url, http_client=client, max_sse_event_size=_EVENT_BYTES)
            )


def _told(error: BaseException) -> str:
    """An error's text; that of its first leaf where it is a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, (mcp.MCPError, OSError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _answer(result: types.CallToolResult) -> Answer:
    """A result for the model; structured content for programs too. Raises `ToolError` where it is an error."""
    parts = [_part(block) for block in result.content]
    structured: Any = result.structured_content
    if structured is not None and not any(isinstance(part, TextPart) for part in parts):
        parts.append(TextPart(msgspec.json.encode(structured).decode()))
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if result.is_error:
        raise ToolError("\n".join(texts) or "the tool failed, and said nothing")
    content = "\n".join(texts) if len(texts) == len(parts) else parts
    return Answer(content, metadata=None if structured is None else {"structured_content": structured})


def _part(block: types.ContentBlock) -> Part:
    if isinstance(block, types.TextContent):
        return TextPart(block.text)
    if isinstance(block, types.ImageContent):
        return ImagePart(data=_bytes(block.data), media_type=block.mime_type)
    if isinstance(block, types.AudioContent):
        return FilePart(data=_bytes(block.data), media_type=block.mime_type)
    if isinstance(block, types.ResourceLink):
        # no file for a provider to fetch: it would have to be public, and mostly its scheme is the server's own
        return TextPart(": ".join(filter(None, (block.uri, block.title or block.name, block.description))))
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return TextPart(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    data = _bytes(resource.blob)
    if media_type.startswith("image/"):
        return ImagePart(data=data, media_type=media_type)
    return FilePart(data=data, media_type=media_type, name=resource.uri.rpartition("/")[2] or None)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ValueError(f"what should be base64 is none: {error}") from error
