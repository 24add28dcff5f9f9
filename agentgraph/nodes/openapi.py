"""Tools from an OpenAPI document. An extra: `pip install "agentgraph-engine[openapi]"`.

What must live here: all that waits, and every object of httpx. What this file does not know: schemas and styles
(`openapi_document` and `openapi_schema` read the document, `openapi_request` writes the requests).
"""

from __future__ import annotations

import asyncio
import email.message
import functools
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

try:
    import yaml
    from yaml import SafeLoader

    from agentgraph.nodes.openapi_document import Described, Document, Operation, is_json, kind_of
    from agentgraph.nodes.openapi_request import Arguments, Prepared, prepare
except ImportError as _absent:
    raise ImportError(
        'agentgraph.nodes.openapi needs jsonschema, referencing and PyYAML: pip install "agentgraph-engine[openapi]"'
    ) from _absent

from agentgraph.config import positive
from agentgraph.errors import ConfigError, unknown
from agentgraph.messages import FilePart, ImagePart
from agentgraph.nodes.tool import Tool, ToolError
from agentgraph.threads import ThreadCall

__all__ = ["EMPTY", "OpenApiTools", "Operation"]

EMPTY: str = "The call succeeded, and its answer is empty."
"""What a tool returns for an answer without content, as of status 204."""

_MOST_FAULTS = 30
_MOST_OF_AN_ERROR = 2_000
_MOST_OF_A_DOCUMENT = 64_000_000


