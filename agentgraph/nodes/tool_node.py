"""The acting node: runs the calls of an assistant message, and answers each of them. How they run: batch.py."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec

from agentgraph.config import positive
from agentgraph.context import Interrupted, RunContext
from agentgraph.errors import ConfigError, InputError
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.node import Updates, as_mapping
from agentgraph.nodes.batch import Batch
from agentgraph.nodes.chain import callables
from agentgraph.nodes.history import with_own_ids
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.tool import Tool, ToolError, as_tool, as_tools, tools_of_run
from agentgraph.nodes.tool_request import ErrorProcessor, ToolInterceptor

__all__ = ["ToolNode", "ToolResolver", "error_text"]

_GIVEN_UP = "this call did not finish: its run was ended before"

ToolResolver = Callable[[str], Any]
"""`(name) -> Tool | None`, sync or async: finds tools that neither the node nor the run has."""


def error_text(error: ToolError, _: ToolCall) -> str:
    """The error's own text, or its type where it has none."""
    return str(error) or type(error).__name__


class ToolNode:
    """Runs the tool calls of the last message in `state["messages"]`, and adds the message with their answers.

    Where the last message is a `ToolResponseMessage`, the calls without an answer are run, and it is replaced by the
    complete one (the key needs the `Messages` strategy for that). Calls whose ids repeat or are empty get others, in
    the message that asks too. Calls run beside each other, `max_parallel` at once (None: all; a `Limiter`: together
    with all others that have it, in the whole process), or one after the other with `parallel=False`: the state is the
    same. `timeout` is the seconds a call may take, None for no limit; a tool's own comes first.

    A call's tool is the node's own, else one of the run's dynamic tools (`run.scratch["tools"]`), else what
    `resolver` finds. `interceptors` wrap each call, the first outermost. `error_processor` makes the answer of a
    `ToolError`, unless that must fail the run. `tool_context` are values that each call finds in
    `ToolContext.extras`. `log` tells of each call in the log named "agentgraph".
    """

    needs: ClassVar[Mapping[str, str]] = {"messages": "the conversation"}
    """State keys whose strategy must keep what is there, and what they hold: `compile()` checks it."""

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        agent_name: str | None = None,
        parallel: bool = True,
        max_parallel: int | Limiter | None = 5,
        timeout: float | None = 300.0,
        interceptors: Sequence[ToolInterceptor] = (),
        resolver: ToolResolver | None = None,
        error_processor: ErrorProcessor = error_text,
        tool_context: Mapping[str, Any] | None = None,
        log: bool = False,
    ) -> None:
        if not isinstance(max_parallel, Limiter):
            positive("ToolNode(max_parallel=...)", max_parallel, whole=True)
        positive("ToolNode(timeout=...)", timeout)
        self.tools: dict[str, Tool] = {}
        for made in as_tools(tools, "ToolNode"):
            if made.name in self.tools:
                raise ConfigError(f"two tools are named {made.name!r}; names must differ: tool(name=...)")
            self.tools[made.name] = made
        self.agent_name = agent_name
        self.limiter: Limiter | None = max_parallel if isinstance(max_parallel, Limiter) else None
        """What its calls share with those of others."""
        self.max_parallel: int | None = (
            1 if not parallel else None if isinstance(max_parallel, Limiter) else max_parallel
        )
        """How many calls of a message run at once."""
        self.timeout = timeout
        self.interceptors: tuple[ToolInterceptor, ...] = callables(interceptors, "ToolNode")
        if resolver is not None and not callable(resolver):
            raise ConfigError(f"ToolNode(resolver=...) is a function of (name), found {resolver!r:.80}")
        if not callable(error_processor):
            raise ConfigError(
                f"ToolNode(error_processor=...) is a function of (error, call), found {error_processor!r:.80}"
            )
        if tool_context is not None and not isinstance(tool_context, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"ToolNode(tool_context=...) is a dict of values by name, found {tool_context!r:.80}")
        self._resolver = resolver
        self.error_processor = error_processor
        self.tool_context: dict[str, Any] = dict(tool_context or {})
        self.log = log

    async def __call__(self, state: Any, run: RunContext[Any]) -> Updates:
        """Run the open calls. Raises `InputError` where the last message asks for none, and as the rules above say."""
        given, answered = _open_message(as_mapping(state), run)
        asked = with_own_ids(given)
        responses = _answers(answered, asked, given)
        to_run = [i for i, response in enumerate(responses) if response is None]
        if not to_run:
            return Updates()
        batch = Batch(self, asked, state, run)
        if run.keeps:
            to_run = batch.recall(to_run, responses)
        try:
            await batch.run(to_run, responses)
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            if batch.loan is not None:
                batch.loan.repay_later()
            raise
        finally:
            batch.close()
            if batch.loan is not None:
                await batch.loan.repay()
        if batch.questions:
            raise Interrupted(tuple(q for i in sorted(batch.questions) for q in batch.questions[i]))
        return batch.complete(given, answered, cast("list[ToolResponse]", responses))

    async def settle(self, state: Any, run: RunContext[Any]) -> Updates:
        """What has come of calls that were given up, for a thread that goes on with something else.

        Those that had ended keep their answers and updates; the others are answered as not finished.
        """
        try:
            given, answered = _open_message(as_mapping(state), run)
        except InputError:  # somebody has changed the conversation since: nothing is left to be answered
            return Updates()
        asked = with_own_ids(given)
        responses = _answers(answered, asked, given)
        batch = Batch(self, asked, state, run)
        batch.recall([i for i, response in enumerate(responses) if response is None], responses)
        complete = [
            ToolResponse(call.id, call.name, _GIVEN_UP, is_error=True) if response is None else response
            for call, response in zip(asked.tool_calls, responses, strict=True)
        ]
        return batch.complete(given, answered, complete)

    async def find(self, name: str, run: RunContext[Any]) -> Tool | None:
        """The tool by that name: the node's own, the run's dynamic one, or what the resolver finds."""
        found = self.tools.get(name) or tools_of_run(run).get(name)
        if found is None and self._resolver is not None:
            answer = self._resolver(name)
            if inspect.isawaitable(answer):
                answer = await answer
            found = None if answer is None else as_tool(answer)
        return found

    def limits(self, tool: Tool | None) -> tuple[Limiter, ...]:
        """Whose permits a call of this tool needs."""
        own, of_tool = self.limiter, None if tool is None else tool.limiter
        if own is None or own is of_tool:
            return () if of_tool is None else (of_tool,)
        return (own,) if of_tool is None else (of_tool, own)

    def known(self, run: RunContext[Any]) -> list[str]:
        """The names of the node's own tools and the run's dynamic ones."""
        return [*self.tools, *(n for n in tools_of_run(run) if n not in self.tools)]

    def __repr__(self) -> str:
        return f"<ToolNode {self.agent_name or ''} {list(self.tools)}>"


