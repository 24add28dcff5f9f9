"""A JSON schema as a server takes it that holds an answer to it strictly. Values in, values out.

The two servers that do have rules of their own, `_Rules`:

- OpenAI ("Structured outputs: supported schemas", developers.openai.com/api/docs/guides/structured-outputs): each
  object is closed and all its properties are required, what is optional takes null; recursion is allowed, `allOf`,
  `oneOf` and `default` are not, a `$ref` stands alone, everything has a type.
- Anthropic ("JSON Schema limitations", platform.claude.com/docs/en/build-with-claude/structured-outputs): each object
  is closed, properties may stay optional; no recursion, hardly any bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from agentgraph.errors import ConfigError
from agentgraph.models.protocol import ToolSpec

__all__ = [
    "OpenSchemaError", "check_strict", "closed", "kinds", "strict_for_anthropic", "strict_for_openai",
    "strict_parameters",
]  # fmt: skip

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_SAID_ELSEWHERE = ("discriminator", "additionalProperties", "$schema")
_TEXTS = ("title", "description")
_REF = "#/$defs/"
_NULL = {"type": "null"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_KINDS: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"
}  # fmt: skip


class OpenSchemaError(ValueError):
    """A schema that no answer can be held to strictly: why, and the names on the way to the place, outermost first."""

    def __init__(self, why: str, path: tuple[str, ...]) -> None:
        super().__init__(why)
        self.path = path


class _Rules(NamedTuple):
    """What a server takes."""

    all_required: bool
    """Properties are all required; one that was not takes null too."""
    recursion: bool
    all_of: bool
    types_of_values: bool
    """Whether an `enum` or a `const` needs a type."""
    formats: tuple[str, ...]
    kept: Callable[[str, str, Any], bool]
    """Whether it reads this keyword, of this value, on this type; others are told in the description."""


def _openai_keeps(kind: str, keyword: str, value: Any) -> bool:
    if kind == "string":  # not all of regular expressions is there: no looking around
        return keyword == "pattern" and "(?" not in value
    return keyword in (("minItems", "maxItems") if kind == "array" else _BOUNDS)


def _anthropic_keeps(kind: str, keyword: str, value: Any) -> bool:
    return kind == "array" and keyword == "minItems" and value in (0, 1)


_OPENAI = _Rules(True, True, False, True, _FORMATS, _openai_keeps)
_ANTHROPIC = _Rules(False, False, True, False, (*_FORMATS, "uri"), _anthropic_keeps)


def closed(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with each object closed, and bounds that such servers refuse told in the descriptions.

    None where that would leave out values that fit: mappings with any keys, tuples, values of any type, recursion.
    """
    try:
        return strict_for_anthropic(schema)
    except OpenSchemaError:
        return None


