"""MCP servers: a process that is started, or an address that is reached, and what it said last."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, TextIO
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

__all__ = ["Address", "Process", "Said"]

_SAID_BYTES = 2000

_PIPE_READS = 16  # a full pipe at most, though something that the server has started may go on writing

_EVENT_BYTES = 2**26  # the SDK's own limit, a megabyte, is less than a photograph

_CONNECT_SECONDS = 30.0

log: logging.Logger = logging.getLogger("agentgraph")


class Said:
    """What a server said last: the end of its stderr, or the HTTP status by which it refused."""

    def __init__(self) -> None:
        self.status: int | None = None
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """It has said this, too."""
        self._data += data
        del self._data[:-_SAID_BYTES]

    def answered(self, response: httpx2.Response) -> None:
        """It has answered with this status."""
        self._data.clear()
        self.status = response.status_code
        if response.is_error:
            self.add(f"HTTP {response.status_code} {response.reason_phrase}".encode())

    def __str__(self) -> str:
        text = self._data.decode(errors="replace").strip()
        return f"; it last said: {text}" if text else ""


class Process:
    """A server to be started."""

    verb: ClassVar[str] = "started"

    def __init__(self, command: str, args: list[str], env: dict[str, str], cwd: str | Path | None) -> None:
        self.where: str = shlex.join([command, *args])
        # bytes that are no UTF-8 are garbage like any other: one line that is not understood
        self._parameters = mcp.StdioServerParameters(
            command=command, args=args, env=env, cwd=cwd, encoding_error_handler="replace"
        )

    @asynccontextmanager
    async def streams(self, said: Said) -> AsyncGenerator[Any]:
        """Start the process; what its messages come and go by. Afterwards it has ended, killed if need be."""
        with _stderr(said, self.where) as stderr:
            async with mcp.stdio_client(self._parameters, errlog=stderr) as streams:
                if stderr is not sys.stderr:
                    stderr.close()  # the process has its own end
                yield streams


@contextmanager
def _stderr(said: Said, where: str) -> Generator[TextIO]:
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


class Address:
    """A server to be reached by streamable HTTP."""

    verb: ClassVar[str] = "reached"

    def __init__(self, url: str, headers: dict[str, str], client: httpx2.AsyncClient | None) -> None:
        parts = urlsplit(url)
        self.where: str = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # no secrets
        self._url = url
        self._headers = headers
        self._client = client

    @asynccontextmanager
    async def streams(self, said: Said) -> AsyncGenerator[Any]:
        """What messages come and go by. Nothing is sent before the first one."""

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
