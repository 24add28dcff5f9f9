"""Standard values written and read: what becomes of each, and under which code. Pure.

The rules of this file:
- A code's meaning, and the order of what is packed under it, never changes: what is stored stays readable. A new kind
  of value gets a new code.
- `WRITERS` and the readers are a pair: what one writes, the other reads back, equal in type and value.
- Plain values go through msgspec as they stand; only what holds others is looked into, a level at a time.
"""

from __future__ import annotations

import pathlib
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec.msgpack import Ext

from agentgraph.checkpoint.refusal import RefusedError, full_name, shown
from agentgraph.strategies.messages import MessageList

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

__all__ = [
    "CAREFUL_WRITERS", "PLAIN", "RAW", "RAW_READERS", "READERS", "TYPED", "WRITERS", "Write", "Writer", "children",
    "is_zone", "pack",
]  # fmt: skip

MAX_DEPTH: Final = 100
"""How deep values may be nested: far from what either way takes of Python's stack."""

Write = Callable[["Writer", Any, int], Any]

PLAIN = frozenset[type]({types.NoneType, bool, int, float, str, bytes})

pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode

RAW: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()

(
    _TUPLE, _SET, _FROZENSET, _PAIRS, _INT, _STR, _BYTEARRAY, _COMPLEX, _DATETIME, _DATE, _TIME, _TIMEDELTA, _TIMEZONE,
    _ZONE, _DECIMAL, _UUID, _PATH, _DEQUE, _ORDERED_DICT, _DEFAULT_DICT, _COUNTER, _UNSET,
) = range(1, 23)  # fmt: skip

TYPED = 32
"""What is registered: [name, ...], and the rest as its kind wants it."""

_FIELDS = 2
"""Where the fields stand in what a class with fields is stored as: [name, print, fields, ...]."""


class Writer:
    """One way through a value. `plain` types are left to msgspec, the others have their writers.

    `why_not` says why a value of any other type cannot be stored.
    """

    __slots__ = ("plain", "why_not", "writers")

    def __init__(self, writers: dict[type, Write], plain: frozenset[type], why_not: Callable[[object], str]) -> None:
        self.writers: dict[type, Write] = writers
        self.plain: frozenset[type] = plain
        self.why_not: Callable[[object], str] = why_not

    def walk(self, value: object, depth: int) -> Any:
        """What msgpack packs in place of the value. Raises `RefusedError`."""
        cls = type(value)
        if cls in self.plain:
            return value
        write = self.writers.get(cls) or (_write_zone if is_zone(cls) else None)
        if write is None:
            raise RefusedError(self.why_not(value))
        if depth >= MAX_DEPTH:
            raise RefusedError(f"is nested deeper than {MAX_DEPTH} levels, which is as deep as is stored", deep=True)
        return write(self, value, depth + 1)

    def items(self, values: Any, depth: int, *, step: str = "[{}]") -> Any:
        """Each of these values, which stand in a list or the like."""
        if self.plain.issuperset(map(type, values)):
            return values
        done: list[Any] = []
        try:
            for value in values:
                done.append(self.walk(value, depth))  # noqa: PERF401  # its length tells where it stopped
        except RefusedError as refused:
            refused.at(step.format(len(done)), values)
            raise
        return done

    def fields(self, names: Sequence[str], values: Sequence[Any], depth: int, holder: Any) -> Sequence[Any]:
        """The values of an object's fields."""
        plain = self.plain
        if plain.issuperset(map(type, values)):
            return values
        done: list[Any] = []
        try:
            for value in values:
                done.append(value if type(value) in plain else self.walk(value, depth))  # noqa: PERF401  # as above
        except RefusedError as refused:
            refused.at(f".{names[len(done)]}", holder)
            raise
        return done

    def mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        """Keys and values: as a msgpack map where all keys are plain."""
        if not self.plain.issuperset(map(type, value)):
            return Ext(_PAIRS, pack(self._pairs(value, depth)))
        if self.plain.issuperset(map(type, value.values())):
            return value
        done: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                done[key] = self.walk(item, depth)
        except RefusedError as refused:
            refused.at(f"[{shown(key)}]", value)
            raise
        return done

    def _pairs(self, value: Mapping[Any, Any], depth: int) -> list[Any]:
        done: list[Any] = []
        key: Any = None
        try:
            for key, item in value.items():
                done.append(self.walk(key, depth))
                done.append(self.walk(item, depth))
        except RefusedError as refused:
            step = f"[{shown(key)}]" if len(done) % 2 else ".keys()"
            refused.at(step, value)
            raise
        return done