class OpenApiTools:
    """The operations of an OpenAPI 3.0 or 3.1 document as tools, in an `async with` block.

    `document`: a dict, JSON or YAML text, a path, or an http(s) URL to fetch it from (fetched without `headers` and
    `auth`). A text of one line that is no JSON object is a path. All operations with GET, PUT, POST, DELETE and PATCH
    become tools, or those that `include` names (a tool's name, an operationId, or `"GET /pets"`) or, a function of an
    `Operation`, says yes to. `prefix` goes before their names.

    Requests go to `base_url`, else to `client`'s own, else to the document's server with its `server_variables`
    filled in. `headers` and `auth` (as httpx takes it) go with each request; a model can neither see nor set a header
    that is sent anyway, nor one that HTTP itself uses, nor an API key of the document's security schemes. `fixed`
    are values of parameters, API keys or properties of the body, by name: sent with each operation that takes them,
    and hidden from the model.

    `client`: an `httpx.AsyncClient` of the caller's, used as it is and left open; else one of this block's own, which
    follows no redirect. `timeout` is the seconds a call may take as a whole, None for no limit of this block's own;
    `max_bytes` is how much of an answer is read.

    Entering raises `ConfigError`: with all that cannot be described, each fault naming operation and parameter, or
    where there is no document to read. After cancellation of the entering or the leaving nothing is open.
    """

    def __init__(
        self,
        document: Mapping[str, Any] | str | Path,
        *,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        fixed: Mapping[str, Any] | None = None,
        include: Iterable[str] | Callable[[Operation], bool] | None = None,
        prefix: str = "",
        server_variables: Mapping[str, str] | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: float | None = 60.0,
        max_bytes: int = 1_000_000,
    ) -> None:
        positive("OpenApiTools(timeout=...)", timeout)
        positive("OpenApiTools(max_bytes=...)", max_bytes, whole=True, needed=True)
        if isinstance(include, str) or not (include is None or callable(include) or isinstance(include, Iterable)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"OpenApiTools(include=...) is a list of names, or a function; found {include!r:.80}")
        for option, given in (("headers", headers), ("fixed", fixed), ("server_variables", server_variables)):
            if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"OpenApiTools({option}=...) is a dict of values by name; found {given!r:.80}")
        if client is not None and not hasattr(client, "aclose"):
            raise ConfigError(f"OpenApiTools(client=...) is an httpx.AsyncClient; found {client!r:.80}")
        if base_url is not None and not _is_absolute(base_url):
            raise ConfigError(f"OpenApiTools(base_url=...) is an absolute http(s) URL, found {base_url!r:.200}")
        self._document = document
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._auth = auth
        self._fixed = dict(fixed or {})
        self._include = include if include is None or callable(include) else tuple(include)
        self._prefix = prefix
        self._variables = dict(server_variables or {})
        self._given_client = client
        self._client: httpx.AsyncClient | None = None
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._tools: dict[str, Tool] | None = None

    async def __aenter__(self) -> Self:
        if self._tools is not None:
            raise ConfigError(f"{self!r} is entered a second time; make another")
        # making a client reads certificates from disk
        client = self._given_client or await ThreadCall().run(_own_client)
        try:
            address = _address(self._document)
            text = None if address is None else await self._fetched(client, address)
            tools = await ThreadCall().run(self._read, client, text, address)
        except BaseException:
            if client is not self._given_client:
                await client.aclose()
            raise
        self._client, self._tools = client, tools
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None and client is not self._given_client:
            await client.aclose()

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._entered().values())

    def __len__(self) -> int:
        return len(self._entered())

    def __getitem__(self, name: str) -> Tool:
        """The tool by that name. Raises `KeyError`."""
        try:
            return self._entered()[name]
        except KeyError:
            raise KeyError(unknown("tool", name, self._entered())) from None

    def __repr__(self) -> str:
        state = "not entered" if self._tools is None else f"{len(self._tools)} tools"
        return f"<OpenApiTools {state}{' closed' if self._tools is not None and self._client is None else ''}>"

    def _entered(self) -> dict[str, Tool]:
        if self._tools is None:
            raise ConfigError("the tools are there in the block: async with OpenApiTools(...) as tools")
        return self._tools

    async def _fetched(self, client: httpx.AsyncClient, address: str) -> bytes:
        where = f"the OpenAPI document at {_without_secrets(address)}"
        scope = asyncio.timeout(self._timeout)
        try:
            async with scope:
                # a client of the caller's may hold credentials, and says itself where they go
                options: dict[str, Any] = {} if client is self._given_client else {"follow_redirects": True}
                async with client.stream("GET", address, **options) as response:
                    body, is_whole = await _read(response, _MOST_OF_A_DOCUMENT)
        except Exception as error:
            if isinstance(error, TimeoutError) and scope.expired():
                raise ConfigError(f"{where} did not come within {self._timeout:g} s") from None
            if not _is_of_httpx(error):
                raise
            raise ConfigError(f"{where} cannot be fetched: {_named(error)}") from error
        if not response.is_success:
            raise ConfigError(f"{where} cannot be fetched: status {response.status_code}")
        if not is_whole:
            raise ConfigError(f"{where} is larger than {_MOST_OF_A_DOCUMENT:,} bytes")
        return body

    def _read(self, client: httpx.AsyncClient, text: bytes | None, address: str | None) -> dict[str, Tool]:
        """The tools; in a worker thread, because a large document takes seconds."""
        document = Document(_parsed(self._document if text is None else text), self._prefix)
        own = {name.lower() for name in (*self._headers, *client.headers)}

        def is_hidden(place: str, name: str) -> bool:
            return (place == "header" and name.lower() in own) or (place == "cookie" and name in client.cookies)

        faults: list[str] = []
        found: dict[str, Tool] = {}
        fixed: set[str] = set()
        names: set[str] = set()
        for operation in self._chosen(document.operations):
            described, own_faults = document.describe(
                operation, fixed=self._fixed, hidden=is_hidden, variables=self._variables
            )
            faults += own_faults
            if described is None:
                continue
            base = self._base(described.server, client, address)
            if base is None:
                fault = f"the server {described.server!r} is no absolute http(s) URL: base_url='https://...'"
                faults += [fault] if fault not in faults else []
                continue
            fixed |= {name.partition(":")[2] for name in described.fixed}
            names |= {p.name for p in described.parameters}
            names |= set(described.body.properties.values() if described.body else ())
            found[operation.name] = self._tool(described, base)
        if faults:
            count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
            told = "".join(f"\n  - {fault}" for fault in faults[:_MOST_FAULTS])
            rest = len(faults) - _MOST_FAULTS
            more = f"\n  and {rest} more" if rest > 0 else ""
            raise ConfigError(f"the OpenAPI document has {count} (include=... leaves operations out):{told}{more}")
        if not found:
            raise ConfigError("no operation of the OpenAPI document is taken")
        for name in self._fixed:
            if name not in fixed:
                raise ConfigError(f"OpenApiTools(fixed=...): {unknown('parameter', name, sorted(names))}")
        return found

    def _chosen(self, operations: tuple[Operation, ...]) -> list[Operation]:
        include = self._include
        if include is None:
            return list(operations)
        if callable(include):
            return [o for o in operations if include(o)]
        by_name = {n: o for o in operations for n in (f"{o.method} {o.path}", o.operation_id, o.name) if n is not None}
        for name in include:
            if name not in by_name:
                known = [o.name for o in operations]
                raise ConfigError(f"OpenApiTools(include=...): {unknown('operation', name, known)}")
        wanted = {by_name[name].name for name in include}
        return [o for o in operations if o.name in wanted]

    def _base(self, server: str, client: httpx.AsyncClient, address: str | None) -> str | None:
        """Where an operation is called; None where the document does not say it, and nobody else."""
        if self._base_url is not None:
            return self._base_url
        if client.base_url.host:
            return str(client.base_url)
        try:
            base = urljoin(address or "", server)
        except ValueError:
            return None
        return base if _is_absolute(base) else None

    def _tool(self, described: Described, base: str) -> Tool:
        arguments = Arguments(described)

        async def call(**given: Any) -> Any:
            return await self._send(described, base, prepare(described, base, arguments.read(given)))

        operation = described.operation
        return Tool(call, name=operation.name, description=operation.description, parameters=described.schema)

    async def _send(self, described: Described, base: str, prepared: Prepared) -> Any:
        client = self._client
        operation = described.operation
        # without any value: path and query may hold keys
        where = f"{operation.name}: {operation.method} {_without_secrets(base).rstrip('/')}{operation.path}"
        if client is None:
            raise ConfigError(f"{where}: called outside of the block of its OpenApiTools")
        scope = asyncio.timeout(self._timeout)
        try:
            async with scope:
                response = await client.send(self._request(client, prepared), stream=True, **self._with_auth())
                try:
                    body, is_whole = await _read(response, self._max_bytes)
                finally:
                    await response.aclose()
        except Exception as error:
            if isinstance(error, TimeoutError) and scope.expired():
                raise ToolError(f"{where}: no whole answer within {self._timeout:g} s") from error
            if not _is_of_httpx(error):
                raise
            raise ToolError(f"{where}: {_named(error)}") from error
        if response.is_success:
            return _answer(response, body, is_whole=is_whole)
        status = f"status {response.status_code} {response.reason_phrase}".rstrip()
        if response.has_redirect_location:
            target = _without_secrets(response.headers["location"], prepared.url)
            raise ToolError(f"{where}: {status}: a redirect to {target}, which is not followed")
        raise ToolError(f"{where}: {status}: {_shortened(response, body, is_whole=is_whole)}")

    def _request(self, client: httpx.AsyncClient, prepared: Prepared) -> httpx.Request:
        headers = httpx.Headers(prepared.headers)
        if client.headers.get("accept", "*/*") != "*/*":
            headers["accept"] = client.headers["accept"]
        kind = headers.get("content-type")
        headers.update(self._headers)
        if kind is not None:
            headers["content-type"] = kind
        elif prepared.files is not None:
            headers.pop("content-type", None)  # httpx says it, with the boundary
        request = client.build_request(
            prepared.method,
            prepared.url,
            headers=list(headers.multi_items()),
            content=prepared.content,
            files=prepared.files,
        )
        if prepared.cookie:
            own = request.headers.get("cookie")
            request.headers["cookie"] = f"{own}; {prepared.cookie}" if own else prepared.cookie
        return request

    def _with_auth(self) -> dict[str, Any]:
        return {} if self._auth is None else {"auth": self._auth}


