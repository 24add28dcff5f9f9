"""A function's signature and docstring -> JSON schema, and a model's JSON -> the function's arguments. Pure.

msgspec does the work: the parameters become the fields of a Struct, which gives the schema and converts. A parameter
whose type has something of pydantic's in it stays JSON in that Struct, and pydantic reads it. What this file adds is
what models get wrong in harmless ways (see `Signature.read`) and answers that a model can mend.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import itertools
import json
import keyword
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Union, cast

import docstring_parser
import msgspec

from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.messages import sound
from agentgraph.models.closed_schema import check_strict, kinds
from agentgraph.nodes import pydantics

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "COMBINED", "ArgumentsError", "Signature", "UnresolvedError", "context_parameter", "decode", "described",
    "innermost", "kept_back", "without_nulls",
]  # fmt: skip


_STRUCT = "_arguments_of_a_tool"
"""No name that a user's type would have: it stands among those types in msgspec's components."""


class ArgumentsError(Exception):
    """A call's arguments do not do; the text is the answer for the model."""


class UnresolvedError(ConfigError):
    """An annotation names something that is not there, or not there yet: `missing`."""

    def __init__(self, message: str, missing: str) -> None:
        super().__init__(message)
        self.missing = missing


class _Parameter(msgspec.Struct):
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


class Signature:
    """What a tool's function takes.

    `schema` is the JSON schema of its arguments, an object. `context` names the parameter that gets the
    `ToolContext`, which is neither in the schema nor taken from the model.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        context_type: type,
        names: Mapping[str, Any],
        *,
        strict: bool = False,
    ) -> None:
        """Read the function. `names` are what annotations may name besides the function's module.

        Raises `ConfigError` naming function and parameter: a type that cannot be resolved or has no schema, `*args`,
        with `strict` also a schema that no provider takes strictly.
        """
        self._tool = name
        self.context: str | None = context_parameter(fn, name, context_type, names)
        self._parameters: dict[str, _Parameter] = {}
        self._rest: Any = _unset
        """The type of further keywords, where the function takes them."""
        told = _documented(fn)
        found, fixed = _parameters(fn, name)
        self._closed: frozenset[str] = frozenset(fixed)
        fields: list[Any] = []
        for parameter in found:
            where = f"tool {name!r}, parameter {parameter.name!r}"
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise ConfigError(f"{where}: *{parameter.name} has no place in a JSON object; take a list instead")
            if parameter.name == self.context:
                continue
            annotation = _resolved(fn, parameter, names, where)
            if parameter.kind is not parameter.VAR_KEYWORD:
                fields.append(self._field(parameter, annotation, told, where))
            elif getattr(typing.get_origin(annotation), "_name", "") == "Unpack":
                fields += [self._field(p, p.annotation, told, where) for p in _keywords_of(annotation, where)]
            elif annotation is not Any and not _has_schema(annotation):
                raise ConfigError(f"{where}: its type {annotation!r} has no JSON schema")
            else:
                self._rest = annotation
        self._positional = [p.name for p in self._parameters.values() if p.positional]
        self._adapters: dict[str, TypeAdapter[Any]] = {
            p.name: p.adapter for p in self._parameters.values() if p.adapter is not None
        }
        self._is_plain = not self._positional and not self._adapters
        struct: Any = msgspec.defstruct(_STRUCT, fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder: Any = msgspec.json.Decoder(struct)
        self._lax_decoder: Any = msgspec.json.Decoder(struct, strict=False)
        self.schema: dict[str, Any] = _schema(struct, self._parameters, self._adapters)
        for read in self._parameters.values():
            taken = kinds(self.schema["properties"][read.name], self.schema.get("$defs", {}))
            read.text = bool(taken & {"string", "any"})
            read.container = bool(taken & {"array", "object"})
            if read.adapter is not None:
                read.nullable = bool(taken & {"null", "any"})
        if strict:
            check_strict(name, self.schema)

    def _field(self, parameter: inspect.Parameter, annotation: Any, told: Mapping[str, str], where: str) -> Any:
        """Note the parameter, and make it a field of the Struct."""
        if parameter.name.startswith("__"):
            raise ConfigError(f"{where}: an argument's name must not begin with two underscores")
        text = _text_of(annotation) or told.get(parameter.name)
        given = parameter.default is parameter.empty
        if type(parameter.default).__name__ == "FieldInfo":
            raise ConfigError(f"{where}: a Field is no default; write Annotated[..., Field(...)], then the default")
        read = self._parameters[parameter.name] = _Parameter(
            parameter.name,
            given,
            parameter.kind is parameter.POSITIONAL_ONLY,
            None if given else parameter.default,
        )
        try:
            if pydantics.is_pydantics(annotation):
                read.adapter = pydantics.adapter_of(annotation)
                annotation = msgspec.Raw
            elif pydantics.has_lost_bounds(annotation):
                raise TypeError("pydantic, which reads bounds of annotated_types, is not loaded: use msgspec.Meta")
            else:
                annotation = _with_formats(annotation)
                read.nullable = _takes(None, annotation)
                msgspec.json.schema_components((annotation,))
        except NameError as error:
            raise UnresolvedError(f"{where}: its type cannot be resolved: {error}", error.name or "") from error
        except (TypeError, ValueError) as error:
            why = str(error).strip().rpartition("\n")[2]
            raise ConfigError(f"{where}: its type has no JSON schema: {why}") from error
        if text:
            annotation = Annotated[annotation, msgspec.Meta(description=text)]
        if given and read.adapter is None:
            return (parameter.name, annotation)
        return (parameter.name, annotation, msgspec.field(default_factory=_unset))

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
        keywords = self._converted(values) | keywords
        if self._positional:
            return [keywords.pop(n, parameters[n].default) for n in self._positional], keywords
        return [], keywords

    def _further(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Arguments that no parameter names, for `**keywords`."""
        # what a partial has fixed is not the model's to say, nor is the context
        bad = next((k for k in extra if self._rest is _unset or k in self._closed or k == self.context), None)
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
            given = without_nulls(values, self.schema)
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
            raise self._wrong(_with_values(str(error), self.schema)) from error
        except Exception as error:  # of the code of a type
            raise self._wrong(f"{type(error).__name__}: {error}") from error
        if faults:
            raise self._wrong("; ".join(faults))
        _check_finite(built, self._tool, "$")  # a text such as "nan" is read as a number
        return built

    def _wrong(self, why: str) -> ArgumentsError:
        return ArgumentsError(f"invalid arguments for tool {self._tool!r}: {why}")


