"""The connections of a model: one for each call under way, and used again."""

import asyncio
import gc
from pathlib import Path

from agentgraph.messages import UserMessage
from agentgraph.models import ModelRequest, OpenAIChat
from agentgraph.testing import Transcript, serve_transcript, with_clock

TEXT = Path(__file__).parent.parent / "sse" / "llamacpp-text-no-usage.sse"
ASK = ModelRequest(messages=[UserMessage("Hi")])


async def text_of(model: OpenAIChat) -> str:
    return "".join([delta.text async for delta in model.stream(ASK)])


async def test_calls_at_once_have_a_connection_each_and_later_calls_use_these() -> None:
    all_here = asyncio.Event()

    async def until_all_are_here() -> None:
        if len(server.requests) == 30:
            all_here.set()
        await all_here.wait()

    opened = serve_transcript(TEXT, before_response=until_all_are_here)
    async with opened as server, OpenAIChat("m", base_url=server.base_url) as model:
        await asyncio.gather(*(text_of(model) for _ in range(30)))
        assert server.connections == 30
        await asyncio.gather(*(text_of(model) for _ in range(30)))
    assert (len(server.requests), server.connections) == (60, 30)


def test_a_stream_under_way_outlives_the_closing_of_its_model_and_its_connection_ends_with_it() -> None:
    async def closed_in_mid_stream() -> str:
        async with serve_transcript(Transcript(TEXT, chunk_size=50)) as server:
            model = OpenAIChat("m", base_url=server.base_url)
            deltas = model.stream(ASK)
            text = (await anext(deltas)).text
            await model.aclose()
            return text + "".join([delta.text async for delta in deltas])

    assert asyncio.run(closed_in_mid_stream()) == "Hello, welcome to my world."
    gc.collect()  # a connection that was not closed would warn now


@with_clock
async def test_a_connection_that_is_idle_for_long_is_closed_when_another_call_ends() -> None:
    async with serve_transcript(TEXT) as server, OpenAIChat("m", base_url=server.base_url) as model:
        await asyncio.gather(text_of(model), text_of(model))
        await asyncio.sleep(20)
        await text_of(model)
        await asyncio.gather(text_of(model), text_of(model))
        assert server.connections == 2
        await asyncio.sleep(40)
        await text_of(model)
        await asyncio.gather(text_of(model), text_of(model))
        assert server.connections == 3
