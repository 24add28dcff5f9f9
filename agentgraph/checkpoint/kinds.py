"""How values of a registered class are stored: one kind for each sort of class. Pure.

The rules of this file:
- A kind writes a class's name and a state of standard values; what it reads, it makes of those alone. No `__init__`
  and no method of the class runs on what is only put back, but a Struct's and a `StoredType`'s own decode.
- What an object keeps besides its fields is refused, never lost in silence.
- Stored under other fields than the class has now, a value is held against the types, or refused (`Layout.refit`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec.msgpack import Ext

from agentgraph import messages
from agentgraph.checkpoint.layout import Extras, Layout, hints_of
from agentgraph.checkpoint.plain import PLAIN, TYPED, WRITERS, Writer, is_zone, pack
from agentgraph.checkpoint.refusal import RefusedError, full_name, said
from agentgraph.context import Interrupt
from agentgraph.errors import ConfigError, listed
from agentgraph.node import Command, Send, Updates

__all__ = ["Fields", "Kind", "StoredType", "kind_of", "own_kinds", "own_types", "why_not"]

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


def kind_of(one: Any) -> Kind:
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
    if cls in PLAIN or cls in WRITERS or is_zone(cls):
        return Kind(cls, name)
    made = _made_of(cls, name)
    if made is None:
        raise ConfigError(
            f"{full_name(cls)} cannot be stored as it is: it is no enum, dataclass, Struct, pydantic model, named "
            f"tuple nor subclass of a plain type; give its own encoder: "
            f"StoredType({cls.__name__}, name, encode, decode)"
        )
    return made


def _check_stored(stored: StoredType[Any]) -> None:
    if not inspect.isclass(stored.type):
        raise ConfigError(f"StoredType takes a class, found {stored.type!r:.200}")
    if not isinstance(stored.name, str) or not stored.name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"StoredType({stored.type.__name__}) needs a name, found {stored.name!r:.200}")
    if (stored.encode is None) != (stored.decode is None):
        raise ConfigError(f"StoredType {stored.name!r} has one of encode and decode; it takes both, or neither")


def _made_of(cls: Any, name: str) -> Kind | None:
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


class Kind:
    """How values of one registered class are stored."""

    __slots__ = ("cls", "name")

    def __init__(self, cls: type, name: str) -> None:
        self.cls: type = cls
        self.name: str = name

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        """The value with its class's name. Raises `RefusedError`."""
        raise NotImplementedError

    def read(self, *state: Any) -> Any:
        """The value again, of what stands behind the name. Raises `RefusedError`, or whatever its class raises."""
        raise NotImplementedError


class _Enum(Kind):
    """A member by its name; of a flag, whose values may be joined, the value."""

    __slots__ = ()

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        if isinstance(value, enum.Flag):
            return Ext(TYPED, pack([self.name, writer.walk(value.value, depth)]))
        if cast("Any", self.cls).__members__.get(value.name) is not value:
            raise RefusedError(f"cannot be stored: {value!r:.80} is none of the members of {full_name(self.cls)}")
        return Ext(TYPED, pack([self.name, value.name]))

    def read(self, *state: Any) -> Any:
        (stored,) = state
        cls: Any = self.cls
        if issubclass(cls, enum.Flag):
            flag = cls(stored)
            if type(flag) is cls and flag.value == stored:
                return flag
        elif stored in cls.__members__:
            return cls.__members__[stored]
        raise RefusedError(f"is stored as {stored!r:.80} of {full_name(cls)}, which has {listed(cls.__members__)}")


class _Based(Kind):
    """A subclass of a builtin type that keeps nothing besides: the builtin value."""

    __slots__ = ("extras", "make", "plain")

    def __init__(self, cls: type, name: str, base: type) -> None:
        super().__init__(cls, name)
        self.plain, self.make = _BASES[base]
        self.extras = Extras(cls, ())

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        self.extras.check(value)
        return Ext(TYPED, pack([self.name, writer.walk(self.plain(value), depth)]))

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


