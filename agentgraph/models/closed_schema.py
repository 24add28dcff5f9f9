"""A JSON schema as a server takes it that holds an answer to it strictly. Values in, values out."""

from __future__ import annotations

import json
import re
from typing import Any, cast

__all__ = ["closed"]

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_SAID_ELSEWHERE = ("discriminator", "additionalProperties", "$schema")


class _OpenError(Exception):
    """This schema cannot be closed."""


def closed(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with each object closed, and bounds that such servers refuse told in the descriptions.

    None where that would leave out values that fit: mappings with any keys, tuples, values of any type, recursion.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    if _is_recursive(definitions):
        return None
    try:
        out = _close({k: v for k, v in schema.items() if k != "$defs"})
        if definitions:
            out["$defs"] = {name: _close(definition) for name, definition in definitions.items()}
    except _OpenError:
        return None
    return out


def _is_recursive(definitions: dict[str, Any]) -> bool:
    left = {name: set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(d))) for name, d in definitions.items()}
    while free := [name for name, refers in left.items() if not refers & left.keys()]:
        for name in free:
            del left[name]
    return bool(left)


def _close(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise _OpenError
    node = {k: v for k, v in cast("dict[str, Any]", schema).items() if k not in _SAID_ELSEWHERE}
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    out = {k: node.pop(k) for k in ("title", "description") if k in node}
    kind = node.pop("type", None)
    if "anyOf" in node or "oneOf" in node:
        out["anyOf"] = [_close(v) for v in node.pop("anyOf", None) or node.pop("oneOf")]
    elif "allOf" in node:
        out["allOf"] = [_close(v) for v in node.pop("allOf")]
    elif "const" in node:
        out["const"] = node.pop("const")
    elif "enum" in node:
        out["enum"] = node.pop("enum")
    elif isinstance(kind, list):
        return {"anyOf": [_close({**schema, "type": k}) for k in cast("list[Any]", kind)]}
    else:
        out["type"] = kind
        _fill(out, kind, node)
    if node:  # what is left is refused as a rule, but may be read
        told = ", ".join(f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in node.items())
        out["description"] = f"{out['description']} ({told})" if "description" in out else f"({told})"
    return out


def _fill(out: dict[str, Any], kind: Any, node: dict[str, Any]) -> None:
    if kind == "object":
        if "properties" not in node:
            raise _OpenError
        out["properties"] = {name: _close(value) for name, value in node.pop("properties").items()}
        out["required"] = node.pop("required", [])
        out["additionalProperties"] = False
    elif kind == "array":
        if "prefixItems" in node:
            raise _OpenError
        out["items"] = _close(node.pop("items", None))
        if node.get("minItems") in (0, 1):
            out["minItems"] = node.pop("minItems")
    elif kind == "string":
        if node.get("format") in _FORMATS:
            out["format"] = node.pop("format")
    elif kind not in ("integer", "number", "boolean", "null"):
        raise _OpenError
