"""A real HTTP server on loopback that replays raw bytes: what a provider streamed, and how its connection broke."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Literal, Union

import anyio
import msgspec

__all__ = ["RecordedRequest", "Transcript", "TranscriptServer", "serve_transcript"]

Source = Union[bytes, str, "os.PathLike[str]"]


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request that came in. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


class Transcript(msgspec.Struct, frozen=True):
    """One response to replay: `body` is a path, or the bytes themselves."""

    body: Source = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    """In addition to content-type, which is that of an event stream, or JSON for a `.json` file or an error."""
    chunk_size: int | None = None
    """Bytes in each chunk that is sent; None for all at once."""
    end: Literal["complete", "close", "reset"] = "complete"
    """How the body ends: as HTTP has it, by a close without the last chunk, or by a reset of the connection."""
    before_response: Callable[[], Awaitable[object]] | None = None
    """Awaited before the first byte (`asyncio.Event().wait` lets it stall until the event is set)."""
    before_chunk: Callable[[int], Awaitable[object]] | None = None
    """Awaited before each chunk, with its number from 0, and once more before the end."""


class TranscriptServer:
    """The server, as a test sees it."""

    def __init__(self, responses: list[Transcript], bodies: dict[Source, bytes]) -> None:
        self._responses = responses
        self._bodies = bodies
        self.base_url = ""
        """To be given to a model: `http://127.0.0.1:PORT/v1`."""
        self.requests: list[RecordedRequest] = []
        self.connections: int = 0
        """How many connections were made."""
        self.disconnected: asyncio.Event = asyncio.Event()
        """Set when a client has left before it had the whole response."""

    def __repr__(self) -> str:
        return f"<TranscriptServer {self.base_url} requests={len(self.requests)} connections={self.connections}>"

    async def serve(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                # the last response stands for all further ones: a retry too many then shows in `requests`
                response = self._responses[min(len(self.requests), len(self._responses)) - 1]
                if not await self._respond(response, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _respond(self, response: Transcript, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        """Send one response; False where the connection is over. The client's leaving interrupts any wait."""
        sending = asyncio.ensure_future(self._send(response, writer))
        leaving = asyncio.ensure_future(reader.left.wait())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self.disconnected.set()
                return False
            return sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, response: Transcript, writer: asyncio.StreamWriter) -> bool:
        if response.before_response is not None:
            await response.before_response()
        name = str(response.body) if not isinstance(response.body, bytes) else ""
        is_json = name.endswith(".json") or (response.status >= 400 and not name.endswith(".sse"))
        headers = {"content-type": "application/json" if is_json else "text/event-stream"}
        headers |= {k.lower(): v for k, v in response.headers.items()}
        headers["transfer-encoding"] = "chunked"
        try:
            reason = HTTPStatus(response.status).phrase
        except ValueError:
            reason = "Unknown"
        lines = [f"HTTP/1.1 {response.status} {reason}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        await writer.drain()
        body = self._bodies[response.body]
        size = response.chunk_size or max(1, len(body))
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        for number, piece in enumerate([*pieces, b""]):  # as HTTP has it, a chunk of no bytes is the end
            if response.before_chunk is not None:
                await response.before_chunk(number)
            if piece or response.end == "complete":
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        if response.end == "reset":
            # without lingering a close is a reset; an abort alone is an ordinary end to the other side
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return response.end == "complete"


@asynccontextmanager
async def serve_transcript(
    *responses: Source | Transcript,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    chunk_size: int | None = None,
    end: Literal["complete", "close", "reset"] = "complete",
    before_response: Callable[[], Awaitable[object]] | None = None,
    before_chunk: Callable[[int], Awaitable[object]] | None = None,
) -> AsyncGenerator[TranscriptServer]:
    """Serve the responses in turn, one a request, the last for all further ones; paths, bytes, or `Transcript`s.

    The options are those of `Transcript`, for the responses that are given as paths or bytes. Leaving the
    block ends all connections, and raises what a `before_...` has raised. A use::

        async with serve_transcript("answer.sse", chunk_size=7) as server:
            model = OpenAIChat("m", base_url=server.base_url)
    """
    if not responses:
        raise ValueError("serve_transcript needs at least one response")
    replayed = [
        r
        if isinstance(r, Transcript)
        else Transcript(r, status, headers or {}, chunk_size, end, before_response, before_chunk)
        for r in responses
    ]
    # read now: a file that is not there must fail the test, not the server
    bodies = {r.body: r.body if isinstance(r.body, bytes) else await anyio.Path(r.body).read_bytes() for r in replayed}
    server = TranscriptServer(replayed, bodies)
    tasks: list[asyncio.Task[None]] = []

    def connection() -> asyncio.StreamReaderProtocol:
        reader = _Reader()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.ensure_future(server.serve(reader, writer)))

        return asyncio.StreamReaderProtocol(reader, connected)

    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    server.base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()
    for error in ended:
        if isinstance(error, Exception):
            raise error


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    """The next request, or None where the client closed the connection between two."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method, path, headers, body)


class _Reader(asyncio.StreamReader):
    """Tells at once that the client has left: `read` would only find out by swallowing the next request."""

    def __init__(self) -> None:
        super().__init__()
        self.left: asyncio.Event = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.left.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.left.set()
