"""Strategies that keep one value: the newest."""

from __future__ import annotations

from typing import Any

from agentgraph.strategies.protocol import UNSET


class LastWrite:
    """The update takes the place of the value; of several writes in one step the later in node order wins."""

    def merge(self, current: Any, update: Any) -> Any:  # noqa: ARG002  # as the protocol says
        """Return `update`."""
        return update

    def empty(self) -> Any:
        """The key starts unset."""
        return UNSET

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Replace(LastWrite):
    """As `LastWrite`, and the default of every key, but two writes in one step are an error.

    Neither of them is the newer one: the engine raises a `ConflictError` that names both nodes.
    """
