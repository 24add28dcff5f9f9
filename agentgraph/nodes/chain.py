"""Interceptors: callables round a call, each in the next, the first outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from agentgraph.errors import ConfigError

__all__ = ["callables", "compose"]

Request = TypeVar("Request")
Response = TypeVar("Response")


def callables(
    given: Any, owner: str, what: str = "interceptor", form: str = "an async function of (request, call)"
) -> tuple[Any, ...]:
    """The interceptors that `owner` was given. Raises `ConfigError` where they are no list of callables.

    `what` is what one of them is called, and `form` what it is.
    """
    if not isinstance(given, Iterable):
        raise ConfigError(f"{owner}: {what}s come in a list, found {given!r:.80}")
    made = tuple(cast("Iterable[Any]", given))
    for one in made:
        if not callable(one):
            article = "an" if what[0] in "ai" else "a"
            raise ConfigError(f"{owner}: {article} {what} is {form}, found {one!r:.80}")
    return made


def compose(
    interceptors: Iterable[Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]],
    innermost: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """One callable out of `innermost` and the interceptors round it; `innermost` itself where there are none.

    An interceptor is `async def (request, call) -> response`. It may change the request, look at the response,
    answer itself, or call on several times.
    """
    call = innermost
    if not interceptors:
        return call
    for interceptor in reversed(tuple(interceptors)):
        call = _layer(interceptor, call)
    return call


def _layer(
    interceptor: Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]],
    inner: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    def call(request: Request) -> Awaitable[Response]:
        return interceptor(request, inner)

    return call
