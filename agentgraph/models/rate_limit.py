"""The limits of an account: requests and tokens a minute, calls at once.

Rules of this file:
- A `RateLimit` counts for the whole process: the calls of any number of event loops and threads go through one door,
  one after the other in the order in which they came, so that a large one is not passed for ever by small ones.
- How full a bucket is only the call at the door looks at and changes; corrections are left in its mailbox.
- aiolimiter's bucket belongs to one event loop, as its timer and its futures must. So each call that stands at the
  door makes one of its own, in its own loop, and hands on how full it left it.
- No permit outlives its block: whatever ends that gives it back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self

import msgspec
from aiolimiter import AsyncLimiter

from agentgraph.config import positive
from agentgraph.errors import ConfigError
from agentgraph.messages import AssistantMessage, Message, ToolResponseMessage, UserMessage
from agentgraph.models.by_name import as_model, provider_of
from agentgraph.models.protocol import ChatModel, Delta, ModelRequest, ModelResponse

__all__ = ["Limited", "Permit", "RateLimit", "estimate"]

_CHARACTERS_PER_TOKEN = 4
_TOKENS_OF_A_PART = 1000
_TOKENS_OF_AN_ANSWER = 500
_ANSWER_OPTIONS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


class RateLimit:
    """Limits that all models share which hold the same object, in all event loops and threads of the process.

    A minute's worth may go at once; then it comes back evenly (a leaky bucket). Calls go in the order in which they
    came. Tokens are reserved by an estimate (see `estimate`) and corrected by the usage that comes with the answer; a
    call that ends without one keeps its estimate. `max_concurrent` counts calls until their stream has ended. A
    client's own retries belong to their call, and are not counted anew. A use::

        limit = RateLimit(requests_per_minute=500, tokens_per_minute=200_000, max_concurrent=20)
        large, small = Limited(OpenAIChat("..."), limit), Limited(OpenAIChat("..."), limit)
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        positive("RateLimit(requests_per_minute=...)", requests_per_minute, whole=True)
        positive("RateLimit(tokens_per_minute=...)", tokens_per_minute, whole=True)
        positive("RateLimit(max_concurrent=...)", max_concurrent, whole=True)
        self.requests_per_minute: int | None = requests_per_minute
        self.tokens_per_minute: int | None = tokens_per_minute
        self.max_concurrent: int | None = max_concurrent
        self._requests = None if requests_per_minute is None else _Bucket(requests_per_minute)
        self._tokens = None if tokens_per_minute is None else _Bucket(tokens_per_minute)
        self._slots = None if max_concurrent is None else _Slots(max_concurrent)
        self._door = _Slots(1)

    @asynccontextmanager
    async def permit(self, tokens: int = 0) -> AsyncGenerator[Permit]:
        """Wait until a call that takes about `tokens` may be made; inside the block it counts as under way.

        After cancellation nothing is held, and a call that had not begun is not counted.
        """
        if self._slots is not None:
            await self._slots.acquire()
        try:
            if self._requests is not None or self._tokens is not None:
                await self._door.acquire()
                try:
                    await self._pass(tokens)
                finally:
                    self._door.release()
            yield Permit(self._tokens, tokens)
        finally:
            if self._slots is not None:
                self._slots.release()

    async def _pass(self, tokens: int) -> None:
        if self._requests is not None:
            await self._requests.take(1)
        if self._tokens is not None:
            try:
                await self._tokens.take(tokens)
            except BaseException:  # also where the coroutine is dropped: the call is not made
                if self._requests is not None:
                    self._requests.correct(-1)
                raise

    def __repr__(self) -> str:
        limits = ", ".join(
            f"{name}={value}"
            for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent")
            if (value := getattr(self, name)) is not None
        )
        at_once = "" if self._slots is None else f" {self._slots.taken} at once"
        waiting = self._door.waiting + self._door.taken + (0 if self._slots is None else self._slots.waiting)
        return f"<RateLimit({limits}){at_once}, {waiting} waiting>"


class Permit:
    """A call under way."""

    __slots__ = ("_bucket", "_reserved")

    def __init__(self, bucket: _Bucket | None, reserved: int) -> None:
        self._bucket = bucket
        self._reserved = reserved

    def used(self, tokens: int | None) -> None:
        """Tell how many tokens the call took, in place of what was reserved. None: that is not known."""
        if self._bucket is None or tokens is None or tokens == self._reserved:
            return
        self._bucket.correct(tokens - self._reserved)
        self._reserved = tokens


