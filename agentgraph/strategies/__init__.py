"""How a key's updates merge. Each strategy is a pure function of values: no I/O, no clock, no asyncio."""

from agentgraph.strategies.append import Append
from agentgraph.strategies.markers import REMOVE_ALL, RemoveAll, RemoveByHash, RemoveMessage, RewriteMessages
from agentgraph.strategies.merge import Merge
from agentgraph.strategies.messages import Messages
from agentgraph.strategies.protocol import UNSET, Strategy, UnsetType
from agentgraph.strategies.reduce import Reduce
from agentgraph.strategies.replace import LastWrite, Replace

__all__ = [
    "REMOVE_ALL",
    "UNSET",
    "Append",
    "LastWrite",
    "Merge",
    "Messages",
    "Reduce",
    "RemoveAll",
    "RemoveByHash",
    "RemoveMessage",
    "Replace",
    "RewriteMessages",
    "Strategy",
    "UnsetType",
]
