"""The loopback server replays bytes as they were, breaks where it is told to, and takes down what it was asked."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgraph.testing import RealModelRefusedError, Transcript, no_real_models, serve_transcript

SSE = Path(__file__).parent.parent / "sse"
TEXT = SSE / "llamacpp-text-no-usage.sse"


async def forever(_: object = None) -> None:
    await asyncio.Event().wait()


async def ask(url: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(url + "/chat/completions", **options)


@pytest.mark.parametrize("size", [None, 1, 7])
async def test_a_file_is_replayed_byte_for_byte(size: int | None) -> None:
    async with serve_transcript(TEXT, chunk_size=size) as server:
        response = await ask(server.base_url)
    assert response.content == TEXT.read_bytes()
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")


async def test_responses_are_served_in_turn_and_the_last_one_for_all_further_requests() -> None:
    async with serve_transcript(b"one", Transcript(b"two", status=429), b"three") as server:
        answers = [await ask(server.base_url) for _ in range(4)]
    assert [(a.status_code, a.content) for a in answers] == [
        (200, b"one"),
        (429, b"two"),
        (200, b"three"),
        (200, b"three"),
    ]


async def test_status_and_headers_are_as_told() -> None:
    async with serve_transcript(b"", status=529, headers={"Retry-After": "7"}) as server:
        response = await ask(server.base_url)
    assert (response.status_code, response.headers["retry-after"]) == (529, "7")
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", [SSE / "llamacpp-chat.json", str(SSE / "llamacpp-chat.json")])
async def test_a_json_file_is_served_as_json(body: Path | str) -> None:
    async with serve_transcript(body) as server:
        response = await ask(server.base_url)
    assert response.headers["content-type"] == "application/json"
    assert response.json()["object"] == "chat.completion"


async def test_what_was_asked_is_taken_down() -> None:
    async with serve_transcript(b"") as server:
        await ask(server.base_url, json={"model": "m"}, headers={"X-Own": "1"})
    (request,) = server.requests
    assert (request.method, request.path, request.json) == ("POST", "/v1/chat/completions", {"model": "m"})
    assert request.headers["x-own"] == "1"


async def test_a_connection_is_kept_for_further_requests() -> None:
    async with serve_transcript(TEXT) as server, httpx.AsyncClient() as client:
        for _ in range(3):
            await client.post(server.base_url)
    assert (len(server.requests), server.connections) == (3, 1)
    assert not server.disconnected.is_set()


@pytest.mark.parametrize(("end", "error"), [("close", httpx.RemoteProtocolError), ("reset", httpx.ReadError)])
async def test_a_response_may_break_off(end: Any, error: type[Exception]) -> None:
    arrived: list[bytes] = []
    has_arrived = asyncio.Event()

    async def before_chunk(number: int) -> None:
        if number == 1:
            await has_arrived.wait()  # a reset might overtake it

    async def read(url: str) -> None:
        async with httpx.AsyncClient() as client, client.stream("POST", url) as response:
            async for chunk in response.aiter_raw():
                arrived.append(chunk)
                has_arrived.set()

    async with serve_transcript(b"a few bytes", end=end, before_chunk=before_chunk) as server:
        with pytest.raises(error):
            await read(server.base_url)
    assert arrived == [b"a few bytes"]


async def test_the_test_decides_when_each_chunk_is_sent() -> None:
    numbers: list[int] = []
    go = asyncio.Event()

    async def before_chunk(number: int) -> None:
        numbers.append(number)
        if number == 1:
            await go.wait()

    async with (
        serve_transcript(b"onetwo", chunk_size=3, before_chunk=before_chunk) as server,
        httpx.AsyncClient() as client,
        client.stream("POST", server.base_url) as response,
    ):
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"one"
        go.set()
        assert [chunk async for chunk in chunks] == [b"two"]
    assert numbers == [0, 1, 2]


@pytest.mark.parametrize("stalling", ["before_response", "before_chunk"])
async def test_a_client_that_leaves_is_told_at_once(stalling: str) -> None:
    began = asyncio.Event()

    async def stall(*_: object) -> None:
        began.set()
        await forever()

    hooks: dict[str, Callable[..., Awaitable[object]]] = {stalling: stall}
    async with serve_transcript(TEXT, **hooks) as server:  # pyright: ignore[reportArgumentType]
        asking = asyncio.create_task(ask(server.base_url))
        await asyncio.wait_for(began.wait(), 5)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_leaving_the_block_ends_a_response_that_stalls() -> None:
    began = asyncio.Event()

    async def stall() -> None:
        began.set()
        await forever()

    async with serve_transcript(TEXT, before_response=stall) as server:
        asking = asyncio.create_task(ask(server.base_url))
        await asyncio.wait_for(began.wait(), 5)
    with pytest.raises(httpx.RemoteProtocolError):
        await asking


async def test_what_a_hook_raises_fails_the_test() -> None:
    async def fail() -> None:
        raise AssertionError("asked too early")

    async def use() -> None:
        async with serve_transcript(TEXT, before_response=fail) as server:
            with pytest.raises(httpx.RemoteProtocolError):
                await ask(server.base_url)

    with pytest.raises(AssertionError, match="asked too early"):
        await use()


async def test_a_file_that_is_not_there_fails_at_once() -> None:
    with pytest.raises(FileNotFoundError):
        async with serve_transcript("no such file.sse"):
            pass


async def test_a_server_needs_something_to_serve() -> None:
    with pytest.raises(ValueError, match="at least one response"):
        async with serve_transcript():
            pass


async def test_the_repr_says_where_it_is_and_what_it_served() -> None:
    async with serve_transcript(b"") as server:
        assert repr(server) == f"<TranscriptServer {server.base_url} requests=0 connections=0>"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]:8000/v1"])
def test_real_models_are_those_that_are_not_on_this_machine(url: str) -> None:
    from agentgraph.models import guard

    with no_real_models():
        guard.check(url)
        with pytest.raises(RealModelRefusedError, match=r"'api\.example\.com' was refused"):
            guard.check("https://api.example.com/v1")


def test_blocks_that_refuse_real_models_may_be_nested() -> None:
    from agentgraph.models import guard

    with no_real_models():
        with no_real_models():
            pass
        with pytest.raises(RealModelRefusedError):
            guard.check("https://api.example.com/v1")
    guard.check("https://api.example.com/v1")
