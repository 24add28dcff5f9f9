"""Shortens what the model gets to read; what is stored stays whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Self

import msgspec

from agentgraph.config import positive
from agentgraph.errors import ConfigError
from agentgraph.messages import (
    AssistantMessage,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from agentgraph.models.protocol import ModelRequest, ModelResponse, ToolSpec
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.llm_node import LlmRequest, ModelCall
from agentgraph.nodes.shorten import LEAST, shortened
from agentgraph.nodes.tokens import TokenCounter, approximate_tokens

__all__ = ["ContextEditing"]

_NOTE: Final = "[this answer of {size} was left out here; call the tool again if it is needed]"

_encoder = msgspec.json.Encoder()


class ContextEditing:
    """Leaves old answers of tools out of a request that is too large, and shortens those that are too long.

        ReactAgent("clerk", model, tools, interceptors=[ContextEditing(over=60_000)])

    Where a request counts more than `over` tokens (its system message and tools included; None: never), the oldest
    answers are replaced by a `note`, in which `{size}` stands for how much was left out. The last `keep` answers are
    spared. Each time `at_least` so many tokens more are left out than before (None: a quarter of `over`), so that the
    beginning of the request stays the same for many rounds, and in the provider's cache. Where that is not enough, the
    answers that are left are shortened to their beginning and end, all to the same length. Answers of more than
    `longest` characters are always shortened so (None: of any length).

    Answers of `exclude_tools` are never touched. With `clear_inputs` the arguments of the calls whose answers are left
    out become `{}`. `count` counts tokens. Only the request is changed: the state keeps all, and with a larger `over`
    the model reads all again. Each call keeps its answer, and nothing else is changed; what is too large without any
    answer is sent as it is. May stand among an agent's `interceptors` or its `hooks`.
    """

    def __init__(
        self,
        *,
        over: int | None = 100_000,
        keep: int = 3,
        at_least: int | None = None,
        longest: int | None = None,
        exclude_tools: Collection[str] = (),
        clear_inputs: bool = False,
        note: str = _NOTE,
        count: TokenCounter = approximate_tokens,
        name: str = "ContextEditing",
    ) -> None:
        positive("ContextEditing(over=...)", over, whole=True)
        positive("ContextEditing(at_least=...)", at_least, whole=True)
        if longest is not None and (not isinstance(longest, int) or longest < LEAST):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"ContextEditing(longest=...) is a number of characters from {LEAST}; found {longest!r}")
        if not isinstance(keep, int) or keep < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"ContextEditing(keep=...) is a number of answers, 0 or more; found {keep!r}")
        if over is None and longest is None:
            raise ConfigError("ContextEditing(over=None) does nothing without longest=...")
        if isinstance(exclude_tools, str):
            raise ConfigError(f"ContextEditing(exclude_tools=...) is a list of names; found {exclude_tools!r}")
        if not note:
            raise ConfigError("ContextEditing(note=...) must not be empty: servers refuse empty answers")
        self.name = name
        self._over = over
        self._at_least = at_least or max(1, (over or 0) // 4)
        self._keep = keep
        self._longest = longest
        self._exclude = frozenset(exclude_tools)
        self._clear_inputs = clear_inputs
        self._note = note
        self._count = count

    def bind(self, agent: AgentParts) -> Self:
        """Itself. Warns of excluded tools that the agent has not."""
        agent.tell_unknown("ContextEditing(exclude_tools=...)", sorted(self._exclude))
        return self

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Call on with the shortened request."""
        messages = self.edited(request)
        return await call(
            request if messages is request.messages else msgspec.structs.replace(request, messages=messages)
        )

    def edited(self, request: ModelRequest) -> list[Message]:
        """The request's messages as they are sent; the same list where nothing is to be changed."""
        messages = request.messages
        if self._longest is not None:
            messages = self._all_shortened(messages, self._longest)
        if self._over is None:
            return messages
        around = self._around(request)
        size = around + self._count(messages)
        if size <= self._over:
            return messages
        messages = self._cleared(messages, size - self._over)
        longest = max((len(r.text) for r in self._open(messages)), default=0)
        most = 1 << longest.bit_length() - 1 if longest else 0  # a power of two: the same for many rounds
        while most >= LEAST and around + self._count(messages) > self._over:
            messages = self._all_shortened(messages, most)
            most //= 2
        return messages

    def _around(self, request: ModelRequest) -> int:
        """What the request takes besides its messages."""
        tools: list[ToolSpec] = request.tools
        told = [SystemMessage(_encoder.encode(tools).decode())] if tools else []
        return self._count([*told, *([request.system] if request.system is not None else [])])

    def _open(self, messages: Sequence[Message]) -> list[ToolResponse]:
        """The answers that may be changed."""
        answers = [m for m in messages if isinstance(m, ToolResponseMessage)]
        return [r for m in answers for r in m.responses if r.name not in self._exclude]

    def _cleared(self, messages: list[Message], too_much: int) -> list[Message]:
        """The messages with the oldest answers left out, until that saves enough or only those to keep are left."""
        wanted = -(-too_much // self._at_least) * self._at_least
        left = len(self._open(messages)) - self._keep
        result = list(messages)
        for place, message in enumerate(messages):
            if wanted <= 0 or left <= 0:
                break
            if not isinstance(message, ToolResponseMessage):
                continue
            responses = list(message.responses)
            cleared: set[str] = set()
            for k, response in enumerate(responses):
                if response.name in self._exclude or wanted <= 0 or left <= 0:
                    continue
                left -= 1
                cleared.add(response.id)
                responses[k] = self._without_content(response)
                wanted -= self._saved(response, responses[k])
            if responses != message.responses:
                result[place] = msgspec.structs.replace(message, responses=responses)
            asked = result[place - 1] if place else None
            if self._clear_inputs and cleared and isinstance(asked, AssistantMessage):
                result[place - 1] = emptied = _without_inputs(asked, cleared)
                wanted -= self._count([asked]) - self._count([emptied])
        return result

    def _saved(self, before: ToolResponse, after: ToolResponse) -> int:
        if before is after:
            return 0
        return self._count([ToolResponseMessage([before])]) - self._count([ToolResponseMessage([after])])

    def _without_content(self, response: ToolResponse) -> ToolResponse:
        content = response.content
        text = response.text
        others = 0 if isinstance(content, str) else sum(not isinstance(part, TextPart) for part in content)
        size = f"{len(text):,} characters" + (f" and {others} images or files" if others else "")
        note = self._note.replace("{size}", size)
        return response if not others and len(note) >= len(text) else msgspec.structs.replace(response, content=note)

    def _all_shortened(self, messages: list[Message], most: int) -> list[Message]:
        result = list(messages)
        changed = False
        for place, message in enumerate(messages):
            if isinstance(message, ToolResponseMessage):
                responses = [r if r.name in self._exclude else _shortened(r, most) for r in message.responses]
                if any(new is not old for new, old in zip(responses, message.responses, strict=True)):
                    result[place] = msgspec.structs.replace(message, responses=responses)
                    changed = True
        return result if changed else messages

    def __repr__(self) -> str:
        return f"<ContextEditing over={self._over} keep={self._keep} longest={self._longest}>"


def _shortened(response: ToolResponse, most: int) -> ToolResponse:
    text = response.text
    if len(text) <= most:
        return response
    short = shortened(text, most)
    content: Any = short
    if not isinstance(response.content, str):
        others: list[Part] = [part for part in response.content if not isinstance(part, TextPart)]
        content = [TextPart(short), *others] if others else short
    return msgspec.structs.replace(response, content=content)


def _without_inputs(message: AssistantMessage, ids: Collection[str]) -> AssistantMessage:
    calls = [ToolCall(c.id, c.name, "{}") if c.id in ids and c.arguments else c for c in message.tool_calls]
    return msgspec.structs.replace(message, tool_calls=calls)
