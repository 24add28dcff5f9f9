"""Clients of model providers, and the protocol that any other client speaks.

A client is loaded when it is first asked for: the protocol alone must not load an HTTP library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from agentgraph.models.guard import RealModelRefusedError
from agentgraph.models.protocol import ChatModel, Delta, ModelRequest, ModelResponse, ToolSpec

if TYPE_CHECKING:
    from agentgraph.models.openai_chat import OpenAIChat

__all__ = [
    "AuthenticationError",
    "BadRequestError",
    "ChatModel",
    "ConnectionFailedError",
    "ContentFilterError",
    "ContextLengthError",
    "Delta",
    "MalformedResponseError",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "ModelTimeoutError",
    "OpenAIChat",
    "OverloadedError",
    "ProviderError",
    "RateLimitError",
    "RealModelRefusedError",
    "ServerError",
    "StreamCutError",
    "ToolSpec",
]

_CLIENTS = {"OpenAIChat": "agentgraph.models.openai_chat"}


def __getattr__(name: str) -> Any:
    if name in _CLIENTS:
        return getattr(importlib.import_module(_CLIENTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
