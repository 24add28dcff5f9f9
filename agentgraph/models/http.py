"""HTTP to model providers: the only file that knows httpx.

What must live here: every httpx object and every httpx exception; only our own errors leave. One pool for each
event loop, because a connection belongs to the loop that it was made in. What this file does not know: any
provider's protocol (bytes go to an `Assembler`, which is told the end of the stream).
Ugly: a client's loop may end without a word. The pool hangs on to the loop's own `shutdown_asyncgens`.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import math
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any, Protocol, TypeVar, cast

import httpx
import msgspec

from agentgraph.config import Retry, is_transient, positive
from agentgraph.errors import ConfigError
from agentgraph.models import guard
from agentgraph.models.errors import (
    ConnectionFailedError,
    ModelError,
    ModelTimeoutError,
    ProviderError,
    StreamCutError,
    provider_error,
)
from agentgraph.models.protocol import Delta, ModelResponse

__all__ = ["MAX_RETRY_AFTER", "Assembler", "HttpClient", "Limits", "retry_after"]

T = TypeVar("T")

MAX_RETRY_AFTER = 60.0
"""Seconds. A provider that asks for a longer wait gets none: the call fails at once and says how long."""

_BACKOFF = Retry(delay=0.5, max_delay=8.0)
_NEVER_RETRIED_CODES = ("insufficient_quota", "billing_hard_limit_reached")
_RUN_OUT_SECONDS = 0.2
_MOST_IDLE = 100
_IDLE_SECONDS = 30.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take, in seconds (None: no limit), and how often it is tried again."""

    timeout: float | None = 600.0
    """The whole call, its retries included."""
    connect_timeout: float | None = 10.0
    """Until the connection stands."""
    first_chunk_timeout: float | None = 300.0
    """From sending the request until a stream's first bytes."""
    stall_timeout: float | None = 60.0
    """Between two chunks of a stream."""
    max_retries: int = 2

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "first_chunk_timeout", "stall_timeout"):
            positive(name, getattr(self, name))
        if isinstance(self.max_retries, bool) or self.max_retries < 0:
            raise ConfigError(f"max_retries must be a whole number, 0 for none; found {self.max_retries!r}")

    def seconds(self, kind: str) -> float:
        """The limit of that name; infinite where it is None."""
        limit: float | None = getattr(self, kind)
        return math.inf if limit is None else limit


