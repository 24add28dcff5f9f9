"""What a strategy is."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import msgspec

UnsetType = msgspec.UnsetType
UNSET: Final = msgspec.UNSET
"""Stands for the value of a key that nobody has written yet."""


@runtime_checkable
class Strategy(Protocol):
    """Merges updates of one state key. Any object with these two methods will do.

    Both must be pure: the same arguments give the same result, and nothing is changed in place, since
    `current` is shared with every snapshot that was taken of it.
    """

    def merge(self, current: Any, update: Any) -> Any:
        """Return the new value. `current` is `UNSET` where the key has none yet.

        Raises `StrategyError` where the update does not fit; the engine adds the node and the key.
        """
        ...

    def empty(self) -> Any:
        """Return the value the key starts with, or `UNSET` for none."""
        ...
