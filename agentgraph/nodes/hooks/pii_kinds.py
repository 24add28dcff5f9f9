"""Where personal data stands in a text, whole or as it arrives. Pure.

The rules:
- A kind's `open` is never behind its `find`: whatever text follows, what `find` tells before `open` stays as it is.
  So a stream may let go of what stands before all kinds' `open`, and says in pieces what it would say of the whole.
- A match has only signs of its kind's alphabet, and depends on one sign before it and the run of such signs it is in.
- No built-in match holds a line break: one's own patterns are looked for line by line, and see nothing else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

__all__ = ["BUILT_IN", "Detector", "Found", "Kind", "Redaction", "find_all", "own_kind"]

Span = tuple[int, int]

Detector = Callable[[str], Iterable[Span]]
"""`(line) -> (start, end) of each find`: sync, and quick."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of personal data."""

    name: str
    find: Callable[[str, int], Iterable[Span]]
    """`(text, pos)`: where it stands, from `pos` on and in order, each apart from the others."""
    open: Callable[[str, int], int]
    """`(text, pos)`: from where on more text may change what is found; the text's length where it may not."""
    first: bool = False
    """Whether it comes before others where finds overlap."""


class Found(msgspec.Struct, frozen=True):
    """One find."""

    start: int
    end: int
    kind: str


def find_all(kinds: Sequence[Kind], text: str, pos: int = 0) -> list[Found]:
    """All finds, in order. Those that overlap are one, of the longest one's kind, or of one that comes first."""
    spans = sorted((start, -end, n) for n, kind in enumerate(kinds) for start, end in kind.find(text, pos))
    found: list[Found] = []
    chosen = (False, 0)
    for start, minus_end, n in spans:
        end, kind = -minus_end, kinds[n]
        rank = (kind.first, end - start)
        if found and start < found[-1].end:
            last = found[-1]
            found[-1] = Found(last.start, max(end, last.end), kind.name if rank > chosen else last.kind)
            chosen = max(chosen, rank)
        elif start < end:
            found.append(Found(start, end, kind.name))
            chosen = rank
    return found


class Redaction:
    """A text as it arrives, with its finds replaced: what `feed` and `end` return is what the whole would come to.

    `replace(kind, found)` makes what stands in a find's place; None: the text ends before it, `stopped` tells the kind,
    and no more comes.
    """

    __slots__ = ("_kinds", "_new", "_pos", "_replace", "_size", "_text", "stopped")

    def __init__(self, kinds: Sequence[Kind], replace: Callable[[str, str], str | None]) -> None:
        self.stopped: str | None = None
        self._kinds = kinds
        self._replace = replace
        self._text = ""
        self._pos: int = 0
        """What stands before it is told, and kept for what looks one sign back."""
        self._new: list[str] = []
        self._size = 0

    def feed(self, piece: str) -> str:
        """One more piece; returns what may be told."""
        self._new.append(piece)
        self._size += len(piece)
        # what is held is looked through anew each time: where it is long, not for each few signs
        if self.stopped or self._size * 4 < len(self._text) - 1024:
            return ""
        text = self._joined()
        return self._told(text, min(kind.open(text, self._pos) for kind in self._kinds))

    def end(self) -> str:
        """No more comes; returns the rest."""
        if self.stopped:
            return ""
        text = self._joined()
        return self._told(text, len(text))

    def whole(self, text: str) -> str:
        """A text in one piece."""
        self._text = text
        return self._told(text, len(text))

    def _joined(self) -> str:
        self._text += "".join(self._new)
        self._new.clear()
        self._size = 0
        return self._text

    def _told(self, text: str, upto: int) -> str:
        told: list[str] = []
        at = self._pos
        for found in find_all(self._kinds, text, self._pos):
            if found.end > upto:  # what it will come to is not known before its end
                upto = min(upto, found.start)
                break
            told.append(text[at : found.start])
            instead = self._replace(found.kind, text[found.start : found.end])
            if instead is None:
                self.stopped = found.kind
                return "".join(told)
            told.append(instead)
            at = found.end
        told.append(text[at:upto])
        self._text, self._pos = text[max(0, upto - 1) :], min(upto, 1)
        return "".join(told)


def _tail(alphabet: frozenset[str], first: frozenset[str] | None = None, most: int | None = None) -> Any:
    """`open` of a kind whose matches have signs of the alphabet, begin with a `first` one, and have `most` at most."""

    def beginning(text: str, pos: int) -> int:
        at = len(text)
        lowest = pos if most is None else max(pos, at - most)
        while at > lowest and text[at - 1] in alphabet:
            at -= 1
        while first is not None and at < len(text) and text[at] not in first:
            at += 1
        return at

    return beginning


