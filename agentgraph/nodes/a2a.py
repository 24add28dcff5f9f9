"""Agents served and called over the A2A protocol. An extra: `pip install "agentgraph-engine[a2a]"`.

It brings the official SDK, which knows versions 1.0 and 0.3 of the protocol.
"""

try:
    import a2a  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import sse_starlette  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the SDK does so when it serves
except ImportError as _absent:
    raise ImportError('agentgraph.nodes.a2a needs the A2A SDK: pip install "agentgraph-engine[a2a]"') from _absent

from agentgraph.nodes.a2a_agent import A2aAgent, A2aConnectionError, A2aError, A2aTimeoutError
from agentgraph.nodes.a2a_server import A2aExecutor, a2a_app, agent_card

__all__ = [
    "A2aAgent",
    "A2aConnectionError",
    "A2aError",
    "A2aExecutor",
    "A2aTimeoutError",
    "a2a_app",
    "agent_card",
]
