"""State class -> keys, strategies, types; views of a state; checks of an update. Pure.

Inside the engine a state is always a dict. `view` makes what a node sees of it: a copy, or an instance of the
user's dataclass or Struct.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from operator import add
from typing import Any, NoReturn, cast

import msgspec

from agentgraph.errors import InputError, UpdateError, listed, unknown
from agentgraph.strategies import UNSET, LastWrite, Reduce, Replace, Strategy

USAGE_KEY = "_token_usage"
"""Every schema knows it: what the model calls on this thread have taken, summed."""

_REPLACE = Replace()
_WRAPPERS = {typing.Required, typing.NotRequired}


class Schema:
    """What is known of a state. `faults` says what is wrong with it; with any, the rest may be incomplete."""

    __slots__ = (
        "_digest", "cls", "defaults", "faults", "kind", "open", "required", "strategies", "types", "validates", "view",
    )  # fmt: skip

    def __init__(self, cls: Any, strategies: Any, *, validates: bool = False) -> None:
        self.cls: Any = cls
        self.validates: bool = validates
        self.faults: list[str] = []
        self._digest = ""
        self.types: dict[str, Any] = {}
        self.strategies: dict[str, Strategy] = {}
        self.defaults: dict[str, Callable[[], Any]] = {}
        self.required: tuple[str, ...] = ()
        self.view: Callable[[dict[str, Any]], Any] = dict[str, Any].copy
        self.kind: str = _kind(cls)
        # a plain dict without named strategies has no schema: any key is known, and replaced
        self.open: bool = self.kind == "dict" and not strategies
        if self.kind == "":
            self.faults.append(f"the state must be a TypedDict, a dataclass, a msgspec.Struct, or dict; found {cls!r}")
            return
        self._read_class()
        self._name_strategies({} if strategies is None else strategies)
        self.strategies.setdefault(USAGE_KEY, Reduce(add))
        for key, strategy in self.strategies.items():
            start = strategy.empty()
            if key not in self.defaults and start is not UNSET:
                self.defaults[key] = strategy.empty
        if self.kind in ("dataclass", "struct"):
            self.required = tuple(k for k in self.types if k not in self.defaults)
            self.view = (
                _dataclass_view(cls, tuple(self.types))
                if self.kind == "dataclass"
                else _struct_view(cls, tuple(self.types))
            )

    def _read_class(self) -> None:
        if self.kind == "dict":
            return
        try:
            hints = typing.get_type_hints(self.cls, include_extras=True)
        except NameError as error:
            self.faults.append(
                f"the annotations of state {self.cls.__name__} cannot be resolved: {error}; "
                f"import the name at run time, not for type checkers only"
            )
            return
        if self.kind == "dataclass":
            for field in dataclasses.fields(self.cls):
                if field.default is not dataclasses.MISSING:
                    self.defaults[field.name] = _constant(field.default)
                elif field.default_factory is not dataclasses.MISSING:
                    self.defaults[field.name] = field.default_factory
            names = [f.name for f in dataclasses.fields(self.cls)]
        elif self.kind == "struct":
            infos = msgspec.structs.fields(self.cls)
            for info in infos:
                if info.default is not msgspec.NODEFAULT:
                    self.defaults[info.name] = _constant(info.default)
                elif info.default_factory is not msgspec.NODEFAULT:
                    self.defaults[info.name] = info.default_factory
            names = [i.name for i in infos]
        else:
            names = list(hints)
        for name in names:
            annotation = hints[name]
            extras: tuple[Any, ...] = ()
            while (inner := _unwrapped(annotation)) is not annotation:
                extras = (*extras, *getattr(annotation, "__metadata__", ()))
                annotation = inner
            self.types[name] = annotation
            self.strategies[name] = self._strategy(name, extras)
            hidden: list[Any] = [e for e in _metadata(annotation) if isinstance(e, Strategy)]
            if hidden:
                bare = _type_name(typing.get_type_hints(self.cls)[name])
                said = f"{hidden[0].__name__}()" if inspect.isclass(hidden[0]) else repr(hidden[0])
                self.faults.append(
                    f"state key {name!r}: {said} stands inside the key's type, where it does not count; "
                    f"write Annotated[{bare}, {said}]"
                )

    def _strategy(self, key: str, extras: tuple[Any, ...]) -> Strategy:
        found: list[Strategy] = []
        for extra in extras:
            if inspect.isclass(extra):
                if callable(getattr(extra, "merge", None)) and callable(getattr(extra, "empty", None)):
                    self.faults.append(f"state key {key!r}: {extra.__name__} is a class; write {extra.__name__}()")
            elif isinstance(extra, Strategy):
                found.append(extra)
            elif isinstance(extra, (types.FunctionType, types.BuiltinFunctionType)):
                name = getattr(extra, "__name__", "fn")
                self.faults.append(f"state key {key!r}: {name} is a function; write Reduce({name})")
        if len(found) > 1:
            self.faults.append(f"state key {key!r} has {len(found)} strategies, {listed(found)}; it takes one")
        if found:
            self._check_fit(key, found[0])
            return found[0]
        return _REPLACE

    def _check_fit(self, key: str, strategy: Strategy) -> None:
        container: type | None = getattr(strategy, "container", None)
        if container is None or key not in self.types:
            return
        if not _takes(self.types[key], container):
            self.faults.append(
                f"state key {key!r}: {strategy!r} keeps a {container.__name__}, "
                f"and the key's type is {_type_name(self.types[key])}"
            )

    def _name_strategies(self, strategies: Any) -> None:
        if not isinstance(strategies, Mapping):
            self.faults.append(f"strategies must map state keys to strategies; found {strategies!r:.80}")
            return
        for key, strategy in cast("Mapping[Any, Any]", strategies).items():
            if not isinstance(key, str) or (self.kind != "dict" and key not in self.types):
                self.faults.append(f"strategies: {unknown('state key', key, self.known())}")
            elif inspect.isclass(strategy) or not isinstance(strategy, Strategy):
                self.faults.append(
                    f"strategies: key {key!r} needs a strategy such as Append() or Reduce(fn), found {strategy!r}"
                )
            else:
                self.strategies[key] = strategy
                self._check_fit(key, strategy)

    def initial(self) -> dict[str, Any]:
        """A new state: each key at its default or its strategy's empty value; others are not there."""
        return {key: make() for key, make in self.defaults.items()}

    def check_complete(self, state: Mapping[str, Any]) -> None:
        """Raise `InputError` where a key is missing that a dataclass or Struct cannot be made without."""
        missing = [k for k in self.required if k not in state]
        if missing:
            raise InputError(
                f"the input lacks {listed(missing)}, which {self.cls.__name__} has no default for; "
                f"give it in the input, or the field a default"
            )

    def whole(self, value: Any) -> dict[str, Any] | None:
        """The state that an instance of the state's class is; None for anything else."""
        if self.kind not in ("dataclass", "struct") or not isinstance(value, self.cls):
            return None
        return {k: getattr(value, k) for k in self.types if hasattr(value, k)}

    def input_update(self, value: Any) -> Mapping[str, Any]:
        """A run's input as an update. Raises `InputError` where it is none."""
        if isinstance(value, Mapping):
            given = cast("Mapping[Any, Any]", value)
            if not self.open:
                for key in given:
                    if key not in self.strategies:
                        raise InputError(f"the input has an {unknown('state key', key, self.known())}")
            return given
        raise InputError(
            "the input must be a dict of state keys"
            + (f" or a {self.cls.__name__}" if self.kind in ("dataclass", "struct") else "")
            + f"; found {type(value).__name__}: {value!r:.80}"
        )

    def knows(self, key: str) -> bool:
        """Whether the state may have this key."""
        return self.open or key in self.strategies

    def replaces(self, key: str) -> bool:
        """Whether a write to this key takes the place of the value."""
        return isinstance(self.strategies.get(key), (LastWrite, type(None)))

    def known(self) -> list[str]:
        """The keys for messages: without those that nodes keep to themselves."""
        return [k for k in self.strategies if not k.startswith("_")]

    def find(self, key: str) -> Strategy | None:
        """The key's strategy; None for a key that the state may not have."""
        found = self.strategies.get(key)
        if found is None and self.open and isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return _REPLACE
        return found

    def refuse(self, key: str, node: str) -> NoReturn:
        """Raise the `UpdateError` for a key that the state may not have."""
        raise UpdateError(
            f"node {node!r} returned an update with an {unknown('state key', key, self.known())}", node=node, key=key
        )

    def validate(self, key: str, value: Any, node: str) -> Any:
        """The value, converted to the key's type where its JSON form was given. Raises `UpdateError`."""
        kind = self.types.get(key)
        if kind is None:
            return value
        try:
            return fitted(value, kind)
        except msgspec.ValidationError as error:
            raise UpdateError(
                f"node {node!r} wrote key {key!r}, and the value does not fit {_type_name(kind)}: {error}",
                node=node,
                key=key,
            ) from error

    def digest(self) -> str:
        """What tells these keys' types from others, in any process."""
        if not self._digest:
            told = "\n".join(f"{key}: {kind}" for key, kind in sorted(self.types.items()))
            self._digest = hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        return self._digest

    def check_types(self) -> list[str]:
        """Faults of types that `validate=True` cannot check."""
        faults: list[str] = []
        for key, kind in self.types.items():
            try:
                msgspec.convert(None, kind)
            except msgspec.ValidationError:
                pass
            except (TypeError, ValueError, NameError) as error:
                faults.append(f"validate=True: state key {key!r} has a type that cannot be checked: {error}")
        return faults


