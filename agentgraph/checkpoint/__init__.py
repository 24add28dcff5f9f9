"""Keeping runs: the stores of threads, and their contract."""

from typing import TYPE_CHECKING, Any

from agentgraph.checkpoint.protocol import Checkpointer, Entry, Line, Span, ThreadInfo, spans

if TYPE_CHECKING:
    from agentgraph.checkpoint.codec import Codec
    from agentgraph.checkpoint.encrypted import Encrypted
    from agentgraph.checkpoint.kinds import StoredType
    from agentgraph.checkpoint.memory import MemorySaver
    from agentgraph.checkpoint.postgres import PostgresSaver
    from agentgraph.checkpoint.sqlite import SqliteSaver

__all__ = [
    "Checkpointer",
    "Codec",
    "Encrypted",
    "Entry",
    "Line",
    "MemorySaver",
    "PostgresSaver",
    "Span",
    "SqliteSaver",
    "StoredType",
    "ThreadInfo",
    "spans",
]

_WHERE = {
    "Codec": "codec",
    "Encrypted": "encrypted",
    "MemorySaver": "memory",
    "PostgresSaver": "postgres",
    "SqliteSaver": "sqlite",
    "StoredType": "kinds",
}
"""Loaded when asked for: who keeps no runs needs none of it, and some of it needs an extra."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module  # noqa: PLC0415  # as late as what it loads

        return getattr(import_module(f"agentgraph.checkpoint.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