def _own_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=None, verify=_tls())  # noqa: S113  # each call has its limit as a whole


@functools.cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes longer than all else here."""
    return httpx.create_ssl_context()


def _address(document: Any) -> str | None:
    """The URL to fetch the document from; None where it is given otherwise."""
    is_one = isinstance(document, str) and re.match(r"https?://\S+\Z", document)
    return document if is_one else None


def _parsed(document: Any) -> Any:
    """The document as values, from whatever holds it."""
    if isinstance(document, Path) or (isinstance(document, str) and "\n" not in document and document[:1] != "{"):
        try:
            document = Path(document).read_bytes()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the OpenAPI document cannot be read: {error}") from error
    if not isinstance(document, (str, bytes)):
        return document
    try:
        return msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        return yaml.load(document, _Loader)  # noqa: S506  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"the OpenAPI document is neither JSON nor YAML: {error}") from error


if not TYPE_CHECKING:
    SafeLoader = getattr(yaml, "CSafeLoader", SafeLoader)  # the same in C: a large document takes seconds, not minutes


class _Loader(SafeLoader):
    """YAML as OpenAPI means it: the values that JSON has. `no` and `2024-01-31` are texts, and so is every key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        fields = cast("dict[Any, Any]", super().construct_mapping(node, deep))
        return {k if isinstance(k, str) else msgspec.json.encode(k).decode(): v for k, v in fields.items()}


