"""A token: an agent's streamed answer, read event by event."""

import asyncio

from agentgraph import events
from agentgraph.nodes import ReactAgent
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.models import Scripted
from benchmarks.tools import plus

TOKENS = 1_000


def ours() -> Case:
    agent = ReactAgent("bench", Scripted(tokens=TOKENS), [plus])

    async def case() -> None:
        seen = 0
        async with agent.stream("go") as stream:
            async for event in stream:
                seen += isinstance(event, events.ModelDelta) and bool(event.text)
        assert seen == TOKENS

    return case


async def plain() -> None:
    queue: asyncio.Queue[str | None] = asyncio.Queue(256)

    async def write() -> None:
        for _ in range(TOKENS):
            await queue.put("word ")
        await queue.put(None)

    seen = 0
    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        while await queue.get() is not None:
            seen += 1
    assert seen == TOKENS


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    cases: dict[Side, Case] = {"agentgraph": ours(), "LangGraph": peer.tokens(TOKENS), "asyncio": plain}
    return [await compare("a token through `stream`", cases, units=TOKENS, repeats=repeats)]