_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CAPITALS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _is_word(text: str, at: int) -> bool:
    """Whether a letter, a digit or an underscore stands there."""
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")


def _matches(pattern: re.Pattern[str]) -> Callable[[str, int], Iterator[Span]]:
    def find(text: str, pos: int) -> Iterator[Span]:
        return (m.span() for m in pattern.finditer(text, pos))

    return find


# --- email ---

_LOCAL = 64
_EMAIL = re.compile(rf"[\w.%+'-]{{1,{_LOCAL}}}@(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?\.){{1,10}}[^\W\d_]{{2,63}}")


def _email_open(text: str, pos: int) -> int:
    at = len(text)
    while at > pos and (text[at - 1].isalnum() or text[at - 1] in "_.%+'-@"):
        at -= 1
    # without an @ yet, nothing of it is further away than the longest local part
    return at if text.find("@", at) >= 0 else max(at, len(text) - _LOCAL)


# --- credit card ---

_CARD_RUN = re.compile("[0-9](?:[ \xa0-]?[0-9])+")
_GROUP = re.compile("[0-9]+")
_ISSUED = re.compile("[2-6]|8[12]")
_CARD_DIGITS = range(13, 20)


def _card_find(text: str, pos: int) -> Iterator[Span]:
    for run in _CARD_RUN.finditer(text, pos):
        groups = [m.span() for m in _GROUP.finditer(text, *run.span())]
        first = 0
        while first < len(groups):
            last = _card_at(text, groups, first)
            if last is not None:
                yield groups[first][0], groups[last][1]
                first = last
            first += 1


def _card_at(text: str, groups: Sequence[Span], first: int) -> int | None:
    """The last group of the longest card number that begins with the group `first`; None: there is none."""
    found: int | None = None
    digits, sizes = "", list[int]()
    if _is_word(text, groups[first][0] - 1):
        return None
    for last in range(first, len(groups)):
        start, end = groups[last]
        sizes.append(end - start)
        if sum(sizes) >= _CARD_DIGITS.stop:
            break
        digits += text[start:end]
        if len(digits) in _CARD_DIGITS and _is_grouped(sizes) and _ISSUED.match(digits) and _luhn(digits):
            found = found if _is_word(text, end) else last
    return found


def _is_grouped(sizes: Sequence[int]) -> bool:
    """Whether card numbers are written in groups of such sizes."""
    return len(sizes) == 1 or sizes in ([4, 6, 5], [4, 6, 4]) or (set(sizes[:-1]) == {4} and 0 < sizes[-1] <= 4)


def _luhn(digits: str) -> bool:
    doubled = (int(d) * 2 for d in digits[-2::-2])
    return (sum(int(d) for d in digits[-1::-2]) + sum(d - 9 if d > 9 else d for d in doubled)) % 10 == 0


# --- IBAN ---

_IBANS: Final = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
    "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
    "YE30"
)
"""How many signs an IBAN of each country has (ISO 13616, as registered with SWIFT)."""
_IBAN_DIGITS: Final = {code[:2]: int(code[2:]) for code in _IBANS.split()}
_IBAN = re.compile(r"(?<![^\W_])[A-Z]{2}[0-9]{2}(?:[ \xa0]?[A-Z0-9]){11,29}")
_IBAN_MOST = 2 * 33 + 1


def _iban_find(text: str, pos: int) -> Iterator[Span]:
    while (match := _IBAN.search(text, pos)) is not None:
        start, pos = match.start(), match.start() + 1
        wanted = _IBAN_DIGITS.get(text[start : start + 2])
        if wanted is None:
            continue
        signs, at = "", start
        while at < match.end() and len(signs) < wanted:
            signs += text[at] if text[at] not in " \xa0" else ""
            at += 1
        if len(signs) == wanted and not _is_word(text, at):
            number = "".join(str(int(sign, 36)) for sign in signs[4:] + signs[:4])
            if int(number) % 97 == 1:
                yield start, at
                pos = at


# --- IP and MAC addresses ---

_IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9])")
_IPV6_RUN = re.compile("[0-9A-Fa-f:.]{3,}")


