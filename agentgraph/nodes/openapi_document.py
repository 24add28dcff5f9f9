"""An OpenAPI document -> its operations, each with a JSON schema of its arguments. Pure.

The rules:
- A model sees flat arguments: parameters of path, query, header and cookie, and the properties of the body where that
  is a plain object; any other body is one argument, `body`. Where names clash, each of them ends in its place
  (`id_path`, `id_body`).
- What the user has fixed, what carries credentials, and what HTTP itself sets is never an argument.
- What cannot be described is a fault that names operation and parameter; `describe` tells all of an operation's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import msgspec

from agentgraph.errors import ConfigError, listed
from agentgraph.nodes.names import clean_name, unique_name
from agentgraph.nodes.openapi_schema import (
    FaultError,
    References,
    Schemas,
    an_array,
    an_object,
    fields_of,
)

__all__ = ["FORMS", "Body", "Described", "Document", "Operation", "Parameter", "is_json", "kind_of"]

_METHODS = ("get", "put", "post", "delete", "patch")
_PLACES = ("path", "query", "header", "cookie")
_STYLES: dict[str, tuple[str, ...]] = {  # the default comes first
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_OF_HTTP = frozenset(
    [
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers that are no parameters, whatever the document says."""

_ANY_TYPE = "*/*"
FORMS: tuple[str, str] = ("application/x-www-form-urlencoded", "multipart/form-data")

_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Operation(msgspec.Struct, frozen=True):
    """One operation of the document, as `include` is asked about it."""

    name: str
    """The tool's name."""
    method: str
    """GET, PUT, POST, DELETE or PATCH."""
    path: str
    """The path as the document writes it: `/pets/{petId}`."""
    operation_id: str | None = None
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    description: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.method} {self.path})"


class Parameter(msgspec.Struct, frozen=True):
    """How one argument is sent outside of the body."""

    argument: str
    name: str
    place: str
    style: str
    explode: bool
    allow_reserved: bool = False
    as_json: bool = False
    """Described by `content`: sent as JSON text."""


class Body(msgspec.Struct, frozen=True):
    """How arguments become the body: one of them is all of it, or several are its properties."""

    media_type: str
    required: bool
    argument: str | None = None
    properties: Mapping[str, str] = {}
    """The property's name by argument."""
    needed: tuple[str, ...] = ()
    """Arguments that must be there if any of the body is."""
    binary: frozenset[str] = frozenset()
    """Properties that are base64 in the arguments, and bytes in the body."""
    encoding: Mapping[str, Any] = {}


class Described(msgspec.Struct, frozen=True):
    """What is needed to offer an operation and to call it."""

    operation: Operation
    schema: dict[str, Any]
    server: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    fixed: Mapping[str, Any]
    """Values of arguments that the model does not see."""
    accept: str


