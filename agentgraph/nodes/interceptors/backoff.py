"""How long to wait before a call is tried again."""

from __future__ import annotations

import random

from agentgraph.config import Retry

__all__ = ["seconds_to_wait"]


def seconds_to_wait(retry: Retry, attempt: int, error: Exception) -> float | None:
    """Seconds after failed attempt number `attempt` (from 1): what the error asks for, or more.

    None: it asks for more than `max_delay`, so that another attempt would come too early.
    """
    drawn = random.random()  # noqa: S311  # spreads retries, keeps no secret
    wait = retry.wait(attempt, drawn)
    asked = getattr(error, "retry_after", None)
    if not isinstance(asked, (int, float)) or not asked > 0:
        return wait
    return None if asked > retry.max_delay else max(wait, asked)
