"""Tools of MCP servers. An extra: `pip install "agentgraph-engine[mcp]"`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextvars
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast, overload

import msgspec

try:
    import httpx2
    import jsonschema.validators  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the SDK does so in a call
    import mcp
    from mcp import types
except ImportError as _absent:
    raise ImportError('agentgraph.nodes.mcp needs the MCP SDK: pip install "agentgraph-engine[mcp]"') from _absent

from agentgraph.config import positive
from agentgraph.errors import AgentGraphError, ConfigError, RunEndedError, listed, unknown
from agentgraph.messages import FilePart, ImagePart, Part, TextPart
from agentgraph.nodes.answer import Answer
from agentgraph.nodes.mcp_connection import Connection, error_text
from agentgraph.nodes.mcp_server import Address, Process
from agentgraph.nodes.names import clean_name, unique_name
from agentgraph.nodes.tool import Tool, ToolContext, ToolError
from agentgraph.tasks import all_ended

__all__ = ["McpError", "McpTools"]


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
    `McpTools(**config["mcpServers"]["time"])`; a `type` there is checked.

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
        type: str | None = None,
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
        type: str | None = None,
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
        type: str | None = None,  # noqa: A002  # the configuration's word
        name: str | None = None,
        prefix: str = "",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        start_timeout: float | None = 30.0,
    ) -> None:
        if (command is None) == (url is None):
            raise ConfigError("McpTools: give either command=, a server to start, or url=, a server to reach")
        kinds = ("stdio",) if url is None else ("http", "streamable-http", "streamableHttp")
        if type is not None and type not in kinds:
            what = "command" if url is None else "url"
            raise ConfigError(f"McpTools(type={type!r}): with a {what} it is one of {listed(kinds)}")
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
            Process(str(command), list(args), dict(env or {}), cwd)
            if url is None
            else Address(url, dict(headers or {}), http_client)
        )
        self._name = name
        self._prefix = prefix
        self._include = None if include is None else frozenset(include)
        self._exclude = frozenset(exclude)
        self._start_timeout = start_timeout
        self._tools: tuple[Tool, ...] = ()
        self._said_name: str | None = None
        self._instructions: str | None = None
        self._connection: Connection | None = None
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
                f"MCP server {self.name!r} cannot list its tools: {error_text(error)}", server=self.name
            ) from error

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError(f"MCP server {self.name!r}: its tools are there inside its `async with` block only")
        return self._connection

    def _here(self) -> Connection:
        connection = self._open()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"MCP server {self.name!r} belongs to the event loop in which its block was entered")
        return connection

    def _connect(self, old: Connection | None) -> Connection:
        return Connection(self._server, self._start_timeout, self._listed, self._context, old)

    async def _connected(self) -> Connection:
        """The connection, a new one where the last was lost."""
        connection = self._here()
        if connection.lost:
            connection = self._connection = self._connect(connection)
        await self._ready(connection)
        return connection

    async def _ready(self, connection: Connection) -> None:
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
