"""Interceptors: callables round a call, each in the next, the first outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["compose"]

Request = TypeVar("Request")
Response = TypeVar("Response")


def compose(
    interceptors: Iterable[Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]],
    innermost: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """One callable out of `innermost` and the interceptors round it; `innermost` itself where there are none.

    An interceptor is `async def (request, call) -> response`. It may change the request, look at the response,
    answer itself, or call on several times.
    """
    call = innermost
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