def _open_message(
    given: Mapping[str, Any], run: RunContext[Any]
) -> tuple[AssistantMessage, ToolResponseMessage | None]:
    """The message whose calls are to be run, and the answers that some of them have already."""
    messages: Sequence[Any] = given.get("messages") or ()
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        return last, None
    if isinstance(last, ToolResponseMessage):
        for message in reversed(messages[:-1]):
            if isinstance(message, AssistantMessage):
                return message, last
        raise InputError(
            f"node {run.node!r}: the last message answers calls, and no assistant message stands before it"
        )
    found = "there is none" if last is None else f"found a {type(last).__name__}"
    raise InputError(f"node {run.node!r} runs the calls of the last message, an AssistantMessage; {found}")


def _answers(
    message: ToolResponseMessage | None, asked: AssistantMessage, given: AssistantMessage
) -> list[ToolResponse | None]:
    """The answer that each call has already, by its own id or else by the one it was given with.

    Ids may repeat: each answer stands for one call.
    """
    if message is None:
        return [None] * len(asked.tool_calls)
    left: dict[str, list[ToolResponse]] = {}
    for response in message.responses:
        left.setdefault(response.id, []).append(response)
    found: list[ToolResponse | None] = []
    for call, was in zip(asked.tool_calls, given.tool_calls, strict=True):
        answers = left.get(call.id) or left.get(was.id)
        answer = answers.pop(0) if answers else None
        found.append(answer and (answer if answer.id == call.id else msgspec.structs.replace(answer, id=call.id)))
    return found