class Document:
    """An OpenAPI document, version 3.0 or 3.1, and its operations in the document's order.

    Raises `ConfigError` where it is none. `prefix` goes before each tool's name.
    """

    def __init__(self, raw: Any, prefix: str = "") -> None:
        self.raw: Mapping[str, Any] = _document(raw)
        self.references: References = References(self.raw, is_3_0=self.raw["openapi"].startswith("3.0"))
        self._nodes: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        found: list[Operation] = []
        names: set[str] = set()
        try:
            for path, item in an_object(self.raw.get("paths") or {}, "paths").items():
                if path.startswith("x-"):
                    continue
                shared = self.references.resolve(item, f"path {path!r}")
                for method in shared:
                    if method in _METHODS:
                        node = an_object(shared[method], f"{method.upper()} {path}")
                        operation = _operation(node, method, path, prefix, names)
                        self._nodes[operation.name] = (node, shared)
                        found.append(operation)
        except FaultError as fault:
            raise ConfigError(f"the OpenAPI document cannot be read: {fault}") from None
        self.operations: tuple[Operation, ...] = tuple(found)

    @cached_property
    def key_parameters(self) -> set[tuple[str, str]]:
        """Place and name of each API key that the document's security schemes name."""
        return {key for scheme in self._schemes() if (key := self._key(scheme)) is not None}

    def _schemes(self) -> Mapping[str, Any]:
        components = an_object(self.raw.get("components") or {}, "components")
        return an_object(components.get("securitySchemes") or {}, "components, securitySchemes")

    def _key(self, scheme: str) -> tuple[str, str] | None:
        node = self.references.resolve(self._schemes().get(scheme, {}), f"security scheme {scheme!r}")
        if node.get("type") != "apiKey":
            return None
        return _key(str(node.get("in")), str(node.get("name")))

    def keys_of(self, node: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The API keys that an operation asks for."""
        security = an_array(node.get("security", self.raw.get("security")) or [], "security")
        found = [self._key(name) for one in security for name in an_object(one, "security")]
        return [key for key in dict.fromkeys(found) if key is not None]

    def parameters_of(self, node: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        """The parameters of path item and operation, of which the latter's come first."""
        found: dict[Any, Mapping[str, Any]] = {}
        for level in (shared, node):
            for n, one in enumerate(an_array(level.get("parameters") or [], f"{where}, parameters")):
                parameter = self.references.resolve(one, f"{where}, parameter {n}")
                found[repr(parameter.get("in")), repr(parameter.get("name"))] = parameter
        return list(found.values())

    def describe(
        self,
        operation: Operation,
        *,
        fixed: Mapping[str, Any],
        hidden: Callable[[str, str], bool],
        variables: Mapping[str, str],
    ) -> tuple[Described | None, list[str]]:
        """What is needed to call the operation, or None and all its faults.

        `hidden(place, name)` tells what the user sends anyway; `variables` are the servers'.
        """
        describing = _Describing(self, operation, fixed, hidden)
        return describing.run(*self._nodes[operation.name], variables), describing.faults

    def server(
        self, node: Mapping[str, Any], shared: Mapping[str, Any], variables: Mapping[str, str], where: str
    ) -> str:
        """The URL of the operation's first server, its variables filled in; "/" where the document names none."""
        servers: Any = node.get("servers") or shared.get("servers") or self.raw.get("servers") or [{"url": "/"}]
        first = an_object(servers[0] if isinstance(servers, list) else None, f"{where}, servers")
        known = an_object(first.get("variables") or {}, f"{where}, servers")

        def value(match: re.Match[str]) -> str:
            name = match[1]
            variable = an_object(known.get(name) or {}, f"{where}, server variable {name!r}")
            chosen: Any = variables.get(name, variable.get("default"))
            if chosen is None:
                raise FaultError(f"{where}, server: the variable {name!r} has no value: server_variables={{...}}")
            allowed = an_array(variable.get("enum") or [], f"{where}, server variable {name!r}")
            if allowed and chosen not in allowed:
                raise FaultError(
                    f"{where}, server variable {name!r}: expected one of {listed(allowed)}, found {chosen!r}"
                )
            return str(chosen)

        return _TEMPLATE.sub(value, str(first.get("url", "/")))


class _Argument(msgspec.Struct):
    """One value on its way to its argument's name."""

    place: str
    name: str
    schema: Any
    required: bool
    parameter: Parameter | None = None
    argument: str = ""


class _Describing:
    """One operation being described; collects its faults."""

    def __init__(
        self, document: Document, operation: Operation, fixed: Mapping[str, Any], hidden: Callable[[str, str], bool]
    ) -> None:
        self.faults: list[str] = []
        self._document = document
        self._where = str(operation)
        self._operation = operation
        self._fixed = fixed
        self._hidden = hidden
        self._schemas = Schemas(document.references)
        self._arguments: list[_Argument] = []

    def run(
        self,
        node: Mapping[str, Any],
        shared: Mapping[str, Any],
        variables: Mapping[str, str],
    ) -> Described | None:
        body: Body | None = None
        try:
            server = self._document.server(node, shared, variables, self._where)
            parameters = self._document.parameters_of(node, shared, self._where)
            keys = self._document.keys_of(node)
        except FaultError as fault:
            self.faults.append(str(fault))
            return None
        for parameter in parameters:
            try:
                self._add_parameter(parameter)
            except FaultError as fault:
                self.faults.append(str(fault))
            except RecursionError:
                self.faults.append(f"{self._where}, parameter {parameter.get('name')!r}: nests without end")
        self._check_path({str(p.get("name")) for p in parameters if p.get("in") == "path"})
        self._add_keys(keys)
        try:
            body = self._body(node)
        except FaultError as fault:
            self.faults.append(str(fault))
        except RecursionError:
            self.faults.append(f"{self._where}, body: nests without end")
        self._name_arguments()
        schema = self._schema()
        if self.faults:
            return None
        shown = [a for a in self._arguments if a.parameter is not None]
        return Described(
            self._operation,
            schema,
            server,
            tuple(msgspec.structs.replace(cast("Parameter", a.parameter), argument=a.argument) for a in shown),
            None if body is None else self._with_arguments(body),
            {a.argument: self._fixed[a.name] for a in self._arguments if a.name in self._fixed},
            self._accept(node),
        )

    def _add_parameter(self, node: Mapping[str, Any]) -> None:
        name, place = node.get("name"), node.get("in")
        where = f"{self._where}, parameter {name!r}"
        if not isinstance(name, str) or not name:
            raise FaultError(f"{self._where}: a parameter without a name: {dict(node)!r:.80}")
        if place not in _PLACES:
            raise FaultError(f"{where}: 'in' must be one of {listed(_PLACES)}, found {place!r}")
        if place == "header":
            if name.lower() in _OF_HTTP:
                return
            if not _TOKEN.fullmatch(name):
                raise FaultError(f"{where}: no name for a header")
        if name not in self._fixed and (
            self._hidden(place, name) or _key(place, name) in self._document.key_parameters
        ):
            return
        style = node.get("style") or _STYLES[place][0]
        if style not in _STYLES[place]:
            raise FaultError(f"{where}: style must be one of {listed(_STYLES[place])} in a {place}, found {style!r}")
        schema, as_json = self._parameter_schema(node, where)
        self._arguments.append(
            _Argument(
                place,
                name,
                schema,
                place == "path" or node.get("required") is True,
                Parameter(
                    "",
                    name,
                    place,
                    style,
                    bool(node.get("explode", style == "form")),
                    bool(node.get("allowReserved", False)),
                    as_json,
                ),
            )
        )

    def _parameter_schema(self, node: Mapping[str, Any], where: str) -> tuple[Any, bool]:
        content = node.get("content")
        as_json = False
        if content is not None:
            media, found = _media(an_object(content, where), where)
            if not is_json(media):
                raise FaultError(f"{where}: content must be JSON, found {media!r}")
            schema, as_json = found.get("schema", True), True
        elif "schema" in node:
            schema = node["schema"]
        else:
            raise FaultError(f"{where}: expected 'schema' or 'content', found neither")
        converted = self._schemas.convert(schema, f"{where}, schema")
        told: dict[str, Any] = fields_of(converted)
        if node.get("description"):
            told["description"] = str(node["description"])
        if node.get("deprecated") is True:
            told["deprecated"] = True
            told["description"] = f"{told.get('description', '')} (deprecated)".strip()
        if "example" in node and "examples" not in told:
            told["examples"] = [node["example"]]
        return told, as_json

    def _check_path(self, given: set[str]) -> None:
        wanted = _TEMPLATE.findall(self._operation.path)
        for name in wanted:
            if name not in given:
                self.faults.append(f"{self._where}: the path names {{{name}}}, and no path parameter has that name")
        for name in sorted(given.difference(wanted)):
            self.faults.append(f"{self._where}, parameter {name!r}: is in the path, which does not name it")

    def _add_keys(self, keys: Iterable[tuple[str, str]]) -> None:
        """The API keys that the user has fixed, where the document lists them as security only."""
        names = {name.lower(): name for name in self._fixed}
        for place, key in keys:
            name = names.get(key.lower()) if place == "header" else key if key in self._fixed else None
            if name is None or any(_key(a.place, a.name) == (place, key) for a in self._arguments):
                continue
            parameter = Parameter("", name, place, _STYLES[place][0], explode=place != "header")
            self._arguments.append(_Argument(place, name, {}, required=False, parameter=parameter))

    def _body(self, node: Mapping[str, Any]) -> Body | None:
        where = f"{self._where}, body"
        if node.get("requestBody") is None:
            return None
        request = self._document.references.resolve(node["requestBody"], where)
        content = an_object(request.get("content") or {}, where)
        if not content:
            raise FaultError(f"{where}: expected 'content', found none")
        media, found = _media(content, where)
        is_multipart = kind_of(media) == "multipart/form-data"
        required = request.get("required") is True
        schema = found.get("schema", True)
        if not (is_json(media) or kind_of(media) in FORMS):
            return self._plain_body(media, schema, request, required=required)
        plain = self._schemas.plain_object(schema, f"{where}, schema")
        if plain is None:
            converted = self._schemas.convert(schema, f"{where}, schema")
            told: dict[str, Any] = fields_of(converted)
            if request.get("description") and "description" not in told:
                told["description"] = str(request["description"])
            self._arguments.append(_Argument("body", "body", told, required))
            return Body(media, required, argument="body")
        properties, needed = plain
        binary: set[str] = set()
        for name, one in properties.items():
            converted = self._schemas.convert(one, f"{where}, property {name!r}, schema")
            told = fields_of(converted)
            if is_multipart and _is_binary(told):
                told = _base64(told)
                binary.add(name)
            elif is_multipart and _is_binary(told.get("items")):
                told["items"] = _base64(told["items"])
                binary.add(name)
            if name in needed and not required:
                text = f"{told.get('description', '')} (required where any part of the body is given)"
                told["description"] = text.strip()
            self._arguments.append(_Argument("body", name, told, required and name in needed))
        encoding = an_object(found.get("encoding") or {}, where)
        return Body(media, required, needed=tuple(needed), binary=frozenset(binary), encoding=encoding)

    def _plain_body(self, media: str, schema: Any, request: Mapping[str, Any], *, required: bool) -> Body:
        """A body that is one text, or bytes in base64."""
        told: dict[str, Any] = {"type": "string"}
        if _is_text(media):
            converted = self._schemas.convert(schema, f"{self._where}, body, schema")
            if fields_of(converted).get("type") == "string":
                told = fields_of(converted)
            said = str(request.get("description") or told.get("description") or "")
            told["description"] = f"{said} ({media})".strip()
        else:
            told = _base64({"type": "string", "description": str(request.get("description") or media)})
        self._arguments.append(_Argument("body", "body", told, required))
        return Body(media, required, argument="body", binary=frozenset() if _is_text(media) else frozenset(("body",)))

    def _name_arguments(self) -> None:
        """Give each value an argument's name that providers take, and that no other has."""
        shown: list[_Argument] = []
        for one in self._arguments:
            if one.name in self._fixed:
                one.argument = f"{one.place}:{one.name}"
            else:
                shown.append(one)
        clean = [clean_name(a.name, r"[^a-zA-Z0-9_.-]") for a in shown]
        taken: set[str] = {c for c in clean if clean.count(c) == 1}
        for one, name in zip(shown, clean, strict=True):
            if clean.count(name) == 1:
                one.argument = name
            else:
                one.argument = unique_name(clean_name(f"{name}_{one.place}", r"[^a-zA-Z0-9_.-]"), taken)

    def _with_arguments(self, body: Body) -> Body:
        of_body = [a for a in self._arguments if a.place == "body"]
        if body.argument is not None:
            return msgspec.structs.replace(body, argument=of_body[0].argument)
        return msgspec.structs.replace(
            body,
            properties={a.argument: a.name for a in of_body},
            needed=tuple(a.argument for a in of_body if a.name in body.needed and a.name not in self._fixed),
        )

    def _schema(self) -> dict[str, Any]:
        shown = [a for a in self._arguments if a.name not in self._fixed]
        for one in shown:
            where = f"{self._where}, {'body' if one.place == 'body' else 'parameter'} {one.name!r}"
            self.faults += self._schemas.check(one.schema, where)
        for name, one in self._schemas.definitions.items():
            self.faults += self._schemas.check(one, f"{self._where}, schema {name!r}")
        schema: dict[str, Any] = {"type": "object", "properties": {a.argument: a.schema for a in shown}}
        required = [a.argument for a in shown if a.required]
        if required:
            schema["required"] = required
        if used := self._schemas.used(schema["properties"]):
            schema["$defs"] = used
        return schema

    def _accept(self, node: Mapping[str, Any]) -> str:
        """The media types of the answers that mean success, JSON first."""
        found: list[str] = []
        responses: Any = node.get("responses")
        for status, response in (cast("dict[str, Any]", responses) if isinstance(responses, dict) else {}).items():
            if str(status).startswith("2"):
                try:
                    content: Any = self._document.references.resolve(response, self._where).get("content") or {}
                    found += an_object(content, self._where)
                except FaultError:
                    continue  # an answer's description is not needed to call
        types = [m for m in dict.fromkeys(found) if m.isascii() and m.isprintable() and m != _ANY_TYPE]
        first = next((m for m in types if is_json(m)), types[0] if types else "application/json")
        return f"{first}, {_ANY_TYPE};q=0.5"


def _document(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"an OpenAPI document is an object, found {raw!r:.80}")
    document = cast("Mapping[str, Any]", raw)
    version = document.get("openapi")
    if isinstance(version, str) and re.match(r"3\.\d", version):
        return document
    found = f"swagger {document['swagger']!r}" if "swagger" in document else f"openapi {version!r}"
    raise ConfigError(f"the document must be OpenAPI 3.0 or 3.1, found {found}")


def _operation(node: Mapping[str, Any], method: str, path: str, prefix: str, names: set[str]) -> Operation:
    given = node.get("operationId")
    name = unique_name(clean_name(f"{prefix}{given or f'{method}{path}'}"), names)
    summary, text = (str(node.get(k) or "").strip() for k in ("summary", "description"))
    described = text if text.startswith(summary) else f"{summary}\n\n{text}".strip()
    deprecated = node.get("deprecated") is True
    tags = tuple(str(t) for t in an_array(node.get("tags") or [], f"{method.upper()} {path}, tags"))
    told = f"Deprecated. {described}".strip() if deprecated else described
    return Operation(name, method.upper(), path, None if given is None else str(given), tags, deprecated, told)


def _key(place: str, name: str) -> tuple[str, str]:
    return place, name.lower() if place == "header" else name


def kind_of(media: str) -> str:
    """A media type without its parameters."""
    return media.partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """Whether a media type is JSON."""
    kind = kind_of(media)
    return kind == "application/json" or kind.endswith("+json")


def _is_text(media: str) -> bool:
    kind = kind_of(media)
    return kind.startswith("text/") or kind.endswith(("/xml", "+xml", "yaml", "graphql"))


def _media(content: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """The media type to send, of those that the operation takes, and what the document says of it."""

    def rank(media: str) -> int:
        kind = kind_of(media)
        if is_json(media):
            return 0 if kind == "application/json" else 1
        return 2 + FORMS.index(kind) if kind in FORMS else 4 if _is_text(media) else 5

    if _ANY_TYPE in content and len(content) == 1:
        return "application/json", an_object(content[_ANY_TYPE] or {}, where)
    chosen = min((m for m in content if m != _ANY_TYPE), key=rank)
    return chosen, an_object(content[chosen] or {}, f"{where}, {chosen!r}")


def _is_binary(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    fields = cast("dict[str, Any]", schema)
    return fields.get("format") == "binary" or fields.get("contentMediaType") == "application/octet-stream"


def _base64(schema: dict[str, Any]) -> dict[str, Any]:
    said = schema.get("description", "")
    return {"type": "string", "contentEncoding": "base64", "description": f"{said} (bytes, in base64)".strip()}
