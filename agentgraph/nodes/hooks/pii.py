"""Personal data kept from the model, from readers, from tools and from what is stored."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Self, TypeVar, cast

import msgspec

from agentgraph.context import RunContext
from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.protocol import Delta, ModelError, ModelRequest, ModelResponse
from agentgraph.node import as_mapping
from agentgraph.nodes.chunks import ChunkInterceptor
from agentgraph.nodes.hooks.hook import AgentParts, HookFunction, Jump
from agentgraph.nodes.hooks.pii_kinds import BUILT_IN, Detector, Kind, Redaction, find_all, own_kind
from agentgraph.nodes.llm_node import LlmRequest, ModelCall, ModelInterceptor
from agentgraph.nodes.tool_request import ToolHandler, ToolInterceptor, ToolRequest
from agentgraph.strategies import Replace, Strategy

__all__ = ["PiiRedaction", "PiiStrategy"]

PiiStrategy = Literal["redact", "mask", "hash", "block"]
PiiPlace = Literal["input", "output", "tool"]

_STRATEGIES: Final = ("redact", "mask", "hash", "block")
_PLACES: Final = ("input", "output", "tool")
_DEFAULT: Final = ("email", "credit_card", "iban", "phone", "us_ssn", "ip", "mac_address")

_AT_ONCE: Final = 20_000
"""How many characters are looked through before others get their turn."""

T = TypeVar("T")


class PiiRedaction:
    """Replaces personal data in what the user says, what the model answers, and what goes to tools and comes from them.

        ReactAgent("clerk", model, tools, hooks=[PiiRedaction()])
        PiiRedaction({"email": "mask", "credit_card": "block"}, on=["input"])
        PiiRedaction(["email", "staff"], patterns={"staff": r"E-[0-9]{6}"})

    `kinds`: "email", "credit_card" (with a right check digit), "iban" (of a right length, and with right check digits),
    "phone" (as +49...), "us_ssn", "ip" (both versions), "mac_address", "url", and the names in `patterns`; None: all
    but "url". A mapping gives each a strategy of its own. `patterns`: a regular expression, or a function from a line
    of text to the (start, end) of each find; either sees one line at a time. The strategies: "redact"
    (`[REDACTED_EMAIL]`), "mask" (`****1111`), "hash" (`[EMAIL_3f2a9c1b04d7]`: the same for the same data; short data
    can be guessed from it unless `hash_key` is given, and kept secret), "block".

    `on` says where. "input": the messages of the user, in the state, before the model sees them. "output": the model's
    text and reasoning, streamed or not: a reader gets no part of a find, however it was cut, for what may become one is
    held back, and the `partial` text of a `ModelError` has no more. "tool": the arguments of calls, and the tools'
    results. Images, files and system prompts are not looked at. With "block" an input is not answered: the turn ends
    with a message that says why; an answer ends before the find, with a note, and without its calls; of a tool's result
    nothing but a note is told. Raises `ConfigError` for a kind, a strategy or a place that there is not.
    """

    jumps: tuple[str, ...] = ("end",)

    def __init__(
        self,
        kinds: Sequence[str] | Mapping[str, PiiStrategy] | None = None,
        *,
        strategy: PiiStrategy = "redact",
        on: Sequence[PiiPlace] = ("input", "output", "tool"),
        patterns: Mapping[str, str | re.Pattern[str] | Detector] | None = None,
        hash_key: str | bytes = b"",
        name: str = "PiiRedaction",
    ) -> None:
        own = {kind: _own(kind, find) for kind, find in (patterns or {}).items()}
        known = BUILT_IN | own
        if kinds is None:
            kinds = [*_DEFAULT, *own]
        if isinstance(kinds, str) or not kinds:
            raise ConfigError(f"PiiRedaction(kinds=...) takes names; known: {listed(known)}; found {kinds!r}")
        for kind in kinds:
            if kind not in known:
                raise ConfigError(f"PiiRedaction(kinds=...): {unknown('kind', kind, known)}")
        chosen = dict(kinds) if isinstance(kinds, Mapping) else {}
        for one in (strategy, *chosen.values()):
            if one not in _STRATEGIES:
                raise ConfigError(f"PiiRedaction(strategy=...): {unknown('strategy', one, _STRATEGIES)}")
        if isinstance(on, str) or not on or any(place not in _PLACES for place in on):
            raise ConfigError(f"PiiRedaction(on=...) takes some of {listed(_PLACES)}; found {on!r}")
        self.name = name
        self.on: frozenset[str] = frozenset(on)
        self._strategies: dict[str, str] = {kind: chosen.get(kind, strategy) for kind in kinds}
        self.kinds: tuple[Kind, ...] = tuple(
            msgspec.structs.replace(known[kind], first=self._strategies[kind] == "block") for kind in kinds
        )
        self._blocks = "block" in self._strategies.values()
        self._key = hash_key.encode() if isinstance(hash_key, str) else hash_key
        if len(self._key) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ConfigError(f"PiiRedaction(hash_key=...) has at most {hashlib.blake2b.MAX_KEY_SIZE} bytes")
        self._hang(f"_pii_{name}")

    def bind(self, agent: AgentParts) -> Self:
        """The hook for this agent: what one has looked at, one inside of it with other kinds has not."""
        bound = copy.copy(self)
        bound._hang(f"_pii_{agent.name}.{self.name}")
        return bound

    def _hang(self, checked: str) -> None:
        """Be there where it has something to do: a member that is not there costs nothing."""
        self._checked = checked
        self.strategies: dict[str, Strategy] = {checked: Replace()}
        if self.on & {"input", "tool"}:
            self.before_model: HookFunction = self._before_model
        if "input" in self.on:
            self.wrap_model: ModelInterceptor = self._wrap_model
        if self.on & {"output", "tool"}:
            self.wrap_chunks: ChunkInterceptor = self._wrap_chunks
        if "tool" in self.on:
            self.wrap_tool: ToolInterceptor = self._wrap_tool

    def found(self, text: str) -> dict[str, int]:
        """How much of each kind stands in a text."""
        counts: dict[str, int] = {}
        for found in find_all(self.kinds, text):
            counts[found.kind] = counts.get(found.kind, 0) + 1
        return counts

    def redacted(self, text: str) -> str:
        """The text with all finds replaced; those of a kind that blocks are redacted."""
        return Redaction(self.kinds, self._replaced).whole(text)

    # --- what the user says, and what stands in the history besides ---

    async def _before_model(self, state: Any, _: RunContext[Any]) -> Any:
        """Replace what is new since the last call of the model; each message is looked at once."""
        given = as_mapping(state)
        update: dict[str, Any] = {}
        blocked: set[str] = set()
        messages: Sequence[Message] = given.get("messages") or ()
        new = _since(messages, given.get(self._checked))
        changed = [clean for m in new if (clean := await self._clean(m, blocked)) is not m]
        spoken: Any = given.get("input")
        if "input" in self.on and spoken and (clean := await self._clean_input(spoken, blocked)) is not spoken:
            update["input"] = spoken = clean
        if messages:
            update[self._checked] = messages[-1].id
        if blocked:
            if all(isinstance(m, SystemMessage) for m in messages):  # then the input is what was said
                changed.append(spoken if isinstance(spoken, (UserMessage, InstructionMessage)) else UserMessage(spoken))
            text = f"This was not processed, because it holds {_listed(blocked)}. Leave that out, and ask again."
            note = AssistantMessage(text, finish_reason="content_filter", metadata={"pii": sorted(blocked)})
            update |= {"messages": [*changed, note], self._checked: note.id}
            return Jump("end", update)
        if changed:
            update["messages"] = changed
        return update or None

    async def _wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Replace what an instruction was filled in with: it is not in the state until the model is asked."""
        if any(isinstance(m, InstructionMessage) for m in request.messages):
            messages = [
                await self._clean(m, set()) if isinstance(m, InstructionMessage) else m for m in request.messages
            ]
            return await call(msgspec.structs.replace(request, messages=messages))
        return await call(request)

    async def _clean(self, message: Message, blocked: set[str]) -> Message:
        """The message without personal data, itself where it has none. Adds to `blocked` what must not be processed."""
        if isinstance(message, ToolResponseMessage) and "tool" in self.on:
            return _with(message, "responses", [await self._clean_response(r) for r in message.responses])
        if isinstance(message, UserMessage) and "input" in self.on:
            return _with(message, "content", await self._clean_content(message.content, blocked))
        if isinstance(message, InstructionMessage) and "input" in self.on:
            return _with(message, "text", await self._clean_content(message.text, blocked))
        return message

    async def _clean_input(self, spoken: Any, blocked: set[str]) -> Any:
        if isinstance(spoken, (UserMessage, InstructionMessage)):
            return await self._clean(spoken, blocked)
        said = cast("Any", spoken) if isinstance(spoken, list) else str(spoken)
        clean = await self._clean_content(said, blocked)
        return cast("Any", spoken) if clean == said else clean

    async def _clean_content(self, content: Any, blocked: set[str]) -> Any:
        if isinstance(content, list):
            return [
                _with(part, "text", await self._clean_content(part.text, blocked))
                if isinstance(part, TextPart)
                else part
                for part in cast("list[Part]", content)
            ]
        if len(content) <= _AT_ONCE:
            return self._clean_text(content, blocked)
        redaction = self._noting(blocked)
        pieces: list[str] = []
        for start in range(0, len(content), _AT_ONCE):
            pieces.append(redaction.feed(content[start : start + _AT_ONCE]))
            await asyncio.sleep(0)  # others get their turn
        return "".join([*pieces, redaction.end()])

    def _clean_text(self, text: str, blocked: set[str]) -> str:
        return self._noting(blocked).whole(text)

    def _noting(self, blocked: set[str]) -> Redaction:
        def replaced(kind: str, found: str) -> str:
            if self._strategies[kind] == "block":
                blocked.add(kind)
            return self._replaced(kind, found)

        return Redaction(self.kinds, replaced)

    # --- what the model says ---

    async def _wrap_chunks(self, deltas: AsyncIterator[Delta], _: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Let go of what cannot become a find any more."""
        text, reasoning = (self._stream() for _ in range(2)) if "output" in self.on else (None, None)
        calls: dict[int, list[Delta]] = {}
        told: list[str] = []
        try:
            async for delta in deltas:
                piece = msgspec.structs.replace(
                    delta,
                    text=text.feed(delta.text) if text is not None and delta.text else delta.text,
                    reasoning=reasoning.feed(delta.reasoning)
                    if reasoning is not None and delta.reasoning
                    else delta.reasoning,
                )
                if delta.index is not None and "tool" in self.on:
                    # arguments are JSON: what a sign in them stands for is known at their end. A call that may be
                    # blocked is not begun either
                    begun = delta.index in calls or self._blocks
                    calls.setdefault(delta.index, []).append(delta)
                    piece = (
                        Delta(piece.text, piece.reasoning) if begun else msgspec.structs.replace(piece, arguments="")
                    )
                if piece.text or piece.reasoning or piece.index is not None:
                    told.append(piece.text)
                    yield piece
                if stopped := _stopped(text, reasoning):
                    yield Delta(_ended(stopped))
                    return
        except ModelError as error:
            if text is not None:
                error.partial = "".join(told)  # no more than readers have seen
            raise
        rest = Delta(text.end() if text is not None else "", reasoning.end() if reasoning is not None else "")
        if rest.text or rest.reasoning:
            yield rest
        if stopped := _stopped(text, reasoning) or self._blocked_in(calls):
            yield Delta(_ended(stopped))
            return
        for index, pieces in calls.items():
            arguments = self._clean_json("".join(p.arguments for p in pieces))
            if self._blocks:
                yield Delta(index=index, call_id=pieces[0].call_id, name=pieces[0].name, arguments=arguments)
            elif arguments:
                yield Delta(index=index, arguments=arguments)

    def _stream(self) -> Redaction:
        return Redaction(self.kinds, self._replaced_or_stopped)

    def _blocked_in(self, calls: Mapping[int, Sequence[Delta]]) -> str | None:
        blocked: set[str] = set()
        for pieces in calls.values() if self._blocks else ():
            _each_text(_decoded("".join(p.arguments for p in pieces)), partial(self._clean_text, blocked=blocked))
        return min(blocked, default=None)

    def _clean_json(self, arguments: str) -> str:
        given = _decoded(arguments)
        clean = _each_text(given, self.redacted)
        if clean == given:
            return arguments
        return clean if isinstance(given, str) else msgspec.json.encode(clean).decode()

    # --- what tools say ---

    async def _wrap_tool(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        """Replace what a tool answers, before anybody is told of it."""
        return await self._clean_response(await call(request))

    async def _clean_response(self, response: ToolResponse) -> ToolResponse:
        blocked: set[str] = set()
        content = await self._clean_content(response.content, blocked)
        if blocked:
            content = f"What {response.name!r} has answered is withheld, because it holds {_listed(blocked)}."
        return _with(response, "content", content)

    # --- what stands in a find's place ---

    def _replaced_or_stopped(self, kind: str, found: str) -> str | None:
        return None if self._strategies[kind] == "block" else self._replaced(kind, found)

    def _replaced(self, kind: str, found: str) -> str:
        strategy, label = self._strategies[kind], kind.upper()
        if strategy == "mask":
            return _masked(kind, found)
        if strategy == "hash":
            same = re.sub(r"[\s-]", "", found).casefold()
            digest = hashlib.blake2b(same.encode("utf-8", "surrogatepass"), key=self._key, digest_size=6)
            return f"[{label}_{digest.hexdigest()}]"
        return f"[REDACTED_{label}]"

    def __repr__(self) -> str:
        return f"<{self.name} {self._strategies} on {sorted(self.on)}>"


def _own(name: str, find: Any) -> Kind:
    try:
        pattern = re.compile(find) if isinstance(find, str) else find
    except re.error as error:
        raise ConfigError(f"PiiRedaction(patterns=...): {name!r} is no regular expression: {error}") from error
    if not (isinstance(pattern, re.Pattern) or callable(pattern)):
        raise ConfigError(
            f"PiiRedaction(patterns=...): {name!r} takes a regular expression, or a function (line) -> [(start, end)]; "
            f"found {find!r:.80}"
        )
    return own_kind(name, cast("re.Pattern[str] | Detector", pattern))


def _since(messages: Sequence[Message], id: Any) -> Sequence[Message]:
    """The messages after the one with this id; all where it is not there."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].id == id:
            return messages[place + 1 :]
    return messages


def _with(one: T, field: str, value: Any) -> T:
    return one if getattr(one, field) == value else msgspec.structs.replace(cast("Any", one), **{field: value})


def _stopped(*texts: Redaction | None) -> str | None:
    return next((text.stopped for text in texts if text is not None and text.stopped), None)


def _ended(kind: str) -> str:
    return f"[The answer ends here, because it holds {_listed({kind})}.]"


def _listed(kinds: set[str]) -> str:
    return ", ".join(f"data of the kind {kind!r}" for kind in sorted(kinds))


def _decoded(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _each_text(value: Any, clean: Any) -> Any:
    """The value with all texts in it made clean; a number that is no more the same becomes a text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _each_text(item, clean) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_each_text(item, clean) for item in cast("list[Any]", value)]
    if type(value) is int:
        said = str(value)
        return value if (made := clean(said)) == said else made
    return value


def _masked(kind: str, found: str) -> str:
    if kind == "email":
        local, _, domain = found.rpartition("@")
        return f"{local[:1]}***@{domain}"
    return "****" + (found[-4:] if len(found) > 8 else "")
