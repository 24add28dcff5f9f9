"""An agent behind a real web server: a client that goes away ends its run."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from agentgraph.events import encode
from agentgraph.messages import AssistantMessage, ToolCall
from agentgraph.models import Delta, ModelRequest, ModelResponse, OpenAIChat
from agentgraph.nodes import ReactAgent, ToolContext
from agentgraph.testing import ScriptedModel, Transcript, serve_transcript


class Chatty:
    """A model that would say a hundred words, and falls silent before the one with this number."""

    name = "chatty"

    def __init__(self, silent_before: int | None) -> None:
        self.silent_before = silent_before
        self.said = 0
        self.closed = asyncio.Event()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError(f"asked for a whole answer: {request}")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        try:
            for n in range(100):
                if n == self.silent_before:
                    await asyncio.Event().wait()
                self.said += 1
                yield Delta(f"word{n} ")
            yield Delta(response=ModelResponse(message=AssistantMessage("all", id=request.message_id or "")))
        finally:
            self.closed.set()


@asynccontextmanager
async def served(agent: ReactAgent) -> AsyncGenerator[int]:
    """The agent's events as a response in pieces, from a real server; gives its port."""

    async def run(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            async with agent.stream("go") as events:
                async for event in events:
                    yield encode(event) + b"\n"

        return StreamingResponse(pieces())

    app = Starlette(routes=[Route("/", run)])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def read_until(port: int, mark: bytes) -> tuple[bytes, asyncio.StreamWriter]:
    """Ask, and read until the mark has come; the connection is still open then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return await reader.readuntil(mark), writer


@pytest.mark.case("B3")
@pytest.mark.parametrize(("silent_before", "mark"), [(0, b"node_started"), (3, b"word2")])
async def test_a_client_that_goes_away_closes_the_models_stream(silent_before: int, mark: bytes) -> None:
    model = Chatty(silent_before)
    async with served(ReactAgent("clerk", model)) as port, asyncio.timeout(10):
        _, writer = await read_until(port, mark)
        assert not model.closed.is_set()
        writer.close()
        await model.closed.wait()
    assert model.said == silent_before


@pytest.mark.case("G11")
async def test_a_client_that_goes_away_closes_the_connection_to_the_models_server() -> None:
    words = [{"choices": [{"index": 0, "delta": {"content": f"word{n:02} "}}]} for n in range(100)]
    body = [f"data: {json.dumps(word)}\n\n".encode() for word in words]
    sent: list[int] = []

    async def before(chunk: int) -> None:
        sent.append(chunk)
        if chunk == 3:
            await asyncio.Event().wait()

    transcript = Transcript(b"".join(body), chunk_size=len(body[0]), before_chunk=before)
    async with (
        asyncio.timeout(10),
        serve_transcript(transcript) as server,
        OpenAIChat("small", base_url=server.base_url, api_key="none") as model,
        served(ReactAgent("clerk", model)) as port,
    ):
        _, writer = await read_until(port, b"word02")
        writer.close()
        await server.disconnected.wait()
    assert (sent, len(server.requests)) == ([0, 1, 2, 3], 1)


@pytest.mark.case("G12")
async def test_a_client_that_goes_away_stops_the_tool_that_runs() -> None:
    contexts: list[ToolContext] = []
    stopped = asyncio.Event()

    async def wait(context: ToolContext) -> str:
        """Wait."""
        contexts.append(context)
        assert not context.cancellation.cancelled
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    model = ScriptedModel([[ToolCall("c1", "wait")], "never asked"])
    async with served(ReactAgent("clerk", model, [wait])) as port, asyncio.timeout(10):
        _, writer = await read_until(port, b"tool_started")
        writer.close()
        await stopped.wait()
    assert contexts[0].cancellation.cancelled
    assert len(model.requests) == 1


async def test_a_client_that_stays_reads_the_whole_run_and_the_server_serves_the_next() -> None:
    model = Chatty(silent_before=None)
    async with served(ReactAgent("clerk", model)) as port, asyncio.timeout(10):
        for _ in range(2):
            told, writer = await read_until(port, b"\r\n0\r\n\r\n")
            writer.close()
            assert told.count(b"model_delta") == 100
            assert b"run_finished" in told
