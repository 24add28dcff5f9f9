"""A function's signature and docstring -> the JSON schema of its arguments, and what reads them. Pure.

msgspec does the work: the parameters become the fields of a Struct, which gives the schema and converts. A parameter
whose type has something of pydantic's in it stays JSON in that Struct, and pydantic reads it.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import itertools
import json
import keyword
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Union, cast

import docstring_parser
import msgspec

from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.models.closed_schema import check_strict, kinds
from agentgraph.nodes import pydantics
from agentgraph.nodes.arguments import Parameter, Reader

__all__ = [
    "COMBINED", "Signature", "UnresolvedError", "context_parameter", "described", "innermost", "is_method", "kept_back",
]  # fmt: skip

_STRUCT = "_arguments_of_a_tool"
"""No name that a user's type would have: it stands among those types in msgspec's components."""


class UnresolvedError(ConfigError):
    """An annotation names something that is not there, or not there yet: `missing`."""

    def __init__(self, message: str, missing: str) -> None:
        super().__init__(message)
        self.missing = missing


class Signature:
    """What a tool's function takes.

    `schema` is the JSON schema of its arguments, an object. `context` names the parameter that gets the
    `ToolContext`, which is neither in the schema nor taken from the model. `reader` reads the arguments of a call.
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
        self.context: str | None = context_parameter(fn, name, context_type, names)
        self._parameters: dict[str, Parameter] = {}
        rest: Any = msgspec.UNSET
        told = _documented(fn)
        found, fixed = _parameters(fn, name)
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
                rest = annotation
        struct: Any = msgspec.defstruct(_STRUCT, fields, kw_only=True, forbid_unknown_fields=True)
        self.schema: dict[str, Any] = _schema(struct, self._parameters)
        for read in self._parameters.values():
            taken = kinds(self.schema["properties"][read.name], self.schema.get("$defs", {}))
            read.text = bool(taken & {"string", "any"})
            read.container = bool(taken & {"array", "object"})
            if read.adapter is not None:
                read.nullable = bool(taken & {"null", "any"})
        if strict:
            check_strict(name, self.schema)
        hidden = {*fixed, self.context}  # what a partial has fixed is not the model's to say
        self.reader: Reader = Reader(name, self._parameters, struct, self.schema, rest=rest, hidden=hidden)

    def _field(self, parameter: inspect.Parameter, annotation: Any, told: Mapping[str, str], where: str) -> Any:
        """Note the parameter, and make it a field of the Struct."""
        if parameter.name.startswith("__"):
            raise ConfigError(f"{where}: an argument's name must not begin with two underscores")
        text = _text_of(annotation) or told.get(parameter.name)
        given = parameter.default is parameter.empty
        if type(parameter.default).__name__ == "FieldInfo":
            raise ConfigError(f"{where}: a Field is no default; write Annotated[..., Field(...)], then the default")
        read = self._parameters[parameter.name] = Parameter(
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


def _schema(struct: Any, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    definitions = components
    properties: dict[str, Any] = definitions.pop(_STRUCT)["properties"]
    if adapters := {p.name: p.adapter for p in parameters.values() if p.adapter is not None}:
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


def _json_form(parameter: Parameter) -> Any:
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
