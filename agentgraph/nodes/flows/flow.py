"""What all flows are: agents in a graph, run and drawn as one agent.

The rules:
- In a shared conversation an agent is told all that was said, and all that it says is added. In separate ones it is
  told its task alone, and only its answer is handed on.
- State keys by which agents work together (`output_key`s, `strategies`, names in instructions) are shared in both.
- An agent is never asked with an answer as the last message: not every provider takes that.
- A message that a flow makes has an id that follows from the one it was made of: whoever runs the node again after a
  pause makes the same message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import msgspec

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.compiled import CompiledGraph, RunResult, RunStream, run_sync
from agentgraph.config import RunConfig
from agentgraph.context import RunContext
from agentgraph.errors import AgentGraphError, ConfigError, unknown
from agentgraph.graph import StateGraph
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    Part,
    SystemMessage,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.node import Updates, as_mapping
from agentgraph.nodes.agent_tool import agent_tool
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.result import OUTPUT, AgentResult, as_given, as_result
from agentgraph.nodes.template import render
from agentgraph.nodes.tool import Tool
from agentgraph.nodes.turn import Agent, Turn, check_agent, data_keys, take_turn
from agentgraph.strategies import LastWrite, Messages, Replace, Strategy

__all__ = ["HAND_ON", "Agents", "Conversation", "Flow", "FlowError", "Spoken", "opened", "question", "retold", "spoken"]

Conversation = Literal["shared", "separate"]
"""Whether the agents of a flow have one conversation, or each its own."""

Agents = Sequence[Any] | Mapping[str, Any]
"""Agents: `ReactAgent`s, flows, or compiled graphs with `messages`; by their own names, or by those of a mapping."""

HAND_ON = "It is your turn now, {agent}."
"""What an agent is told in a shared conversation whose last message is an answer."""

_HAND_ON = "hand_on"
"""In the metadata of such a message: whose turn it is."""

Spoken = UserMessage | InstructionMessage

TakeTurn = Callable[[Mapping[str, Any], RunContext[Any]], Awaitable[Any]]


class FlowError(AgentGraphError):
    """A flow's agents have not come to what was asked of them. `flow` is its name."""

    def __init__(self, flow: str, message: str) -> None:
        super().__init__(f"flow {flow!r}: {message}")
        self.flow = flow


class AgentNode:
    """An agent as a node: `take_turn(state, run)` says what it is told, and what comes of it.

    It is drawn as the graph that the agent is, and what it had done when its run was given up is found by that.
    """

    def __init__(self, agent: Agent, take_turn: TakeTurn) -> None:
        self.plan: Any = agent.plan
        self._take_turn = take_turn

    async def __call__(
        self,
        state: Any,
        run: RunContext[Any],
        /,
        *,
        input: Any = None,  # noqa: ARG002  # as a graph as a node has it: what goes in and comes back the flow says
        output: Any = None,  # noqa: ARG002
    ) -> Any:
        """Run the agent once."""
        return await self._take_turn(as_mapping(state), run)


