"""What the calls of one message write to the state: each for itself, merged in call order. Pure.

The rules:
- A call writes to its own list and sees nobody else's.
- A list that was closed or discarded takes no further write, from whatever thread it comes: `append` then goes to a
  list that nobody holds any more, or is refused.
- The order of the calls decides, never the order in which they finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CallUpdates", "ToolStateCollector"]


class CallUpdates:
    """The updates of one call, in the order in which it wrote them."""

    __slots__ = ("_kept", "_open")

    def __init__(self) -> None:
        self._open: list[Mapping[str, Any]] | None = []
        self._kept: tuple[Mapping[str, Any], ...] = ()

    def write(self, update: Mapping[str, Any]) -> bool:
        """Add an update; False where the list is closed, and the update was not taken."""
        updates = self._open
        if updates is None:
            return False
        updates.append(update)
        return True

    def close(self) -> None:
        """Keep what was written, and take no more."""
        if self._open is not None:
            self._kept, self._open = tuple(self._open), None

    def discard(self) -> None:
        """Throw away what was written, and take no more."""
        self._kept, self._open = (), None

    @property
    def kept(self) -> tuple[Mapping[str, Any], ...]:
        """What stays of it: nothing before it was closed."""
        return self._kept

    def __repr__(self) -> str:
        return f"<CallUpdates {'open' if self._open is not None else 'closed'} {self._open or list(self._kept)}>"


class ToolStateCollector:
    """Collects the state updates of a message's calls; `updates` gives them in call order.

    collector = ToolStateCollector()
    mine = collector.open(0)
    mine.write({"log": ["found it"]})
    mine.close()
    collector.updates()      # [{"log": ["found it"]}]
    """

    def __init__(self) -> None:
        self._calls: dict[int, CallUpdates] = {}

    def open(self, index: int) -> CallUpdates:
        """A list for the call at this index; one that was opened for it before is discarded."""
        before = self._calls.get(index)
        if before is not None:
            before.discard()
        made = self._calls[index] = CallUpdates()
        return made

    def kept(self, index: int) -> tuple[Mapping[str, Any], ...]:
        """What stays of one call's updates."""
        mine = self._calls.get(index)
        return () if mine is None else mine.kept

    def updates(self) -> list[Mapping[str, Any]]:
        """All that was kept: by call index, and within a call as it was written."""
        return [update for index in sorted(self._calls) for update in self._calls[index].kept]

    def __repr__(self) -> str:
        return f"<ToolStateCollector {self._calls}>"
