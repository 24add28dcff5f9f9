"""A model's JSON -> the arguments of a tool's function. Pure.

msgspec does the work. What this file adds is what models get wrong in harmless ways (see `Reader.read`), and answers
that a model can mend.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentgraph.errors import listed, unknown
from agentgraph.messages import sound
from agentgraph.models.closed_schema import kinds
from agentgraph.nodes import pydantics

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["ArgumentsError", "Parameter", "Reader", "decode", "without_nulls"]


class ArgumentsError(Exception):
    """A call's arguments do not do; the text is the answer for the model."""


class Parameter(msgspec.Struct):
    """One parameter of a tool's function, as its arguments are read."""

    name: str
    required: bool
    positional: bool
    default: Any
    adapter: TypeAdapter[Any] | None = None
    """What reads it, where that is pydantic."""
    nullable: bool = False
    text: bool = True
    """Whether it takes a text."""
    container: bool = False
    """Whether it takes an array or an object."""


class Reader:
    """Reads what a model gives a tool: the JSON text of a call, for a function with these parameters."""

    def __init__(
        self,
        tool: str,
        parameters: Mapping[str, Parameter],
        struct: Any,
        schema: Mapping[str, Any],
        *,
        rest: Any = msgspec.UNSET,
        hidden: Collection[str | None] = (),
    ) -> None:
        """The parameters are the fields of `struct`, whose schema is `schema`.

        `rest` is the type of further keywords, where the function takes them; `hidden` ones are not the model's.
        """
        self._tool = tool
        self._parameters = parameters
        self._schema = schema
        self._rest = rest
        self._hidden = hidden
        self._decoder: Any = msgspec.json.Decoder(struct)
        self._lax_decoder: Any = msgspec.json.Decoder(struct, strict=False)
        self._positional = [p.name for p in parameters.values() if p.positional]
        self._adapters: dict[str, TypeAdapter[Any]] = {
            p.name: p.adapter for p in parameters.values() if p.adapter is not None
        }
        self._is_plain = not self._positional and not self._adapters
        self._has_objects = any("properties" in node for node in _nodes(schema))
        """Whether an argument may hold an object with fields, which msgspec does not hold to them."""

    def read(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments in a call's JSON text. Raises `ArgumentsError`.

        Harmless slips are mended: no text or `null` for no arguments, an object encoded twice, line breaks inside a
        text, numbers and booleans as text, a container as JSON text where no text is taken, null where a default
        stands for it, also inside of objects. An argument that was not given is left to the function's own default.
        """
        parameters = self._parameters
        if self._is_plain:
            try:  # what needs no mending, in one go
                struct = self._decoder.decode(text)
            except Exception:  # noqa: S110  # told below, if it cannot be mended; a type's own code may raise anything
                pass
            else:
                if self._has_objects:
                    self._check_known(msgspec.json.decode(text))
                return [], {n: v for n in parameters if (v := getattr(struct, n)) is not msgspec.UNSET}
        given = decode(text, self._tool, exact=True)
        values: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in given.items():
            parameter = parameters.get(key)
            if parameter is None:
                extra[key] = value
            elif value is None and not parameter.required and not parameter.nullable:
                continue
            elif type(value) is str and not parameter.text:
                values[key] = _no_text(value, parameter)
            else:
                values[key] = value
        keywords = self._further(extra) if extra else {}
        if len(values) < len(parameters):
            missing = [p.name for p in parameters.values() if p.required and p.name not in values]
            if missing:
                raise self._wrong(f"{listed(missing)} missing")
        if self._has_objects:
            self._check_known(values)
        keywords = self._converted(values) | keywords
        if self._positional:
            return [keywords.pop(n, parameters[n].default) for n in self._positional], keywords
        return [], keywords

    def _check_known(self, values: Mapping[str, Any]) -> None:
        """Raise for a key, inside of an argument, that its type does not have: it would be dropped silently."""
        definitions = self._schema.get("$defs", {})
        for name, value in values.items():
            if name in self._parameters and name not in self._adapters:
                told = _unknown_in(
                    value, _branches(self._schema["properties"][name], definitions), definitions, f"$.{name}"
                )
                if told:
                    raise self._wrong(told)

    def _further(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Arguments that no parameter names, for `**keywords`."""
        bad = next((k for k in extra if self._rest is msgspec.UNSET or k in self._hidden), None)
        if bad is not None:
            raise self._wrong(unknown("argument", bad, self._parameters))
        try:
            return msgspec.json.decode(_encoder.encode(extra), type=cast("Any", dict)[str, self._rest], strict=False)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from error

    def _converted(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values as the function takes them."""
        try:
            return self._built(values)
        except ArgumentsError:
            given = without_nulls(values, self._schema)
            if given == values:
                raise
        return self._built(given)

    def _built(self, values: dict[str, Any]) -> dict[str, Any]:
        faults: list[str] = []
        try:
            struct = self._lax_decoder.decode(_encoder.encode(values))
            built = {name: getattr(struct, name) for name in values}
            for name, adapter in self._adapters.items():
                if name not in built:
                    continue
                try:
                    built[name] = pydantics.read(adapter, bytes(built[name]), f"$.{name}")
                except pydantics.UnfitError as error:
                    faults.append(str(error))
        except msgspec.ValidationError as error:
            raise self._wrong(_with_values(str(error), self._schema)) from error
        except Exception as error:  # of the code of a type
            raise self._wrong(f"{type(error).__name__}: {error}") from error
        if faults:
            raise self._wrong("; ".join(faults))
        _check_finite(built, self._tool, "$")  # a text such as "nan" is read as a number
        return built

    def _wrong(self, why: str) -> ArgumentsError:
        return ArgumentsError(f"invalid arguments for tool {self._tool!r}: {why}")


def _no_text(text: str, parameter: Parameter) -> Any:
    """What a text stands for where none is taken: a container, or null."""
    if parameter.nullable and text.strip().lower() == "null":
        return None
    if not parameter.container or text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return _exact_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text  # what it is instead is told when it is converted


def _with_values(told: str, schema: Mapping[str, Any]) -> str:
    """An error of msgspec's; where a value is none of several, with those that there are."""
    fault = re.fullmatch(r"Invalid (?:enum )?value .* - at `\$(.*)`", told, re.DOTALL)
    if fault is None:
        return told
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for name in re.findall(r"\.([^.\[]+)|\[", fault[1].replace("...", "")):
        inner = [
            n.get("properties", {}).get(name) if name else n.get("items") or n.get("additionalProperties")
            for n in nodes
        ]
        nodes = [branch for n in inner for branch in _branches(n, definitions)]
    values = [v for n in nodes for v in ([n["const"]] if "const" in n else n.get("enum", ()))]
    return f"{told}; expected one of {listed(values)}" if values else told


def _nodes(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All schemas inside of a schema."""
    left: list[Any] = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            found = cast("dict[str, Any]", node)
            yield found
            left += found.values()
        elif isinstance(node, list):
            left += cast("list[Any]", node)


def _unknown_in(value: Any, branches: list[dict[str, Any]], definitions: Mapping[str, Any], path: str) -> str:
    """What to tell of the first key that no branch of the schema knows; "" where all are known."""
    if isinstance(value, list):
        inner = [branch for b in branches for branch in _branches(b.get("items"), definitions)]
        told = (
            _unknown_in(item, inner, definitions, f"{path}[{i}]")
            for i, item in enumerate(cast("list[Any]", value))
            if isinstance(item, (dict, list))
        )
        return next(filter(None, told), "")
    if not isinstance(value, dict):
        return ""
    objects = [b for b in branches if "properties" in b or "additionalProperties" in b]
    for key, item in cast("dict[str, Any]", value).items():
        open_ = [b["additionalProperties"] for b in objects if b.get("additionalProperties") not in (None, False)]
        known = [b["properties"][key] for b in objects if key in b.get("properties", {})]
        if objects and not known and not open_:
            names = dict.fromkeys(n for b in objects for n in b.get("properties", {}))
            return f"{unknown('key', key, names)} - at `{path}`"
        inner = [branch for b in (*known, *open_) for branch in _branches(b, definitions)]
        if isinstance(item, (dict, list)) and (told := _unknown_in(item, inner, definitions, f"{path}.{key}")):
            return told
    return ""


def _branches(schema: Any, definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schema, or what it is a union of."""
    if not isinstance(schema, dict):
        return []
    node = cast("dict[str, Any]", schema)
    if "$ref" in node:
        return _branches(definitions.get(node["$ref"].rpartition("/")[2]), definitions)
    options: list[Any] = node.get("anyOf") or node.get("oneOf") or []
    return [branch for o in options for branch in _branches(o, definitions)] if options else [node]


def decode(text: Any, tool: str, *, exact: bool = False) -> dict[str, Any]:
    """A call's arguments as a dict. Raises `ArgumentsError` where they are no JSON object.

    `exact`: a number whose digits a float does not keep is a Decimal.
    """
    value: Any = text
    if isinstance(text, str):
        if not text.strip():
            return {}
        decoder = _exact_decoder if exact else _decoder
        value = _json(text, tool, decoder)
        if isinstance(value, str):  # encoded twice
            value = _json(value, tool, decoder) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(text, str):
        value = _mended(value, tool, "$")
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"invalid arguments for tool {tool!r}: expected a JSON object, found {_kind(value)}: {value!r:.80}"
        )
    return cast("dict[str, Any]", value)


def _json(text: str, tool: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        try:  # line breaks inside a text, and halves of surrogate pairs, do no harm
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            raise ArgumentsError(
                f"the arguments for tool {tool!r} are not valid JSON: {error}; they were {sound(text)!r:.200}"
            ) from error
        return _mended(value, tool, "$")


def _mended(value: Any, tool: str, path: str) -> Any:
    """The value without halves of surrogate pairs."""
    _check_finite(value, tool, path)
    return _sound(value)


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, dict):
        return {sound(k): _sound(v) for k, v in cast("dict[str, Any]", value).items()}
    return [_sound(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _check_finite(value: Any, tool: str, path: str) -> None:
    """Raise `ArgumentsError` for NaN and infinity: Python knows them, JSON does not."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentsError(
            f"invalid arguments for tool {tool!r}: expected a finite number, got {json.dumps(value)} - at `{path}`"
        )
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _check_finite(item, tool, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(cast("list[Any]", value)):
            _check_finite(item, tool, f"{path}[{i}]")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    return (
        "a boolean" if isinstance(value, bool) else "a number" if isinstance(value, (int, float, Decimal)) else "a text"
    )


def _exactly(text: str) -> float | Decimal:
    """A number that a float would write otherwise keeps its digits: the parameter may be a Decimal."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("out of range")
    return number if repr(number) == text else Decimal(text)


_encoder = msgspec.json.Encoder(decimal_format="number")

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_exact_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_exactly)


def without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value without each null that stands for an optional property which takes no null."""
    return _without_nulls(value, schema, schema.get("$defs", {}))


def _without_nulls(value: Any, schema: Any, definitions: Mapping[str, Any]) -> Any:
    if not isinstance(value, (dict, list)) or not isinstance(schema, Mapping):
        return cast("Any", value)
    node = cast("Mapping[str, Any]", schema)
    if "$ref" in node:
        return _without_nulls(value, definitions.get(node["$ref"].rpartition("/")[2]), definitions)
    options: list[Any] = node.get("anyOf") or node.get("oneOf") or node.get("allOf") or []
    for option in options:
        if _is_meant(value, option, definitions):
            return _without_nulls(value, option, definitions)
    if isinstance(value, list):
        return [_without_nulls(item, node.get("items"), definitions) for item in cast("list[Any]", value)]
    properties: dict[str, Any] = node.get("properties", {})
    optional = {k for k, v in properties.items() if not kinds(v, definitions) & {"null", "any"}}
    optional.difference_update(node.get("required", ()))
    others = node.get("additionalProperties")
    return {
        k: _without_nulls(v, properties.get(k, others), definitions)
        for k, v in cast("dict[str, Any]", value).items()
        if v is not None or k not in optional
    }


def _is_meant(value: Any, option: Any, definitions: Mapping[str, Any]) -> bool:
    """Whether the value seems to be of this branch of a union: by its tags and the names of its properties."""
    if not isinstance(option, dict):
        return False
    node = cast("dict[str, Any]", option)
    if "$ref" in node:
        node = definitions.get(node["$ref"].rpartition("/")[2], {})
    if isinstance(value, list):
        return node.get("type") == "array"
    properties: dict[str, Any] = node.get("properties", {})
    if node.get("type") != "object" or not (node.get("additionalProperties") or value.keys() <= properties.keys()):
        return False
    for name, schema in properties.items():
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None and value.get(name) not in (None, *values):
            return False
    return value.keys() >= set(node.get("required", ()))