class Limited:
    """A model that keeps to a `RateLimit`: the same model in all else. It may be given by its name.

    Waiting for a permit is no part of the client's own `timeout`. Closing it closes the model.
    """

    def __init__(self, model: ChatModel | str, limit: RateLimit) -> None:
        self.model: ChatModel = as_model(model)
        if not isinstance(self.model, ChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
            raise ConfigError(f"Limited needs a model with generate() and stream(), found {model!r:.80}")
        if not isinstance(limit, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
            raise ConfigError(f"Limited needs a RateLimit, found {limit!r:.80}")
        self.limit: RateLimit = limit

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def native_output_schema(self) -> bool:
        """Whether the model takes a request's `output_schema` as such."""
        return getattr(self.model, "native_output_schema", False)

    @property
    def provider(self) -> str:
        """The model's provider, for telemetry."""
        return provider_of(self.model)

    @property
    def base_url(self) -> str | None:
        """Where the model's requests go, if it says."""
        return getattr(self.model, "base_url", None)

    def __repr__(self) -> str:
        return f"Limited({self.model!r}, {self.limit!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the model, if it can be closed."""
        close = getattr(self.model, "aclose", None)
        if close is not None:
            await close()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Wait for a permit and ask. See `ChatModel.generate`."""
        async with self.limit.permit(self._estimate(request)) as permit:
            response = await self.model.generate(request)
            permit.used(_tokens_of(response))
            return response

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Wait for a permit, ask, and yield the answer's pieces. See `ChatModel.stream`."""
        async with (
            self.limit.permit(self._estimate(request)) as permit,
            aclosing(self.model.stream(request)) as deltas,
        ):
            async for delta in deltas:
                if delta.response is not None:
                    permit.used(_tokens_of(delta.response))
                yield delta

    def _estimate(self, request: ModelRequest) -> int:
        return 0 if self.limit.tokens_per_minute is None else estimate(request)


def _tokens_of(response: ModelResponse) -> int | None:
    usage = response.message.usage
    return None if usage is None else usage.total_tokens


def estimate(request: ModelRequest) -> int:
    """Tokens that a call may take, for want of the provider's own count.

    A quarter of the characters; 1000 for an image or a file; and for the answer what the options allow
    (`max_tokens` and its other names), or 500.
    """
    characters = 0 if request.system is None else len(request.system.text)
    characters += sum(len(t.name) + len(t.description) + len(msgspec.json.encode(t.parameters)) for t in request.tools)
    parts = 0
    for message in request.messages:
        characters += len(message.text)
        parts += _other_parts(message)
        if isinstance(message, AssistantMessage):
            characters += sum(len(c.name) + len(c.arguments) for c in message.tool_calls)
    asked = (request.options.get(name) for name in _ANSWER_OPTIONS)
    answer = next((n for n in asked if isinstance(n, int)), _TOKENS_OF_AN_ANSWER)
    return characters // _CHARACTERS_PER_TOKEN + parts * _TOKENS_OF_A_PART + answer


def _other_parts(message: Message) -> int:
    if isinstance(message, UserMessage):
        contents = [message.content]
    elif isinstance(message, ToolResponseMessage):
        contents = [r.content for r in message.responses]
    else:
        return 0
    return sum(not hasattr(part, "text") for c in contents if not isinstance(c, str) for part in c)


class _Slots:
    """A semaphore for the tasks of all event loops and threads: first come, first served."""

    __slots__ = ("_count", "_free", "_lock", "_waiting")

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        # one that its holder may take again: a coroutine that is dropped gives its slot back at any moment
        self._lock = threading.RLock()

    @property
    def taken(self) -> int:
        """How many are held."""
        return self._count - self._free

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    async def acquire(self) -> None:
        """Take a slot. After cancellation none is held."""
        loop = asyncio.get_running_loop()
        given: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._free:  # where one is free nobody waits
                self._free -= 1
                return
            self._waiting.append((loop, given))
        try:
            await given
        except BaseException:  # also where the coroutine is dropped
            with self._lock:
                try:
                    self._waiting.remove((loop, given))
                except ValueError:  # the slot was ours already
                    self.release()
            raise

    def release(self) -> None:
        """Give a slot back: to whoever waits the longest. May be called from any thread."""
        with self._lock:
            while self._waiting:
                loop, given = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(_give, given)
                except RuntimeError:
                    continue  # that loop is closed: nobody waits in it any more
                return
            self._free += 1


def _give(given: asyncio.Future[None]) -> None:
    if not given.done():  # whoever waited was cancelled meanwhile, and passes the slot on
        given.set_result(None)


class _Bucket:
    """What is used up of a minute's worth. All but `corrections` belongs to the call at the door."""

    __slots__ = ("corrections", "level", "looked", "turn", "worth")

    def __init__(self, worth: int) -> None:
        self.worth: int = worth
        self.level: float = 0.0
        self.looked: float = 0.0
        self.corrections: deque[float] = deque()
        self.turn: _Turn | None = None

    async def take(self, amount: float) -> None:
        """Wait until there is room for `amount`, and take it. More than a minute's worth waits for all of it."""
        turn = self.turn = _Turn(self)
        try:
            await turn.acquire(min(amount, self.worth))
            turn.add(max(0.0, amount - self.worth))
        finally:
            self.turn = None
            self.level, self.looked = turn.left()

    def correct(self, amount: float) -> None:
        """Add to what is used up, or take from it. May be called from any thread."""
        self.corrections.append(amount)
        turn = self.turn
        if turn is not None and amount < 0:  # who waits at the door may go sooner
            try:
                turn.loop.call_soon_threadsafe(turn.look)
            except RuntimeError:
                pass  # that loop is closed: nobody waits in it any more


class _Turn(AsyncLimiter):
    """A call's turn at the door: aiolimiter's bucket, in that call's event loop, as full as the last one left it."""

    def __init__(self, bucket: _Bucket) -> None:
        super().__init__(bucket.worth)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._corrections = bucket.corrections
        self._level = bucket.level
        self._last_check = min(bucket.looked, self.loop.time())  # another loop's clock may be ahead of this one's

    def _leak(self) -> None:
        super()._leak()
        while self._corrections:
            self._level += self._corrections.popleft()
        # a rounding error must not leave a remainder that no time takes away
        self._level = max(0.0, self._level - self.max_rate * 1e-9)

    def add(self, amount: float) -> None:
        """Use up more, without a wait."""
        self._level += amount

    def look(self) -> None:
        """Look again whether there is room."""
        self._wake_next()

    def left(self) -> tuple[float, float]:
        """How full it is, and when it was looked at."""
        return self._level, self._last_check