def _exactly(text: str) -> float | Decimal:
    """A number that a float would write otherwise keeps its digits: the parameter may be a Decimal."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("out of range")
    return number if repr(number) == text else Decimal(text)


_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_exact_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_exactly)


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


def _no_text(text: str, parameter: _Parameter) -> Any:
    """What a text stands for where none is taken: a container, or null."""
    if parameter.nullable and text.strip().lower() == "null":
        return None
    if not parameter.container or text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return _exact_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text  # what it is instead is told when it is converted


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


def _unset() -> Any:
    return msgspec.UNSET


def _takes(value: Any, annotation: Any) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def _has_schema(annotation: Any) -> bool:
    try:
        msgspec.json.schema_components((annotation,))
    except (TypeError, ValueError):
        return False
    return True


_FORMATS: dict[Any, str] = {dt.datetime: "date-time", dt.time: "time"}
_GENERICS: tuple[Any, ...] = (list, dict, set, frozenset, tuple)


def _with_formats(annotation: Any) -> Any:
    """The type, saying in the schema what msgspec does not: that a text is a time."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(_with_formats(inner[0]), *inner[1:])]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_with_formats, inner))]
    if origin in _GENERICS:
        return origin[tuple(map(_with_formats, inner))]
    if annotation is dt.datetime or annotation is dt.time:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": _FORMATS[annotation]})]
    return annotation


def described(fn: Callable[..., Any]) -> str:
    """What the docstring says of the function, without its sections on parameters and results."""
    doc = _doc(fn)
    if not doc:
        return ""
    parsed = docstring_parser.parse(doc)
    parts = [p.strip() for p in (parsed.short_description, parsed.long_description) if p and p.strip()]
    return "\n\n".join(parts)