def _write_list(writer: Writer, value: list[Any], depth: int) -> Any:
    return writer.items(value, depth)


def _write_dict(writer: Writer, value: dict[Any, Any], depth: int) -> Any:
    return writer.mapping(value, depth)


def _write_tuple(writer: Writer, value: tuple[Any, ...], depth: int) -> Ext:
    return Ext(_TUPLE, pack(writer.items(value, depth)))


def _write_set(writer: Writer, value: set[Any], depth: int) -> Ext:
    return Ext(_SET, pack(list(writer.items(value, depth, step=""))))


def _write_frozenset(writer: Writer, value: frozenset[Any], depth: int) -> Ext:
    return Ext(_FROZENSET, pack(list(writer.items(value, depth, step=""))))


def _write_int(_writer: Writer, value: int, _depth: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_str(_writer: Writer, value: str, _depth: int) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(_STR, value.encode("utf-8", "surrogatepass"))
    return value


def _write_datetime(writer: Writer, value: datetime, depth: int) -> Ext:
    parts = [value.replace(tzinfo=None).isoformat(), _write_tzinfo(writer, value, depth), value.fold]
    return Ext(_DATETIME, pack(parts))


def _write_time(writer: Writer, value: time, depth: int) -> Ext:
    parts = [value.replace(tzinfo=None).isoformat(), _write_tzinfo(writer, value, depth), value.fold]
    return Ext(_TIME, pack(parts))


def _write_tzinfo(writer: Writer, value: datetime | time, depth: int) -> Any:
    zone = value.tzinfo
    if zone is None:
        return None
    if writer.writers.get(type(zone)) is not _write_timezone and not is_zone(type(zone)):
        raise RefusedError(
            f"cannot be stored: its tzinfo is a {full_name(type(zone))}; use datetime.timezone or zoneinfo.ZoneInfo"
        ).at(".tzinfo", value)
    return writer.walk(zone, depth)


def _write_zone(_writer: Writer, value: Any, _depth: int) -> Ext:
    if value.key is None:  # what from_file gives without a key
        raise RefusedError("cannot be stored: it is a ZoneInfo without a key")
    return Ext(_ZONE, value.key.encode())


def _write_timezone(_writer: Writer, value: timezone, _depth: int) -> Ext:
    offset, *name = cast("tuple[timedelta, *tuple[str, ...]]", cast("Any", value).__getinitargs__())
    return Ext(_TIMEZONE, pack([offset.days, offset.seconds, offset.microseconds, *name]))


def _write_timedelta(_writer: Writer, value: timedelta, _depth: int) -> Ext:
    return Ext(_TIMEDELTA, pack([value.days, value.seconds, value.microseconds]))


def _write_deque(writer: Writer, value: deque[Any], depth: int) -> Ext:
    return Ext(_DEQUE, pack([value.maxlen, list(writer.items(value, depth))]))


def _write_ordered(writer: Writer, value: OrderedDict[Any, Any], depth: int) -> Ext:
    return Ext(_ORDERED_DICT, pack([writer.mapping(value, depth)]))


def _write_counter(writer: Writer, value: Counter[Any], depth: int) -> Ext:
    return Ext(_COUNTER, pack([writer.mapping(dict(value), depth)]))


def _write_default(writer: Writer, value: defaultdict[Any, Any], depth: int) -> Ext:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise RefusedError(
            f"cannot be stored: it is a defaultdict of {factory!r:.80}; as its factory only {', '.join(_FACTORIES)} "
            f"can be stored"
        )
    name = None if factory is None else cast("type", factory).__name__
    return Ext(_DEFAULT_DICT, pack([name, writer.mapping(dict(value), depth)]))


_FACTORIES: dict[str, Callable[[], Any]] = {
    factory.__name__: factory for factory in (list, dict, set, int, float, str, bool, tuple, deque, Counter)
}


def _write_path(_writer: Writer, value: pathlib.PurePath, _depth: int) -> Ext:
    name = "Path" if isinstance(value, pathlib.Path) else type(value).__name__
    return Ext(_PATH, pack([name, str(value).encode("utf-8", "surrogatepass")]))


WRITERS: dict[type, Write] = {
    list: _write_list,
    MessageList: _write_list,
    dict: _write_dict,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_frozenset,
    bytearray: lambda _writer, value, _depth: Ext(_BYTEARRAY, bytes(value)),
    complex: lambda _writer, value, _depth: Ext(_COMPLEX, pack([value.real, value.imag])),
    datetime: _write_datetime,
    date: lambda _writer, value, _depth: Ext(_DATE, value.isoformat().encode()),
    time: _write_time,
    timedelta: _write_timedelta,
    timezone: _write_timezone,
    Decimal: lambda _writer, value, _depth: Ext(_DECIMAL, str(value).encode()),
    uuid.UUID: lambda _writer, value, _depth: Ext(_UUID, value.bytes),
    type(pathlib.Path()): _write_path,
    pathlib.PurePosixPath: _write_path,
    pathlib.PureWindowsPath: _write_path,
    deque: _write_deque,
    OrderedDict: _write_ordered,
    Counter: _write_counter,
    defaultdict: _write_default,
    msgspec.UnsetType: lambda _writer, _value, _depth: Ext(_UNSET, b""),
}

CAREFUL_WRITERS: dict[type, Write] = {int: _write_int, str: _write_str}
"""For plain values of which some may be none that msgpack has room or a form for."""


def _zone_info() -> type[ZoneInfo]:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # see `is_zone`

    return ZoneInfo


def is_zone(cls: type) -> bool:
    """Whether this is `zoneinfo.ZoneInfo`."""
    # by its name: loading zoneinfo would be a good part of what this module costs, and is done by whoever has one
    return cls.__name__ == "ZoneInfo" and cls.__module__ == "zoneinfo"


def _read_pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read_path(parts: list[Any]) -> pathlib.PurePath:
    return _PATHS[parts[0]](parts[1].decode("utf-8", "surrogatepass"))


_PATHS: dict[str, type[pathlib.PurePath]] = {
    "Path": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}

RAW_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda data: int.from_bytes(data, "big", signed=True),
    _STR: lambda data: data.decode("utf-8", "surrogatepass"),
    _BYTEARRAY: bytearray,
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _ZONE: lambda data: _zone_info()(data.decode()),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: uuid.UUID(bytes=data),
    _UNSET: lambda _data: msgspec.UNSET,
}

READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _PAIRS: _read_pairs,
    _COMPLEX: lambda parts: complex(*parts),
    _DATETIME: lambda parts: datetime.fromisoformat(parts[0]).replace(tzinfo=parts[1], fold=parts[2]),
    _TIME: lambda parts: time.fromisoformat(parts[0]).replace(tzinfo=parts[1], fold=parts[2]),
    _TIMEDELTA: lambda parts: timedelta(*parts),
    _TIMEZONE: lambda parts: timezone(timedelta(*parts[:3]), *parts[3:]),
    _PATH: _read_path,
    _DEQUE: lambda parts: deque(parts[1], parts[0]),
    _ORDERED_DICT: lambda parts: OrderedDict(parts[0]),
    _COUNTER: lambda parts: Counter(dict(parts[0])),
    _DEFAULT_DICT: lambda parts: defaultdict(None if parts[0] is None else _FACTORIES[parts[0]], parts[1]),
}


def children(raw: Any) -> list[tuple[str, Any]]:
    """What was read without looking into extensions: the steps to what stands in it."""
    if isinstance(raw, list):
        return [(f"[{n}]", child) for n, child in enumerate(cast("list[Any]", raw))]
    if isinstance(raw, dict):
        return [(f"[{shown(key)}]", child) for key, child in cast("dict[Any, Any]", raw).items()]
    if not isinstance(raw, Ext) or raw.code in RAW_READERS:
        return []
    try:
        inner: Any = RAW.decode(raw.data)
        if raw.code == TYPED:
            rest: list[tuple[str, Any]] = [("", child) for child in inner[1:]]
            if len(inner) > _FIELDS and isinstance(inner[_FIELDS], dict):
                rest[_FIELDS - 1 : _FIELDS] = [(f".{name}", child) for name, child in inner[_FIELDS].items()]
            return rest
        if raw.code == _PAIRS:
            keys = [".keys()" if isinstance(key, Ext) else f"[{shown(key)}]" for key in inner[::2]]
            return [*((".keys()", key) for key in inner[::2]), *zip(keys, inner[1::2], strict=True)]
        return children(inner) if raw.code in (_TUPLE, _PAIRS) else [("", child) for child in inner]
    except Exception:  # it is damaged itself
        return []