class _Custom(Kind):
    """A `StoredType` with its own encode and decode."""

    __slots__ = ("decode", "encode")

    def __init__(self, stored: StoredType[Any]) -> None:
        super().__init__(stored.type, stored.name)
        self.encode = cast("Callable[[Any], Any]", stored.encode)
        self.decode = cast("Callable[[Any], Any]", stored.decode)

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        try:
            state = self.encode(value)
        except Exception as error:
            raise RefusedError(
                f"cannot be stored: the encode of StoredType {self.name!r} raised {said(error)}"
            ) from error
        try:
            return Ext(TYPED, pack([self.name, writer.walk(state, depth)]))
        except RefusedError as refused:
            refused.at("", value)
            raise

    def read(self, *state: Any) -> Any:
        (stored,) = state
        try:
            value = self.decode(stored)
        except Exception as error:
            raise RefusedError(
                f"cannot be read: the decode of StoredType {self.name!r} raised {said(error)}"
            ) from error
        if not isinstance(value, self.cls):
            raise RefusedError(
                f"cannot be read: the decode of StoredType {self.name!r} gave a {full_name(type(value))}, "
                f"which is no {full_name(self.cls)}"
            )
        return value


class Fields(Kind):
    """A class with fields: msgspec Struct, dataclass, named tuple."""

    __slots__ = ("extras", "layout", "make", "names", "omitted", "values")

    def __init__(
        self,
        cls: type,
        name: str,
        layout: Layout,
        make: Callable[[dict[str, Any]], Any],
        *,
        values: Callable[[Any], Sequence[Any]] | None = None,
        omitted: Sequence[Any] = (),
    ) -> None:
        super().__init__(cls, name)
        self.layout: Layout = layout
        self.names: tuple[str, ...] = tuple(layout.hints)
        self.values: Callable[[Any], Sequence[Any]] = values or _getter(self.names)
        self.make: Callable[[dict[str, Any]], Any] = make
        self.omitted: Sequence[Any] = omitted
        self.extras: Extras = Extras(cls, self.names)

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        """The name, the layout's print, and the fields by name."""
        try:
            values = self.values(value)
        except AttributeError as error:
            raise RefusedError(f"cannot be stored: a field of it has no value: {said(error)}") from error
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
        return Ext(TYPED, pack([self.name, self.layout.print, fields]))

    def read(self, *state: Any) -> Any:
        """The value of its fields, made to fit the class as it is now."""
        stored, fields = state
        if stored != self.layout.print or (not self.omitted and fields.keys() != self.layout.names):
            fields = self.layout.refit(fields)
        return self.make(fields)


def _getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _struct(cls: type[msgspec.Struct], name: str) -> Kind:
    infos = msgspec.structs.fields(cls)
    hints = hints_of(cls)
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
    layout = Layout(cls, {info.name: hints.get(info.name, Any) for info in infos}, defaults)

    def make_again(fields: dict[str, Any]) -> Any:
        made = cls(**fields)
        for field, value in fields.items():
            msgspec.structs.force_setattr(made, field, value)  # as they were, whatever __post_init__ has made of them
        return made

    make: Callable[[dict[str, Any]], Any] = make_again if hasattr(cls, "__post_init__") else lambda f: cls(**f)
    omits = cls.__struct_config__.omit_defaults and not hasattr(cls, "__post_init__")
    return Fields(cls, name, layout, make, omitted=omitted if omits else ())


_NOTHING = object()


