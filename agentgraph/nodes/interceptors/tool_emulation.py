"""Lets a model answer in the place of tools."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from agentgraph.errors import ConfigError
from agentgraph.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models.by_name import as_model
from agentgraph.models.protocol import ChatModel, ModelRequest
from agentgraph.node import as_mapping
from agentgraph.nodes.arguments import ArgumentsError
from agentgraph.nodes.aside import ask_aside
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.tool import Tool, names_of
from agentgraph.nodes.tool_request import ToolHandler, ToolRequest

__all__ = ["TOOL_EMULATION_PROMPT", "ToolEmulation"]

TOOL_EMULATION_PROMPT: Final = (
    "You stand in for a tool that is not connected. You are shown what the tool is, and a call of it. Answer with what "
    "the tool would return for this call, and with nothing else: no explanation, no greeting, no Markdown. Make up "
    "plausible data where you have none, in the form in which such a tool would return it, and do not contradict what "
    "was returned for earlier calls."
)

_EARLIER = 20
_MOST_CHARACTERS = 2000


class ToolEmulation:
    """Has a model answer calls of tools, which do not run: to try an agent before its tools are there, or without harm.

        agent = ReactAgent("clerk", model, [search, book], interceptors=[ToolEmulation([book])])

    `tools` are those that are emulated, by their names or as they are; None: all. `model` answers; None: the agent's
    own. It sees the tool's name, description and schema, the call's arguments, and the last calls of emulated tools in
    the conversation with their answers. `prompt` says what to do, `options` go to the model as they are. What the calls
    take counts into the run's usage.

    Arguments that the tool would not take are answered as the tool node does, and so is a name that no tool has. An
    emulated tool writes nothing to the state. Where the model fails, that is the call's error answer.
    """

    def __init__(
        self,
        tools: Iterable[str | Tool | Callable[..., Any]] | None = None,
        model: ChatModel | str | None = None,
        *,
        prompt: str = TOOL_EMULATION_PROMPT,
        options: Mapping[str, Any] | None = None,
        name: str = "ToolEmulation",
    ) -> None:
        self.name = name
        self._tools = None if tools is None else names_of(tools, "ToolEmulation")
        self._model = None if model is None else as_model(model)
        self._prompt = prompt
        self._options = dict(options or {})

    def bind(self, agent: AgentParts) -> Self:
        """The one that asks this agent's model, where it was given none."""
        agent.tell_unknown(self.name, self._tools or ())
        if self._model is not None:
            return self
        bound = copy.copy(self)
        bound._model = agent.model
        return bound

    async def wrap_tool(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        """Answer in the tool's place."""
        tool, asked = request.tool, request.call
        if tool is None or not self._emulates(asked.name):
            return await call(request)
        try:
            tool.arguments(asked.arguments)
        except ArgumentsError:
            return await call(request)  # does not run the tool, and tells the model what is wrong
        if self._model is None:
            raise ConfigError(f"{self.name} has no model to ask; give it one")
        answer = await ask_aside(self._model, self._question(tool, asked, request.state), request.run)
        return ToolResponse(asked.id, asked.name, answer.text)

    def _emulates(self, name: str) -> bool:
        return self._tools is None or name in self._tools

    def _question(self, tool: Tool, asked: ToolCall, state: Any) -> ModelRequest:
        schema = msgspec.json.encode(tool.parameters).decode()
        told = [f"Tool: {tool.name}", f"What it does: {tool.description}", f"Its parameters, as JSON schema: {schema}"]
        if earlier := self._earlier(as_mapping(state).get("messages") or ()):
            told += ["", "Earlier calls:", *earlier]
        told += ["", f"Call to answer: {asked.name}({asked.arguments or '{}'})"]
        return ModelRequest(
            system=SystemMessage(self._prompt), messages=[UserMessage("\n".join(told))], options=self._options
        )

    def _earlier(self, messages: Sequence[Message]) -> list[str]:
        """The last calls that were emulated, a line each."""
        arguments: dict[str, str] = {}
        lines: list[str] = []
        for message in messages:
            if isinstance(message, AssistantMessage):
                arguments = {call.id: call.arguments for call in message.tool_calls}
            elif isinstance(message, ToolResponseMessage):
                lines += [
                    f"{r.name}({arguments.get(r.id) or '{}'}) returned: {r.text[:_MOST_CHARACTERS]}"
                    for r in message.responses
                    if self._emulates(r.name) and not r.is_error
                ]
        return lines[-_EARLIER:]

    def __repr__(self) -> str:
        return f"<{self.name} {'all tools' if self._tools is None else list(self._tools)}>"
