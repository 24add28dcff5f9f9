"""What an agent or a flow is given, and what its run comes to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import msgspec

from agentgraph.compiled import RunResult
from agentgraph.context import Interrupt
from agentgraph.errors import InputError
from agentgraph.messages import AssistantMessage, Message, ToolResponseMessage, Usage, UserMessage
from agentgraph.node import Command

__all__ = ["LIMIT", "OUTPUT", "AgentResult", "as_given", "as_result"]

OUTPUT: Final = "_output"
"""The state key of what an agent has made, where it was given no `output_key`."""

LIMIT: Final = "limit"
"""The `finish_reason` of a message with which a hook has ended a turn in the model's place."""


class AgentResult(msgspec.Struct, frozen=True):
    """How an agent's run ended."""

    text: str
    """The last assistant message's text; after `return_direct`, the tools' answers."""
    message: Message | None
    """The last message."""
    messages: list[Message]
    output: Any
    """What `output_type` or `output_schema` made of the model's answer; the text without these."""
    usage: Usage | None
    status: str
    interrupts: tuple[Interrupt, ...]
    state: dict[str, Any]
    steps: int
    run_id: str
    thread_id: str | None
    checkpoint_id: str | None = None


def as_given(input: Any) -> Any:
    """An agent's input as its graph's. Raises `InputError` for what is none."""
    if input is None or isinstance(input, Command):
        return cast("Command[Any] | None", input)
    if isinstance(input, str):
        return {"messages": [UserMessage(input)]}
    if isinstance(input, Mapping):
        return cast("Mapping[str, Any]", input)
    if isinstance(input, msgspec.Struct):
        return {"messages": [input]}
    if isinstance(input, list):
        return {"messages": cast("list[Any]", input)}
    raise InputError(f"an agent answers a text, a message, a list of messages or a state; found {type(input).__name__}")


def as_result(
    ended: RunResult[dict[str, Any]],
    given: Any,
    output_key: str,
    *,
    formed: bool = False,
    private: Collection[str] = (),
) -> AgentResult:
    """What a graph's run has come to, as an agent tells it.

    `formed`: whether its answers have a form of their own. `private`: state keys that are nobody else's business.
    """
    spoken = cast("Any", given).get("messages") if isinstance(given, Mapping) else None
    asked = getattr(spoken[-1], "id", None) if spoken else None
    state = ended.state
    messages: list[Message] = state.get("messages", [])
    answer: Message | None = None
    for message in reversed(messages):
        if message.id == asked:  # what is further up is not of this turn, which a hook may have ended
            break
        if isinstance(message, (AssistantMessage, ToolResponseMessage)):
            answer = message
            break
    text = "" if answer is None else answer.text
    output: Any = None
    if isinstance(answer, ToolResponseMessage) or getattr(answer, "finish_reason", None) == LIMIT:
        # the state's output, if any, is that of an earlier turn
        output = None if formed or answer is None else text
    elif answer is not None and not answer.tool_calls:
        output = state.get(output_key)
    return AgentResult(
        text=text,
        message=messages[-1] if messages else None,
        messages=messages,
        output=output,
        usage=ended.usage,
        status=ended.status,
        interrupts=ended.interrupts,
        state={k: v for k, v in state.items() if k != OUTPUT and k not in private},
        steps=ended.steps,
        run_id=ended.run_id,
        thread_id=ended.thread_id,
        checkpoint_id=ended.checkpoint_id,
    )