def _dataclass(cls: Any, name: str) -> Kind | None:
    try:
        object.__new__(cls)
    except TypeError:  # it has a builtin type's content besides, or is abstract
        return None
    hints = hints_of(cls)
    defaults: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _constant(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory
    layout = Layout(cls, {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}, defaults)

    def make(fields: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        for field, value in fields.items():
            object.__setattr__(made, field, value)  # past `frozen`; no __init__ runs on what is only put back
        return made

    return Fields(cls, name, layout, make)


def _namedtuple(cls: Any, name: str) -> Kind:
    hints = hints_of(cls)
    defaults = {field: _constant(value) for field, value in cls._field_defaults.items()}
    layout = Layout(cls, {field: hints.get(field, Any) for field in cls._fields}, defaults)
    names: tuple[str, ...] = cls._fields
    plain, make = _BASES[tuple]
    return Fields(cls, name, layout, lambda fields: make(cls, [fields[field] for field in names]), values=plain)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


class _Pydantic(Fields):
    """A pydantic model: its fields, and what else it keeps."""

    __slots__ = ()

    def write(self, writer: Writer, value: Any, depth: int) -> Ext:
        state: dict[str, Any] = _pydantic().__getstate__(value)
        kept: dict[str, Any] = state["__dict__"]
        if missing := [name for name in self.names if name not in kept]:
            raise RefusedError(f"cannot be stored: a field of it has no value: {listed(missing)}")
        self.extras.check(value)
        values = writer.fields(self.names, [kept[name] for name in self.names], depth, value)
        rest: list[Any] = []
        for name in ("__pydantic_extra__", "__pydantic_private__"):
            more: dict[str, Any] = state[name] or {}
            written = writer.fields(tuple(more), tuple(more.values()), depth, value)
            rest.append(dict(zip(more, written, strict=True)))
        fields = dict(zip(self.names, values, strict=True))
        given = sorted(state["__pydantic_fields_set__"])
        return Ext(TYPED, pack([self.name, self.layout.print, fields, given, *rest]))

    def read(self, *state: Any) -> Any:
        stored, fields, given, extra, private = state
        cls: Any = self.cls
        if (type(given), type(extra), type(private)) != (list, dict, dict):
            raise RefusedError(f"cannot be read: it is damaged: nothing that {full_name(cls)} could be made of")
        if stored != self.layout.print or fields.keys() != self.layout.names:
            fields = self.layout.refit(fields)
            private = {n: a.get_default() for n, a in cls.__private_attributes__.items() if n not in private} | private
        made = object.__new__(cls)
        allowed = cls.model_config.get("extra") == "allow"
        if extra and not allowed:
            raise RefusedError(f"was stored with {listed(extra)}, and {full_name(cls)} allows no extra fields any more")
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


def _pydantic_model(cls: Any, name: str) -> Kind:
    hints: dict[str, Any] = {}
    defaults: dict[str, Callable[[], Any]] = {}
    for field, info in cls.model_fields.items():
        hints[field] = info.annotation
        if not info.is_required():
            defaults[field] = functools.partial(info.get_default, call_default_factory=True, validated_data={})
    return _Pydantic(cls, name, Layout(cls, hints, defaults), cls)


@functools.cache
def own_kinds() -> tuple[Kind, ...]:
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
    return tuple(cast("Kind", _made_of(cls, cls.__name__)) for cls in classes)


@functools.cache
def own_types() -> frozenset[type]:
    """The classes of `own_kinds`."""
    return frozenset(kind.cls for kind in own_kinds())


def why_not(value: object) -> str:
    """Why a value of no known type cannot be stored, and what would help."""
    cls = type(value)
    if inspect.isclass(value):
        return f"cannot be stored: it is the class {full_name(value)} itself"
    try:
        made: Kind | None = _made_of(cls, "")
    except ConfigError:
        made = None
    if made is None and cls.__module__ == "builtins":  # a function, a module, a generator
        return f"cannot be stored: it is a {full_name(cls)}; keep it out of what is stored"
    own = f"StoredType({cls.__name__}, {cls.__name__!r}, encode, decode)"
    remedy = f"compile(types=[{own if made is None else cls.__name__}])"
    return f"cannot be stored: it is a {full_name(cls)}, and that is not registered; register it by {remedy}"
