"""A function's signature and docstring -> JSON schema, and a model's JSON -> the function's arguments. Pure.

msgspec does the work: the parameters become the fields of a Struct, which gives the schema and converts. What this
file adds is what models get wrong in harmless ways (see `Signature.read`) and answers that a model can mend.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import docstring_parser
import msgspec

from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.messages import sound

__all__ = ["ArgumentsError", "Signature", "UnresolvedError", "context_parameter", "decode", "described", "innermost"]


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
    type: Any
    required: bool
    positional: bool
    default: Any
    nullable: bool = False
    container: bool = False
    """Whether it takes an array or an object, and no text."""


class Signature:
    """What a tool's function takes.

    `schema` is the JSON schema of its arguments, an object. `context` names the parameter that gets the
    `ToolContext`, which is neither in the schema nor taken from the model.
    """

    def __init__(self, fn: Callable[..., Any], name: str, context_type: type, names: Mapping[str, Any]) -> None:
        """Read the function. `names` are what annotations may name besides the function's module.

        Raises `ConfigError` naming function and parameter: a type that cannot be resolved or has no schema, `*args`.
        """
        self._tool = name
        self.context: str | None = context_parameter(fn, name, context_type, names)
        self._parameters: dict[str, _Parameter] = {}
        self._open = False
        told = _documented(fn)
        found, fixed = _parameters(fn, name)
        self._closed: frozenset[str] = frozenset(fixed)
        fields: list[Any] = []
        for parameter in found:
            where = f"tool {name!r}, parameter {parameter.name!r}"
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise ConfigError(f"{where}: *{parameter.name} has no place in a JSON object; take a list instead")
            if parameter.kind is parameter.VAR_KEYWORD:
                self._open = True
                continue
            if parameter.name == self.context:
                continue
            annotation = _resolved(fn, parameter, names, where)
            text = _text_of(annotation) or told.get(parameter.name)
            if text:
                annotation = Annotated[annotation, msgspec.Meta(description=text)]
            given = parameter.default is parameter.empty
            read = self._parameters[parameter.name] = _Parameter(
                parameter.name,
                annotation,
                given,
                parameter.kind is parameter.POSITIONAL_ONLY,
                None if given else parameter.default,
            )
            try:
                read.nullable = _takes(None, annotation)
            except NameError as error:
                raise UnresolvedError(f"{where}: its type cannot be resolved: {error}", error.name or "") from error
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{where}: its type has no JSON schema: {error}") from error
            field = (parameter.name, annotation)
            fields.append(field if given else (*field, msgspec.field(default_factory=_unset)))
        self._positional = [p.name for p in self._parameters.values() if p.positional]
        self._struct: Any = msgspec.defstruct(_STRUCT, fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder: Any = msgspec.json.Decoder(self._struct)
        try:
            self.schema: dict[str, Any] = _schema(self._struct, self._parameters)
        except (TypeError, ValueError) as error:
            bad = next((p.name for p in self._parameters.values() if not _has_schema(p.type)), "")
            raise ConfigError(f"tool {name!r}, parameter {bad!r}: its type has no JSON schema: {error}") from error
        for read in self._parameters.values():
            read.container = _wants_container(self.schema["properties"][read.name])

    def read(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments in a call's JSON text. Raises `ArgumentsError`.

        Harmless slips are mended: no text or `null` for no arguments, an object encoded twice, line breaks inside a
        text, numbers and booleans as text, a container as JSON text where no text is taken, null where a default
        stands for it. An argument that was not given is left to the function's own default.
        """
        parameters = self._parameters
        if not self._positional:
            try:  # what needs no mending, in one go
                struct = self._decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeError, TypeError):
                pass
            else:
                return [], {n: v for n in parameters if (v := getattr(struct, n)) is not msgspec.UNSET}
        given = decode(text, self._tool)
        values: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in given.items():
            parameter = parameters.get(key)
            if parameter is None:
                extra[key] = value
            elif value is None and not parameter.required and not parameter.nullable:
                continue
            elif type(value) is str and parameter.container and value.lstrip()[:1] in ("[", "{"):
                values[key] = _container(value)
            else:
                values[key] = value
        if extra:
            # what a partial has fixed is not the model's to say, nor is the context
            bad = next((k for k in extra if not self._open or k in self._closed or k == self.context), None)
            if bad is not None:
                raise ArgumentsError(
                    f"invalid arguments for tool {self._tool!r}: {unknown('argument', bad, parameters)}"
                )
        if len(values) < len(parameters):
            missing = [p.name for p in parameters.values() if p.required and p.name not in values]
            if missing:
                raise ArgumentsError(f"invalid arguments for tool {self._tool!r}: {listed(missing)} missing")
        try:
            struct = msgspec.convert(values, self._struct, strict=False)
        except msgspec.ValidationError as error:
            raise ArgumentsError(f"invalid arguments for tool {self._tool!r}: {error}") from error
        keywords = {name: getattr(struct, name) for name in values}
        if self._positional:
            return [keywords.pop(n, parameters[n].default) for n in self._positional], keywords | extra
        return [], keywords | extra if extra else keywords


