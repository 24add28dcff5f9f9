"""Values to bytes and back, for what a thread keeps. Pure.

The rules of this file:
- What comes back equals what went in, in type as in value; what cannot be kept so is refused, with its path.
- Nothing is ever built from stored bytes but standard values and registered classes. A stored name is looked up among
  the registered ones; none is imported, and nothing is pickled.
- Plain values (None, bool, int, float, str, bytes, and lists and dicts of them) are msgpack as it stands, and go
  through msgspec without Python looking at each. All others are msgpack extensions (`_TUPLE` and so on), with msgpack
  inside.
- The first byte is the version of all this. A code's or a layout's meaning never changes: what is stored stays
  readable.

Not kept: that two places held one and the same object (each gets its own), and the order of a set.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import pathlib
import sys
import types
import typing
import uuid
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec.msgpack import Ext

from agentgraph import messages
from agentgraph.context import Interrupt
from agentgraph.errors import CodecError, ConfigError, listed, unknown
from agentgraph.node import Command, Send, Updates
from agentgraph.strategies.messages import MessageList

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

__all__ = ["Codec", "StoredType", "types_in"]

FORMAT: Final = b"\x01"
MAX_DEPTH: Final = 100
"""How deep values may be nested: far from what either way takes of Python's stack."""

T = TypeVar("T")


class StoredType(msgspec.Struct, Generic[T], frozen=True):
    """How values of a class are stored: under which name, and as what.

    `encode` makes of a value something that can be stored, and `decode` makes the value again of that. Without both
    the class is stored as if it had been given itself, but under `name`: for one that was renamed since.
    """

    type: type[T]
    name: str
    encode: Callable[[T], Any] | None = None
    decode: Callable[[Any], T] | None = None


