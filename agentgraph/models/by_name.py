"""A model by its name, `"openai:gpt-4.1-mini"`: the provider, a colon, and the name that the provider gives it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from agentgraph.errors import ConfigError, unknown
from agentgraph.models.protocol import ChatModel

__all__ = ["ModelClient", "as_model", "model", "provider_of"]


class ModelClient(ChatModel, Protocol):
    """A `ChatModel` that has connections to close, as all clients of this package."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can still be used: it then opens new ones."""
        ...


class _Client(msgspec.Struct, frozen=True):
    module: str
    class_name: str
    provider: str
    """What OpenTelemetry calls the provider."""


_CLIENTS: Mapping[str, _Client] = {
    "openai": _Client("agentgraph.models.openai_chat", "OpenAIChat", "openai"),
    "openai-responses": _Client("agentgraph.models.openai_responses", "OpenAIResponses", "openai"),
    "anthropic": _Client("agentgraph.models.anthropic", "AnthropicMessages", "anthropic"),
    "gemini": _Client("agentgraph.models.gemini", "Gemini", "gcp.gemini"),
}


def model(name: str, **options: Any) -> ModelClient:
    """The client for a model's name; `options` are those of its class.

    "openai:..." is an `OpenAIChat`, "openai-responses:..." an `OpenAIResponses`, "anthropic:..." an
    `AnthropicMessages`, "gemini:..." a `Gemini`. Keys and addresses come from the environment, as the classes say.
    Raises `ConfigError` for any other name. A use::

        async with model("anthropic:claude-sonnet-4-5", timeout=60) as claude: ...
    """
    provider, colon, rest = name.partition(":")
    client = _CLIENTS.get(provider)
    if client is None:
        told = unknown("provider", provider, _CLIENTS)
        raise ConfigError(f"model {name!r}: {told}" + ("" if colon else '; write "provider:name of the model"'))
    if not rest.strip():
        raise ConfigError(f"model {name!r} names a provider and no model; write {provider + ':name of the model'!r}")
    return getattr(importlib.import_module(client.module), client.class_name)(rest, **options)


def as_model(given: ChatModel | str) -> ChatModel:
    """What stands where a model is asked for, or the client for its name."""
    return model(given) if isinstance(given, str) else given


_PROVIDERS: Mapping[str, str] = {client.class_name: client.provider for client in _CLIENTS.values()}


def provider_of(given: ChatModel) -> str:
    """What OpenTelemetry calls the provider of a model.

    That is its `provider`, where it has one; else the provider of its class, or that class's own name.
    """
    told = getattr(given, "provider", None)
    kind = type(given).__name__
    return told if isinstance(told, str) and told else _PROVIDERS.get(kind) or kind.lower()
