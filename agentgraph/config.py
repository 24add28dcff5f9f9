"""Settings of a run and of a node: immutable, checked when they are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from agentgraph.errors import ConfigError, listed

__all__ = ["Retry", "RunConfig", "is_transient", "may_pass", "positive"]


def positive(where: str, value: object, *, whole: bool = False, needed: bool = False) -> None:
    """Raise `ConfigError` unless `value` is a positive (whole) number, or None where it is not `needed`."""
    if value is None and not needed:
        return
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        kind = "whole number" if whole else "number of seconds"
        none = "" if needed else ", or None for no limit"
        raise ConfigError(f"{where} must be a positive {kind}{none}; found {value!r}")


def _text(where: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is None or a text that is not empty and can be encoded: events carry it."""
    if value is None:
        return
    if not isinstance(value, str) or not value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ConfigError(f"{where} must be a text that is not empty; found {value!r}")


class RunConfig(msgspec.Struct, frozen=True):
    """How one run goes."""

    thread_id: str | None = None
    """The conversation this run belongs to."""
    recursion_limit: int = 100
    """Most steps of the run, all its subgraphs included."""
    max_concurrency: int | None = None
    """Most nodes at work at once, in all subgraphs together; a node that waits for a subgraph is not at work."""
    timeout: float | None = None
    """Seconds the whole run may take."""
    tags: tuple[str, ...] = ()
    """The caller's own words for the run; a list becomes a tuple."""
    metadata: dict[str, Any] = {}
    """The caller's own; nodes read it. `metadata["stream"] = False` turns streaming of models off."""
    run_id: str | None = None
    """The run's id; made at random where None."""
    checkpoint_id: str | None = None
    """Of a thread: where to go on from instead of its end. A new line of the thread begins there."""
    durability: Literal["sync", "async", "exit"] = "async"
    """When what a run has done is stored: before it goes on, behind its back and in order, or at its end only."""
    if_busy: Literal["wait", "refuse"] = "wait"
    """What to do while another run is on the thread: wait for its end, or raise `ThreadBusyError`."""

    def __post_init__(self) -> None:
        positive("RunConfig(recursion_limit=...)", self.recursion_limit, whole=True, needed=True)
        positive("RunConfig(max_concurrency=...)", self.max_concurrency, whole=True)
        positive("RunConfig(timeout=...)", self.timeout)
        _text("RunConfig(thread_id=...)", self.thread_id)
        _text("RunConfig(run_id=...)", self.run_id)
        _text("RunConfig(checkpoint_id=...)", self.checkpoint_id)
        for name, value, known in (
            ("durability", self.durability, ("sync", "async", "exit")),
            ("if_busy", self.if_busy, ("wait", "refuse")),
        ):
            if value not in known:
                raise ConfigError(f"RunConfig({name}=...) must be one of {listed(known)}; found {value!r}")
        tags: Any = self.tags
        if not isinstance(tags, (tuple, list)) or not all(isinstance(t, str) for t in cast("list[Any]", tags)):
            raise ConfigError(f"RunConfig(tags=...) must be several texts, such as ('nightly',); found {tags!r:.80}")
        msgspec.structs.force_setattr(self, "tags", tuple(cast("list[str]", tags)))
        if not isinstance(self.metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"RunConfig(metadata=...) must be a dict; found {self.metadata!r:.80}")


class Retry(msgspec.Struct, frozen=True):
    """When and how often a failed attempt is made again.

    The n-th wait is drawn evenly from 0.5 to 1 times `min(max_delay, delay * 2 ** (n - 1))` seconds. The next
    attempt starts only when the one before has ended.
    """

    attempts: int = 3
    """All attempts together, the first included."""
    delay: float = 0.5
    """Seconds before the second attempt; 0 for at once."""
    max_delay: float = 30.0
    on: Callable[[Exception], bool] | type[Exception] | tuple[type[Exception], ...] | None = None
    """What is tried again: a type, several, or a function of the error. None: see `is_transient`."""

    def __post_init__(self) -> None:
        positive("Retry(attempts=...)", self.attempts, whole=True, needed=True)
        if not _is_rule(self.on):
            raise ConfigError(
                f"Retry(on=...) must be exception types, or a plain function of the error; found {self.on!r}"
            )
        for name, value in (("delay", self.delay), ("max_delay", self.max_delay)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"Retry({name}=...) must be a number of seconds, 0 for at once; found {value!r}")

    def wants(self, error: Exception) -> bool:
        """Tell whether this error is one to try again after."""
        on: Any = self.on
        if on is None:
            return is_transient(error)
        return isinstance(error, on) if isinstance(on, (type, tuple)) else bool(on(error))

    def wait(self, attempt: int, drawn: float) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 1); `drawn` is random in [0, 1)."""
        return min(self.max_delay, self.delay * 2.0 ** min(attempt - 1, 60)) * (0.5 + drawn / 2)


def _is_rule(on: Any) -> bool:
    if isinstance(on, (type, tuple)):
        kinds = cast("tuple[Any, ...]", on if isinstance(on, tuple) else (on,))
        return all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds)
    waits = inspect.iscoroutinefunction(on) or inspect.iscoroutinefunction(getattr(on, "__call__", None))  # noqa: B004  # the method itself is wanted
    return on is None or (callable(on) and not waits)


_TRANSIENT_STATUS = {408, 409, 429}
_TRANSPORT_ERRORS = {"httpx": "TransportError", "httpx2": "TransportError", "aiohttp": "ClientConnectionError"}


def is_transient(error: BaseException) -> bool:
    """Tell whether an error is of a kind that may pass: connection, timeout, or HTTP 408, 409, 429, 5xx.

    An error whose `retried` attribute is true was already tried again by whoever raised it: not once more.
    """
    return not getattr(error, "retried", False) and may_pass(error)


def may_pass(error: BaseException) -> bool:
    """Tell what `is_transient` does, and not mind whether it was already tried again."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    status = getattr(error, "status_code", None)
    if status is None:
        status = getattr(error, "status", None)
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in _TRANSIENT_STATUS or status >= 500
    # by name: these libraries need not be installed, and loading one to look at an error would be waste
    return any(_TRANSPORT_ERRORS.get(c.__module__.partition(".")[0]) == c.__name__ for c in type(error).__mro__)
