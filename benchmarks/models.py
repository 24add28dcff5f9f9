"""A model without a network, for all topics that need one: it calls tools for some rounds, then answers."""

from collections.abc import AsyncGenerator

from agentgraph.messages import AssistantMessage, ToolCall
from agentgraph.models import Delta, ModelRequest, ModelResponse


class Scripted:
    """Calls `count` tools in each of `rounds` rounds, then answers in `tokens` words."""

    name = "scripted"

    def __init__(self, rounds: int = 0, count: int = 0, tokens: int = 1) -> None:
        self.rounds = rounds
        self.count = count
        self.tokens = tokens

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """The next answer, all at once."""
        done = sum(isinstance(message, AssistantMessage) for message in request.messages)
        if done < self.rounds:
            return ModelResponse(message=AssistantMessage("", tool_calls=calls(self.count, done)))
        return ModelResponse(message=AssistantMessage("word " * self.tokens))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """The next answer, word by word where it is text."""
        response = await self.generate(request)
        if not response.message.tool_calls:
            for _ in range(self.tokens):
                yield Delta(text="word ")
        yield Delta(response=response)


def calls(count: int, round_: int = 0) -> list[ToolCall]:
    """`count` calls of the tool `plus`."""
    return [ToolCall(f"call_{round_}_{i}", "plus", f'{{"a":{i},"b":1}}') for i in range(count)]
