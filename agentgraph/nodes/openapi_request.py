"""A model's arguments -> an HTTP request: checked, then written as the document says. Pure.

The rules:
- Nothing is sent that the schema does not know, and nothing that was not given: no default is filled in.
- A value stays in its place. Everything that is no letter, digit or one of `-._~` is percent-encoded in path and
  query; a path value that is empty or has a segment `.` or `..` is refused, as is a header with control characters.
- What is wrong is a `ToolError` that says path and expectation.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, cast
from urllib.parse import quote

import msgspec
from jsonschema import Draft202012Validator, exceptions, validators
from jsonschema.exceptions import ValidationError

from agentgraph.errors import listed, unknown
from agentgraph.nodes.openapi_document import FORMS, Body, Described, Parameter, is_json, kind_of
from agentgraph.nodes.tool import ToolError

__all__ = ["Arguments", "Prepared", "prepare"]

_MOST_FAULTS = 5
_RESERVED = "/:?@!$'()*,;"
"""What `allowReserved` leaves as it is: all that cannot be taken for the query's own marks."""
_COOKIE = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_HEADER = re.compile(r"(?:[!-~](?:[ -~\t]*[!-~])?)?")
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_LITERAL = "/:@!$&'()*+,;=~%"


class Prepared(msgspec.Struct, frozen=True):
    """A request, ready to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    cookie: str = ""
    content: bytes | None = None
    files: list[tuple[str, Any]] | None = None


class Arguments:
    """Checks a tool's arguments."""

    def __init__(self, described: Described) -> None:
        self._name = described.operation.name
        self._body = described.body
        self._properties: dict[str, Any] = described.schema["properties"]
        self._required: list[str] = described.schema.get("required", [])
        self._definitions: dict[str, Any] = described.schema.get("$defs", {})
        self._validators: dict[str, Any] = {}

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the schema takes them. Raises `ToolError` with all that is wrong.

        Harmless slips are mended: null where an argument may be left out, and JSON text where no text is taken.
        """
        values: dict[str, Any] = {}
        faults: list[str] = []
        for name, value in given.items():
            if name not in self._properties:
                faults.append(unknown("argument", name, self._properties))
                continue
            found = self._faults(name, value)
            if found and value is None and name not in self._required:
                continue
            if found and isinstance(value, str):
                try:
                    decoded = msgspec.json.decode(value)
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    pass
                else:
                    if not self._faults(name, decoded):
                        found, value = [], decoded  # noqa: PLW2901
            faults += found
            values[name] = value
        wanted = list(self._required)
        if self._body is not None and any(a in values for a in self._body.properties):
            wanted += [a for a in self._body.needed if a not in wanted]
        missing = [a for a in wanted if a not in given]
        if missing:
            faults.append(f"{listed(missing)} missing")
        if faults:
            rest = len(faults) - _MOST_FAULTS
            told = "; ".join(faults[:_MOST_FAULTS]) + (f"; and {rest} more" if rest > 0 else "")
            raise ToolError(f"invalid arguments for tool {self._name!r}: {told}")
        return values

    def _faults(self, name: str, value: Any) -> list[str]:
        validator = self._validators.get(name)
        if validator is None:
            schema: dict[str, Any] = self._properties[name]
            validator = self._validators[name] = _Validator({**schema, "$defs": self._definitions})
        try:
            errors: list[ValidationError] = list(validator.iter_errors(value))
        except RecursionError:
            return [f"the value nests too deep - at `$.{name}`"]
        return [_told(_deepest([e]), f"$.{name}") for e in errors]


def _multiple_of(_: Any, step: Any, value: Any, __: Any) -> Iterable[ValidationError]:
    """In decimals: with floats 19.99 is no multiple of 0.01."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    try:
        fits = Decimal(str(value)) % Decimal(str(step)) == 0
    except InvalidOperation:
        fits = True  # too many digits to tell: left to the server
    if not fits:
        yield ValidationError(f"{value!r} is not a multiple of {step}")


_Validator: Any = cast("Any", validators).extend(Draft202012Validator, {"multipleOf": _multiple_of})
_deepest: Any = cast("Any", exceptions).best_match


