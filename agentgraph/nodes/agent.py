"""The ReAct agent: a model that reasons and tools that act, in turn, until the model has its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from agentgraph import telemetry
from agentgraph.checkpoint.codec import types_in
from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.compiled import CompiledGraph, RunResult, RunStream, run_sync
from agentgraph.config import RunConfig
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError
from agentgraph.graph import StateGraph
from agentgraph.messages import AssistantMessage, ToolResponseMessage
from agentgraph.models.by_name import as_model, provider_of
from agentgraph.models.protocol import ChatModel
from agentgraph.node import END, START, Command, Updates, as_mapping
from agentgraph.nodes.agent_tool import agent_tool
from agentgraph.nodes.chain import callables
from agentgraph.nodes.chunks import ChunkInterceptor
from agentgraph.nodes.hooks.bound import Bound, bound, chain, interceptors_of
from agentgraph.nodes.hooks.hook import Hook, WrapsModel, WrapsTool
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.llm_node import Advisor, LlmNode, ModelInterceptor
from agentgraph.nodes.result import OUTPUT, AgentResult, as_given, as_result
from agentgraph.nodes.template import TemplateRenderer, names_of, render
from agentgraph.nodes.tool import Tool, as_tools
from agentgraph.nodes.tool_node import ToolNode, ToolResolver, error_text
from agentgraph.nodes.tool_request import ErrorProcessor, ToolInterceptor
from agentgraph.strategies import Messages, Replace, Strategy

__all__ = ["AgentResult", "ReactAgent"]

log: logging.Logger = logging.getLogger("agentgraph")


class ReactAgent:
    """A model with tools: asks the model, runs the tools it calls, and asks again until it calls none.

        agent = ReactAgent("clerk", OpenAIChat("gpt-..."), [add], system_prompt="You are a clerk.")
        result = await agent.run("What is 17 plus 25?")

    `name` is told in events, logs and traces. `model` is a client, or its name: "openai:gpt-4.1-mini". `tools` are
    functions or `Tool`s; without any, and without interceptors, advisors or a `resolver` that may bring some, the graph
    has no tool node. `system_prompt`, `instruction`, `template_renderer`, `options`, `output_type`, `output_schema`,
    `advisors`, `interceptors`, `chunk_interceptors`, `stream`, `on_error` and `log` are as in `LlmNode`; `parallel`,
    `max_parallel`, `tool_timeout` (seconds), `tool_interceptors`, `resolver`, `error_processor` and `tool_context` as
    in `ToolNode`; `checkpointer`, `types` and `lease` as in `StateGraph.compile`: a run with a `thread_id` goes on from
    the last one. `hooks` stand before and after the agent and its model calls, and may bring tools, interceptors and
    state keys (see `agentgraph.nodes.hooks`). `interceptors` may also be objects with `wrap_model`, `wrap_tool` or
    `wrap_chunks`. `strategies` are further state keys, and how their updates merge.
    The names in `instruction` are state keys too, unless another `template_renderer` fills them in. `output_key` names
    a state key that gets the answer too. `description` says what the agent can do, for those that choose between
    agents. `graph` is the agent as an ordinary `StateGraph`, which may be changed before the first run. The agent
    itself can be a node of another graph, as any compiled graph: on that graph's `messages`, or on what
    `add_node(..., input=..., output=...)` says; a part of a flow (`agentgraph.nodes.flows`); or a tool (`as_tool`).
    """

    def __init__(
        self,
        name: str,
        model: ChatModel | str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        description: str = "",
        system_prompt: str | None = None,
        instruction: str | None = None,
        template_renderer: TemplateRenderer = render,
        options: Mapping[str, Any] | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        output_type: Any = None,
        output_schema: Mapping[str, Any] | None = None,
        output_key: str | None = None,
        hooks: Sequence[Hook] = (),
        advisors: Sequence[Advisor] = (),
        interceptors: Sequence[ModelInterceptor | WrapsModel | WrapsTool] = (),
        chunk_interceptors: Sequence[ChunkInterceptor] = (),
        stream: bool = True,
        on_error: Literal["raise", "message"] = "raise",
        parallel: bool = True,
        max_parallel: int | Limiter | None = 5,
        tool_timeout: float | None = 300.0,
        tool_interceptors: Sequence[ToolInterceptor] = (),
        resolver: ToolResolver | None = None,
        error_processor: ErrorProcessor = error_text,
        tool_context: Mapping[str, Any] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
        log: bool = False,
    ) -> None:
        if not name:
            raise ConfigError("an agent needs a name that is not empty")
        if output_key == "messages":
            raise ConfigError("output_key: 'messages' is the conversation, where the answer stands anyway")
        model = as_model(model)
        advisors = callables(advisors, "ReactAgent", "advisor", "a function of (request)")
        hung = bound(
            name,
            model,
            hooks,
            interceptors_of(interceptors),
            callables(tool_interceptors, "ReactAgent"),
            chunk_interceptors,
            as_tools(tools, "ReactAgent"),
        )
        self.name = name
        self.description = description
        self.tools: tuple[Tool, ...] = hung.tools
        self.output_key = output_key
        self._checkpointer = checkpointer
        inside = (t for made in hung.tools for t in getattr(made.fn, "types", ()))
        self.types: tuple[type | StoredType[Any], ...] = (*types, *types_in(output_type), *inside, *hung.types)
        self._lease = lease
        self.llm: LlmNode = LlmNode(
            model,
            agent_name=name,
            system_prompt=system_prompt,
            instruction=instruction,
            template_renderer=template_renderer,
            tools=self.tools,
            options=options,
            output_key=output_key or OUTPUT,
            output_type=output_type,
            output_schema=output_schema,
            advisors=advisors,
            interceptors=hung.model,
            chunk_interceptors=hung.chunks,
            stream=stream,
            on_error=on_error,
            log=log,
        )
        self.tool_node: ToolNode | None = (
            ToolNode(
                self.tools,
                agent_name=name,
                parallel=parallel,
                max_parallel=max_parallel,
                timeout=tool_timeout,
                interceptors=hung.tool,
                resolver=resolver,
                error_processor=error_processor,
                tool_context=tool_context,
                log=log,
            )
            if self.tools or hung.model or advisors or resolver is not None
            else None
        )
        named = names_of(instruction) if instruction and template_renderer is render else ()
        filled_in: dict[str, Strategy] = {name: Replace() for name in named if name != "messages"}
        own: dict[str, Strategy] = {"messages": Messages(), "input": Replace(), output_key or OUTPUT: Replace()}
        self.graph: StateGraph[dict[str, Any]] = StateGraph(
            strategies=filled_in | own | hung.strategies | dict(strategies or {})
        )
        self._build(hung)

    def _build(self, hung: Bound) -> None:
        """START, the hooks before, the model, the hooks after it, the tools and back, or the last hooks and END."""
        graph, steps = self.graph, hung.steps
        first, last = steps["before_model"], steps["after_agent"]
        again = first[0].node if first else "llm"
        over = last[0].node if last else END
        acts = {} if self.tool_node is None else {"tools": "tools"}
        jumps = {"model": again, "end": over, **acts}
        before = chain(graph, steps["before_agent"], START, "", jumps)
        before = chain(graph, first, before, "", {**jumps, "model": "llm"})
        graph.add_node("llm", self.llm)
        graph.add_edge(before, "llm")
        after = chain(graph, steps["after_model"], "llm", "", jumps)
        if self.tool_node is None:
            graph.add_edge(after, over)
        else:
            graph.add_node("tools", self.tool_node)
            graph.add_conditional_edges(after, _after_llm, {"tools": "tools", "model": again, "end": over})
            graph.add_conditional_edges("tools", _after_tools, {"model": again, "end": over})
        chain(graph, last, "", END, {**jumps, "end": END})

    @cached_property
    def app(self) -> CompiledGraph[dict[str, Any]]:
        """The compiled graph, made at the first use."""
        return self.graph.compile(name=self.name, checkpointer=self._checkpointer, types=self.types, lease=self._lease)

    @property
    def plan(self) -> Any:
        """By this the agent is a graph as a node of another one, which compiles it when it is added."""
        return self.app.plan

    async def run(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """Answer `input`: a text, a message, a list of messages, or a state.

        On a thread also `Command(resume=...)`, the answers to what was asked, or None, to go on where it stood. Raises
        as `CompiledGraph.invoke` does.
        """
        given = as_given(input)
        return await self._told(given, config, lambda: self.app.invoke(given, config, context=context))

    def run_sync(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """`run` for code without an event loop. Raises `SyncInLoopError` where one runs in this thread."""
        return run_sync(lambda: self.run(input, config, context=context), "run_sync()", "await agent.run(...)")

    def stream(
        self, input: Any, config: RunConfig | None = None, *, context: Any = None, buffer: int = 256
    ) -> RunStream[AgentResult]:
        """Answer `input`, and read what happens: see `CompiledGraph.stream`. Its `result` is an `AgentResult`."""
        given = as_given(input)
        run = self.app.stream(given, config, context=context, buffer=buffer)
        return run.within(lambda start: self._told(given, config, start))

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        return_direct: bool = False,
        max_parallel: int | Limiter | None = None,
    ) -> Tool:
        """This agent as a tool for another: it is told a task, and what it answers is the call's answer.

        Each call has a conversation of its own, which begins with the task, and is a part of the caller's run: limits,
        events, usage, questions and cancellation pass through, and after a pause or a crash it goes on where it stood.
        `name` and `description` are the agent's, if not given; the others are as in `Tool`.
        """
        return agent_tool(
            self,
            name=name,
            description=description,
            timeout=timeout,
            return_direct=return_direct,
            max_parallel=max_parallel,
        )

    async def __call__(
        self,
        state: Any,
        run: RunContext[Any],
        /,
        *,
        input: Mapping[str, str] | None = None,
        output: Mapping[str, str] | None = None,
    ) -> Updates:
        """Run as a node of another graph: see `CompiledGraph.__call__`."""
        listeners = telemetry.listeners()
        if listeners is None:
            updates = await self.app(state, run, input=input, output=output)
        else:
            with self._operation(listeners, as_mapping(state), run.config):
                updates = await self.app(state, run, input=input, output=output)
        if output is None and not any("messages" in update or self.output_key in update for update in updates):
            log.warning(
                "agent %r has answered, and the graph of node %r knows neither 'messages' nor its output_key; "
                "say by add_node(..., output=...) what comes back",
                self.name,
                run.node,
            )
        return Updates({k: v for k, v in update.items() if k != OUTPUT} for update in updates)

    async def _told(
        self,
        given: Any,
        config: RunConfig | None,
        start: Callable[[], Coroutine[Any, Any, RunResult[dict[str, Any]]]],
    ) -> AgentResult:
        """Run to the end, and tell whoever records."""
        listeners = telemetry.listeners()
        if listeners is None:
            return self._result(await start(), given)
        told: dict[str, Any] = {} if given is None or isinstance(given, Command) else given
        with self._operation(listeners, told, config) as operation:
            result = self._result(await start(), given)
            operation.answered(result.message, result.usage)
            return result

    def _operation(
        self, listeners: telemetry.Listeners, given: Mapping[str, Any], config: RunConfig | None
    ) -> telemetry.Operation:
        return telemetry.invoke_agent(
            listeners,
            agent=self.name,
            model=self.llm.model.name,
            provider=provider_of(self.llm.model),
            thread_id=getattr(config, "thread_id", None),
            system=self.llm.system_prompt,
            messages=given.get("messages") or (),
        )

    def _result(self, ended: RunResult[dict[str, Any]], given: Any) -> AgentResult:
        return as_result(ended, given, self.output_key or OUTPUT, formed=self.llm.output is not None)

    def __repr__(self) -> str:
        return f"<ReactAgent {self.name} {self.llm.model.name} tools={[t.name for t in self.tools]}>"


def _after_llm(state: dict[str, Any]) -> str:
    """Where calls are open, to the tools; a hook may have answered some of them, or all."""
    messages = state["messages"]
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        return "tools" if last.tool_calls else "end"
    if not isinstance(last, ToolResponseMessage):
        return "end"
    asked = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
    answered = {response.id for response in last.responses}
    return "model" if asked is None or all(call.id in answered for call in asked.tool_calls) else "tools"


def _after_tools(state: dict[str, Any]) -> str:
    answers = next((m for m in reversed(state["messages"]) if isinstance(m, ToolResponseMessage)), None)
    return "end" if answers is not None and answers.metadata.get("finish_reason") == "return_direct" else "model"
