"""Asks another model where one has failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from agentgraph.errors import ConfigError
from agentgraph.models.by_name import as_model
from agentgraph.models.fallback import failure_note, fallback_rule, named
from agentgraph.models.protocol import ChatModel, ModelResponse
from agentgraph.nodes.interceptors.model_retry import is_read
from agentgraph.nodes.llm_node import LlmRequest, ModelCall

__all__ = ["ModelFallback"]

log: logging.Logger = logging.getLogger("agentgraph")


class ModelFallback:
    """Asks the agent's model, where that fails the first of these, and so on.

        agent = ReactAgent("clerk", "openai:gpt-4.1", interceptors=[ModelFallback("anthropic:claude-sonnet-4-5")])

    `on` tells after which errors: exception types, or a function of the error; None: where another provider may do
    better (see `provider_failed`). What an answer says is never a reason. Once readers have seen a part of an answer no
    other model is asked, but with `restart`: its answer then comes under a message id of its own. Where all fail, the
    last one's error is raised, and its notes tell of the others. The answer's `metadata["model"]` is the `name` of the
    model that gave it.

    The request's options go to each of the models: what only one of them knows is said to its client.

    It begins with `request.model`: another interceptor outside of it may choose that for each call. What stands further
    inside is round each model's call: `[ModelFallback(...), ModelRetry()]` tries each of the models several times. A
    `FallbackModel` does the same as a model, where there is no agent, or nothing to stand round each call.
    """

    def __init__(
        self,
        *models: ChatModel | str,
        on: Callable[[Exception], bool] | type[Exception] | tuple[type[Exception], ...] | None = None,
        restart: bool = False,
        name: str = "ModelFallback",
    ) -> None:
        self.name = name
        self.models: tuple[ChatModel, ...] = tuple(as_model(m) for m in models)
        if not self.models:
            raise ConfigError("ModelFallback needs the models to ask where the agent's own fails")
        for model in self.models:
            if not isinstance(model, ChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
                raise ConfigError(f"ModelFallback needs models with generate() and stream(), found {model!r:.80}")
        self._wants = fallback_rule(on, "ModelFallback")
        self._restart = restart

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Ask until one model answers. After cancellation no other one is asked."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        cancelling = task.cancelling()
        first = request.model
        models = [m for m in (first, *self.models) if m is not None]
        models = [m for place, m in enumerate(models) if m not in models[:place]]
        failed: list[str] = []
        for number, model in enumerate(models, 1):
            try:
                response = await call(request if model is first else msgspec.structs.replace(request, model=model))
                return named(response, model)
            except Exception as error:
                seen = getattr(error, "begun", False) and not self._restart and is_read(request)
                if number == len(models) or seen or task.cancelling() > cancelling or not self._wants(error):
                    for note in failed:
                        error.add_note(note)
                    raise
                log.warning("%s: %s", self.name, note := failure_note(model, error))
                failed.append(note)
        raise AssertionError("the last model answers or raises")

    def __repr__(self) -> str:
        return f"<{self.name} {', '.join(m.name for m in self.models)}>"
