"""Values to bytes and back, for what a thread keeps. Pure.

The rules of this file:
- What comes back equals what went in, in type as in value; what cannot be kept so is refused, with its path.
- Nothing is ever built from stored bytes but standard values and registered classes. A stored name is looked up among
  the registered ones; none is imported, and nothing is pickled.
- Plain values (None, bool, int, float, str, bytes, and lists and dicts of them) are msgpack as it stands, and go
  through msgspec without Python looking at each. All others are msgpack extensions, with msgpack inside: standard
  values under codes of their own (see plain.py), those of registered classes under one (see kinds.py).
- The first byte is the version of all this. A code's or a layout's meaning never changes: what is stored stays
  readable.

Not kept: that two places held one and the same object (each gets its own), and the order of a set.
"""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.msgpack import Ext

from agentgraph.checkpoint.kinds import Fields, Kind, StoredType, kind_of, own_kinds, own_types, why_not
from agentgraph.checkpoint.layout import hints_of, unaliased
from agentgraph.checkpoint.plain import (
    CAREFUL_WRITERS,
    PLAIN,
    RAW,
    RAW_READERS,
    READERS,
    TYPED,
    WRITERS,
    Write,
    Writer,
    children,
    is_zone,
    pack,
)
from agentgraph.checkpoint.refusal import RefusedError, full_name, said
from agentgraph.errors import CodecError, ConfigError, unknown

__all__ = ["Codec", "StoredType", "types_in"]

FORMAT: Final = b"\x01"


