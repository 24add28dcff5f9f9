"""A caller's own function as a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgraph.strategies.protocol import UNSET


class Reduce:
    """Merges by `fn(current, update)`; the first write of an unset key is taken as it is.

    `Reduce(operator.add)` sums numbers. `fn` must be pure and must not change `current` in place.
    `initial`, where given, is the value the key starts with.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], *, initial: Any = UNSET) -> None:
        if not callable(fn):
            raise TypeError(f"Reduce takes a function of (current, update), not {fn!r}")
        self.fn = fn
        self.initial = initial

    def merge(self, current: Any, update: Any) -> Any:
        """Return `fn(current, update)`, or `update` where there is no value yet."""
        return update if current is UNSET else self.fn(current, update)

    def empty(self) -> Any:
        """The `initial` value, or unset."""
        return self.initial

    def __repr__(self) -> str:
        return f"Reduce({getattr(self.fn, '__name__', self.fn)})"
