"""Server-sent events: bytes in, events out, wherever the bytes were cut.

Rules of this file: no clock, no I/O. The wire is kept as bytes until a line is whole, so that a cut inside a
character cannot matter, and lines end only where the WHATWG standard says so (`str.splitlines` also breaks
at U+0085 and U+2028, which stand in ordinary text).
"""

from __future__ import annotations

import msgspec

__all__ = ["SseDecoder", "SseEvent"]


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: its `data` (several lines joined by a line feed) and its name."""

    data: str
    event: str = "message"


class SseDecoder:
    """Decodes one stream. What stands unfinished at its end is no event, as the standard has it.

    `id` and `retry` fields are dropped: a model's answer cannot be taken up again where it broke off.
    """

    __slots__ = ("_after_cr", "_data", "_event", "_parts", "_started")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # an unfinished line, as it came in; joined once, when its end arrives
        self._data: list[bytes] = []
        self._event = b"message"
        self._after_cr = False
        self._started = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete, in order."""
        if self._after_cr and chunk:
            # a CR ended the line at once; an LF that follows belongs to it
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        if lines:
            if self._parts:
                lines[0] = b"".join(self._parts) + lines[0]
                self._parts.clear()
            if not self._started:
                self._started = True
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        if rest:
            self._parts.append(rest)
        events: list[SseEvent] = []
        for line in lines:
            if not line:
                if self._data:  # an event without a data line is none; one with an empty data line is
                    events.append(SseEvent(_text(b"\n".join(self._data)), _text(self._event)))
                    self._data.clear()
                self._event = b"message"
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._event = value.removeprefix(b" ") or b"message"
        return events


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