def decode(text: Any, tool: str) -> dict[str, Any]:
    """A call's arguments as a dict. Raises `ArgumentsError` where they are no JSON object."""
    value: Any = text
    if isinstance(text, str):
        if not text.strip():
            return {}
        value = _json(text, tool)
        if isinstance(value, str):  # encoded twice
            value = _json(value, tool) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"invalid arguments for tool {tool!r}: expected a JSON object, found {_kind(value)}: {value!r:.80}"
        )
    return cast("dict[str, Any]", value)


def _json(text: str, tool: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        try:  # line breaks inside a text, and halves of surrogate pairs, do no harm
            value = json.loads(text, strict=False, parse_constant=_Constant)
        except ValueError:
            raise ArgumentsError(
                f"the arguments for tool {tool!r} are not valid JSON: {error}; they were {sound(text)!r:.200}"
            ) from error
        return _mended(value, tool, "$")


class _Constant(str):
    """NaN, Infinity or -Infinity: Python's JSON has them, no other."""

    __slots__ = ()


def _mended(value: Any, tool: str, path: str) -> Any:
    if isinstance(value, _Constant):
        raise ArgumentsError(
            f"invalid arguments for tool {tool!r}: expected a finite number, got {value} - at `{path}`"
        )
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {sound(k): _mended(v, tool, f"{path}.{k}") for k, v in fields.items()}
    if isinstance(value, list):
        return [_mended(v, tool, f"{path}[{i}]") for i, v in enumerate(cast("list[Any]", value))]
    return value


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    return "a boolean" if isinstance(value, bool) else "a number" if isinstance(value, (int, float)) else "a text"


def _container(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # what it is instead is told when it is converted


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


def _wants_container(schema: dict[str, Any]) -> bool:
    options: list[dict[str, Any]] = schema.get("anyOf", [schema])
    kinds = {o.get("type", "object" if "$ref" in o else "enum" if "enum" in o else "any") for o in options}
    return not kinds & {"string", "any"} and bool(kinds & {"array", "object"})


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


def is_method(fn: Callable[..., Any]) -> bool:
    """Whether this is a function out of a class's body that waits for its `self`."""
    if not inspect.isfunction(fn) or "." not in fn.__qualname__.rpartition("<locals>.")[2]:
        return False
    return next(iter(inspect.signature(fn).parameters), "") == "self"


def _resolved(fn: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any], where: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    own = getattr(innermost(fn), "__globals__", {})
    try:
        return typing.get_type_hints(holder, own, dict(names), include_extras=True)["it"]
    except NameError as error:
        raise UnresolvedError(
            f"{where}: its type {parameter.annotation!r} cannot be resolved: {error}; import the name at run time, "
            f"not for type checkers only",
            error.name or "",
        ) from error
    except Exception as error:
        raise ConfigError(f"{where}: its type {parameter.annotation!r} cannot be resolved: {error}") from error


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


def _schema(struct: Any, parameters: Mapping[str, _Parameter]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    own = cast("dict[str, Any]", components.pop(_STRUCT))
    properties: dict[str, Any] = own["properties"]
    # a plain list of values is what small models and strict servers understand best
    enums = {f"#/$defs/{k}": v for k, v in components.items() if set(v) <= {"title", "description", "enum"}}
    properties = cast("dict[str, Any]", _inlined(properties, enums))
    for name, parameter in parameters.items():
        if not parameter.required:
            try:
                properties[name]["default"] = msgspec.to_builtins(parameter.default, str_keys=True)
            except (TypeError, ValueError):
                pass  # a default with no JSON form is the function's own affair
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if own.get("required"):
        schema["required"] = own["required"]
    rest = {k: _inlined(v, enums) for k, v in components.items() if f"#/$defs/{k}" not in enums}
    if rest:
        schema["$defs"] = rest
    return schema


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