_implicit: Any = _Loader
_implicit.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _implicit.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


async def _read(response: httpx.Response, most: int) -> tuple[bytes, bool]:
    """The body's first bytes, and whether that is all of it."""
    body = bytearray()
    # an iterator of httpx that is dropped half-way closes itself later, in a task of its own: this one ends here
    async with aclosing(cast("Any", response.aiter_bytes())) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                return bytes(body[:most]), False
    return bytes(body), True


def _answer(response: httpx.Response, body: bytes, *, is_whole: bool) -> Any:
    """What the tool returns: a value, a text, an image or a file."""
    if not body:
        return EMPTY
    kind = _media_type(response)
    text = _as_text(response, body)
    if text is not None:
        if not is_whole:
            return f"{text}\n[cut: the first {len(body):,} bytes of a larger answer]"
        if is_json(kind):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                pass  # what says to be JSON and is none is told as it came
        return text
    if not is_whole:
        raise ToolError(f"the call succeeded, but its answer ({kind}) is larger than {len(body):,} bytes: not read")
    if kind.startswith("image/"):
        return ImagePart(data=body, media_type=kind)
    disposition = email.message.Message()
    disposition["content-disposition"] = response.headers.get("content-disposition", "")
    name = re.split(r"[/\\]", disposition.get_filename() or "")[-1] or None
    return FilePart(data=body, media_type=kind or "application/octet-stream", name=name)


def _media_type(response: httpx.Response) -> str:
    return kind_of(response.headers.get("content-type", ""))


def _as_text(response: httpx.Response, body: bytes) -> str | None:
    """The body as text, where it is one: by its type, or by itself where it has none."""
    kind = _media_type(response)
    ends = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded")
    is_text = kind.startswith("text/") or kind.endswith(ends)
    if not is_text and kind:
        return None
    try:
        return body.decode(response.charset_encoding or "utf-8", "replace" if is_text else "strict")
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace") if is_text else None


def _shortened(response: httpx.Response, body: bytes, *, is_whole: bool) -> str:
    text = _as_text(response, body)
    if text is None:
        return f"({len(body):,}{'' if is_whole else ' or more'} bytes of {_media_type(response)})"
    text = text.strip()
    if len(text) <= _MOST_OF_AN_ERROR and is_whole:
        return text or "(no body)"
    size = f"{len(text):,}" if is_whole else f"more than {len(text):,}"
    return f"{text[:_MOST_OF_AN_ERROR]} [cut: the first {_MOST_OF_AN_ERROR:,} of {size} characters]"


def _is_of_httpx(error: Exception) -> bool:
    """Whether it is httpx's or httpx2's: the same names, but no common base."""
    names = {c.__name__ for c in type(error).__mro__}
    return bool(names & {"HTTPError", "InvalidURL", "StreamError"})


def _named(error: Exception) -> str:
    """An error by type and text, where the text cannot hold a part of the URL."""
    name = type(error).__name__
    if name in ("InvalidURL", "UnsupportedProtocol", "TooManyRedirects"):
        return name
    return f"{name}: {error}" if str(error) else name


def _is_absolute(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _without_secrets(url: str, base: str = "") -> str:
    """The URL without user, password and query."""
    try:
        parts = urlsplit(urljoin(base, url))
    except ValueError:
        return "(no valid URL)"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