def strict_for_openai(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in the form that OpenAI takes with `strict`. Raises `OpenSchemaError` where there is none.

    A property that was optional takes null, which stands for its absence (`Signature.read` leaves it out).
    """
    return _Closing(_OPENAI, schema).whole()


def strict_for_anthropic(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in the form that Anthropic takes with `strict`. Raises `OpenSchemaError` where there is none."""
    return _Closing(_ANTHROPIC, schema).whole()


def strict_parameters(tool: ToolSpec, form: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The tool's parameters in a server's strict form, as they are where the tool is not strict.

    Raises `ConfigError` naming tool and parameter where there is no such form.
    """
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if not tool.strict:
        return parameters
    try:
        return _of_object(form(parameters))
    except OpenSchemaError as error:
        raise _refused(tool.name, error) from error


def check_strict(tool: str, parameters: dict[str, Any]) -> None:
    """Raise `ConfigError` naming tool and parameter where no server takes these parameters strictly."""
    try:
        _of_object(strict_for_openai(parameters))
    except OpenSchemaError as error:
        if (closed(parameters) or {}).get("type") != "object":
            raise _refused(tool, error) from error


def _of_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise OpenSchemaError("the arguments are not one plain object", ())
    return schema


def _refused(tool: str, error: OpenSchemaError) -> ConfigError:
    where = f", parameter {error.path[0]!r}" if error.path else ""
    place = f" - at `{'.'.join(('$', *error.path))}`" if len(error.path) > 1 else ""
    return ConfigError(f"tool {tool!r}{where}: cannot be strict: {error}{place}")


class _Closing:
    """One schema on its way; definitions are closed where they are first met, so that errors know the way there."""

    def __init__(self, rules: _Rules, schema: dict[str, Any]) -> None:
        self._rules = rules
        self._schema = schema
        self._given: dict[str, Any] = schema.get("$defs", {})
        self._made: dict[str, Any] = {}
        self._open: list[str] = []

    def whole(self) -> dict[str, Any]:
        out = self._close({k: v for k, v in self._schema.items() if k != "$defs"}, ())
        return {**out, "$defs": self._made} if self._made else out

    def _close(self, schema: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(schema, dict):
            raise OpenSchemaError("it takes any value", path)
        node = {k: v for k, v in cast("dict[str, Any]", schema).items() if k not in _SAID_ELSEWHERE}
        if "$ref" in node:
            return self._refer(node, path)
        if len(node.get("allOf", ())) == 1 and not self._rules.all_of:
            return self._close({**node.pop("allOf")[0], **node}, path)
        out = {k: node.pop(k) for k in _TEXTS if k in node}
        kind = node.pop("type", None)
        if "properties" in node and node.keys() & {"anyOf", "oneOf", "allOf"}:
            raise OpenSchemaError("it is of several schemas at once", path)
        if "anyOf" in node or "oneOf" in node:
            out["anyOf"] = [self._close(v, path) for v in node.pop("anyOf", None) or node.pop("oneOf")]
        elif "allOf" in node:
            if not self._rules.all_of:
                raise OpenSchemaError("it is of several schemas at once (allOf)", path)
            out["allOf"] = [self._close(v, path) for v in node.pop("allOf")]
        elif "const" in node or "enum" in node:
            values: list[Any] = [node["const"]] if "const" in node else node["enum"]
            if self._rules.types_of_values:
                of_values = list(dict.fromkeys(_kind_of(v) for v in values))
                out["type"] = of_values[0] if len(of_values) == 1 else of_values
            name = "const" if "const" in node else "enum"
            out[name] = node.pop(name)
        elif isinstance(kind, list):
            return {"anyOf": [self._close({**schema, "type": k}, path) for k in cast("list[Any]", kind)]}
        else:
            out["type"] = kind
            self._fill(out, kind, {**schema}, node, path)
        if node:  # what is left is refused as a rule, but may be read
            told = ", ".join(f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in node.items())
            out["description"] = f"{out['description']} ({told})" if "description" in out else f"({told})"
        return out

    def _refer(self, node: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The reference alone: what else is said of the place has no other place than in a copy."""
        ref = node.pop("$ref")
        name = ref.removeprefix(_REF)
        if name not in self._given:
            raise OpenSchemaError(f"it refers to {ref!r}, which is not in the schema's $defs", path)
        if name in self._open and not self._rules.recursion:
            raise OpenSchemaError(f"its type {name!r} is recursive", path)
        node.pop("title", None)
        alone = not node or name in self._open
        if alone and name in self._made:
            return {"$ref": ref}
        self._open.append(name)
        if alone:
            self._made[name] = None  # known before it is made: it may refer to itself
            self._made[name] = self._close(self._given[name], path)
            out = {"$ref": ref}
        else:
            out = self._close({**self._given[name], **node}, path)
        self._open.pop()
        return out

    def _fill(
        self, out: dict[str, Any], kind: Any, schema: dict[str, Any], node: dict[str, Any], path: tuple[str, ...]
    ) -> None:
        if kind == "object":
            if "properties" not in node or schema.get("additionalProperties") or "patternProperties" in node:
                raise OpenSchemaError("it takes an object with any keys", path)
            self._fill_object(out, node, path)
        elif kind == "array":
            if "prefixItems" in node:
                raise OpenSchemaError("it takes an array whose items each have a type of their own", path)
            out["items"] = self._close(node.pop("items", None), path)
        elif kind == "string":
            if node.get("format") in self._rules.formats:
                out["format"] = node.pop("format")
        elif kind not in ("integer", "number", "boolean", "null"):
            raise OpenSchemaError("it takes any value", path)
        for keyword in [k for k, v in node.items() if self._rules.kept(kind, k, v)]:
            out[keyword] = node.pop(keyword)

    def _fill_object(self, out: dict[str, Any], node: dict[str, Any], path: tuple[str, ...]) -> None:
        properties: dict[str, Any] = node.pop("properties")
        required: list[str] = node.pop("required", [])
        out["properties"] = {name: self._close(value, (*path, name)) for name, value in properties.items()}
        out["required"] = required
        out["additionalProperties"] = False
        if self._rules.all_required:
            out["required"] = list(properties)
            for name in properties.keys() - set(required):
                if not kinds(properties[name], self._given) & {"null", "any"}:
                    out["properties"][name] = _nullable(out["properties"][name])


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    texts = {k: schema[k] for k in _TEXTS if k in schema}
    rest = {k: v for k, v in schema.items() if k not in texts}
    options = rest["anyOf"] if rest.keys() == {"anyOf"} else [rest]
    return {**texts, "anyOf": [*options, _NULL]}


def kinds(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """The types of JSON values that a schema takes; "any" where it does not say."""
    return _kinds(schema, definitions, ())


def _kinds(schema: Any, definitions: Mapping[str, Any], seen: tuple[str, ...]) -> set[str]:
    if not isinstance(schema, dict):
        return {"any"}
    node = cast("dict[str, Any]", schema)
    if "$ref" in node:
        name: str = node["$ref"].removeprefix(_REF)
        return set() if name in seen else _kinds(definitions.get(name), definitions, (*seen, name))
    options = node.get("anyOf") or node.get("oneOf")
    if options:
        return {kind for option in options for kind in _kinds(option, definitions, seen)}
    if "allOf" in node:
        return _kinds(node["allOf"][0], definitions, seen)
    if "type" in node:
        return set(cast("list[str]", node["type"])) if isinstance(node["type"], list) else {node["type"]}
    values: list[Any] = [node["const"]] if "const" in node else node.get("enum", [])
    return {_kind_of(v) for v in values} or {"any"}


def _kind_of(value: Any) -> str:
    return _KINDS.get(cast("Any", type(value)), "string")
