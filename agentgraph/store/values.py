"""What a namespace, a key, a value and a filter may be, and how JSON values compare. All stores go by these."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec

from agentgraph.errors import ConfigError, unknown
from agentgraph.store.protocol import Namespace, Order, Put

__all__ = [
    "Condition",
    "Written",
    "checked_key",
    "checked_namespace",
    "checked_page",
    "checked_prefix",
    "conditions",
    "decoded",
    "encoded",
    "matches",
    "written",
]

_MOST_BYTES = 1024
_MOST_PARTS = 32
_DEEPEST = 100
_MOST_BITS = 1024
_OPERATORS = ("$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}

decoded: Callable[[bytes | str], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
"""A stored value."""
encoded: Callable[[Any], bytes] = msgspec.json.Encoder().encode
"""A value as it is stored."""


class Written(msgspec.Struct, frozen=True):
    """A `Put` that has been found good, its value as JSON."""

    namespace: Namespace
    key: str
    value: bytes
    ttl: float | None


class Condition(msgspec.Struct, frozen=True):
    """What a field's value must be."""

    field: str
    operator: str
    operand: Any


def written(items: Iterable[Put]) -> list[Written]:
    """Check items that are to be written. In the order of their keys, each key once, with its last value.

    That order keeps two writers of the same items from waiting for each other.
    """
    found: dict[tuple[Namespace, str], Written] = {}
    for item in items:
        if item.ttl is not None and not (_is_number(item.ttl) and 0 < item.ttl < math.inf):
            raise ConfigError(f"ttl={item.ttl!r}: expected a number of seconds above 0, or None for an item that stays")
        namespace, key = checked_namespace(item.namespace), checked_key(item.key)
        if not isinstance(item.value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"the value of {key!r} is {_kind(item.value)}; expected an object (a dict)")
        value = dict(item.value)
        _check_json(value, "", 0)
        found[namespace, key] = Written(namespace, key, encoded(value), item.ttl)
    return [found[name] for name in sorted(found)]


def checked_namespace(namespace: Namespace) -> Namespace:
    """Check an item's namespace."""
    if not checked_prefix(namespace):
        raise ConfigError("the namespace is empty: expected a tuple of one text or more, such as ('users', '42')")
    return namespace


def checked_prefix(prefix: Namespace) -> Namespace:
    """Check the beginning of a namespace, which may be empty."""
    if not isinstance(prefix, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = f" (write ({prefix!r},))" if isinstance(prefix, str) else ""
        raise ConfigError(f"the namespace is {_kind(prefix)}: {prefix!r}; expected a tuple of texts{hint}")
    for part in prefix:
        _check_name("a namespace's part", part)
    size = sum(len(part.encode()) for part in prefix)
    if len(prefix) > _MOST_PARTS or size > _MOST_BYTES:
        raise ConfigError(
            f"a namespace of {len(prefix)} parts and {size} bytes is too long: "
            f"expected at most {_MOST_PARTS} parts and {_MOST_BYTES} bytes"
        )
    return prefix


def checked_key(key: str) -> str:
    """Check an item's key."""
    _check_name("the key", key)
    if (size := len(key.encode())) > _MOST_BYTES:
        raise ConfigError(f"the key {key[:40]!r}... has {size} bytes: expected at most {_MOST_BYTES}")
    return key


def checked_page(limit: int, offset: int, order: Order = "key", depth: int | None = None) -> None:
    """Check which part of what is found is asked for."""
    for name, number, least in (("limit", limit, 1), ("offset", offset, 0), ("depth", depth, 1)):
        if number is not None and not (isinstance(number, int) and least <= number < 1 << 31):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name}={number!r}: expected a whole number, {least} or more and below 2**31")
    if order not in ("key", "newest", "oldest"):
        raise ConfigError(unknown("order", order, ("key", "newest", "oldest")))


