"""References and schemas of an OpenAPI document -> JSON schemas of draft 2020-12, as a request takes them. Pure.

The rules:
- Every reference stays within the document. What nests becomes a definition, recursive or not; what does not is
  written in place.
- OpenAPI 3.0's own words (`nullable`, bounds that are open by a boolean, `example`) become JSON Schema's. What only an
  answer has (`readOnly`) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentgraph.errors import unknown
from agentgraph.nodes.names import clean_name, unique_name

__all__ = ["FaultError", "References", "Schemas", "an_array", "an_object", "fields_of"]

_SCHEMA = frozenset(
    [
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("dependentSchemas", "patternProperties", "properties"))
_NESTS = _SCHEMA | _SCHEMA_LISTS | _SCHEMA_MAPS | {"$ref"}
_LEFT_OUT = frozenset(
    (
        "$anchor",
        "$defs",
        "$id",
        "$schema",
        "definitions",
        "discriminator",
        "example",
        "externalDocs",
        "nullable",
        "readOnly",
        "writeOnly",
        "xml",
    )
)
"""What is OpenAPI's own, or says where a schema lives: references are resolved in the whole document."""
_SAYS_NOTHING = frozenset(
    [
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    ]
)
"""Keywords that take nothing away from what makes a plain object."""


class FaultError(Exception):
    """Something in the document cannot be used; the text says what and where."""


class References:
    """Where the references of one document lead."""

    def __init__(self, raw: Mapping[str, Any], *, is_3_0: bool) -> None:
        self.is_3_0: bool = is_3_0
        self._resolver = Registry[Any]().with_resource("", DRAFT202012.create_resource(raw)).resolver()

    def resolve(self, node: Any, where: str, *, keep_siblings: bool = False) -> Mapping[str, Any]:
        """The object itself, or the one that it refers to, over any number of references.

        `keep_siblings`: a schema of 3.1 that says more than its reference stays as it is.
        """
        seen: set[str] = set()
        node = an_object(node, where)
        while (reference := node.get("$ref")) is not None and not (keep_siblings and len(node) > 1):
            if not isinstance(reference, str):
                raise FaultError(f"{where}: a reference is a text, found {reference!r:.80}")
            if reference in seen:
                raise FaultError(f"{where}: the reference {reference!r} leads to itself")
            node = an_object(self._lookup(reference, where), f"{where}, {reference!r}")
            seen.add(reference)
        return node

    def _lookup(self, reference: str, where: str) -> Any:
        if not reference.startswith("#"):
            raise FaultError(
                f"{where}: {reference!r} refers to another document; give one document that holds all of it"
            )
        try:
            return self._resolver.lookup(reference).contents
        except (Unresolvable, LookupError, ValueError, TypeError):
            raise FaultError(f"{where}: {reference!r} refers to nothing in the document") from None