def _told(error: ValidationError, root: str) -> str:
    at = f" - at `{root}{error.json_path[1:]}`"
    found = f"found {error.instance!r:.80}"
    expected: Any = error.validator_value
    if error.validator == "type":
        kinds = cast("list[str]", expected if isinstance(expected, list) else [expected])
        return f"expected {' or '.join(kinds)}, {found}{at}"
    if error.validator == "enum":
        return f"expected one of {listed(expected)}, {found}{at}"
    if error.validator in ("anyOf", "oneOf"):
        return f"expected a value that fits {json.dumps(expected, ensure_ascii=False):.300}, {found}{at}"
    if len(error.message) <= 300:
        return f"{error.message}{at}"
    return f"expected {error.validator} {expected!r:.200}, {found}{at}"


def prepare(described: Described, base: str, arguments: Mapping[str, Any]) -> Prepared:
    """The request that sends these arguments, and what the user has fixed, to the API at `base`."""
    name = described.operation.name
    values = {**arguments, **described.fixed}
    path: dict[str, str] = {}
    query: list[tuple[str, str]] = []
    headers = {"Accept": described.accept}
    cookies: list[str] = []
    for parameter in described.parameters:
        value = values.get(parameter.argument)
        if value is None and parameter.place != "path":
            continue  # not given, or null, which has no form outside of JSON
        where = f"tool {name!r}, argument {parameter.argument!r}"
        if parameter.as_json:
            value = _json(value)
        if parameter.place == "path":
            path[parameter.name] = _path_value(parameter, value, where)
        elif parameter.place == "query":
            query += _pairs(parameter, value)
        elif parameter.place == "header":
            headers[parameter.name] = _header(parameter, value, where)
        else:
            cookies.append(f"{quote(parameter.name, _COOKIE)}={_joined(value, '%2C', _COOKIE)}")
    url = base.rstrip("/") + _filled(described.operation.path, path, name)
    if query:
        url += ("&" if "?" in url else "?") + "&".join(f"{k}={v}" for k, v in query)
    content, files = None, None
    body = described.body
    if body is not None:
        content, files = _body(body, values, f"tool {name!r}")
        if content is not None:
            headers["Content-Type"] = _content_type(body.media_type)
    return Prepared(described.operation.method, url, headers, "; ".join(cookies), content, files)


