"""Answers of a given form: the schema that the model gets, and the value that its text becomes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from agentgraph.errors import AgentGraphError, ConfigError
from agentgraph.nodes.pydantics import UnfitError, adapter_of, is_pydantics, read

__all__ = ["OutputError", "OutputFormat"]


class OutputError(AgentGraphError, ValueError):
    """The model's answer does not have the form that was asked for. `text` is the answer."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


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
        if is_pydantics(output_type):
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
        except (msgspec.MsgspecError, RecursionError, UnfitError) as error:
            raise OutputError(
                f"the model's answer does not fit the output format: {error}; it was {text!r:.200}", text
            ) from error


_FENCE = re.compile(r"```(?:[\w+-]*[ \t]*\r?\n|json\b)?")


def without_fence(text: str) -> str:
    """The text without a Markdown fence round the whole of it, closed or not."""
    stripped = text.strip()
    opening = _FENCE.match(stripped)
    return stripped[opening.end() :].removesuffix("```").strip() if opening else stripped


def _by_pydantic(form: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """The schema and the reader. Raises `ConfigError` where pydantic has none."""
    try:
        adapter = adapter_of(form)
    except (TypeError, NameError) as error:
        raise ConfigError(f"output_type={form!r} has no JSON schema: {error}") from error
    return adapter.json_schema(), partial(read, adapter)