class Schemas:
    """The document's schemas as JSON schemas of draft 2020-12, as a request takes them."""

    def __init__(self, references: References) -> None:
        self.definitions: dict[str, Any] = {}
        self._references = references
        self._names: dict[str, str] = {}

    def convert(self, schema: Any, where: str) -> Any:
        """The schema; what it refers to goes into `definitions`."""
        if isinstance(schema, bool):
            return schema
        node = an_object(schema, where)
        reference = node.get("$ref")
        if reference is not None:
            found = self._referred(reference, where)
            # 3.0 takes nothing beside a reference; a description does no harm there
            kept = ("description",) if self._references.is_3_0 else [k for k in node if k != "$ref"]
            rest = {k: node[k] for k in kept if k in node}
            if not rest:
                return found
            own = self.convert(rest, where)
            return {"allOf": [found], **own} if (set(found) & set(own)) - _SAYS_NOTHING else {**found, **own}
        out: dict[str, Any] = {}
        for key, value in node.items():
            if key in _LEFT_OUT or key.startswith("x-"):
                continue
            if key in ("$dynamicRef", "$recursiveRef"):
                raise FaultError(f"{where}: {key} is not supported")
            out[key] = self._keyword(key, value, where)
        if "required" in out and isinstance(out["required"], list):
            self._without_read_only(out, node, where)
        if "properties" in out and "type" not in out:
            out["type"] = "object"
        if not isinstance(out.get("examples", []), list):
            del out["examples"]
        if "example" in node and "examples" not in out:
            out["examples"] = [node["example"]]
        if self._references.is_3_0:
            _modern_bounds(out)
        if node.get("nullable") is True and self._references.is_3_0:
            out = _nullable(out)
        pattern = out.get("pattern")
        if isinstance(pattern, str) and not _compiles(pattern):
            del out["pattern"]  # another dialect: told, and left to the server
            out["description"] = f"{out.get('description', '')} (pattern: {pattern})".strip()
        return out

    def check(self, schema: Any, where: str) -> list[str]:
        """What makes it no JSON schema."""
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            return [_no_schema(where, error)]
        return []

    def used(self, node: Any) -> dict[str, Any]:
        """The definitions that are reached from here."""
        used = _used(node, self.definitions)
        return {name: one for name, one in self.definitions.items() if name in used}

    def _keyword(self, key: str, value: Any, where: str) -> Any:
        if key == "properties" and isinstance(value, Mapping):
            properties = cast("Mapping[str, Any]", value)
            return {
                name: self.convert(one, where) for name, one in properties.items() if not self._is_read_only(one, where)
            }
        if key in _SCHEMA_MAPS and isinstance(value, Mapping):
            return {name: self.convert(one, where) for name, one in cast("Mapping[str, Any]", value).items()}
        if key in _SCHEMA_LISTS and isinstance(value, list):
            return [self.convert(one, where) for one in cast("list[Any]", value)]
        if key in _SCHEMA:
            return self.convert(value, where)
        return value

    def _referred(self, reference: Any, where: str) -> dict[str, Any]:
        target = self._resolved({"$ref": reference}, where)
        if not _NESTS & set(target):
            return self.convert(target, where)
        name = self._names.get(reference)
        if name is None:
            last = str(reference).rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
            name = self._names[reference] = unique_name(clean_name(last, r"[^a-zA-Z0-9_.-]"), set(self.definitions))
            self.definitions[name] = {}  # it may refer to itself
            self.definitions[name] = self.convert(target, f"{where}, {reference!r}")
        return {"$ref": f"#/$defs/{name}"}

    def _is_read_only(self, schema: Any, where: str) -> bool:
        if not isinstance(schema, Mapping):
            return False
        node = cast("Mapping[str, Any]", schema)
        return node.get("readOnly") is True or (
            "$ref" in node and self._references.resolve(node, where).get("readOnly") is True
        )

    def _resolved(self, schema: Any, where: str) -> Mapping[str, Any]:
        return self._references.resolve(schema, where, keep_siblings=not self._references.is_3_0)

    def _without_read_only(self, out: dict[str, Any], node: Mapping[str, Any], where: str) -> None:
        properties = an_object(node.get("properties") or {}, where)
        hidden = {name for name, one in properties.items() if self._is_read_only(one, where)}
        kept = [n for n in out["required"] if not (isinstance(n, str) and n in hidden)]
        out["required"] = kept
        if not kept:
            del out["required"]

    def plain_object(
        self, schema: Any, where: str, above: tuple[int, ...] = ()
    ) -> tuple[dict[str, Any], list[str]] | None:
        """The properties of an object, unconverted, and which of them it needs; None where it is more than that."""
        found = self._parts(schema, where, above)
        if found is None:
            return None
        properties, required, dropped = found
        for name in required:
            if name not in dropped:
                properties.setdefault(name, {})
        needed = [n for n in dict.fromkeys(required) if n not in dropped]
        return (properties, needed) if properties else None

    def _parts(
        self, schema: Any, where: str, above: tuple[int, ...]
    ) -> tuple[dict[str, Any], list[str], set[str]] | None:
        if not isinstance(schema, Mapping):
            return None
        node = self._resolved(cast("Any", schema), where)
        if id(node) in above:
            return None
        above = (*above, id(node))
        said = {k for k in node if k not in _SAYS_NOTHING and not k.startswith("x-")}
        if node.get("type") not in (None, "object", ["object"]) or not said <= {
            "$ref",
            "additionalProperties",
            "allOf",
            "properties",
            "required",
            "type",
        }:
            return None
        if node.get("additionalProperties") not in (None, False):
            return None
        members: list[Any] = [*an_array(node.get("allOf") or [], where)]
        if "$ref" in node:
            members.insert(0, {"$ref": node["$ref"]})
        properties: dict[str, Any] = {}
        required: list[str] = []
        dropped: set[str] = set()
        for member in members:
            part = self._parts(member, where, above)
            if part is None:
                return None
            _join(properties, part[0])
            required += part[1]
            dropped |= part[2]
        own = an_object(node.get("properties") or {}, where)
        hidden = {name for name, one in own.items() if self._is_read_only(one, where)}
        _join(properties, {name: one for name, one in own.items() if name not in hidden})
        required += [str(n) for n in an_array(node.get("required") or [], where)]
        return properties, required, dropped | hidden


