"""Dicts that grow by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agentgraph.errors import StrategyError
from agentgraph.strategies.protocol import UNSET


class Merge:
    """Dicts: the update's keys are added or replaced, the others stay.

    With `deep=True`, dicts that stand under the same key on both sides are merged in turn.
    """

    container = dict

    def __init__(self, *, deep: bool = False) -> None:
        self.deep = deep

    def merge(self, current: Any, update: Any) -> dict[Any, Any]:
        """Return a new dict. Raises `StrategyError` for an update that is no mapping."""
        if not isinstance(update, Mapping):
            raise StrategyError(f"Merge takes a dict, found {type(update).__name__}: {update!r:.80}")
        added = cast("Mapping[Any, Any]", update)
        if current is UNSET or current is None:
            return dict(added)
        if not isinstance(current, Mapping):
            raise StrategyError(f"Merge needs a dict to merge into, found {type(current).__name__}")
        held = cast("Mapping[Any, Any]", current)
        return _deep(held, added) if self.deep else {**held, **added}

    def empty(self) -> dict[Any, Any]:
        """A merged key starts as an empty dict."""
        return {}

    def __repr__(self) -> str:
        return "Merge(deep=True)" if self.deep else "Merge()"


def _deep(current: Mapping[Any, Any], update: Mapping[Any, Any]) -> dict[Any, Any]:
    merged = dict(current)
    for key, value in update.items():
        held = merged.get(key)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[key] = _deep(cast("Mapping[Any, Any]", held), cast("Mapping[Any, Any]", value))
        else:
            merged[key] = value
    return merged
