"""What can go wrong with a model call, as classes, and the one place that tells which class a failure is.

No I/O here: what a provider answered comes in as values.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from agentgraph.models.protocol import ModelError

__all__ = [
    "AuthenticationError",
    "BadRequestError",
    "ConnectionFailedError",
    "ContentFilterError",
    "ContextLengthError",
    "MalformedResponseError",
    "ModelError",
    "ModelTimeoutError",
    "OverloadedError",
    "ProviderError",
    "RateLimitError",
    "ServerError",
    "StreamCutError",
    "provider_error",
]


class ProviderError(ModelError):
    """The provider answered with an error.

    `code` is the provider's own word or number for it; `retry_after` the seconds it asks to wait, where it
    does.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        body: str | None = None,
        request_id: str | None = None,
        partial: str = "",
        retried: bool = False,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(
            message, status_code=status_code, body=body, request_id=request_id, partial=partial, retried=retried
        )
        self.code = code
        self.retry_after = retry_after


class AuthenticationError(ProviderError):
    """401, 403: the key is wrong, or may not do this."""


class BadRequestError(ProviderError):
    """4xx: the request is wrong, and would be so again."""


class ContextLengthError(BadRequestError):
    """The conversation is longer than the model's context."""


class ContentFilterError(BadRequestError):
    """The provider's filter refused the request."""


class RateLimitError(ProviderError):
    """429: too many requests or tokens, or no quota left."""


class ServerError(ProviderError):
    """5xx: the provider failed."""


class OverloadedError(ServerError):
    """503, 529: the provider has too much to do."""


class ConnectionFailedError(ModelError, ConnectionError):
    """No connection could be made, or it broke before the answer began."""


class StreamCutError(ModelError, ConnectionError):
    """The stream ended before the answer was whole. `partial` is the text until then."""


class ModelTimeoutError(ModelError, TimeoutError):
    """The provider took too long. `kind` is the limit that was reached, `seconds` its length.

    `kind`: "connect_timeout", "first_chunk_timeout", "stall_timeout" or "timeout" (the whole call).
    """

    def __init__(self, message: str, *, kind: str, seconds: float, partial: str = "") -> None:
        super().__init__(message, partial=partial)
        self.kind = kind
        self.seconds = seconds


class MalformedResponseError(ModelError):
    """What came is not what this protocol speaks: no JSON, or no stream where one was asked for."""


_CONTEXT = (
    "context_length_exceeded", "exceed_context_size", "maximum context length", "context window", "context length",
    "context size", "context limit", "prompt is too long", "too many tokens",
    "exceeds the maximum number of tokens",
)  # fmt: skip
_FILTER = ("content_filter", "policy_violation", "responsibleaipolicyviolation", "invalid_prompt", "bio_policy")
_KEY = ("api key not valid", "api key expired")
_STATUS_OF_TYPE = {
    "overloaded_error": 529,
    "overloaded": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "billing_error": 402,
    "not_found_error": 404,
    "request_too_large": 413,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "service_unavailable": 503,
    "timeout_error": 504,
}
_KIND_OF_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    429: RateLimitError,
    503: OverloadedError,
    529: OverloadedError,
}
_MAX_BODY = 10_000


def provider_error(
    where: str,
    body: str,
    *,
    status: int | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    """The error for what a provider answered.

    `where` names model and host. `body` is the answer, JSON or not; `status` the HTTP status, or None where that
    said success: a code in the body then stands for it.
    """
    message, codes = _told(body)
    if status is None:
        status = _status_in(codes)
    return _kind(status, message.lower(), [c.lower() for c in codes])(
        f"{where}: {f'HTTP {status}: ' if status else ''}{message or body.strip()[:500] or 'no reason given'}",
        status_code=status,
        body=body[:_MAX_BODY],
        code=next((c for c in codes if not c.isdecimal()), codes[0] if codes else None),
        retry_after=_delay_in(body) if retry_after is None else retry_after,
    )


def _delay_in(body: str) -> float | None:
    """Seconds to wait that the body asks for: Google puts them there, and in no header."""
    found = re.search(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"', body)
    return float(found[1]) or None if found else None


def _kind(status: int | None, message: str, codes: list[str]) -> type[ProviderError]:
    # some servers say 500 for what is the request's fault; then the code counts, the wording alone does not
    said = " ".join([*codes, message] if status in (400, 413, 422) else codes)
    if any(w in said for w in _CONTEXT):
        return ContextLengthError
    if any(w in code for w in _FILTER for code in codes):
        return ContentFilterError
    if status is None:
        return ProviderError
    if status == 400 and any(w in message for w in _KEY):  # Gemini's word for it
        return AuthenticationError
    return _KIND_OF_STATUS.get(status) or (ServerError if status >= 500 else BadRequestError)


def _told(body: str) -> tuple[str, list[str]]:
    """The message in an error body of any dialect, and its codes and types, the most telling first."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.strip()[:2000], []
    if isinstance(value, list) and value:  # Gemini wraps its error in a list
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        return body.strip(), []
    fields = cast("dict[str, Any]", value)
    inner = fields.get("error")
    if isinstance(inner, dict):
        fields = cast("dict[str, Any]", inner)
    elif isinstance(inner, str):
        fields = {"message": inner, **fields}
    message = next((fields[k] for k in ("message", "detail", "msg") if fields.get(k)), "")
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    return message, [str(fields[k]) for k in ("code", "type", "status") if fields.get(k)]


def _status_in(codes: list[str]) -> int | None:
    for code in codes:
        if code.isdecimal() and 400 <= int(code) <= 599:
            return int(code)
    return next((_STATUS_OF_TYPE[c.lower()] for c in codes if c.lower() in _STATUS_OF_TYPE), None)
