"""Strategies that keep one value: the newest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from agentgraph.errors import StrategyError
from agentgraph.strategies.markers import MARKERS
from agentgraph.strategies.protocol import UNSET

MAY_HOLD_MARKERS: Final = frozenset[type]({list, *MARKERS})
"""Types of updates that must be looked at; any other simply takes the value's place."""


class LastWrite:
    """The update takes the place of the value; of several writes in one step the later in node order wins."""

    def merge(self, current: Any, update: Any) -> Any:  # noqa: ARG002  # as the protocol says
        """Return `update`. Raises `StrategyError` for a remove or rewrite marker: there is nothing it could act on."""
        items: Iterable[Any] = cast("list[Any]", update) if isinstance(update, list) else (update,)
        if not MARKERS.isdisjoint(map(type, items)):
            marker = next(type(item).__name__ for item in items if type(item) in MARKERS)
            raise StrategyError(
                f"{self!r} does not follow {marker}, it would keep it as a value; "
                f"give the key a strategy that does, such as Messages()"
            )
        return cast("Any", update)

    def empty(self) -> Any:
        """The key starts unset."""
        return UNSET

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Replace(LastWrite):
    """As `LastWrite`, and the default of every key, but two writes in one step are an error.

    Neither of them is the newer one: the engine raises a `ConflictError` that names both nodes.
    """