def _ip_find(text: str, pos: int) -> Iterator[Span]:
    found = [m.span() for m in _IPV4.finditer(text, pos) if all(int(n) < 256 for n in m.group().split("."))]
    for match in _IPV6_RUN.finditer(text, pos):
        if match.group().count(":") > 1 and (span := _ipv6_in(text, *match.span())) is not None:
            found = [other for other in found if not span[0] <= other[0] < span[1]]  # IPv4 mapped to IPv6
            found.append(span)
    yield from sorted(found)


def _ipv6_in(text: str, start: int, end: int) -> Span | None:
    """The address that such a run of signs is, but for what stands round it."""
    if _is_word(text, start - 1):  # the end of a word, as in "id:2001:db8::1"
        start = text.find(":", start, end) + 1
    elif text[start] == ":" and text[start + 1] != ":":
        start += 1
    while end > start and (text[end - 1] == "." or (text[end - 1] == ":" and text[end - 2] != ":")):
        end -= 1
    address = text[start:end]
    if _is_word(text, end) or not any(sign in _DIGITS for sign in address) or len(address) < 6:
        return None
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return None
    return start, end


_MAC = re.compile(
    r"(?<![^\W_])(?:[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5,7}|(?:-[0-9A-Fa-f]{2}){5,7})"
    r"|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})(?!\w)"
)

# --- URL ---

_URL_STOPS: Final = ' \t\r\n\v\f\xa0<>"'
_URL_BEGINS: Final = ("https://", "http://", "sftp://", "ftp://", "www.")
_URL = re.compile(rf"(?:https?://|s?ftp://|www\.)[^{_URL_STOPS}]+", re.IGNORECASE)
_URL_BEGIN = re.compile(r"https?://|s?ftp://|www\.", re.IGNORECASE)
_CLOSING: Final = ".,;:!?)]}'*_`|\\"


def _url_find(text: str, pos: int) -> Iterator[Span]:
    for match in _URL.finditer(text, pos):
        begin = _URL_BEGIN.match(match.group())
        url = match.group().rstrip(_CLOSING)
        if begin is not None and len(url) > begin.end():
            yield match.start(), match.start() + len(url)


def _url_open(text: str, pos: int) -> int:
    start = max(pos, *(text.rfind(stop, pos) + 1 for stop in _URL_STOPS))
    if (begun := _URL_BEGIN.search(text, start)) is not None:
        return begun.start()
    for at in range(max(start, len(text) - len(_URL_BEGINS[0]) + 1), len(text)):
        rest = text[at:].lower()
        if any(begin.startswith(rest) for begin in _URL_BEGINS):
            return at
    return len(text)


# --- phone ---

_PHONE = re.compile(r"(?<!\w)\+[1-9](?:[ \xa0()./-]{0,2}[0-9]){6,14}(?!\w)")

# --- US social security number ---

_SSN = re.compile(r"(?<![\w-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?!\w|-[0-9])")

BUILT_IN: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("email", _matches(_EMAIL), _email_open),
        Kind("credit_card", _card_find, _tail(_DIGITS | frozenset(" \xa0-"), _DIGITS)),
        Kind("iban", _iban_find, _tail(_DIGITS | _CAPITALS | frozenset(" \xa0"), _CAPITALS, _IBAN_MOST)),
        Kind("phone", _matches(_PHONE), _tail(_DIGITS | frozenset("+ \xa0()./-"), frozenset("+"))),
        Kind("us_ssn", _matches(_SSN), _tail(_DIGITS | frozenset("-"), _DIGITS)),
        Kind("ip", _ip_find, _tail(_HEX | frozenset(":."))),
        Kind("mac_address", _matches(_MAC), _tail(_HEX | frozenset(":.-"))),
        Kind("url", _url_find, _url_open),
    )
}


def own_kind(name: str, find: re.Pattern[str] | Detector) -> Kind:
    """A kind by a pattern or a function, which look at one line at a time."""

    def spans(line: str) -> Iterable[Span]:
        return find(line) if callable(find) else (m.span() for m in find.finditer(line))

    def in_lines(text: str, pos: int) -> Iterator[Span]:
        while pos < len(text):
            end = text.find("\n", pos)
            line = text[pos : end if end >= 0 else None]
            taken = 0
            for start, stop in sorted(spans(line.removesuffix("\r"))):
                if max(start, taken) < stop:
                    yield pos + max(start, taken), pos + min(stop, len(line))
                    taken = stop
            pos += len(line) + 1

    def last_line(text: str, pos: int) -> int:
        return max(pos, text.rfind("\n", pos) + 1)

    return Kind(name, in_lines, last_line)
