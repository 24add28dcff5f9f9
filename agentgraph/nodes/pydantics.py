"""Types that have something of pydantic's in them: whether, their schemas, and how pydantic reads them. Pure.

pydantic is only used here, and only where the user has loaded it: a type could not be made of it otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = ["UnfitError", "adapter_of", "has_lost_bounds", "is_pydantics", "json_form", "read", "schemas"]

_ABSENT = object()


class UnfitError(ValueError):
    """A value that pydantic refuses; why and where, in a line."""


def is_pydantics(form: Any) -> bool:
    """Whether something of pydantic's is in the type: a model, a type of its own, a constraint, also in fields."""
    return "pydantic" in sys.modules and any(_speaks_pydantic(part) for part in _parts(form, {}))


def has_lost_bounds(form: Any) -> bool:
    """Whether the type has bounds that only pydantic reads, and it is not there to read them."""
    return (
        "annotated_types" in sys.modules
        and "pydantic" not in sys.modules
        and any(type(part).__module__ == "annotated_types" for part in _parts(form, {}))
    )


def adapter_of(form: Any) -> TypeAdapter[Any]:
    """What reads the type. Raises `TypeError` where pydantic has no schema of it, NameError where a name is missing."""
    from pydantic import TypeAdapter  # noqa: PLC0415  # loaded already: the type is made of it
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError  # noqa: PLC0415

    if any(isinstance(part, msgspec.Meta) and _bounds(part) for part in _parts(form, {})):
        raise TypeError("a bound by msgspec.Meta has no effect on what pydantic reads: say it by pydantic.Field")
    try:
        adapter = cast("TypeAdapter[Any]", form if isinstance(form, TypeAdapter) else TypeAdapter(form))
        adapter.json_schema()
    except PydanticUndefinedAnnotation as error:
        raise NameError(error.message, name=error.name) from error
    except PydanticUserError as error:
        raise TypeError(error.message.partition("\n")[0]) from error
    return adapter


def schemas(adapters: Mapping[str, TypeAdapter[Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The schema of each, and the definitions that they share."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    made, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], ref_template="#/$defs/{model}"
    )
    return {name: dict(schema) for (name, _), schema in made.items()}, shared.get("$defs", {})


def read(adapter: TypeAdapter[Any], text: str | bytes, path: str = "$") -> Any:
    """The value in a JSON text that stands at this path. Raises `UnfitError`."""
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise UnfitError(_told(error, text, path)) from error


def json_form(adapter: TypeAdapter[Any], value: Any) -> Any:
    """The value in plain types. Raises `ValueError` or `TypeError` where it has no such form."""
    return adapter.dump_python(value, mode="json", by_alias=True, warnings=False)


def _parts(form: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The type, and what it is made of at any depth."""
    if id(form) in seen:
        return
    seen[id(form)] = form  # kept: an id is free again once its object is gone
    yield form
    for part in _within(form):
        yield from _parts(part, seen)


def _within(form: Any) -> list[Any]:
    """What a type is made of: its arguments, and the types of its fields."""
    within = list(typing.get_args(form))
    with suppress(Exception):  # whoever reads the type tells of a name that cannot be resolved
        if type(form).__name__ == "TypeAliasType":
            within.append(form.__value__)
        elif dataclasses.is_dataclass(form) or hasattr(form, "__required_keys__") or hasattr(form, "_field_defaults"):
            within += typing.get_type_hints(form, include_extras=True).values()
    return within


def _speaks_pydantic(form: Any) -> bool:
    if hasattr(form, "__pydantic_core_schema__") or hasattr(form, "__get_pydantic_core_schema__"):
        return True
    # a TypeAdapter, a Field(...), a bound such as PositiveInt has
    return type(form).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def _bounds(meta: msgspec.Meta) -> bool:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
    return any(getattr(meta, name) is not None for name in names)


def _told(error: ValidationError, text: str | bytes, start: str) -> str:
    told: list[str] = []
    for fault in error.errors(include_url=False, include_context=False):
        path = start + (_path(fault["loc"], json.loads(text), fault["type"]) if fault["loc"] else "")
        told.append(f"{fault['msg']} - at `{path}`" if path != "$" else fault["msg"])
    return "; ".join(told)


def _path(location: tuple[int | str, ...], value: Any, kind: str) -> str:
    """Where in the value it is. pydantic puts names of its own between: that of a union's branch, of a validator."""
    path = ""
    for i, part in enumerate(location):
        inner: Any = _ABSENT
        with suppress(LookupError, TypeError):
            inner = value[part]
        if inner is _ABSENT and not (kind == "missing" and i == len(location) - 1):
            continue
        value = inner
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path