def conditions(filter: Mapping[str, Any] | None) -> list[Condition]:
    """Take a filter apart."""
    if filter is None:
        return []
    if not isinstance(filter, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"the filter is {_kind(filter)}; expected an object (a dict) of fields")
    found: list[Condition] = []
    for field, wanted in filter.items():
        _check_field(field, "filter")
        where = f"filter[{field!r}]"
        operators: dict[Any, Any] = cast("dict[Any, Any]", wanted) if isinstance(wanted, dict) else {}
        if not any(isinstance(name, str) and name.startswith("$") for name in operators):
            operators = {"$eq": wanted}
        for name, operand in operators.items():
            if name not in _OPERATORS:
                raise ConfigError(f"{where}: " + unknown("operator", name, _OPERATORS))
            found.append(Condition(field, name, _operand(f"{where}: {name}", name, operand)))
    return found


def _operand(where: str, name: str, operand: Any) -> Any:
    if name == "$in":
        if not isinstance(operand, list | tuple):
            raise ConfigError(f"{where} is {_kind(operand)}; expected a list of values")
        operand = list(cast("Iterable[Any]", operand))
    elif name in _ORDERS and not (_is_number(operand) or isinstance(operand, str)):
        raise ConfigError(f"{where} is {_kind(operand)}; expected a number or a text")
    _check_json(operand, where, 0)
    return operand


def matches(value: Mapping[str, Any], conditions: Iterable[Condition]) -> bool:
    """Tell whether all conditions hold for a value."""
    return all(_holds(value.get(c.field), c.operator, c.operand) for c in conditions)


def _holds(found: Any, name: str, operand: Any) -> bool:
    if name in _ORDERS:
        if _is_number(found) and _is_number(operand):
            return _ORDERS[name](*_comparable(found, operand))
        return isinstance(found, str) and isinstance(operand, str) and _ORDERS[name](found, operand)
    if name == "$in":
        return any(_same(found, one) for one in operand)
    return _same(found, operand) is (name == "$eq")


def _same(a: Any, b: Any) -> bool:
    if _is_number(a) and _is_number(b):
        return operator.eq(*_comparable(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        a, b = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        return a.keys() == b.keys() and all(_same(one, b[key]) for key, one in a.items())
    if isinstance(a, list) and isinstance(b, list):
        a, b = cast("list[Any]", a), cast("list[Any]", b)
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, bool) is isinstance(b, bool) and a == b  # else True equals 1


def _comparable(a: float, b: float) -> tuple[Any, Any]:
    # a float stands for the shortest decimal that means it, which is what a database sees; its binary value
    # differs from that where it is large or has a fraction
    if type(a) is type(b):
        return a, b
    return Decimal(str(a)), Decimal(str(b))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _check_name(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is {_kind(text)}: {text!r}; expected a text")
    if not text or min(text) < " " or not _is_unicode(text):
        raise ConfigError(
            f"{what} is {text[:80]!r}: expected a text that is not empty, without control characters and surrogates"
        )


def _check_field(name: object, where: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"{where or 'the value'} has the field {name!r}, {_kind(name)}; expected a text")
    _check_text(name, f"{where or 'the value'}'s field {name!r}")


def _check_text(text: str, where: str) -> None:
    if "\0" in text or not _is_unicode(text):
        raise ConfigError(f"{where} has a NUL or half of a surrogate pair, which not every store can hold")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_json(value: Any, path: str, depth: int) -> None:
    """Refuse what JSON cannot hold, and what would not come back as it was."""
    kind = cast("type[object]", type(value))
    if kind is str:
        _check_text(value, path)
    elif kind is dict or kind is list:
        if depth == _DEEPEST:
            raise ConfigError(f"{path[:80]}...: values stand more than {_DEEPEST} deep in each other")
        if kind is dict:
            for key, one in value.items():
                _check_field(key, path)
                _check_json(one, f"{path}.{key}" if path else key, depth + 1)
        else:
            for index, one in enumerate(value):
                _check_json(one, f"{path}[{index}]", depth + 1)
    elif kind is float:
        if not math.isfinite(value):
            raise ConfigError(f"{path} is {value!r}, which JSON cannot hold")
    elif kind is int:
        if value.bit_length() > _MOST_BITS:
            raise ConfigError(f"{path} is a whole number of {value.bit_length()} bits: expected at most {_MOST_BITS}")
    elif kind is not bool and value is not None:
        raise ConfigError(
            f"{path} is {_kind(value)}, which would not come back from JSON as it is: "
            f"expected a dict, list, text, number, bool or None"
        )
