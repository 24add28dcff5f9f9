"""Answers of a given form: the schema that the model gets, and the value that its text becomes. Pure."""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentgraph.errors import AgentGraphError, ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = ["OutputError", "OutputFormat"]


class OutputError(AgentGraphError, ValueError):
    """The model's answer does not have the form that was asked for. `text` is the answer."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class _UnfitError(Exception):
    """A text is not of the form; why, is the error's text."""


class OutputFormat:
    """What an answer must look like: a JSON schema, and how its text is read."""

    def __init__(self, schema: dict[str, Any], read: Callable[[str], Any]) -> None:
        self.schema = schema
        self._read = read

    @classmethod
    def of(cls, output_type: Any, output_schema: Mapping[str, Any] | None) -> OutputFormat | None:
        """The format for either of them, None for neither, or for `str`: that is what an answer is anyway.

        A type that has something of pydantic's in it is pydantic's to read, any other msgspec's; a schema alone gives
        plain JSON. Raises `ConfigError` for both, or a type without schema.
        """
        if output_type is None or (output_type is str and output_schema is None):
            return None if output_schema is None else cls(dict(output_schema), msgspec.json.Decoder().decode)
        if output_schema is not None:
            raise ConfigError("give output_type or output_schema, not both")
        if _is_pydantics(output_type, {}):
            return cls(*_by_pydantic(output_type))
        try:
            return cls(msgspec.json.schema(output_type), msgspec.json.Decoder(output_type).decode)
        except (TypeError, NameError) as error:
            raise ConfigError(f"output_type={output_type!r} has no JSON schema: {error}") from error

    def prompt(self) -> str:
        """The text that asks for it, for a model that takes no schema."""
        schema = msgspec.json.encode(self.schema).decode()
        return f"Answer with JSON only, no other text, that fits this JSON schema:\n{schema}"

    def parse(self, text: str) -> Any:
        """The value in the answer. Raises `OutputError` where it does not fit."""
        try:
            return self._read(without_fence(text))
        except (msgspec.MsgspecError, RecursionError, _UnfitError) as error:
            raise OutputError(
                f"the model's answer does not fit the output format: {error}; it was {text!r:.200}", text
            ) from error


_FENCE = re.compile(r"```(?:[\w+-]*[ \t]*\r?\n|json\b)?")


def without_fence(text: str) -> str:
    """The text without a Markdown fence round the whole of it, closed or not."""
    stripped = text.strip()
    opening = _FENCE.match(stripped)
    return stripped[opening.end() :].removesuffix("```").strip() if opening else stripped


def _is_pydantics(form: Any, seen: dict[int, Any]) -> bool:
    """Whether something of pydantic's is in the type: a model, a type of its own, a constraint, also in fields."""
    if "pydantic" not in sys.modules or id(form) in seen:
        return False
    seen[id(form)] = form  # kept: an id is free again once its object is gone
    return _speaks_pydantic(form) or any(_is_pydantics(part, seen) for part in _within(form))


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


def _by_pydantic(form: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """The schema and the reader. Raises `ConfigError` where pydantic has none."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415  # loaded already: the type is made of it
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError  # noqa: PLC0415

    try:
        adapter = cast("TypeAdapter[Any]", form if isinstance(form, TypeAdapter) else TypeAdapter(form))
        schema = adapter.json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigError(f"output_type={form!r} has no JSON schema: {error}") from error

    def read(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            raise _UnfitError(_told(error)) from error

    return schema, read


def _told(error: ValidationError) -> str:
    """What is wrong, and where, in a line."""
    told: list[str] = []
    for fault in error.errors():
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        told.append(f"{fault['msg']} - at `${path}`" if path else fault["msg"])
    return "; ".join(told)
