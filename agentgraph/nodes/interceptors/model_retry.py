"""Tries a failed call of the model again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, cast

from agentgraph.config import Retry, may_pass
from agentgraph.errors import ConfigError, unknown
from agentgraph.events import shown
from agentgraph.models.protocol import ModelResponse
from agentgraph.nodes.interceptors.backoff import seconds_to_wait
from agentgraph.nodes.llm_node import LlmRequest, ModelCall, failed_answer

__all__ = ["ModelRetry"]

log: logging.Logger = logging.getLogger("agentgraph")


class ModelRetry:
    """Asks the model again where the call has failed.

        agent = ReactAgent("clerk", model, interceptors=[ModelRetry(Retry(attempts=4, delay=1.0))])

    `retry` says after which errors, how often, and how long to wait; by itself it is after errors that may pass
    (connections, timeouts, HTTP 408, 409, 429 and 5xx). The clients of this library do the same inside themselves, and
    what one has given up on is not tried again, unless `retry.on` names it: this interceptor is for a client with
    `max_retries=0`, for models of your own, and for errors of interceptors and chunk interceptors. A wait that the
    provider asks for is kept; where it is longer than `retry.max_delay`, nothing is tried again.

    Once readers have seen a part of an answer, nothing is tried again but with `restart`: the new answer then comes
    under a message id of its own, and no message has the id of what was seen before. A run that nobody reads makes no
    difference there, and begins anew.

    `at_end`: what becomes of an error after which nothing is tried again. "error" raises it; "message" makes it the
    answer, an assistant message that begins with `Exception: ` and has `finish_reason` "error", which ends the turn.
    """

    def __init__(
        self,
        retry: Retry | None = None,
        *,
        restart: bool = False,
        at_end: Literal["error", "message"] = "error",
        name: str = "ModelRetry",
    ) -> None:
        self.name = name
        self._retry = checked_retry("ModelRetry", retry)
        self._restart = restart
        if at_end not in ("error", "message"):
            raise ConfigError(f"ModelRetry(at_end=...): {unknown('choice', at_end, ('error', 'message'))}")
        self._at_end = at_end

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Ask until the model answers. After cancellation nothing is tried again."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        cancelling = task.cancelling()
        attempt = 1
        while True:
            try:
                return await call(request)
            except Exception as error:
                if task.cancelling() > cancelling:
                    raise
                wait = self._wait(attempt, error, request)
                if wait is None:
                    if attempt > 1:
                        error.add_note(f"attempt {attempt} of {self._retry.attempts}")
                    if self._at_end == "error":
                        raise
                    log.warning("%s: the model call failed, and is told as a message", self.name, exc_info=error)
                    return ModelResponse(message=failed_answer(error))
                log.warning(
                    "%s: attempt %d of %d failed, the next one comes in %.3g s: %s",
                    self.name, attempt, self._retry.attempts, wait, shown(error, repr),
                )  # fmt: skip
            await asyncio.sleep(wait)
            attempt += 1

    def _wait(self, attempt: int, error: Exception, request: LlmRequest) -> float | None:
        """Seconds until the next attempt; None where there is none."""
        begun = getattr(error, "begun", False)
        if attempt >= self._retry.attempts or (begun and not self._restart and is_read(request)):
            return None
        wants = self._retry.wants(error)
        if begun and self._retry.on is None:  # a client says of these that it has tried, and has not
            wants = may_pass(error)
        return seconds_to_wait(self._retry, attempt, error) if wants else None

    def __repr__(self) -> str:
        return f"<{self.name} {self._retry!r}>"


def is_read(request: LlmRequest) -> bool:
    """Whether somebody may read the answer's pieces."""
    return request.run is None or request.run.has_reader


def checked_retry(owner: str, retry: Any) -> Retry:
    """The `Retry` that `owner` was given, or one by default. Raises `ConfigError` for what is none."""
    if retry is None:
        return Retry()
    if not isinstance(retry, Retry):
        raise ConfigError(f"{owner} takes a Retry, such as {owner}(Retry(attempts=5)); found {retry!r:.80}")
    return retry