class Flow:
    """Agents in a graph. What its subclasses have in common; by itself it does nothing.

    `agents` come by their own names or in a mapping by others, which are the nodes' names. `output_key` names a state
    key that gets the flow's output too, `strategies` are further state keys. `description`, `checkpointer`, `types`
    and `lease` are as in `ReactAgent`.
    """

    own_keys: ClassVar[tuple[str, ...]] = ()
    """State keys that tell of this flow itself, and so are none of the flow's that it is in."""

    def __init__(
        self,
        name: str,
        agents: Agents,
        *,
        conversation: Conversation,
        description: str,
        output_key: str | None,
        strategies: Mapping[str, Strategy] | None,
        private: Mapping[str, Strategy],
        checkpointer: Checkpointer | None,
        types: Iterable[type | StoredType[Any]],
        lease: float,
    ) -> None:
        kind = type(self).__name__
        if not name:
            raise ConfigError(f"{kind}: a flow needs a name that is not empty")
        if conversation not in ("shared", "separate"):
            raise ConfigError(f"{kind}(conversation=...): {unknown('choice', conversation, ('shared', 'separate'))}")
        if output_key in ("messages", "input"):
            raise ConfigError(f"{kind}(output_key=...): {output_key!r} is the conversation's; name another key")
        self.name = name
        self.description = description
        self.conversation: Conversation = conversation
        self.output_key = output_key
        self.agents: dict[str, Agent] = _by_name(agents, kind)
        keys: dict[str, Strategy] = {}
        for agent in self.agents.values():
            keys = {**data_keys(agent), **keys}
        keys |= strategies or {}
        for key, theirs, agent in ((k, s, a) for a in self.agents.values() for k, s in data_keys(a).items()):
            if isinstance(theirs, LastWrite) != isinstance(keys[key], LastWrite):
                raise ConfigError(
                    f"{kind}: state key {key!r} has {theirs!r} in agent {agent.name!r} and {keys[key]!r} elsewhere in "
                    f"the flow, so that what it writes would be lost or doubled; give it one strategy"
                )
        self.keys: tuple[str, ...] = tuple(keys)
        """The state keys by which the agents work together."""
        own: dict[str, Strategy] = {"messages": Messages(), "input": Replace(), self._made: Replace()}
        self.graph: StateGraph[dict[str, Any]] = StateGraph(strategies={**keys, **private, **own})
        self._private = frozenset(private)
        self._checkpointer = checkpointer
        inside = (t for agent in self.agents.values() for t in getattr(agent, "types", ()))
        self.types: tuple[type | StoredType[Any], ...] = (*types, *inside)
        """What the states of the flow and of its agents hold."""
        self._lease = lease

    # --- as an agent ---

    @cached_property
    def app(self) -> CompiledGraph[dict[str, Any]]:
        """The compiled graph, made at the first use."""
        return self.graph.compile(name=self.name, checkpointer=self._checkpointer, types=self.types, lease=self._lease)

    @property
    def plan(self) -> Any:
        """By this the flow is a graph as a node of another one, which compiles it when it is added."""
        return self.app.plan

    async def run(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """Answer `input`: see `ReactAgent.run`."""
        given = as_given(input)
        return self._result(await self.app.invoke(given, config, context=context), given)

    def run_sync(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """`run` for code without an event loop. Raises `SyncInLoopError` where one runs in this thread."""
        return run_sync(lambda: self.run(input, config, context=context), "run_sync()", "await flow.run(...)")

    def stream(
        self, input: Any, config: RunConfig | None = None, *, context: Any = None, buffer: int = 256
    ) -> RunStream[AgentResult]:
        """Answer `input`, and read what happens: see `CompiledGraph.stream`. Its `result` is an `AgentResult`."""
        given = as_given(input)

        async def told(start: Any) -> AgentResult:
            return self._result(await start(), given)

        return self.app.stream(given, config, context=context, buffer=buffer).within(told)

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
        updates = await self.app(state, run, input=input, output=output)
        return Updates({k: v for k, v in update.items() if k != OUTPUT} for update in updates)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        return_direct: bool = False,
        max_parallel: int | Limiter | None = None,
    ) -> Tool:
        """This flow as a tool for an agent: see `ReactAgent.as_tool`."""
        return agent_tool(
            self,
            name=name,
            description=description,
            timeout=timeout,
            return_direct=return_direct,
            max_parallel=max_parallel,
        )

    def _result(self, ended: RunResult[dict[str, Any]], given: Any) -> AgentResult:
        return as_result(ended, given, self._made, private=self._private)

    # --- for its subclasses ---

    @property
    def _made(self) -> str:
        return self.output_key or OUTPUT

    def _add(self, name: str, agent: Agent, take_turn: TakeTurn, *, shared: bool) -> None:
        """Add an agent as a node. Of one with a conversation of its own nothing stays where its run is given up."""
        same = {k: k for k in ("messages", *data_keys(agent))} if shared else {}
        self.graph.add_node(name, AgentNode(agent, take_turn), input=same, output=same)

    async def _go_on(
        self, name: str, agent: Agent, state: Mapping[str, Any], run: RunContext[Any], hand_on: str = HAND_ON
    ) -> Turn:
        """A turn in the shared conversation."""
        messages, added = opened(state, run)
        last = messages[-1] if messages else None
        if isinstance(last, AssistantMessage):
            text = render(hand_on, {"agent": name})
            told = UserMessage(text, id=f"{last.id}>{name}", metadata={_HAND_ON: name})
            messages, added = [*messages, told], [*added, told]
        given = {**self._data(state), "messages": messages}
        turn = await take_turn(agent, given, run, conversation="messages")
        if added:
            turn.updates.insert(0, {"messages": added})
        return turn

    async def _ask(
        self, name: str, agent: Agent, state: Mapping[str, Any], run: RunContext[Any], asked: Message
    ) -> Turn:
        """A turn in a conversation of the agent's own, which begins with what is asked."""
        given = {**self._data(state), "messages": [retold(asked, name)]}
        return await take_turn(agent, given, run)

    def _question(self, state: Mapping[str, Any], run: RunContext[Any]) -> tuple[Spoken, list[Any]]:
        """What the flow is asked, and what is to be added to its conversation. Raises `FlowError` for nothing."""
        messages, added = opened(state, run)
        asked = question(messages)
        if asked is None:
            raise FlowError(self.name, "there is nothing to ask: the state has neither a user's message nor an input")
        return asked, added

    def _answered(self, name: str, turn: Turn) -> AssistantMessage:
        """An agent's answer, as it is handed on. Raises `FlowError` where it has none."""
        if turn.answer is None:
            raise FlowError(self.name, f"agent {name!r} ended without an answer")
        return spoken(turn.answer)

    def _data(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {k: state[k] for k in self.keys if k in state}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {list(self.agents)}>"


def opened(state: Mapping[str, Any], run: RunContext[Any]) -> tuple[list[Any], list[Any]]:
    """A state's conversation, with its `input` as the user's message where it has none; and what that adds to it."""
    messages = list(cast("Sequence[Message]", state.get("messages") or ()))
    if any(not isinstance(m, SystemMessage) for m in messages):
        return messages, []
    said = state.get("input")
    if said in (None, "", []):
        return messages, []
    if not isinstance(said, Spoken):
        content = cast("list[Part]", said) if isinstance(said, list) else str(said)
        said = UserMessage(content, id=f"input@{run.address}")
    return [*messages, said], [said]


def question(messages: Sequence[Any]) -> Spoken | None:
    """What an agent is asked that sees nothing else: the last that the user has said.

    In a flow that another agent has handed the conversation on to, that one's answer goes with it.
    """
    place = next((k for k in range(len(messages) - 1, -1, -1) if isinstance(messages[k], Spoken)), None)
    if place is None:
        return None
    asked: Spoken = messages[place]
    if place and _HAND_ON in asked.metadata and isinstance(before := messages[place - 1], AssistantMessage):
        return UserMessage(f"{before.text}\n\n{asked.text}", id=asked.id)
    return asked


def retold(message: Message, name: str) -> Message:
    """A message as the first one of an agent's own conversation."""
    id = f"{message.id}>{name}"
    if isinstance(message, Spoken):
        return msgspec.structs.replace(message, id=id)
    return UserMessage(message.text, id=id)


def spoken(answer: AssistantMessage | ToolResponseMessage) -> AssistantMessage:
    """An answer without how it was come to: what tools have answered is told as the agent's own words."""
    if isinstance(answer, ToolResponseMessage):
        return AssistantMessage(answer.text, id=answer.id, finish_reason="stop")
    return msgspec.structs.replace(answer, reasoning=[]) if answer.reasoning else answer


def _by_name(agents: Any, kind: str) -> dict[str, Agent]:
    if isinstance(agents, Mapping):
        made = {str(name): check_agent(a, kind) for name, a in cast("Mapping[Any, Any]", agents).items()}
    elif isinstance(agents, Iterable) and not isinstance(agents, str):
        listed = [check_agent(a, kind) for a in cast("Iterable[Any]", agents)]
        made = {agent.name: agent for agent in listed}
        if len(made) < len(listed):
            names = [agent.name for agent in listed]
            twice = next(n for n in names if names.count(n) > 1)
            raise ConfigError(f"{kind}: two agents are named {twice!r}; give a mapping, with a name for each")
    else:
        raise ConfigError(f"{kind}: agents come in a list, or in a mapping by name; found {agents!r:.80}")
    if not made:
        raise ConfigError(f"{kind}: there are no agents")
    return made
