"""Lets a model choose the tools that another one is told of."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

import msgspec

from agentgraph.config import positive
from agentgraph.errors import ConfigError
from agentgraph.messages import AssistantMessage, InstructionMessage, Message, SystemMessage, UserMessage
from agentgraph.models.by_name import as_model
from agentgraph.models.protocol import ChatModel, ModelRequest, ModelResponse, ToolSpec
from agentgraph.nodes.aside import ask_aside
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.llm_node import LlmRequest, ModelCall
from agentgraph.nodes.output import OutputFormat, without_fence
from agentgraph.nodes.tool import Tool, names_of

__all__ = ["TOOL_SELECTION_PROMPT", "ToolSelection"]

log: logging.Logger = logging.getLogger("agentgraph")

TOOL_SELECTION_PROMPT: Final = (
    "You are shown a list of tools and the end of a conversation between a user and an assistant. Name the tools that "
    "the assistant may need for its next steps, the most useful one first. Name only tools of the list. When you are "
    "not sure about a tool, name it. When none is of use, name none."
)

_CHOSEN = "_tool_selection"
"""Under this in `run.scratch`: for which question and tools something was chosen, and what."""

_TURNS = 10
_MOST_CHARACTERS = 2000


class ToolSelection:
    """Has a model, such as a small one, choose the tools that the agent's own model is told of.

        selection = ToolSelection("openai:gpt-4.1-nano", most=5, always=["search"])
        agent = ReactAgent("clerk", model, many_tools, interceptors=[selection])

    `model` chooses; None: the agent's own. `most`: how many it may choose; where there are no more tools than that it
    is not asked. `always` are the tools, by their names or as they are, that are there without being chosen; they do
    not count. `prompt` says what to do, `options` go to the model as they are.

    It is asked once a turn, with the end of the conversation, and again where the tools have changed: a tool that was
    called in the turn stays until its end. An answer that names no tool leaves those of `always`. An answer that cannot
    be read, or names tools that are not there, and a call that fails leave all tools, with a warning in the log. What
    the calls take counts into the run's usage.

    Tools that were not chosen can still be run: it is only the model that does not know of them.
    """

    def __init__(
        self,
        model: ChatModel | str | None = None,
        *,
        most: int | None = None,
        always: Iterable[str | Tool | Callable[..., Any]] = (),
        prompt: str = TOOL_SELECTION_PROMPT,
        options: Mapping[str, Any] | None = None,
        name: str = "ToolSelection",
    ) -> None:
        positive("ToolSelection(most=...)", most, whole=True)
        self.name = name
        self._model = None if model is None else as_model(model)
        self._most = most
        self._always = names_of(always, "ToolSelection(always=...)")
        self._prompt = prompt
        self._options = dict(options or {})

    def bind(self, agent: AgentParts) -> Self:
        """The one that asks this agent's model, where it was given none."""
        agent.tell_unknown(self.name, self._always)
        if self._model is not None:
            return self
        bound = copy.copy(self)
        bound._model = agent.model
        return bound

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Leave the request the tools that were chosen."""
        dynamic = {tool.name: tool for tool in request.dynamic_tools}
        offered = {spec.name: spec for spec in (*request.tools, *(tool.spec for tool in dynamic.values()))}
        asked, called = _turn(request.messages)
        stay = {*self._always, *called, request.tool_choice}
        candidates = [spec for name, spec in offered.items() if name not in stay]
        if not candidates or request.options.get("tools") == [] or len(offered) <= (self._most or 0):
            return await call(request)
        chosen = await self._chosen(asked, candidates, request)
        if chosen is None:
            return await call(request)
        stay.update(chosen)
        request = msgspec.structs.replace(
            request,
            tools=[spec for spec in request.tools if spec.name in stay],
            dynamic_tools=[tool for name, tool in dynamic.items() if name in stay],
        )
        return await call(request)

    async def _chosen(self, asked: str | None, candidates: Sequence[ToolSpec], request: LlmRequest) -> set[str] | None:
        """The names that were chosen of these, once a turn; None: all."""
        scratch = {} if request.run is None else request.run.scratch
        known = scratch.setdefault(_CHOSEN, {})
        names = frozenset(spec.name for spec in candidates)
        before = known.get(self.name)
        # a tool that was called since is no candidate any more, and was one when it was chosen
        if before is not None and asked is not None and before[0] == asked and names <= before[1]:
            return before[2]
        model = self._model or request.model
        if model is None:
            raise ConfigError(f"{self.name} has no model to ask; give it one")
        chosen: set[str] | None = None
        try:
            chosen = await self._ask(model, candidates, request)
        except Exception as error:  # whatever it is, the agent can do without
            log.warning("%s: the tools could not be chosen, and all are there", self.name, exc_info=error)
        known[self.name] = asked, names, chosen
        return chosen

    async def _ask(self, model: ChatModel, candidates: Sequence[ToolSpec], request: LlmRequest) -> set[str] | None:
        names = [spec.name for spec in candidates]
        form = OutputFormat.of(None, _schema(names))
        native = getattr(model, "native_output_schema", False)
        prompt = self._prompt if self._most is None else f"{self._prompt} Name {self._most} at most."
        tools = "\n".join(f"- {spec.name}: {spec.description}" for spec in candidates)
        told = f"Tools:\n{tools}\n\nConversation:\n{_conversation(request.messages)}"
        if form is not None and not native:
            told = f"{told}\n\n{form.prompt()}"
        answer = await ask_aside(
            model,
            ModelRequest(
                system=SystemMessage(prompt),
                messages=[UserMessage(told)],
                output_schema=form.schema if form is not None and native else None,
                options=self._options,
            ),
            request.run,
        )
        chosen = _read(answer.text, names)
        if chosen is None:
            log.warning(
                "%s: model %r chose no tool that is there, so all are: %.200r", self.name, model.name, answer.text
            )
            return None
        return set(chosen[: self._most])

    def __repr__(self) -> str:
        return f"<{self.name} most={self._most} always={list(self._always)}>"


def _schema(names: Sequence[str]) -> dict[str, Any]:
    items = {"type": "string", "enum": list(names)}
    return {
        "type": "object",
        "properties": {"tools": {"type": "array", "items": items}},
        "required": ["tools"],
        "additionalProperties": False,
    }


def _turn(messages: Sequence[Message]) -> tuple[str | None, list[str]]:
    """The id of the user's last message, and the names of the tools that were called since."""
    called: list[str] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return message.id, called
        if isinstance(message, AssistantMessage):
            called += [call.name for call in message.tool_calls]
    return None, called


def _conversation(messages: Sequence[Message]) -> str:
    """The end of the conversation as text, without what tools were called for and have answered."""
    lines: list[str] = []
    for message in reversed(messages):
        if not isinstance(message, (UserMessage, InstructionMessage, AssistantMessage)) or not message.text.strip():
            continue
        who = "Assistant" if isinstance(message, AssistantMessage) else "User"
        lines.append(f"{who}: {message.text[:_MOST_CHARACTERS]}")
        if len(lines) == _TURNS:
            break
    return "\n".join(reversed(lines))


def _read(text: str, names: Sequence[str]) -> list[str] | None:
    """The names that an answer holds, in its order; None where it cannot be read, or has none that is known."""
    found = re.search(r"[\[{].*[\]}]", without_fence(text), re.DOTALL)
    try:
        value: Any = msgspec.json.decode(found[0]) if found else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("tools")
    if not isinstance(value, list):
        return None
    items = cast("list[Any]", value)
    known = [name for name in dict.fromkeys(i for i in items if isinstance(i, str)) if name in names]
    return known if known or not items else None