def fitted(value: Any, kind: Any) -> Any:
    """The value, converted to a type where its JSON form was given. Raises `ValidationError` where it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        plain = _without_members(value)
        if plain is value:
            raise
        made = msgspec.convert(plain, kind)
        if made != value:
            raise
        return made


def _without_members(value: Any) -> Any:
    """The value with its enums' members replaced by what they stand for: msgspec takes nothing else for one."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_without_members(k): _without_members(v) for k, v in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_without_members(v) for v in cast("list[Any]", value)]
    return value


def _kind(cls: Any) -> str:
    if cls is dict or typing.get_origin(cls) is dict:
        return "dict"
    if not inspect.isclass(cls):
        return ""
    if typing.is_typeddict(cls):
        return "typeddict"
    if issubclass(cls, msgspec.Struct):
        return "struct"
    return "dataclass" if dataclasses.is_dataclass(cls) else ""


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _dataclass_view(cls: Any, names: tuple[str, ...]) -> Callable[[dict[str, Any]], Any]:
    def view(state: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        for name in names:
            if name in state:
                object.__setattr__(made, name, state[name])  # past `frozen`, and without running __init__
        return made

    return view


def _struct_view(cls: Any, names: tuple[str, ...]) -> Callable[[dict[str, Any]], Any]:
    return lambda state: cls(**{n: state[n] for n in names})


def _unwrapped(annotation: Any) -> Any:
    """What an annotation says once its outermost layer is off: an alias, Annotated, Required; else itself."""
    if _is_alias(annotation):
        return annotation.__value__
    if typing.get_origin(annotation) is typing.Annotated:
        return annotation.__origin__
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) in _WRAPPERS else annotation


def _metadata(annotation: Any) -> Iterator[Any]:
    """What stands in any Annotated inside an annotation."""
    yield from getattr(annotation, "__metadata__", ())
    for argument in typing.get_args(annotation):
        yield from _metadata(argument)


def _is_alias(annotation: Any) -> bool:
    return type(annotation).__name__ == "TypeAliasType"  # of typing from Python 3.12, or of typing_extensions


def _takes(annotation: Any, container: type) -> bool:
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return True
    if _is_alias(annotation):
        return _takes(annotation.__value__, container)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_takes(a, container) for a in typing.get_args(annotation))
    if typing.is_typeddict(annotation):
        return container is dict
    base = origin or annotation
    return not inspect.isclass(base) or issubclass(container, base) or issubclass(base, container)


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join("None" if a is types.NoneType else _type_name(a) for a in typing.get_args(annotation))
    return annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)