def an_object(value: Any, where: str) -> Mapping[str, Any]:
    """The value, which must be an object. Raises `FaultError`."""
    if not isinstance(value, Mapping):
        raise FaultError(f"{where}: expected an object, found {value!r:.80}")
    return cast("Mapping[str, Any]", value)


def fields_of(schema: Any) -> dict[str, Any]:
    """A converted schema to add to: one that takes any value says nothing."""
    return dict(cast("dict[str, Any]", schema)) if isinstance(schema, dict) else {}


def an_array(value: Any, where: str) -> list[Any]:
    """The value, which must be an array. Raises `FaultError`."""
    if not isinstance(value, list):
        raise FaultError(f"{where}: expected an array, found {value!r:.80}")
    return cast("list[Any]", value)


def _join(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, one in more.items():
        into[name] = {"allOf": [into[name], one]} if name in into and into[name] != one else one


def _modern_bounds(schema: dict[str, Any]) -> None:
    """OpenAPI 3.0 says by a boolean whether a bound is open; JSON Schema has a bound of its own for it."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool):
            is_open = schema.pop(exclusive)
            if is_open and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str):
        if set(schema) & {"allOf", "anyOf", "oneOf", "enum"}:
            about = {k: schema.pop(k) for k in ("title", "description", "default", "examples") if k in schema}
            return {**about, "anyOf": [schema, {"type": "null"}]}
        return schema
    schema["type"] = [kind, "null"]
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _used(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that are reached from here."""
    used: set[str] = set()
    open_: list[Any] = [node]
    while open_:
        one = open_.pop()
        if isinstance(one, list):
            open_ += cast("list[Any]", one)
        elif isinstance(one, dict):
            fields = cast("dict[str, Any]", one)
            reference = fields.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/$defs/"):
                name = reference.removeprefix("#/$defs/")
                if name not in used and name in definitions:
                    used.add(name)
                    open_.append(definitions[name])
            open_ += fields.values()
    return used


def _no_schema(where: str, error: SchemaError) -> str:
    path = ".".join(str(p) for p in error.absolute_path)
    at = f" at {path!r}" if path else ""
    if error.validator == "enum" or (path.endswith("type") and error.validator == "anyOf"):
        kinds = ("string", "integer", "number", "boolean", "array", "object")
        return f"{where}: no JSON schema{at}: {unknown('type', error.instance, kinds)}"
    return f"{where}: no JSON schema{at}: {error.message:.200}"
