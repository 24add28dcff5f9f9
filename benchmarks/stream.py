"""A streamed chunk, from the socket to the event that its reader gets; and many streams at once.

The server is a process of its own on loopback, and its answer is long: what a call costs besides does not show. Where
each event is an HTTP chunk, httpx takes 7 us of it for all sides alike.
"""

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
from openai import AsyncOpenAI

from agentgraph import events
from agentgraph.messages import UserMessage
from agentgraph.models import ModelRequest, OpenAIChat
from agentgraph.nodes import ReactAgent
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.server import PACKED, Server, serving
from benchmarks.tools import plus

WORDS = 2_000
STREAMS, SHORT = 200, 50
Ask = Callable[[Callable[[], object]], Awaitable[object]]
"""Asks once, and calls what it is given for each word that has come."""


def our_agent(model: OpenAIChat) -> Ask:
    agent = ReactAgent("bench", model, [plus])

    async def ask(word: Callable[[], object]) -> None:
        async with agent.stream("go") as stream:
            async for event in stream:
                if isinstance(event, events.ModelDelta) and event.text:
                    word()

    return ask


def our_client(model: OpenAIChat) -> Ask:
    request = ModelRequest(messages=[UserMessage("go")])

    async def ask(word: Callable[[], object]) -> None:
        async for delta in model.stream(request):
            if delta.text:
                word()

    return ask


def sdk(client: AsyncOpenAI) -> Ask:
    async def ask(word: Callable[[], object]) -> None:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "go"}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                word()

    return ask


def plain(client: httpx.AsyncClient, url: str) -> Ask:
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}

    async def ask(word: Callable[[], object]) -> None:
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    word()

    return ask


@asynccontextmanager
async def asking(
    url: str, ours: Callable[[OpenAIChat], Ask] = our_agent, without: tuple[Side, ...] = ()
) -> AsyncGenerator[dict[Side, Ask]]:
    """The sides, with clients for this URL."""
    async with (
        OpenAIChat("m", base_url=url, api_key="none") as model,
        AsyncOpenAI(base_url=url, api_key="none") as client,
        httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=20)) as http,  # as it is, without its maximum
    ):
        asks: dict[Side, Ask] = {
            "agentgraph": ours(model),
            "LangGraph": peer.streamed(url),
            "openai SDK": sdk(client),
            "asyncio": plain(http, url),
        }
        yield {side: ask for side, ask in asks.items() if side not in without}


def case(ask: Ask, words: int) -> Case:
    async def run() -> None:
        seen = 0

        def word() -> None:
            nonlocal seen
            seen += 1

        await ask(word)
        assert seen == words

    return run


def at_once(case: Case) -> Case:
    async def started() -> None:
        await case()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(started())

    return run


async def quick(what: str, url: str, repeats: int) -> Row:
    """As fast as the reader can."""
    async with asking(url) as asks:
        cases: dict[Side, Case] = {side: case(ask, WORDS) for side, ask in asks.items()}
        return await compare(what, cases, units=WORDS, repeats=repeats, times=20, times_sdk=5)


async def client_alone(what: str, url: str, repeats: int) -> Row:
    """Without an agent around it."""
    async with asking(url, our_client, without=("LangGraph",)) as asks:
        cases: dict[Side, Case] = {side: case(ask, WORDS) for side, ask in asks.items()}
        return await compare(what, cases, units=WORDS, repeats=repeats, times_sdk=5)


async def processor(what: str, url: str, repeats: int) -> Row:
    """Seconds of the processor: every chunk wakes its reader, as with a real model."""
    async with asking(url, without=("LangGraph",)) as asks:
        cases: dict[Side, Case] = {side: at_once(case(ask, SHORT)) for side, ask in asks.items()}
        return await compare(what, cases, units=1, repeats=repeats, clock=time.process_time)


async def memory(what: str, server: Server, ours: Callable[[OpenAIChat], Ask]) -> Row:
    """Bytes of one stream whose reader has had half of the words, of `STREAMS` that have."""
    values: dict[Side, float] = {}
    async with asking(server.url("/held"), ours, without=("LangGraph",)) as asks:
        for side, ask in asks.items():
            await held(ask, 1, server.tell)  # whatever is made once, is made now
            values[side] = await held(ask, STREAMS, server.tell)
    return Row(what=what, values=values, unit="bytes")


async def held(ask: Ask, count: int, tell: Callable[[], None]) -> float:
    half = asyncio.Event()
    seen = 0

    def word() -> None:
        nonlocal seen
        seen += 1
        if seen == count * (SHORT // 2):
            half.set()

    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        streams = [asyncio.ensure_future(ask(word)) for _ in range(count)]
        await half.wait()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        tell()
    await asyncio.gather(*streams)
    return taken / count


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    with serving(WORDS) as server:
        result = [
            await quick("a streamed chunk, each an HTTP chunk", server.url(), repeats),
            await quick(f"a streamed chunk, {PACKED} in an HTTP chunk", server.url("/packed"), repeats),
            await client_alone("a streamed chunk, the client alone", server.url(), repeats),
        ]
    with serving(SHORT) as server:
        what = f"{STREAMS} streams at once, {SHORT} chunks each: CPU"
        return [
            *result,
            await processor(what, server.url("/paced"), min(repeats, 3)),
            await memory("memory of such a stream", server, our_agent),
            await memory("memory of such a stream, the client alone", server, our_client),
        ]
