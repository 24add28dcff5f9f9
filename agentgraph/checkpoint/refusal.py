"""What cannot be stored or read: why, and where in the value it stands. Pure.

A refusal is raised where the fault is found and goes outwards; each level that it passes adds its step. So a path is
made only where one is told, and whatever goes well pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["RefusedError", "full_name", "said", "shown"]


class RefusedError(Exception):
    """What cannot be stored or read. Each level on the way out adds its step, and with `deep` who stands there."""

    def __init__(self, why: str, *, deep: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.deep = deep
        self.steps: list[tuple[str, Any]] = []

    def at(self, step: str, holder: Any = None) -> RefusedError:
        """The same, seen from one level further out."""
        self.steps.append((step, holder))
        return self

    def told(self, where: str) -> tuple[str, str]:
        """The path, and what is to be said of it."""
        steps = [step for step, _ in reversed(self.steps)]
        if not self.deep:
            return _path(where, steps), self.why
        seen: dict[int, int] = {}
        for n, (_, holder) in enumerate(reversed(self.steps)):
            if id(holder) in seen:
                again = _path(where, steps[: seen[id(holder)]]) or "the value"
                return _path(where, steps[:n]), f"is {again} itself: a cycle, and what is stored must end"
            seen[id(holder)] = n
        return _path(where, steps), self.why


def _path(where: str, steps: Sequence[str]) -> str:
    """Where it stands, as a Python programmer would write it."""
    path = where + "".join(steps)
    if not where and steps:
        key = steps[0][2:-2] if steps[0].startswith("['") else ""  # the keys of a state are names
        path = key + path[len(steps[0]) :] if key.isidentifier() else path.removeprefix(".")
    return path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "..."


_LONGEST_PATH = 160


def full_name(cls: Any) -> str:
    """A class's name with its module."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def said(error: BaseException) -> str:
    """An error's type and text."""
    return f"{type(error).__name__}: {error}"


def shown(key: Any) -> str:
    """A key as a path names it."""
    try:
        text = repr(key)
    except Exception:
        text = f"<{type(key).__name__}>"
    return text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."


_LONGEST_KEY = 60
