"""Names of tools and arguments as providers take them, out of those that others have given. Pure."""

from __future__ import annotations

import hashlib
import re

__all__ = ["NO_TOOL_NAME", "clean_name", "unique_name"]

NO_TOOL_NAME = r"[^a-zA-Z0-9_-]"
"""What no tool's name may have in it."""


def clean_name(name: str, bad: str = NO_TOOL_NAME) -> str:
    """A name of the letters and length that providers take; a long one keeps its head and gets a digest."""
    clean = re.sub(f"(?:{bad})+", "_", name)
    if clean != name:
        clean = clean.strip("_") or "_"
    if len(clean) > 64:
        clean = f"{clean[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return clean or "_"


def unique_name(name: str, taken: set[str]) -> str:
    """The name, or the first of its numbered forms that is free; it is taken then."""
    chosen, n = name, 1
    while chosen in taken:
        n += 1
        tail = f"_{n}"
        chosen = f"{name[: 64 - len(tail)]}{tail}"
    taken.add(chosen)
    return chosen