def _doc(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return inspect.getdoc(fn) or ""
    return inspect.getdoc(type(fn)) or inspect.getdoc(type(fn).__call__) or ""


def _documented(fn: Callable[..., Any]) -> dict[str, str]:
    docs = [_doc(fn)]
    inner = innermost(fn)
    if getattr(inner, "__name__", "") == "__call__":
        docs.append(inspect.getdoc(inner) or "")
    return {p.arg_name: p.description for d in docs if d for p in docstring_parser.parse(d).params if p.description}


def _parameters(fn: Callable[..., Any], tool: str) -> tuple[list[inspect.Parameter], set[str]]:
    """The parameters without a method's `self`, and the names that a partial has fixed, which are not among them."""
    fixed: set[str] = set()
    inner = fn
    while isinstance(inner, functools.partial):
        fixed.update(inner.keywords)
        inner = inner.func
    try:
        found = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {tool!r}: the parameters of {fn!r:.80} cannot be read: {error}") from error
    return [p for p in found[is_method(fn) :] if p.name not in fixed], fixed


COMBINED = frozenset(("anyOf", "oneOf", "allOf", "$ref"))
"""What a schema may have in place of a type and properties."""


def kept_back(fn: Callable[..., Any], tool: str, schema: Mapping[str, Any], context: str | None) -> set[str]:
    """The function's own parameters that a schema, given for it, does not name: no model may set them.

    Raises `ConfigError` where the schema names what the function does not take, or not what it needs.
    """
    found, fixed = _parameters(fn, tool)
    if schema.keys() & COMBINED:
        return fixed
    named: Mapping[str, Any] = schema.get("properties", {})
    own = {p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != context}
    if not any(p.kind is p.VAR_KEYWORD for p in found):
        for name in named:
            if name not in own:
                raise ConfigError(f"tool {tool!r}, schema: {unknown('argument of the function', name, own)}")
    needed = [name for name, p in own.items() if p.default is p.empty and name not in named]
    if needed:
        raise ConfigError(f"tool {tool!r}: its schema does not name {listed(needed)}, which the function needs")
    return fixed | (own.keys() - named.keys())


def is_method(fn: Callable[..., Any], first: str = "self") -> bool:
    """Whether this is a function out of a class's body that waits for its `self`, or another first parameter."""
    if not inspect.isfunction(fn) or "." not in fn.__qualname__.rpartition("<locals>.")[2]:
        return False
    return next(iter(inspect.signature(fn).parameters), "") == first


def _resolved(fn: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any], where: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    own = getattr(innermost(fn), "__globals__", {})
    try:
        found: Any = typing.get_type_hints(holder, own, dict(names), include_extras=True)["it"]
    except NameError as error:
        raise UnresolvedError(
            f"{where}: its type {parameter.annotation!r} cannot be resolved: {error}; import the name at run time, "
            f"not for type checkers only",
            error.name or "",
        ) from error
    except Exception as error:
        raise ConfigError(f"{where}: its type {parameter.annotation!r} cannot be resolved: {error}") from error
    return Any if found is object else found


def _keywords_of(annotation: Any, where: str) -> list[inspect.Parameter]:
    """The parameters that `**keywords: Unpack[ATypedDict]` stands for."""
    (form,) = typing.get_args(annotation)
    found: list[inspect.Parameter] = []
    try:
        hints = typing.get_type_hints(form, include_extras=True)
    except NameError as error:
        raise UnresolvedError(f"{where}: its type cannot be resolved: {error}", error.name or "") from error
    for name, hint in hints.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ConfigError(f"{where}: {name!r} of {form.__name__} is no name for an argument in Python")
        kind, required = hint, name in form.__required_keys__
        while (qualifier := getattr(typing.get_origin(kind), "_name", "")) in ("Required", "NotRequired", "ReadOnly"):
            if qualifier != "ReadOnly":  # Python itself does not see these where annotations are postponed
                required = qualifier == "Required"
            (kind,) = typing.get_args(kind)
        default = inspect.Parameter.empty if required else msgspec.UNSET
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default))
    return found


