"""A list of what is to be done, which the model writes and keeps up as it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from agentgraph.messages import AssistantMessage, Message, SystemMessage
from agentgraph.models.protocol import ModelRequest, ModelResponse
from agentgraph.nodes.llm_node import LlmRequest, ModelCall
from agentgraph.nodes.tool import Tool, ToolContext, ToolError
from agentgraph.strategies import LastWrite, Strategy

__all__ = ["Todo", "TodoList"]

TOOL = "write_todos"

PROMPT = """\
You have a to-do list, which you write with the tool write_todos. Use it for work of three or more steps, or when the \
user asks for several things or for a plan; do simple things at once, without it.
- Write the list before you begin. Each call of write_todos replaces the whole list, so always give all items, those \
that are done too. Never call it more than once in one answer.
- Set an item to "in_progress" when you begin it, and to "completed" as soon as it is fully done, not several later at \
once. What failed or waits for something is not completed.
- Change the list when you learn more: add what has to be done, leave out what has not.
- The list is not your answer: when the work is done, tell the user what came of it."""

DESCRIPTION = "Write the to-do list anew: all items, in order, each with its status. Replaces the list as it was."


class Todo(msgspec.Struct, frozen=True):
    """One thing that is to be done."""

    content: Annotated[str, msgspec.Meta(min_length=1, description="What is to be done, in a few words.")]
    status: Literal["pending", "in_progress", "completed"] = "pending"


class TodoList:
    """Gives the agent a to-do list: the tool `write_todos`, and the state key `todos`, a list of `Todo`.

        agent = ReactAgent("builder", model, tools, hooks=[TodoList()])
        result = await agent.run("Build me a house.")
        result.state["todos"]

    The list stays with the thread, and may also be given with an input. `prompt` tells the model how to use it; it is
    added to the system prompt of each request, and not kept. None: nothing is added. `description` is the tool's. Where
    the conversation no longer holds a call that wrote the list (a summary has taken its place, say), the request tells
    the list too. The tool writes the whole list; of several calls in one answer none counts, and each is answered so.
    """

    strategies: Mapping[str, Strategy]
    types: tuple[type, ...] = (Todo,)

    def __init__(self, *, prompt: str | None = PROMPT, description: str = DESCRIPTION, name: str = "TodoList") -> None:
        self.name = name
        self.prompt = prompt
        self.strategies = {"todos": LastWrite()}  # agents beside each other may each write one
        self.tools: tuple[Tool, ...] = (Tool(_write_todos, name=TOOL, description=description),)

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Add what the model has to know of the list to the system prompt."""
        told = [] if self.prompt is None else [self.prompt]
        # whoever gives a list with the input may give it as JSON has it
        todos = msgspec.convert(request.context.get("todos") or [], list[Todo])
        if todos and not _tells_list(request.messages):
            lines = [f"- [{todo.status}] {todo.content}" for todo in todos]
            told.append("\n".join(["The to-do list as it stands:", *lines]))
        return await call(_with_system(request, told) if told else request)

    def __repr__(self) -> str:
        return f"<{self.name}>"


async def _write_todos(todos: list[Todo], context: ToolContext) -> str:
    asked = next(m for m in reversed(context.state["messages"]) if isinstance(m, AssistantMessage))
    if sum(call.name == context.name for call in asked.tool_calls) > 1:
        raise ToolError(
            f"{context.name} was called more than once in one answer, and the list is as it was. Each call replaces "
            f"the whole list: call it once, with all items"
        )
    context.update(todos=todos)
    done = sum(todo.status == "completed" for todo in todos)
    return f"The list is written: {len(todos)} items, {done} completed."


def _tells_list(messages: Sequence[Message]) -> bool:
    return any(
        isinstance(m, AssistantMessage) and any(call.name == TOOL for call in m.tool_calls) for m in reversed(messages)
    )


def _with_system(request: ModelRequest, told: Sequence[str]) -> ModelRequest:
    system = request.system
    if system is None:
        return msgspec.structs.replace(request, system=SystemMessage("\n\n".join(told)))
    return msgspec.structs.replace(
        request, system=msgspec.structs.replace(system, text="\n\n".join([system.text, *told]))
    )
