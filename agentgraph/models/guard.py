"""The switch that refuses real model requests in tests. It stands here because models may not import `testing`."""

from __future__ import annotations

from urllib.parse import urlsplit

from agentgraph.errors import AgentGraphError

__all__ = ["RealModelRefusedError", "allow", "check", "refuse"]

_LOOPBACK = ("localhost", "::1")


class _Switch:
    # process-wide, not a ContextVar: a worker thread or a task that was started earlier must be refused too
    refusals = 0


_switch = _Switch()


class RealModelRefusedError(AgentGraphError):
    """A test asked a real model, and `agentgraph.testing.no_real_models()` is in force."""


def refuse() -> None:
    """From now on refuse requests that leave this machine. Calls add up; `allow` takes one back."""
    _switch.refusals += 1


def allow() -> None:
    """Take one `refuse` back."""
    _switch.refusals -= 1


def check(url: str) -> None:
    """Raise `RealModelRefusedError` where requests are refused and `url` is not on loopback."""
    if _switch.refusals <= 0:
        return
    host = urlsplit(url).hostname or ""
    if host not in _LOOPBACK and not host.startswith("127."):
        raise RealModelRefusedError(
            f"a request to {host!r} was refused: no_real_models() is in force; use ScriptedModel, FunctionModel or "
            f"serve_transcript from agentgraph.testing"
        )
