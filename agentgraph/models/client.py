"""What the clients of HTTP providers have in common: address, key, headers, connections, and the way of a call."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict
from urllib.parse import urlsplit

from agentgraph.errors import ConfigError
from agentgraph.messages import new_id
from agentgraph.models.content import encoded
from agentgraph.models.errors import AuthenticationError
from agentgraph.models.http import Assembler, HttpClient, Limits
from agentgraph.models.protocol import Delta, ModelRequest, ModelResponse

if TYPE_CHECKING:
    import httpx

__all__ = ["ClientOptions", "HttpModel", "new_call_id"]

_KEY_HEADERS = {"authorization", "x-api-key", "x-goog-api-key"}


class ClientOptions(TypedDict, total=False):
    """What every client takes besides the model's name; `HttpModel` has the defaults."""

    base_url: str | None
    """Another server than the provider's own."""
    api_key: str | None
    native_output_schema: bool | None
    """Whether a node may send an `output_schema` as such; None: where the server is the provider's own."""
    options: Mapping[str, Any] | None
    """Sent with each request; a request's own override them."""
    headers: Mapping[str, str] | None
    timeout: float | None
    """Seconds for the whole call, its retries included; 600. None, here and below: no limit."""
    connect_timeout: float | None
    """Seconds until the connection stands; 10."""
    first_chunk_timeout: float | None
    """Seconds from sending the request until a stream's first bytes; 300."""
    stall_timeout: float | None
    """Seconds between two chunks of a stream; 60."""
    max_retries: int
    """Tries after the first; 2."""
    http_client: httpx.AsyncClient | None
    """The caller's own (httpx or httpx2), used as it is and never closed."""


class HttpModel:
    """Base of the clients: a subclass says where a request goes, what it carries, and who reads the response."""

    DEFAULT_URL: ClassVar[str]
    """The provider's own server."""
    URL_VARIABLE: ClassVar[str]
    """The environment variable that names another one."""
    KEY_VARIABLE: ClassVar[str]
    """The environment variable with the key."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        native_output_schema: bool | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 600.0,
        connect_timeout: float | None = 10.0,
        first_chunk_timeout: float | None = 300.0,
        stall_timeout: float | None = 60.0,
        max_retries: int = 2,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        url = (base_url or os.environ.get(self.URL_VARIABLE) or self.DEFAULT_URL).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{type(self).__name__}(base_url=...) must be a URL such as {self.DEFAULT_URL!r}; found {url!r}"
            )
        self._model = model
        self._base_url = url
        self._api_key = api_key if api_key is not None else os.environ.get(self.KEY_VARIABLE)
        self._native_output_schema = url == self.DEFAULT_URL if native_output_schema is None else native_output_schema
        self._options = dict(options or {})
        self._headers = {k.lower(): v for k, v in (headers or {}).items()}
        self._where = f"model {model!r} at {parts.hostname}{f':{parts.port}' if parts.port else ''}"
        limits = Limits(
            timeout=timeout,
            connect_timeout=connect_timeout,
            first_chunk_timeout=first_chunk_timeout,
            stall_timeout=stall_timeout,
            max_retries=max_retries,
        )
        self._http = HttpClient(self._where, limits, http_client)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def base_url(self) -> str:
        """Where requests go, without the path of the protocol."""
        return self._base_url

    @property
    def native_output_schema(self) -> bool:
        """Whether a request's `output_schema` is sent as such."""
        return self._native_output_schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, base_url={self._base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can still be used: it then opens new ones."""
        await self._http.aclose()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask once and return the whole answer. See `ChatModel.generate`."""
        url, head, body = self._url(stream=False), self._head(stream=False), encoded(self._body(request, stream=False))
        return await self._http.post(url, head, body, lambda: self._assembler(request))

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask once and yield the answer's pieces. See `ChatModel.stream`."""
        url, head, body = self._url(stream=True), self._head(stream=True), encoded(self._body(request, stream=True))
        return self._http.stream(url, head, body, lambda: self._assembler(request))

    def _url(self, *, stream: bool) -> str:
        head = self._protocol_head().keys() | self._headers.keys()
        if self._base_url == self.DEFAULT_URL and not head & _KEY_HEADERS:
            raise AuthenticationError(
                f"{self._where}: no API key; set {self.KEY_VARIABLE}, or pass api_key=...; "
                f"for another server pass base_url=... (or set {self.URL_VARIABLE})"
            )
        return self._base_url + self._path(stream=stream)

    def _head(self, *, stream: bool) -> dict[str, str]:
        head = {
            "content-type": "application/json",
            "accept": "text/event-stream" if stream else "application/json",
            "user-agent": "agentgraph",
        }
        return head | self._protocol_head() | self._headers

    def _path(self, *, stream: bool) -> str:
        """What follows the base URL."""
        raise NotImplementedError

    def _protocol_head(self) -> dict[str, str]:
        """The headers that the protocol wants: the key, where there is one, and a version."""
        raise NotImplementedError

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """What is sent, as plain values."""
        raise NotImplementedError

    def _assembler(self, request: ModelRequest) -> Assembler:
        """What reads the response of one attempt."""
        raise NotImplementedError


def new_call_id() -> str:
    """An id for a call that came without one."""
    return "call_" + new_id()
