"""A question to a model beside the conversation: no reader sees the answer arrive, and it joins no history."""

from __future__ import annotations

from typing import Any

from agentgraph import telemetry
from agentgraph.context import RunContext
from agentgraph.messages import AssistantMessage
from agentgraph.models.by_name import provider_of
from agentgraph.models.protocol import ChatModel, ModelRequest
from agentgraph.nodes.chunks import no_response

__all__ = ["ask_aside"]


async def ask_aside(model: ChatModel, request: ModelRequest, run: RunContext[Any] | None) -> AssistantMessage:
    """The answer, counted into the run's usage and traced as any call of a model. Raises what the model raises."""
    listeners = telemetry.listeners()
    if listeners is None:
        message = no_response(model.name, await model.generate(request)).message
    else:
        with telemetry.chat(
            listeners,
            model=model.name,
            provider=provider_of(model),
            base_url=getattr(model, "base_url", None),
            thread_id=None if run is None else run.config.thread_id,
            options=request.options,
            stream=False,
            as_json=request.output_schema is not None,
            system=request.system,
            messages=request.messages,
            tools=request.tools,
        ) as operation:
            message = no_response(model.name, await model.generate(request)).message
            operation.answered(message, message.usage)
    if run is not None and message.usage is not None:
        run.add_usage(message.usage)
    return message