class Assembler(Protocol):
    """What makes deltas of a response's bytes. One for each attempt. The last delta has the whole answer."""

    @property
    def done(self) -> bool:
        """The stream's end mark was seen: no more is to come."""
        ...

    @property
    def finished(self) -> bool:
        """The answer is whole, though more may come."""
        ...

    @property
    def partial(self) -> str:
        """The text so far."""
        ...

    def feed(self, chunk: bytes) -> Iterable[Delta]:
        """Take a stream's next bytes. What stands before an error in them is told before it is raised."""
        ...

    def finish(self) -> list[Delta]:
        """The stream is over. Raises `StreamCutError` where the answer is not whole."""
        ...

    def whole(self, body: bytes) -> list[Delta]:
        """Take a response that came in one piece."""
        ...


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the provider asks to wait, or None where it asks nothing that makes sense.

    `now` is seconds since the epoch, for the HTTP-date form.
    """
    for name, unit in (("retry-after-ms", 1000), ("x-ms-retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "")
        try:
            seconds = float(value) / unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
            except (ValueError, OverflowError):
                continue
        if seconds > 0 and math.isfinite(seconds):
            return seconds
    return None


class _Call:
    """One call: its deadline, how often it was tried, and whether readers have seen a part of the answer."""

    def __init__(self, where: str, limits: Limits) -> None:
        self.where = where
        self.limits = limits
        self.deadline = _now() + limits.seconds("timeout")
        self.attempt = 0
        self.emitted = False

    async def bounded(self, what: Awaitable[T], kind: str = "timeout", since: float | None = None) -> T:
        """Await something of httpx, for as long as the limit named `kind` and the deadline allow."""
        step = what.__await__()
        try:
            waits_for = step.send(None)
        except StopIteration as at_once:  # as most chunks of a quick stream, which a timer each would slow by a third
            return at_once.value
        except Exception as error:
            raise self._ours(error) from error
        seconds = self.limits.seconds(kind)
        until = (_now() if since is None else since) + seconds
        if until >= self.deadline or kind == "timeout":
            until, kind, seconds = self.deadline, "timeout", self.limits.seconds("timeout")
        scope = asyncio.timeout_at(None if math.isinf(until) else until)
        try:
            async with scope:
                return await _Begun(step, waits_for)
        except Exception as error:
            if scope.expired():
                text = f"{self.where}: the provider took longer than {kind}={seconds:g} s"
                raise ModelTimeoutError(text, kind=kind, seconds=seconds) from error
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> Exception:
        """Our error for one of httpx or httpx2: the same names, but no common base."""
        names = {c.__name__ for c in type(error).__mro__}
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if "ConnectTimeout" in names:
            seconds = self.limits.seconds("connect_timeout")
            text = f"{self.where}: no connection within connect_timeout={seconds:g} s"
            return ModelTimeoutError(text, kind="connect_timeout", seconds=seconds)
        if "TransportError" in names:
            return ConnectionFailedError(f"{self.where}: the connection failed ({told})")
        if "HTTPError" in names or "StreamError" in names:
            return ModelError(f"{self.where}: {told}")
        return error

    def wait_after(self, error: ModelError) -> float:
        """Seconds until the next attempt; raises `error` where there is none."""
        self.attempt += 1
        error.retried = self.emitted  # readers have seen a part: a second try from outside would double it
        if self.emitted or not _may_pass(error) or self.limits.max_retries == 0:
            raise error
        asked = error.retry_after if isinstance(error, ProviderError) else None
        drawn = random.random()  # noqa: S311  # jitter
        wait = _BACKOFF.wait(self.attempt, drawn) if asked is None else asked * (1 + drawn / 10)
        if self.attempt > self.limits.max_retries:
            why = f"tried {self.attempt} times"
        elif asked is not None and asked > MAX_RETRY_AFTER:
            why = f"the provider asks to wait {asked:g} s, and no more than {MAX_RETRY_AFTER:g} s are waited"
        elif wait > self.deadline - _now():
            why = f"a wait of {wait:.3g} s does not fit into what is left of timeout={self.limits.timeout} s"
        else:
            return wait
        error.retried = True
        error.add_note(why)
        raise error


class _Begun(Generator[Any, Any, T]):
    """What is left of an awaitable whose first step has to wait: awaited, it goes on from there."""

    def __init__(self, step: Generator[Any, Any, T], waits_for: Any) -> None:
        self._step = step
        self._waits_for = [waits_for]

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._step.send(value)

    def throw(self, *error: Any) -> Any:
        return self._step.throw(*error)


def _may_pass(error: ModelError) -> bool:
    """Whether the same request may fare better later."""
    if isinstance(error, ModelTimeoutError) and error.kind == "timeout":
        return False
    if isinstance(error, ProviderError) and error.code in _NEVER_RETRIED_CODES:
        return False
    return is_transient(error)


class HttpClient:
    """The HTTP side of one model: pooled, retrying, bounded. May be used from any number of event loops.

    `where` names model and host in errors. `http_client` is a caller's own `httpx.AsyncClient`: used as it is,
    and never closed.
    """

    def __init__(self, where: str, limits: Limits, http_client: httpx.AsyncClient | None = None) -> None:
        self.where = where
        self.limits = limits
        self._own = http_client
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[asyncio.AbstractEventLoop, tuple[_Pool, AsyncGenerator[None, None]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<HttpClient {self.where} loops={len(self._pools)}{' own client' if self._own else ''}>"

    async def aclose(self) -> None:
        """Close this loop's connections, those of calls under way at their end; other loops' stay.

        A later call opens new ones.
        """
        with self._lock:
            entry = self._pools.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, new_assembler: Callable[[], Assembler]
    ) -> ModelResponse:
        """Send and return the whole answer, after retries.

        Raises a `ModelError`. After cancellation the connection is closed.
        """
        call = _Call(self.where, self.limits)
        while True:
            try:
                async with self._response(call, url, headers, body) as response:
                    content = await call.bounded(response.aread())
                    return cast("ModelResponse", new_assembler().whole(content)[-1].response)
            except ModelError as error:
                wait = call.wait_after(error)
            await asyncio.sleep(wait)

    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, new_assembler: Callable[[], Assembler]
    ) -> AsyncGenerator[Delta, None]:
        """Send and yield what the assembler makes of the response; tried again until a first delta has come.

        Raises a `ModelError`; one after the first delta has the partial text and `retried=True`, for nobody may
        try that silently again. Closing the generator, or cancelling it, closes the connection.
        """
        call = _Call(self.where, self.limits)
        while True:
            assembler = new_assembler()
            began = _now()
            try:
                async with (
                    self._response(call, url, headers, body, "first_chunk_timeout") as response,
                    aclosing(_deltas(call, response, assembler, began)) as deltas,
                ):
                    async for delta in deltas:
                        call.emitted = True
                        yield delta
                return
            except ModelError as error:
                error.partial = assembler.partial
                wait = call.wait_after(error)
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def _response(
        self, call: _Call, url: str, headers: Mapping[str, str], body: bytes, kind: str = "timeout"
    ) -> AsyncGenerator[httpx.Response]:
        """Send, and give the response once its head is there and says success."""
        guard.check(url)
        async with self._client() as client:
            # only the connection is timed by the client: it has one read timeout, and a stream needs two
            timeout = {"connect": self.limits.connect_timeout, "read": None, "write": None, "pool": None}
            request = client.build_request("POST", url, headers=headers, content=body, extensions={"timeout": timeout})
            response = await call.bounded(client.send(request, stream=True), kind)
            try:
                if not response.is_success:
                    content = await call.bounded(response.aread())
                    raise provider_error(
                        self.where,
                        content.decode("utf-8", "replace"),
                        status=response.status_code,
                        retry_after=retry_after(response.headers, time.time()),
                    )
                yield response
            except ModelError as error:
                error.request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
                raise
            finally:
                await response.aclose()

    def _client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        """The client for one call."""
        loop = asyncio.get_running_loop()
        if self._own is not None:
            if self._own.is_closed:
                raise ConfigError(f"{self.where}: the http_client that was passed in is closed")
            if self._own_loop not in (None, loop):
                raise ConfigError(
                    f"{self.where}: the http_client that was passed in was used in another event loop, and its "
                    f"connections belong to that; pass none (the model then keeps one for each loop)"
                )
            self._own_loop = loop
            return nullcontext(self._own)
        entry = self._pools.get(loop)
        if entry is not None and not entry[0].closed:
            return entry[0].client()
        pool = _Pool()
        closer = _close_with_loop(pool)
        try:
            closer.asend(None).send(None)  # starts it without a wait: it runs to its `yield`
        except StopIteration:
            pass
        with self._lock:
            for other in [other for other in self._pools if other.is_closed()]:
                del self._pools[other]
            self._pools[loop] = (pool, closer)
        return pool.client()


class _Pool:
    """One loop's connections: a client of httpx for each call under way, and those that are idle.

    A client that has many connections looks through all of them for each of them whenever a call begins or ends: a
    hundred calls that began at once took ten milliseconds each. So each has one.
    """

    def __init__(self) -> None:
        self.closed = False
        self._idle: deque[tuple[httpx.AsyncClient, float]] = deque()  # with the time since when

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx.AsyncClient]:
        """A client for one call: the one that was used last, so that those that are too many grow old."""
        if self._idle:
            client, _ = self._idle.pop()
        else:
            client = httpx.AsyncClient(limits=httpx.Limits(keepalive_expiry=_IDLE_SECONDS), verify=_tls())
        try:
            yield client
        finally:
            self._idle.append((client, _now()))
            await self._close_idle(0 if self.closed else _MOST_IDLE)

    async def aclose(self) -> None:
        """Close what is idle now, and what is in use when it has become so."""
        self.closed = True
        await self._close_idle(0)

    async def _close_idle(self, keep: int) -> None:
        while self._idle and (len(self._idle) > keep or self._idle[0][1] < _now() - _IDLE_SECONDS):
            client, _ = self._idle.popleft()
            await client.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    # reading the certificates takes 20 ms, in which the event loop stands
    return httpx.create_ssl_context()


async def _close_with_loop(pool: _Pool) -> AsyncGenerator[None, None]:
    """Suspended as long as the pool is in use; closed, it closes the pool.

    asyncio closes the async generators that are still open when a loop ends (`asyncio.run`, `Runner`), while
    it still runs: the last moment at which connections can be closed without a warning.
    """
    try:
        yield
    finally:
        await pool.aclose()


async def _deltas(
    call: _Call, response: httpx.Response, assembler: Assembler, began: float
) -> AsyncGenerator[Delta, None]:
    if _is_one_piece(response):
        for delta in assembler.whole(await call.bounded(response.aread())):
            yield delta
        return
    chunks = response.aiter_bytes()
    try:
        try:
            chunk = await call.bounded(anext(chunks, None), "first_chunk_timeout", began)
            while chunk is not None:
                for delta in assembler.feed(chunk):
                    yield delta
                if assembler.done:
                    break
                chunk = await call.bounded(anext(chunks, None), "stall_timeout")
        except ModelTimeoutError:
            if not assembler.finished:  # else only usage or the end mark got lost
                raise
        except ConnectionFailedError as error:
            if not assembler.finished:
                raise StreamCutError(f"{error}, in mid-stream") from error
        for delta in assembler.finish():
            yield delta
        # to the response's end, so that the connection can be used again
        await _run_out(chunks)
    finally:
        # an iterator of httpx that is dropped half-way closes itself later, in a task of its own: this one ends here
        await response.aclose()
        await _run_out(chunks)


async def _run_out(chunks: AsyncIterator[bytes]) -> None:
    """Read what is left, but not for long."""
    try:
        async with asyncio.timeout(_RUN_OUT_SECONDS):
            async for _ in chunks:
                pass
    except Exception:  # noqa: S110  # the answer is whole, or there is an error already: what comes now says nothing
        pass


def _is_one_piece(response: httpx.Response) -> bool:
    """Whether the response is no stream though one was asked for: an error in a 200, a page of a proxy."""
    kind = response.headers.get("content-type", "").lower()
    return "json" in kind or "html" in kind


def _now() -> float:
    return asyncio.get_running_loop().time()
