"""A class's fields as they are stored, and read back when the class has changed since. Pure."""

from __future__ import annotations

import functools
import inspect
import types
import typing
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from agentgraph.checkpoint.refusal import RefusedError, full_name
from agentgraph.errors import ConfigError, listed

__all__ = ["Extras", "Layout", "hints_of", "unaliased"]


class Layout:
    """A class's fields: names, types, and what stands for one that was not stored.

    `print` changes when they do. What was stored under another print is held against the types before it is used; under
    the same it is used as it was, even where a value had not been what its annotation says.
    """

    __slots__ = ("cls", "defaults", "hints", "names", "print")

    def __init__(self, cls: type, hints: dict[str, Any], defaults: dict[str, Callable[[], Any]]) -> None:
        self.cls: type = cls
        self.hints: dict[str, Any] = hints
        self.defaults: dict[str, Callable[[], Any]] = defaults
        self.names: frozenset[str] = frozenset(hints)
        self.print: int = zlib.crc32(repr(sorted((name, str(hint)) for name, hint in hints.items())).encode())

    def refit(self, fields: Any) -> dict[str, Any]:
        """Stored fields as this class has them. Raises `RefusedError` where they no longer fit."""
        if not isinstance(fields, dict):
            raise RefusedError(f"cannot be read: it is damaged: no fields of {full_name(self.cls)}")
        fitted = cast("dict[str, Any]", fields)
        if gone := [name for name in fitted if name not in self.names]:
            raise RefusedError(
                f"was stored with {listed(gone)}, and {full_name(self.cls)} has no such field any more; "
                f"keep the field, or give a StoredType that knows the old form"
            )
        made: dict[str, Any] = {}
        for name, hint in self.hints.items():
            if name in fitted:
                made[name] = fitted[name]
                if not _fits(made[name], hint):
                    raise RefusedError(
                        f"was stored as {full_name(type(made[name]))}, and {full_name(self.cls)} wants "
                        f"{_hint_name(hint)}; give a StoredType that knows the old form"
                    ).at(f".{name}", self)
            elif name in self.defaults:
                made[name] = self.defaults[name]()
            else:
                raise RefusedError(
                    f"was stored without {name!r}, which {full_name(self.cls)} has no default for; give it one, "
                    f"or a StoredType that knows the old form"
                )
        return made


class Extras:
    """What an object keeps besides its fields, and would silently lose."""

    __slots__ = ("cls", "loose", "names")

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        self.cls: type = cls
        self.names: frozenset[str] = frozenset(names)
        self.loose: bool = cls.__dictoffset__ != 0
        for base in cls.__mro__:
            slots: Any = base.__dict__.get("__slots__", ())
            hidden = {slots} if isinstance(slots, str) else set(cast("Iterable[str]", slots))
            if hidden := hidden - self.names - _NO_SLOTS:
                raise ConfigError(
                    f"{full_name(cls)} cannot be stored: it keeps {listed(sorted(hidden))} in slots that are no "
                    f"fields; give a StoredType for it"
                )

    def check(self, value: Any) -> None:
        """Raise `RefusedError` where this object keeps more than its fields."""
        if not self.loose or value.__dict__.keys() <= self.names:
            return
        for name in value.__dict__.keys() - self.names:
            kept = inspect.getattr_static(self.cls, name, None)
            if not (name.startswith("__") or isinstance(kept, functools.cached_property)):  # __orig_class__ of typing
                raise RefusedError(
                    f"cannot be stored: it is no field of {full_name(self.cls)}; make it one, or give a StoredType"
                ).at(f".{name}", value)


_NO_SLOTS = {
    "__dict__", "__weakref__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__",
}  # fmt: skip


def hints_of(cls: Any) -> dict[str, Any]:
    """The types of a class's fields by name, none where they cannot be told."""
    try:
        return typing.get_type_hints(cls)
    except Exception:  # a name that only type checkers know
        return {}


def unaliased(hint: Any) -> Any:
    """What an alias or a NewType stands for; any other hint itself."""
    if type(hint).__name__ == "TypeAliasType":  # of typing from Python 3.12, or of typing_extensions
        return hint.__value__
    return hint.__supertype__ if isinstance(hint, typing.NewType) else hint


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as that can be told; never wrongly no."""
    hint = unaliased(hint)
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


def _hint_name(hint: Any) -> str:
    return full_name(hint) if inspect.isclass(hint) and not typing.get_args(hint) else str(hint)