class Codec:
    """Values to bytes and back. Safe to share between threads.

    Standard values and this library's own (messages, markers, `Send`, `Command`, interrupts) need no registering.
    `types` are the others that may be stored: enums, dataclasses, msgspec Structs, pydantic models, named tuples, and
    subclasses of str, int, float, bytes, list, tuple, dict, set and frozenset as they are; what else there is by a
    `StoredType`. A subclass of a registered class is not that class. Raises `ConfigError` for what cannot be
    registered, and for two of one name.
    """

    def __init__(self, types: Iterable[type | StoredType[Any]] = ()) -> None:
        self._kinds: dict[str, Kind] = {kind.name: kind for kind in own_kinds()}
        by_type: dict[type, Kind] = {kind.cls: kind for kind in own_kinds()}
        given: list[Any] = []
        for one in cast("Iterable[Any]", types):
            if one not in given:
                given.append(one)
        # whoever gives a StoredType means it to be used, though the class itself is given as well
        for one in sorted(given, key=lambda one: not isinstance(one, StoredType)):
            self._register(one, by_type)
        self._moved = _by_qualname(by_type.values())
        writers: dict[type, Write] = {**WRITERS, **{cls: kind.write for cls, kind in by_type.items()}}
        self._writer = Writer(writers, PLAIN, why_not)
        self._careful_writer = Writer({**writers, **CAREFUL_WRITERS}, PLAIN.difference(CAREFUL_WRITERS), why_not)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=self._read)

    def _register(self, one: Any, by_type: dict[type, Kind]) -> None:
        kind = kind_of(one)
        if kind.cls in WRITERS or is_zone(kind.cls) or kind.cls in PLAIN or kind.cls in own_types():
            if isinstance(one, StoredType):
                raise ConfigError(f"{full_name(kind.cls)} is stored without a StoredType, and takes none")
            return
        known = self._kinds.setdefault(kind.name, kind)
        if known.cls is not kind.cls or (isinstance(one, StoredType) and known is not kind):
            raise ConfigError(
                f"two types are to be stored as {kind.name!r}, {full_name(known.cls)} and {full_name(kind.cls)}; "
                f"give one of them another name: StoredType({kind.cls.__name__}, name=...)"
            )
        by_type.setdefault(kind.cls, kind)

    def encode(self, value: Any, where: str = "") -> bytes:
        """The value as bytes. Raises `CodecError` with the path, from `where` on, of what cannot be stored."""
        try:
            try:
                return FORMAT + pack(self._writer.walk(value, 0))
            except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, or an int that msgpack has no room for
                return FORMAT + pack(self._careful_writer.walk(value, 0))
        except RefusedError as refused:
            path, why = refused.told(where)
            raise CodecError(f"{path or 'the value'} {why}", path=path) from refused.__cause__
        except RecursionError as error:
            raise CodecError(f"{where or 'the value'} is nested too deep to be stored from here", path=where) from error
        except Exception as error:  # changed by another thread meanwhile, larger than 4 GB, a property that fails
            raise CodecError(f"{where or 'the value'} cannot be stored: {said(error)}", path=where) from error

    def decode(self, data: bytes, where: str = "") -> Any:
        """The value again. Raises `CodecError` with the path, from `where` on, of what cannot be read."""
        if data[:1] != FORMAT:
            found = f"format {data[0]}, and this version of agentgraph reads format {FORMAT[0]}" if data else "nothing"
            raise CodecError(f"{where or 'the value'} cannot be read: what is stored is of {found}", path=where)
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
            if code == TYPED:
                name, *state = self._decoder.decode(data)
                return self._kind(name).read(*state)
            if code in RAW_READERS:
                return RAW_READERS[code](bytes(data))
            if code in READERS:
                return READERS[code](self._decoder.decode(data))
        except (RefusedError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise RefusedError(f"cannot be read: {said(error)}") from error
        raise RefusedError(f"cannot be read: it is of kind {code}, which this version of agentgraph does not know")

    def _kind(self, name: Any) -> Kind:
        kind = self._kinds.get(name)
        if (
            kind is None and isinstance(name, str) and ":" in name
        ):  # a class that lives in another module now is still that class
            kind = self._moved.get(name.rpartition(":")[2])
        if kind is None:
            known = [kind.name for kind in self._kinds.values() if kind not in own_kinds()]
            raise RefusedError(
                f"is stored as {name!r:.200}, and no such type is registered: {unknown('type', name, known)}. "
                f"Register the class, compile(types=[...]); one of another name, by StoredType(..., name={name!r:.200})"
            )
        return kind

    def _find(self, data: bytes, error: Exception) -> RefusedError:
        """What in the bytes cannot be read, with its path: looked for only once it is known that there is something."""
        found = (
            error if isinstance(error, RefusedError) else RefusedError(f"cannot be read: it is damaged: {said(error)}")
        )
        try:
            return self._find_in(RAW.decode(data)) or found
        except Exception:  # too damaged to be looked through
            return found

    def _find_in(self, raw: Any) -> RefusedError | None:
        for step, child in children(raw):
            if found := self._find_in(child):
                return found.at(step)
        if isinstance(raw, Ext):
            try:
                self._read(raw.code, memoryview(raw.data))
            except RefusedError as refused:
                return refused
        return None


def _by_qualname(kinds: Iterable[Kind]) -> dict[str, Kind]:
    """Kinds by their class's name within its module, where only one class has it."""
    found: dict[str, list[Kind]] = {}
    for kind in kinds:
        if ":" in kind.name:
            found.setdefault(kind.cls.__qualname__, []).append(kind)
    return {name: same[0] for name, same in found.items() if len(same) == 1}


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
        elif (meant := unaliased(one)) is not one:
            left.append(meant)
        if origin is not None:
            left.append(origin)
        cls = cast("Any", one)
        if origin is not None or not inspect.isclass(cls) or cls in WRITERS or is_zone(cls) or cls in PLAIN:
            continue
        if typing.is_typeddict(cls):
            left += hints_of(cls).values()
        elif cls not in own_types():
            try:
                kind = kind_of(cls)
            except ConfigError:
                continue
            found.add(cls)
            if isinstance(kind, Fields):
                left += kind.layout.hints.values()
    return found
