"""Long-term memory: stores of items that outlive threads, and their contract."""

from typing import TYPE_CHECKING, Any

from agentgraph.store.memory import MemoryStore
from agentgraph.store.protocol import Item, Namespace, Order, Put, Store

if TYPE_CHECKING:
    from agentgraph.store.postgres import PostgresStore
    from agentgraph.store.sqlite import SqliteStore

__all__ = ["Item", "MemoryStore", "Namespace", "Order", "PostgresStore", "Put", "SqliteStore", "Store"]


def __getattr__(name: str) -> Any:
    if name == "SqliteStore":  # who keeps items elsewhere needs no sqlite3
        from agentgraph.store.sqlite import SqliteStore  # noqa: PLC0415

        return SqliteStore
    if name == "PostgresStore":  # psycopg is an extra
        from agentgraph.store.postgres import PostgresStore  # noqa: PLC0415

        return PostgresStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