def innermost(fn: Any) -> Any:
    """The function that was written, inside of partials, wrappers, methods and objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = cast("Any", fn.func)
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif inspect.isroutine(fn) or inspect.isclass(fn):
            return fn
        else:
            fn = type(fn).__call__


def context_parameter(fn: Callable[..., Any], tool: str, context_type: type, names: Mapping[str, Any]) -> str | None:
    """The parameter that gets the context, whatever its name. Raises `ConfigError` where two do."""
    found: list[str] = []
    for parameter in _parameters(fn, tool)[0]:
        try:
            annotation = _resolved(fn, parameter, names, "")
        except UnresolvedError:
            if not _names_context(parameter.annotation, context_type):
                continue
        except ConfigError:
            continue  # told with the parameter's place, if it needs its type
        else:
            if not _is_context(annotation, context_type):
                continue
        if found or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {tool!r}, parameter {parameter.name!r}: one parameter takes the {context_type.__name__}, "
                f"and it is given by name"
            )
        found.append(parameter.name)
    return found[0] if found else None


def _is_context(annotation: Any, context_type: type) -> bool:
    if typing.get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_context(a, context_type) for a in typing.get_args(annotation))
    return inspect.isclass(annotation) and issubclass(annotation, context_type)


def _names_context(annotation: Any, context_type: type) -> bool:
    """Whether an annotation that cannot be resolved names the context: its import may be for type checkers only."""
    pattern = rf"(?:(?:\w+\.)*(?:Optional|Annotated|Union)\[|None ?\| ?)*['\"]?(?:\w+\.)*{context_type.__name__}\b"
    return isinstance(annotation, str) and re.match(pattern, annotation) is not None


def _text_of(annotation: Any) -> str | None:
    """The text in `Annotated[T, "text"]`, or the description that a `Meta` or the like has there."""
    for extra in getattr(annotation, "__metadata__", ()):
        text = extra if isinstance(extra, str) else getattr(extra, "description", None)
        if isinstance(text, str):
            return text
    return None


def _schema(
    struct: Any, parameters: Mapping[str, _Parameter], adapters: Mapping[str, TypeAdapter[Any]]
) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    definitions = components
    properties: dict[str, Any] = definitions.pop(_STRUCT)["properties"]
    if adapters:
        made, theirs = pydantics.schemas(adapters)
        names = {name: _free(name, definitions.keys() | theirs.keys()) for name in theirs if name in definitions}
        made, theirs = _renamed((made, theirs), {f"#/$defs/{k}": f"#/$defs/{v}" for k, v in names.items()})
        definitions |= {names.get(name, name): definition for name, definition in theirs.items()}
        for name, schema in made.items():
            schema.pop("default", None)
            properties[name] = schema | properties[name]
    # a plain list of values is what small models and strict servers understand best
    enums = {f"#/$defs/{k}": v for k, v in definitions.items() if {"enum", "const"} & v.keys() and set(v) <= _OF_ENUM}
    properties = cast("dict[str, Any]", _inlined(properties, enums))
    for name, parameter in parameters.items():
        if not parameter.required:
            try:
                properties[name]["default"] = _json_form(parameter)
            except (TypeError, ValueError):
                pass  # a default with no JSON form is the function's own affair
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [name for name, parameter in parameters.items() if parameter.required]
    if required:
        schema["required"] = required
    rest = {k: _inlined(v, enums) for k, v in definitions.items() if f"#/$defs/{k}" not in enums}
    if rest:
        schema["$defs"] = rest
    return schema


_OF_ENUM = {"title", "description", "enum", "const", "type"}


def _json_form(parameter: _Parameter) -> Any:
    if parameter.adapter is not None:
        form = pydantics.json_form(parameter.adapter, parameter.default)
    else:
        form = msgspec.to_builtins(parameter.default, str_keys=True)
    json.dumps(form, allow_nan=False)  # raises for what only Python takes for JSON
    return form


def _free(name: str, taken: Collection[str]) -> str:
    return next(new for n in itertools.count(2) if (new := f"{name}_{n}") not in taken)


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """The schemas with references under new names, also in what a discriminator maps to."""
    if isinstance(node, dict):
        return {k: _renamed(v, names) for k, v in cast("dict[str, Any]", node).items()}
    if isinstance(node, (list, tuple)):
        return [_renamed(item, names) for item in cast("list[Any]", node)]
    return names.get(node, node) if isinstance(node, str) else node


def _inlined(node: Any, enums: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, enums) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Any]", node)
    target = enums.get(fields.get("$ref", ""))
    if target is not None:
        return {k: v for k, v in {**target, **fields}.items() if k not in ("title", "$ref")}
    return {k: _inlined(v, enums) for k, v in fields.items()}
