"""An asyncio-native graph engine with pluggable nodes for LLM agents."""

from agentgraph.compiled import CompiledGraph, RunResult, RunStream
from agentgraph.config import Retry, RunConfig
from agentgraph.context import CancellationToken, Interrupt, RunContext
from agentgraph.errors import (
    AgentGraphError,
    ConfigError,
    ConflictError,
    GraphError,
    InPlaceChangeError,
    InputError,
    NodeTimeoutError,
    RecursionLimitError,
    RoutingError,
    RunEndedError,
    RunNote,
    RunTimeoutError,
    StrategyError,
    StrayCancelError,
    SyncInLoopError,
    UpdateError,
)
from agentgraph.graph import StateGraph
from agentgraph.node import END, START, Command, Node, Send, Updates

__all__ = [
    "END",
    "START",
    "AgentGraphError",
    "CancellationToken",
    "Command",
    "CompiledGraph",
    "ConfigError",
    "ConflictError",
    "GraphError",
    "InPlaceChangeError",
    "InputError",
    "Interrupt",
    "Node",
    "NodeTimeoutError",
    "RecursionLimitError",
    "Retry",
    "RoutingError",
    "RunConfig",
    "RunContext",
    "RunEndedError",
    "RunNote",
    "RunResult",
    "RunStream",
    "RunTimeoutError",
    "Send",
    "StateGraph",
    "StrategyError",
    "StrayCancelError",
    "SyncInLoopError",
    "UpdateError",
    "Updates",
]
