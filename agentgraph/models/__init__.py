"""Clients of model providers, and the protocol that any other client speaks.

A client is loaded when it is first asked for: the protocol alone must not load an HTTP library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentgraph.models.by_name import ModelClient, model, provider_of
from agentgraph.models.errors import (
    AuthenticationError,
    BadRequestError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthError,
    MalformedResponseError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamCutError,
)
from agentgraph.models.fallback import FallbackModel, provider_failed
from agentgraph.models.guard import RealModelRefusedError
from agentgraph.models.protocol import ChatModel, Delta, ModelRequest, ModelResponse, ToolSpec

if TYPE_CHECKING:
    from agentgraph.models.anthropic import AnthropicMessages
    from agentgraph.models.client import ClientOptions
    from agentgraph.models.gemini import Gemini
    from agentgraph.models.openai_chat import OpenAIChat
    from agentgraph.models.openai_responses import OpenAIResponses
    from agentgraph.models.rate_limit import Limited, RateLimit

__all__ = [
    "AnthropicMessages",
    "AuthenticationError",
    "BadRequestError",
    "ChatModel",
    "ClientOptions",
    "ConnectionFailedError",
    "ContentFilterError",
    "ContextLengthError",
    "Delta",
    "FallbackModel",
    "Gemini",
    "Limited",
    "MalformedResponseError",
    "ModelClient",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "ModelTimeoutError",
    "OpenAIChat",
    "OpenAIResponses",
    "OverloadedError",
    "ProviderError",
    "RateLimit",
    "RateLimitError",
    "RealModelRefusedError",
    "ServerError",
    "StreamCutError",
    "ToolSpec",
    "model",
    "provider_failed",
    "provider_of",
]

_CLIENTS = {
    "AnthropicMessages": "agentgraph.models.anthropic",
    "ClientOptions": "agentgraph.models.client",
    "Gemini": "agentgraph.models.gemini",
    "Limited": "agentgraph.models.rate_limit",
    "OpenAIChat": "agentgraph.models.openai_chat",
    "OpenAIResponses": "agentgraph.models.openai_responses",
    "RateLimit": "agentgraph.models.rate_limit",
}


def __getattr__(name: str) -> Any:
    if name in _CLIENTS:
        return getattr(importlib.import_module(_CLIENTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
