"""Long texts cut to a length, with a note of how much is left out. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["LEAST", "shortened"]

LEAST: Final = 100
"""Characters below which no text is cut: a note takes about half of them."""


def shortened(text: str, most: int, *, head: bool = False) -> str:
    """The text, at most `most` characters long (at least `LEAST`): its beginning and its end, a note between them.

    With `head`, only its beginning.
    """
    most = max(most, LEAST)
    if len(text) <= most:
        return text
    room = most - len(_note(len(text)))
    front = room if head else room - room // 3
    back = room - front
    return text[:front] + _note(len(text) - room) + text[len(text) - back :]


def _note(left_out: int) -> str:
    return f"\n[... {left_out:,} characters left out ...]\n"