class Codec:
    """Values to bytes and back. Safe to share between threads.

    Standard values and this library's own (messages, markers, `Send`, `Command`, interrupts) need no registering.
    `types` are the others that may be stored: enums, dataclasses, msgspec Structs, pydantic models, named tuples, and
    subclasses of str, int, float, bytes, list, tuple, dict, set and frozenset as they are; what else there is by a
    `StoredType`. A subclass of a registered class is not that class. Raises `ConfigError` for what cannot be
    registered, and for two of one name.
    """

    def __init__(self, types: Iterable[type | StoredType[Any]] = ()) -> None:
        self._kinds: dict[str, _Kind] = {kind.name: kind for kind in _own()}
        by_type: dict[type, _Kind] = {kind.cls: kind for kind in _own()}
        given: list[Any] = []
        for one in cast("Iterable[Any]", types):
            if one not in given:
                given.append(one)
        # whoever gives a StoredType means it to be used, though the class itself is given as well
        for one in sorted(given, key=lambda one: not isinstance(one, StoredType)):
            self._register(one, by_type)
        self._moved = _by_qualname(by_type.values())
        writers: dict[type, _Write] = {**_WRITERS, **{cls: kind.write for cls, kind in by_type.items()}}
        self._writer = _Writer(writers, _PLAIN)
        self._careful_writer = _Writer({**writers, int: _write_int, str: _write_str}, _PLAIN - {int, str})
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=self._read)

    def _register(self, one: Any, by_type: dict[type, _Kind]) -> None:
        kind = _kind_of(one)
        if kind.cls in _WRITERS or _is_zone(kind.cls) or kind.cls in _PLAIN or kind.cls in _own_types():
            if isinstance(one, StoredType):
                raise ConfigError(f"{_full(kind.cls)} is stored without a StoredType, and takes none")
            return
        known = self._kinds.setdefault(kind.name, kind)
        if known.cls is not kind.cls or (isinstance(one, StoredType) and known is not kind):
            raise ConfigError(
                f"two types are to be stored as {kind.name!r}, {_full(known.cls)} and {_full(kind.cls)}; "
                f"give one of them another name: StoredType({kind.cls.__name__}, name=...)"
            )
        by_type.setdefault(kind.cls, kind)

    def encode(self, value: Any, where: str = "") -> bytes:
        """The value as bytes. Raises `CodecError` with the path, from `where` on, of what cannot be stored."""
        try:
            try:
                return FORMAT + _pack(self._writer.walk(value, 0))
            except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, or an int that msgpack has no room for
                return FORMAT + _pack(self._careful_writer.walk(value, 0))
        except _RefusedError as refused:
            path, why = refused.told(where)
            raise CodecError(f"{path or 'the value'} {why}", path=path) from refused.__cause__
        except RecursionError as error:
            raise CodecError(f"{where or 'the value'} is nested too deep to be stored from here", path=where) from error
        except Exception as error:  # changed by another thread meanwhile, larger than 4 GB, a property that fails
            raise CodecError(f"{where or 'the value'} cannot be stored: {_said(error)}", path=where) from error

    def decode(self, data: bytes, where: str = "") -> Any:
        """The value again. Raises `CodecError` with the path, from `where` on, of what cannot be read."""
        if data[:1] != FORMAT:
            said = f"format {data[0]}, and this version of agentgraph reads format {FORMAT[0]}" if data else "nothing"
            raise CodecError(f"{where or 'the value'} cannot be read: what is stored is of {said}", path=where)
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (RecursionError, MemoryError) as error:
            raise CodecError(
                f"{where or 'the value'} cannot be read: it is damaged, or nested too deep", path=where
            ) from error
        except Exception as error:  # by whatever a caller's own decode raises
            path, why = self._find(data[1:], error).told(where)
            raise CodecError(f"{path or 'the value'} {why}", path=path) from error

    def _read(self, code: int, data: memoryview) -> Any:
        try:
            if code == _TYPED:
                name, *state = self._decoder.decode(data)
                return self._kind(name).read(*state)
            if code in _RAW_READERS:
                return _RAW_READERS[code](bytes(data))
            if code in _READERS:
                return _READERS[code](self._decoder.decode(data))
        except (_RefusedError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise _RefusedError(f"cannot be read: {_said(error)}") from error
        raise _RefusedError(f"cannot be read: it is of kind {code}, which this version of agentgraph does not know")

    def _kind(self, name: Any) -> _Kind:
        kind = self._kinds.get(name)
        if (
            kind is None and isinstance(name, str) and ":" in name
        ):  # a class that lives in another module now is still that class
            kind = self._moved.get(name.rpartition(":")[2])
        if kind is None:
            known = [kind.name for kind in self._kinds.values() if kind not in _own()]
            raise _RefusedError(
                f"is stored as {name!r:.200}, and no such type is registered: {unknown('type', name, known)}. "
                f"Register the class, compile(types=[...]); one of another name, by StoredType(..., name={name!r:.200})"
            )
        return kind

    def _find(self, data: bytes, error: Exception) -> _RefusedError:
        """What in the bytes cannot be read, with its path: looked for only once it is known that there is something."""
        found = (
            error
            if isinstance(error, _RefusedError)
            else _RefusedError(f"cannot be read: it is damaged: {_said(error)}")
        )
        try:
            return self._find_in(_RAW.decode(data)) or found
        except Exception:  # too damaged to be looked through
            return found

    def _find_in(self, raw: Any) -> _RefusedError | None:
        for step, child in _children(raw):
            if found := self._find_in(child):
                return found.at(step)
        if isinstance(raw, Ext):
            try:
                self._read(raw.code, memoryview(raw.data))
            except _RefusedError as refused:
                return refused
        return None


def types_in(annotation: Any) -> set[type]:
    """The classes that an annotation names, and their fields' annotations in turn, as far as they can be registered."""
    found: set[type] = set()
    seen: dict[int, Any] = {}  # some annotations cannot be hashed
    left: list[Any] = [annotation]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        origin, args = typing.get_origin(one), typing.get_args(one)
        left += args[:1] if origin is typing.Annotated else args
        if isinstance(one, (list, tuple)):  # a Callable's arguments
            left += cast("Sequence[Any]", one)
        elif isinstance(one, enum.Enum):  # of a Literal
            left.append(type(one))
        elif isinstance(one, TypeVar):
            left += (one.__bound__, *one.__constraints__)
        elif (meant := _unaliased(one)) is not one:
            left.append(meant)
        if origin is not None:
            left.append(origin)
        cls = cast("Any", one)
        if origin is not None or not inspect.isclass(cls) or cls in _WRITERS or _is_zone(cls) or cls in _PLAIN:
            continue
        if typing.is_typeddict(cls):
            left += _hints(cls).values()
        elif cls not in _own_types():
            try:
                kind = _kind_of(cls)
            except ConfigError:
                continue
            found.add(cls)
            if isinstance(kind, _Fields):
                left += kind.layout.hints.values()
    return found


class _RefusedError(Exception):
    """What cannot be stored or read. Each level on the way out adds its step, and with `deep` who stands there."""

    def __init__(self, why: str, *, deep: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.deep = deep
        self.steps: list[tuple[str, Any]] = []

    def at(self, step: str, holder: Any = None) -> _RefusedError:
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


# --- writing: values to what msgspec packs as it stands

_Write = Callable[["_Writer", Any, int], Any]
_PLAIN = frozenset[type]({types.NoneType, bool, int, float, str, bytes})
_pack = msgspec.msgpack.Encoder().encode
_RAW: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()

(
    _TUPLE, _SET, _FROZENSET, _PAIRS, _INT, _STR, _BYTEARRAY, _COMPLEX, _DATETIME, _DATE, _TIME, _TIMEDELTA, _TIMEZONE,
    _ZONE, _DECIMAL, _UUID, _PATH, _DEQUE, _ORDERED_DICT, _DEFAULT_DICT, _COUNTER, _UNSET,
) = range(1, 23)  # fmt: skip
_TYPED = 32
"""What is registered: [name, ...], and the rest as its kind wants it."""


class _Writer:
    """One way through a value. `plain` types are left to msgspec, the others have their writers."""

    __slots__ = ("plain", "writers")

    def __init__(self, writers: dict[type, _Write], plain: frozenset[type]) -> None:
        self.writers = writers
        self.plain = plain

    def walk(self, value: object, depth: int) -> Any:
        cls = type(value)
        if cls in self.plain:
            return value
        write = self.writers.get(cls) or (_write_zone if _is_zone(cls) else None)
        if write is None:
            raise _RefusedError(_why_not(value))
        if depth >= MAX_DEPTH:
            raise _RefusedError(f"is nested deeper than {MAX_DEPTH} levels, which is as deep as is stored", deep=True)
        return write(self, value, depth + 1)

    def items(self, values: Any, depth: int, *, step: str = "[{}]") -> Any:
        if self.plain.issuperset(map(type, values)):
            return values
        done: list[Any] = []
        try:
            for value in values:
                done.append(self.walk(value, depth))  # noqa: PERF401  # its length tells where it stopped
        except _RefusedError as refused:
            refused.at(step.format(len(done)), values)
            raise
        return done

    def fields(self, names: Sequence[str], values: Sequence[Any], depth: int, holder: Any) -> Sequence[Any]:
        plain = self.plain
        if plain.issuperset(map(type, values)):
            return values
        done: list[Any] = []
        try:
            for value in values:
                done.append(value if type(value) in plain else self.walk(value, depth))  # noqa: PERF401  # as above
        except _RefusedError as refused:
            refused.at(f".{names[len(done)]}", holder)
            raise
        return done

    def mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        if not self.plain.issuperset(map(type, value)):
            return Ext(_PAIRS, _pack(self._pairs(value, depth)))
        if self.plain.issuperset(map(type, value.values())):
            return value
        done: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                done[key] = self.walk(item, depth)
        except _RefusedError as refused:
            refused.at(f"[{_shown(key)}]", value)
            raise
        return done

    def _pairs(self, value: Mapping[Any, Any], depth: int) -> list[Any]:
        done: list[Any] = []
        key: Any = None
        try:
            for key, item in value.items():
                done.append(self.walk(key, depth))
                done.append(self.walk(item, depth))
        except _RefusedError as refused:
            step = f"[{_shown(key)}]" if len(done) % 2 else ".keys()"
            refused.at(step, value)
            raise
        return done


def _write_list(writer: _Writer, value: list[Any], depth: int) -> Any:
    return writer.items(value, depth)


def _write_dict(writer: _Writer, value: dict[Any, Any], depth: int) -> Any:
    return writer.mapping(value, depth)


def _write_tuple(writer: _Writer, value: tuple[Any, ...], depth: int) -> Ext:
    return Ext(_TUPLE, _pack(writer.items(value, depth)))


def _write_set(writer: _Writer, value: set[Any], depth: int) -> Ext:
    return Ext(_SET, _pack(list(writer.items(value, depth, step=""))))


def _write_frozenset(writer: _Writer, value: frozenset[Any], depth: int) -> Ext:
    return Ext(_FROZENSET, _pack(list(writer.items(value, depth, step=""))))


def _write_int(_writer: _Writer, value: int, _depth: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_str(_writer: _Writer, value: str, _depth: int) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(_STR, value.encode("utf-8", "surrogatepass"))
    return value


def _write_datetime(writer: _Writer, value: datetime, depth: int) -> Ext:
    parts = [value.replace(tzinfo=None).isoformat(), _write_tzinfo(writer, value, depth), value.fold]
    return Ext(_DATETIME, _pack(parts))


def _write_time(writer: _Writer, value: time, depth: int) -> Ext:
    parts = [value.replace(tzinfo=None).isoformat(), _write_tzinfo(writer, value, depth), value.fold]
    return Ext(_TIME, _pack(parts))


def _write_tzinfo(writer: _Writer, value: datetime | time, depth: int) -> Any:
    zone = value.tzinfo
    if zone is None:
        return None
    if writer.writers.get(type(zone)) is not _write_timezone and not _is_zone(type(zone)):
        raise _RefusedError(
            f"cannot be stored: its tzinfo is a {_full(type(zone))}; use datetime.timezone or zoneinfo.ZoneInfo"
        ).at(".tzinfo", value)
    return writer.walk(zone, depth)


def _write_zone(_writer: _Writer, value: Any, _depth: int) -> Ext:
    if value.key is None:  # what from_file gives without a key
        raise _RefusedError("cannot be stored: it is a ZoneInfo without a key")
    return Ext(_ZONE, value.key.encode())


def _write_timezone(_writer: _Writer, value: timezone, _depth: int) -> Ext:
    offset, *name = cast("tuple[timedelta, *tuple[str, ...]]", cast("Any", value).__getinitargs__())
    return Ext(_TIMEZONE, _pack([offset.days, offset.seconds, offset.microseconds, *name]))


def _write_timedelta(_writer: _Writer, value: timedelta, _depth: int) -> Ext:
    return Ext(_TIMEDELTA, _pack([value.days, value.seconds, value.microseconds]))


def _write_deque(writer: _Writer, value: deque[Any], depth: int) -> Ext:
    return Ext(_DEQUE, _pack([value.maxlen, list(writer.items(value, depth))]))


def _write_ordered(writer: _Writer, value: OrderedDict[Any, Any], depth: int) -> Ext:
    return Ext(_ORDERED_DICT, _pack([writer.mapping(value, depth)]))


def _write_counter(writer: _Writer, value: Counter[Any], depth: int) -> Ext:
    return Ext(_COUNTER, _pack([writer.mapping(dict(value), depth)]))


def _write_default(writer: _Writer, value: defaultdict[Any, Any], depth: int) -> Ext:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise _RefusedError(
            f"cannot be stored: it is a defaultdict of {factory!r:.80}; as its factory only {', '.join(_FACTORIES)} "
            f"can be stored"
        )
    name = None if factory is None else cast("type", factory).__name__
    return Ext(_DEFAULT_DICT, _pack([name, writer.mapping(dict(value), depth)]))


_FACTORIES: dict[str, Callable[[], Any]] = {
    factory.__name__: factory for factory in (list, dict, set, int, float, str, bool, tuple, deque, Counter)
}


def _write_path(_writer: _Writer, value: pathlib.PurePath, _depth: int) -> Ext:
    name = "Path" if isinstance(value, pathlib.Path) else type(value).__name__
    return Ext(_PATH, _pack([name, str(value).encode("utf-8", "surrogatepass")]))


_WRITERS: dict[type, _Write] = {
    list: _write_list,
    MessageList: _write_list,
    dict: _write_dict,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_frozenset,
    bytearray: lambda _writer, value, _depth: Ext(_BYTEARRAY, bytes(value)),
    complex: lambda _writer, value, _depth: Ext(_COMPLEX, _pack([value.real, value.imag])),
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


def _zone_info() -> type[ZoneInfo]:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # see `_is_zone`

    return ZoneInfo


def _is_zone(cls: type) -> bool:
    # by its name: loading zoneinfo would be a good part of what this module costs, and is done by whoever has one
    return cls.__name__ == "ZoneInfo" and cls.__module__ == "zoneinfo"


# --- reading


def _read_pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read_path(parts: list[Any]) -> pathlib.PurePath:
    return _PATHS[parts[0]](parts[1].decode("utf-8", "surrogatepass"))


_PATHS: dict[str, type[pathlib.PurePath]] = {
    "Path": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}

_RAW_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda data: int.from_bytes(data, "big", signed=True),
    _STR: lambda data: data.decode("utf-8", "surrogatepass"),
    _BYTEARRAY: bytearray,
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _ZONE: lambda data: _zone_info()(data.decode()),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: uuid.UUID(bytes=data),
    _UNSET: lambda _data: msgspec.UNSET,
}
_READERS: dict[int, Callable[[Any], Any]] = {
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


def _children(raw: Any) -> list[tuple[str, Any]]:
    """What was read without looking into extensions: the steps to what stands in it."""
    if isinstance(raw, list):
        return [(f"[{n}]", child) for n, child in enumerate(cast("list[Any]", raw))]
    if isinstance(raw, dict):
        return [(f"[{_shown(key)}]", child) for key, child in cast("dict[Any, Any]", raw).items()]
    if not isinstance(raw, Ext) or raw.code in _RAW_READERS:
        return []
    try:
        inner: Any = _RAW.decode(raw.data)
        if raw.code == _TYPED:
            rest: list[tuple[str, Any]] = [("", child) for child in inner[1:]]
            if len(inner) > _FIELDS and isinstance(inner[_FIELDS], dict):
                rest[_FIELDS - 1 : _FIELDS] = [(f".{name}", child) for name, child in inner[_FIELDS].items()]
            return rest
        if raw.code == _PAIRS:
            keys = [".keys()" if isinstance(key, Ext) else f"[{_shown(key)}]" for key in inner[::2]]
            return [*((".keys()", key) for key in inner[::2]), *zip(keys, inner[1::2], strict=True)]
        return _children(inner) if raw.code in (_TUPLE, _PAIRS) else [("", child) for child in inner]
    except Exception:  # it is damaged itself
        return []


_FIELDS = 2
"""Where the fields stand in what a class with fields is stored as: [name, print, fields, ...]."""


# --- what is registered


class _Kind:
    """How values of one registered class are stored."""

    __slots__ = ("cls", "name")

    def __init__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.name = name

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        raise NotImplementedError

    def read(self, *state: Any) -> Any:
        raise NotImplementedError


class _Enum(_Kind):
    """A member by its name; of a flag, whose values may be joined, the value."""

    __slots__ = ()

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        if isinstance(value, enum.Flag):
            return Ext(_TYPED, _pack([self.name, writer.walk(value.value, depth)]))
        if cast("Any", self.cls).__members__.get(value.name) is not value:
            raise _RefusedError(f"cannot be stored: {value!r:.80} is none of the members of {_full(self.cls)}")
        return Ext(_TYPED, _pack([self.name, value.name]))

    def read(self, *state: Any) -> Any:
        (said,) = state
        cls: Any = self.cls
        if issubclass(cls, enum.Flag):
            flag = cls(said)
            if type(flag) is cls and flag.value == said:
                return flag
        elif said in cls.__members__:
            return cls.__members__[said]
        raise _RefusedError(f"is stored as {said!r:.80} of {_full(cls)}, which has {listed(cls.__members__)}")


class _Based(_Kind):
    """A subclass of a builtin type that keeps nothing besides: the builtin value."""

    __slots__ = ("extras", "make", "plain")

    def __init__(self, cls: type, name: str, base: type) -> None:
        super().__init__(cls, name)
        self.plain, self.make = _BASES[base]
        self.extras = _Extras(cls, ())

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        self.extras.check(value)
        return Ext(_TYPED, _pack([self.name, writer.walk(self.plain(value), depth)]))

    def read(self, *state: Any) -> Any:
        return self.make(self.cls, *state)


def _fill(base: Any, fill: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def make(cls: Any, content: Any) -> Any:
        made = base.__new__(cls)
        fill(made, content)
        return made

    return make


# past whatever the subclass does in its own methods: the content itself is wanted, and nothing is to run
_BASES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    str: (str.__str__, str.__new__),
    int: (int.__int__, int.__new__),
    float: (float.__float__, float.__new__),
    bytes: (lambda value: b"".join([value]), bytes.__new__),
    tuple: (lambda value: tuple[Any, ...].__getitem__(value, slice(None)), tuple[Any, ...].__new__),
    frozenset: (lambda value: frozenset[Any]().union(value), frozenset[Any].__new__),
    list: (lambda value: list[Any].__getitem__(value, slice(None)), _fill(list, list[Any].extend)),
    dict: (dict[Any, Any].copy, _fill(dict, dict[Any, Any].update)),
    set: (lambda value: set[Any]().union(value), _fill(set, set[Any].update)),
}


class _Custom(_Kind):
    """A `StoredType` with its own encode and decode."""

    __slots__ = ("decode", "encode")

    def __init__(self, stored: StoredType[Any]) -> None:
        super().__init__(stored.type, stored.name)
        self.encode = cast("Callable[[Any], Any]", stored.encode)
        self.decode = cast("Callable[[Any], Any]", stored.decode)

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        try:
            state = self.encode(value)
        except Exception as error:
            raise _RefusedError(
                f"cannot be stored: the encode of StoredType {self.name!r} raised {_said(error)}"
            ) from error
        try:
            return Ext(_TYPED, _pack([self.name, writer.walk(state, depth)]))
        except _RefusedError as refused:
            refused.at("", value)
            raise

    def read(self, *state: Any) -> Any:
        (said,) = state
        try:
            value = self.decode(said)
        except Exception as error:
            raise _RefusedError(
                f"cannot be read: the decode of StoredType {self.name!r} raised {_said(error)}"
            ) from error
        if not isinstance(value, self.cls):
            raise _RefusedError(
                f"cannot be read: the decode of StoredType {self.name!r} gave a {_full(type(value))}, "
                f"which is no {_full(self.cls)}"
            )
        return value


_NO_SLOTS = {
    "__dict__", "__weakref__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__",
}  # fmt: skip


class _Extras:
    """What an object keeps besides its fields, and would silently lose."""

    __slots__ = ("cls", "loose", "names")

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        self.cls = cls
        self.names = frozenset(names)
        self.loose: bool = cls.__dictoffset__ != 0
        for base in cls.__mro__:
            slots: Any = base.__dict__.get("__slots__", ())
            hidden = {slots} if isinstance(slots, str) else set(cast("Iterable[str]", slots))
            if hidden := hidden - self.names - _NO_SLOTS:
                raise ConfigError(
                    f"{_full(cls)} cannot be stored: it keeps {listed(sorted(hidden))} in slots that are no fields; "
                    f"give a StoredType for it"
                )

    def check(self, value: Any) -> None:
        if not self.loose or value.__dict__.keys() <= self.names:
            return
        for name in value.__dict__.keys() - self.names:
            kept = inspect.getattr_static(self.cls, name, None)
            if not (name.startswith("__") or isinstance(kept, functools.cached_property)):  # __orig_class__ of typing
                raise _RefusedError(
                    f"cannot be stored: it is no field of {_full(self.cls)}; make it one, or give a StoredType"
                ).at(f".{name}", value)


class _Layout:
    """A class's fields: names, types, and what stands for one that was not stored.

    `print` changes when they do. What was stored under another print is held against the types before it is used; under
    the same it is used as it was, even where a value had not been what its annotation says.
    """

    __slots__ = ("cls", "defaults", "hints", "names", "print")

    def __init__(self, cls: type, hints: dict[str, Any], defaults: dict[str, Callable[[], Any]]) -> None:
        self.cls = cls
        self.hints = hints
        self.defaults = defaults
        self.names = frozenset(hints)
        self.print: int = zlib.crc32(repr(sorted((name, str(hint)) for name, hint in hints.items())).encode())

    def refit(self, fields: Any) -> dict[str, Any]:
        """Stored fields as this class has them. Raises `_RefusedError` where they no longer fit."""
        if not isinstance(fields, dict):
            raise _RefusedError(f"cannot be read: it is damaged: no fields of {_full(self.cls)}")
        fitted = cast("dict[str, Any]", fields)
        if gone := [name for name in fitted if name not in self.names]:
            raise _RefusedError(
                f"was stored with {listed(gone)}, and {_full(self.cls)} has no such field any more; "
                f"keep the field, or give a StoredType that knows the old form"
            )
        made: dict[str, Any] = {}
        for name, hint in self.hints.items():
            if name in fitted:
                made[name] = fitted[name]
                if not _fits(made[name], hint):
                    raise _RefusedError(
                        f"was stored as {_full(type(made[name]))}, and {_full(self.cls)} wants {_hint_name(hint)}; "
                        f"give a StoredType that knows the old form"
                    ).at(f".{name}", self)
            elif name in self.defaults:
                made[name] = self.defaults[name]()
            else:
                raise _RefusedError(
                    f"was stored without {name!r}, which {_full(self.cls)} has no default for; give it one, "
                    f"or a StoredType that knows the old form"
                )
        return made


class _Fields(_Kind):
    """A class with fields: msgspec Struct, dataclass, named tuple."""

    __slots__ = ("extras", "layout", "make", "names", "omitted", "values")

    def __init__(
        self,
        cls: type,
        name: str,
        layout: _Layout,
        make: Callable[[dict[str, Any]], Any],
        *,
        values: Callable[[Any], Sequence[Any]] | None = None,
        omitted: Sequence[Any] = (),
    ) -> None:
        super().__init__(cls, name)
        self.layout = layout
        self.names = tuple(layout.hints)
        self.values: Callable[[Any], Sequence[Any]] = values or _getter(self.names)
        self.make = make
        self.omitted = omitted
        self.extras = _Extras(cls, self.names)

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        try:
            values = self.values(value)
        except AttributeError as error:
            raise _RefusedError(f"cannot be stored: a field of it has no value: {_said(error)}") from error
        if self.extras.loose:
            self.extras.check(value)
        values = writer.fields(self.names, values, depth, value)
        fields = (
            {
                n: v
                for n, v, d in zip(self.names, values, self.omitted, strict=True)
                if not (v is d or (type(v) is d and not v))
            }
            if self.omitted
            else dict(zip(self.names, values, strict=True))
        )
        return Ext(_TYPED, _pack([self.name, self.layout.print, fields]))

    def read(self, *state: Any) -> Any:
        stored, fields = state
        if stored != self.layout.print or (not self.omitted and fields.keys() != self.layout.names):
            fields = self.layout.refit(fields)
        return self.make(fields)


class _Pydantic(_Fields):
    """A pydantic model: its fields, and what else it keeps."""

    __slots__ = ()

    def write(self, writer: _Writer, value: Any, depth: int) -> Ext:
        state: dict[str, Any] = _pydantic().__getstate__(value)
        kept: dict[str, Any] = state["__dict__"]
        if missing := [name for name in self.names if name not in kept]:
            raise _RefusedError(f"cannot be stored: a field of it has no value: {listed(missing)}")
        self.extras.check(value)
        values = writer.fields(self.names, [kept[name] for name in self.names], depth, value)
        rest: list[Any] = []
        for name in ("__pydantic_extra__", "__pydantic_private__"):
            more: dict[str, Any] = state[name] or {}
            written = writer.fields(tuple(more), tuple(more.values()), depth, value)
            rest.append(dict(zip(more, written, strict=True)))
        fields = dict(zip(self.names, values, strict=True))
        given = sorted(state["__pydantic_fields_set__"])
        return Ext(_TYPED, _pack([self.name, self.layout.print, fields, given, *rest]))

    def read(self, *state: Any) -> Any:
        stored, fields, given, extra, private = state
        cls: Any = self.cls
        if (type(given), type(extra), type(private)) != (list, dict, dict):
            raise _RefusedError(f"cannot be read: it is damaged: nothing that {_full(cls)} could be made of")
        if stored != self.layout.print or fields.keys() != self.layout.names:
            fields = self.layout.refit(fields)
            private = {n: a.get_default() for n, a in cls.__private_attributes__.items() if n not in private} | private
        made = object.__new__(cls)
        allowed = cls.model_config.get("extra") == "allow"
        if extra and not allowed:
            raise _RefusedError(f"was stored with {listed(extra)}, and {_full(cls)} allows no extra fields any more")
        _pydantic().__setstate__(
            made,
            {
                "__dict__": fields,
                "__pydantic_fields_set__": set(given),
                "__pydantic_extra__": extra if allowed else None,
                "__pydantic_private__": private if cls.__private_attributes__ else None,
            },
        )
        return made


def _pydantic() -> Any:
    return getattr(sys.modules.get("pydantic"), "BaseModel", None)


def _getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _kind_of(one: Any) -> _Kind:
    """How a class is stored. Raises `ConfigError` where it cannot be."""
    if isinstance(one, StoredType):
        stored = cast("StoredType[Any]", one)
        _check_stored(stored)
        if stored.encode is not None:
            return _Custom(stored)
        cls, name = stored.type, stored.name
    else:
        cls, name = one, f"{getattr(one, '__module__', '')}:{getattr(one, '__qualname__', '')}"
    if not inspect.isclass(cls):
        raise ConfigError(f"types takes classes and StoredType, found {cls!r:.200}")
    if cls in _PLAIN or cls in _WRITERS or _is_zone(cls):
        return _Kind(cls, name)
    made = _made_of(cls, name)
    if made is None:
        raise ConfigError(
            f"{_full(cls)} cannot be stored as it is: it is no enum, dataclass, Struct, pydantic model, named tuple "
            f"nor subclass of a plain type; give its own encoder: StoredType({cls.__name__}, name, encode, decode)"
        )
    return made


def _check_stored(stored: StoredType[Any]) -> None:
    if not inspect.isclass(stored.type):
        raise ConfigError(f"StoredType takes a class, found {stored.type!r:.200}")
    if not isinstance(stored.name, str) or not stored.name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"StoredType({stored.type.__name__}) needs a name, found {stored.name!r:.200}")
    if (stored.encode is None) != (stored.decode is None):
        raise ConfigError(f"StoredType {stored.name!r} has one of encode and decode; it takes both, or neither")


def _made_of(cls: Any, name: str) -> _Kind | None:
    if issubclass(cls, enum.Enum):
        return _Enum(cls, name)
    if issubclass(cls, msgspec.Struct):
        return None if cls is msgspec.Struct else _struct(cls, name)
    model = _pydantic()
    if model is not None and issubclass(cls, model):
        return None if cls is model else _pydantic_model(cls, name)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls, name)
    base: Any = next((base for base in _BASES if base in cls.__mro__), None)
    if base is None:
        return None
    try:
        base.__new__(cls)
    except TypeError:  # it is made of more than the builtin
        return None
    return _namedtuple(cls, name) if base is tuple and hasattr(cls, "_fields") else _Based(cls, name, base)


def _struct(cls: type[msgspec.Struct], name: str) -> _Kind:
    infos = msgspec.structs.fields(cls)
    hints = _hints(cls)
    defaults: dict[str, Callable[[], Any]] = {}
    omitted: list[Any] = []
    for info in infos:
        default: Any = _NOTHING
        if info.default is not msgspec.NODEFAULT:
            defaults[info.name], default = _constant(info.default), info.default
        elif info.default_factory is not msgspec.NODEFAULT:
            defaults[info.name] = factory = cast("Callable[[], Any]", info.default_factory)
            default = factory if factory in (list, dict, set) else _NOTHING
        omitted.append(default)
    layout = _Layout(cls, {info.name: hints.get(info.name, Any) for info in infos}, defaults)

    def make_again(fields: dict[str, Any]) -> Any:
        made = cls(**fields)
        for field, value in fields.items():
            msgspec.structs.force_setattr(made, field, value)  # as they were, whatever __post_init__ has made of them
        return made

    make: Callable[[dict[str, Any]], Any] = make_again if hasattr(cls, "__post_init__") else lambda f: cls(**f)
    omits = cls.__struct_config__.omit_defaults and not hasattr(cls, "__post_init__")
    return _Fields(cls, name, layout, make, omitted=omitted if omits else ())


_NOTHING = object()


def _dataclass(cls: Any, name: str) -> _Kind | None:
    try:
        object.__new__(cls)
    except TypeError:  # it has a builtin type's content besides, or is abstract
        return None
    hints = _hints(cls)
    defaults: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _constant(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory
    layout = _Layout(cls, {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}, defaults)

    def make(fields: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        for field, value in fields.items():
            object.__setattr__(made, field, value)  # past `frozen`; no __init__ runs on what is only put back
        return made

    return _Fields(cls, name, layout, make)


def _namedtuple(cls: Any, name: str) -> _Kind:
    hints = _hints(cls)
    defaults = {field: _constant(value) for field, value in cls._field_defaults.items()}
    layout = _Layout(cls, {field: hints.get(field, Any) for field in cls._fields}, defaults)
    names: tuple[str, ...] = cls._fields
    plain, make = _BASES[tuple]
    return _Fields(cls, name, layout, lambda fields: make(cls, [fields[field] for field in names]), values=plain)


def _pydantic_model(cls: Any, name: str) -> _Kind:
    hints: dict[str, Any] = {}
    defaults: dict[str, Callable[[], Any]] = {}
    for field, info in cls.model_fields.items():
        hints[field] = info.annotation
        if not info.is_required():
            defaults[field] = functools.partial(info.get_default, call_default_factory=True, validated_data={})
    return _Pydantic(cls, name, _Layout(cls, hints, defaults), cls)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _hints(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # a name that only type checkers know
        return {}


def _unaliased(hint: Any) -> Any:
    if type(hint).__name__ == "TypeAliasType":  # of typing from Python 3.12, or of typing_extensions
        return hint.__value__
    return hint.__supertype__ if isinstance(hint, typing.NewType) else hint


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as that can be told; never wrongly no."""
    hint = _unaliased(hint)
    if hint is None or hint is types.NoneType:
        return value is None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is typing.Annotated:
        return _fits(value, args[0])
    cls = origin or hint
    if not inspect.isclass(cls):
        return True
    if typing.is_typeddict(cls):
        return isinstance(value, dict)
    if cls is float or cls is complex:
        return isinstance(value, (cls, int, float))
    try:
        if not isinstance(value, cls):
            return False
    except TypeError:  # a Protocol that cannot be asked
        return True
    if isinstance(value, tuple) and args and args[-1] is not Ellipsis:
        held = cast("tuple[Any, ...]", value)
        return type(held) is not tuple or (len(held) == len(args) and all(map(_fits, held, args)))
    if isinstance(value, dict) and len(args) == 2:
        items = cast("dict[Any, Any]", value).items()
        return all(_fits(key, args[0]) and _fits(item, args[1]) for key, item in items)
    if isinstance(value, (list, tuple, set, frozenset, deque)) and args:
        return all(_fits(item, args[0]) for item in cast("Iterable[Any]", value))
    return True


@functools.cache
def _own() -> tuple[_Kind, ...]:
    """This library's own classes, under their bare names."""
    classes: list[type] = [
        messages.SystemMessage,
        messages.UserMessage,
        messages.InstructionMessage,
        messages.AssistantMessage,
        messages.ToolResponseMessage,
        messages.TextPart,
        messages.ImagePart,
        messages.FilePart,
        messages.ReasoningPart,
        messages.ToolCall,
        messages.ToolResponse,
        messages.Usage,
        messages.RemoveMessage,
        messages.RemoveByHash,
        messages.RemoveAll,
        messages.RewriteMessages,
        Send,
        Command,
        Updates,
        Interrupt,
    ]
    return tuple(cast("_Kind", _made_of(cls, cls.__name__)) for cls in classes)


@functools.cache
def _own_types() -> frozenset[type]:
    return frozenset(kind.cls for kind in _own())


def _by_qualname(kinds: Iterable[_Kind]) -> dict[str, _Kind]:
    """Kinds by their class's name within its module, where only one class has it."""
    found: dict[str, list[_Kind]] = {}
    for kind in kinds:
        if ":" in kind.name:
            found.setdefault(kind.cls.__qualname__, []).append(kind)
    return {name: same[0] for name, same in found.items() if len(same) == 1}


# --- words


def _full(cls: Any) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _hint_name(hint: Any) -> str:
    return _full(hint) if inspect.isclass(hint) and not typing.get_args(hint) else str(hint)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _shown(key: Any) -> str:
    try:
        shown = repr(key)
    except Exception:
        shown = f"<{type(key).__name__}>"
    return shown if len(shown) <= _LONGEST_KEY else shown[:_LONGEST_KEY] + "..."


_LONGEST_KEY = 60


def _why_not(value: object) -> str:
    cls = type(value)
    if inspect.isclass(value):
        return f"cannot be stored: it is the class {_full(value)} itself"
    try:
        made: _Kind | None = _made_of(cls, "")
    except ConfigError:
        made = None
    if made is None and cls.__module__ == "builtins":  # a function, a module, a generator
        return f"cannot be stored: it is a {_full(cls)}; keep it out of what is stored"
    own = f"StoredType({cls.__name__}, {cls.__name__!r}, encode, decode)"
    remedy = f"compile(types=[{own if made is None else cls.__name__}])"
    return f"cannot be stored: it is a {_full(cls)}, and that is not registered; register it by {remedy}"