def _text(value: Any) -> str:
    """A single value as text; one that nests is JSON, because no style says more."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """The fields of an object; None for anything else."""
    return list(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else None


def _joined(value: Any, separator: str, safe: str, *, equals: bool = False) -> str:
    """A value in one piece: items, or names and values, between separators."""
    fields = _items(value)
    if fields is not None:
        between = "=" if equals else separator
        return separator.join(f"{quote(k, safe)}{between}{quote(_text(v), safe)}" for k, v in fields)
    items = cast("list[Any]", value if isinstance(value, list) else [value])
    return separator.join(quote(_text(v), safe) for v in items)


def _path_value(parameter: Parameter, value: Any, where: str) -> str:
    fields = _items(value)
    leaves: list[Any] = (
        [x for field in fields for x in field]
        if fields is not None
        else cast("list[Any]", value)
        if isinstance(value, list)
        else [value]
    )
    texts = [_text(v) for v in leaves if v is not None]
    if not texts or "" in texts:
        raise ToolError(f"{where}: a part of the path must not be empty, found {value!r:.80}")
    if any(part in (".", "..") for text in texts for part in re.split(r"[/\\]", text)):
        raise ToolError(f"{where}: a part of the path must not have the segments '.' or '..', found {value!r:.80}")
    name, explode = quote(parameter.name, ""), parameter.explode
    if parameter.style == "label":
        return "." + _joined(value, "." if explode else ",", "", equals=explode)
    if parameter.style == "matrix":
        if explode and fields is not None:
            return ";" + _joined(value, ";", "", equals=True)
        if explode and isinstance(value, list):
            return "".join(f";{name}={quote(text, '')}" for text in texts)
        return f";{name}={_joined(value, ',', '')}"
    return _joined(value, ",", "", equals=explode)


def _filled(template: str, values: Mapping[str, str], name: str) -> str:
    parts = _TEMPLATE.split(template)  # every second one is a name
    path = "".join(values[p] if n % 2 else quote(p, _LITERAL + "?") for n, p in enumerate(parts))
    if any(segment in (".", "..") for segment in path.partition("?")[0].split("/")):
        raise ToolError(f"tool {name!r}: these values make another path of {template!r}")
    return path


def _pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """What a query or a form has for a value: names and values, percent-encoded. Nothing for what is empty."""
    safe = _RESERVED if parameter.allow_reserved else ""
    name = quote(parameter.name, "")
    fields = _items(value)
    if fields is None and not isinstance(value, list):
        return [(name, quote(_text(value), safe))]
    if not value:
        return []
    if parameter.style == "deepObject":
        return [(f"{name}{key}", quote(text, safe)) for key, text in _deep(value)]
    if parameter.explode:
        if fields is not None:
            return [(quote(k, ""), quote(_text(v), safe)) for k, v in fields]
        return [(name, quote(_text(v), safe)) for v in cast("list[Any]", value)]
    separator = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(parameter.style, ",")
    return [(name, _joined(value, separator, safe))]


def _deep(value: Any) -> Iterable[tuple[str, str]]:
    """The keys in brackets, at any depth, and the texts: `[a][b]`, `[a][0]`."""
    fields = _items(value)
    if fields is None and isinstance(value, list):
        fields = [(str(n), v) for n, v in enumerate(cast("list[Any]", value))]
    if fields is None:
        yield "", _text(value)
        return
    for key, one in fields:
        for rest, text in _deep(one):
            yield f"%5B{quote(key, '')}%5D{rest}", text


def _header(parameter: Parameter, value: Any, where: str) -> str:
    fields = _items(value)
    if fields is not None:
        between = "=" if parameter.explode else ","
        text = ",".join(f"{k}{between}{_text(v)}" for k, v in fields)
    else:
        text = ",".join(map(_text, cast("list[Any]", value))) if isinstance(value, list) else _text(value)
    if not _HEADER.fullmatch(text):
        raise ToolError(f"{where}: a header takes ASCII text without line breaks or outer spaces, found {text!r:.80}")
    return text


def _body(body: Body, values: Mapping[str, Any], where: str) -> tuple[bytes | None, list[tuple[str, Any]] | None]:
    """Content, or the parts of a multipart body."""
    kind = kind_of(body.media_type)
    if body.argument is not None:
        if body.argument not in values:
            return None, None
        value = values[body.argument]
    else:
        value = {name: values[a] for a, name in body.properties.items() if a in values}
        if not value and not body.required:
            return None, None
    if is_json(kind):
        return _json(value).encode(), None
    if kind in FORMS:
        fields = _items(value)
        if fields is None:
            raise ToolError(f"{where}: a form takes an object, found {value!r:.80}")
        if kind == "multipart/form-data":
            return None, [part for k, v in fields for part in _parts(k, v, k in body.binary, where)]
        pairs = [pair for k, v in fields if v is not None for pair in _form_pairs(body, k, v)]
        return "&".join(f"{k}={v}" for k, v in pairs).encode(), None
    if body.binary:
        return _bytes(value, where), None
    return _text(value).encode(), None


def _form_pairs(body: Body, name: str, value: Any) -> list[tuple[str, str]]:
    encoding: Mapping[str, Any] = body.encoding.get(name) or {}
    if isinstance(value, dict) and not {"style", "explode"} & set(encoding):
        return [(quote(name, ""), quote(_json(value), ""))]
    style = encoding.get("style") or "form"
    return _pairs(Parameter("", name, "query", style, bool(encoding.get("explode", style == "form"))), value)


def _parts(name: str, value: Any, is_binary: bool, where: str) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [part for one in cast("list[Any]", value) for part in _parts(name, one, is_binary, where)]
    if is_binary:
        return [(name, (name, _bytes(value, where), "application/octet-stream"))]
    if isinstance(value, dict):
        return [(name, (None, _json(value).encode(), "application/json"))]
    return [] if value is None else [(name, (None, _text(value).encode()))]


def _bytes(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ToolError(f"{where}: expected bytes in base64, found {value!r:.80}") from None


def _content_type(media: str) -> str:
    """The type to say; one with a wildcard (`text/*`) names none, and plain text is what is sent."""
    if "*" in media:
        media = "text/plain" if media.startswith("text/") else "application/octet-stream"
    return f"{media}; charset=utf-8" if media.startswith("text/") and "charset" not in media else media
