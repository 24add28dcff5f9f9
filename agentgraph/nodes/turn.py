"""One turn of an agent that works inside another one's run: what it is told, and what it has come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from agentgraph.compiled import CompiledGraph
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError
from agentgraph.graph import StateGraph
from agentgraph.messages import AssistantMessage, ToolResponseMessage
from agentgraph.node import END, START, Updates
from agentgraph.nodes.result import OUTPUT
from agentgraph.strategies import Replace

__all__ = ["Agent", "Named", "Turn", "check_agent", "data_keys", "take_turn"]

_SAID = "(said)"
_MADE = "(made)"
"""Names that no outer state has: what is written under them comes back as one value."""
_USAGE = "_token_usage"


@runtime_checkable
class Agent(Protocol):
    """Who may work for others: a `ReactAgent`, a flow, or a compiled graph whose state has `messages`.

    It may have a `description`, which those read that choose; an `output_key`, under which its output stands; and
    `types`, which its states hold.
    """

    @property
    def name(self) -> str:
        """By this it is known to those it works for."""
        ...

    @property
    def plan(self) -> Any:
        """The compiled form of its graph."""
        ...

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
        ...


class Turn(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    said: list[Any]
    """Its messages, without what it was told."""
    answer: AssistantMessage | ToolResponseMessage | None
    """The last of them that says something; None where it has said nothing."""
    output: Any
    """What its output type made of the answer; the text without one."""
    updates: Updates
    """What is to be written to the state of whom it works for."""

    @property
    def text(self) -> str:
        """The answer's text."""
        return "" if self.answer is None else self.answer.text


def check_agent(agent: Any, owner: str) -> Agent:
    """The agent itself. Raises `ConfigError` where it is none that can be told something by messages."""
    if not isinstance(agent, Agent):
        told = "; call compile() on it first" if hasattr(agent, "compile") else ""
        raise ConfigError(f"{owner}: an agent is a ReactAgent, a flow or a compiled graph, found {agent!r:.80}{told}")
    schema = agent.plan.schema
    if not schema.knows("messages") or schema.replaces("messages"):
        raise ConfigError(
            f"{owner}: agent {agent.name!r} has no conversation: its state needs a key 'messages' that is added to, "
            f"such as Annotated[list[Message], Messages()]"
        )
    return agent


def data_keys(agent: Agent) -> dict[str, Any]:
    """The state keys by which it may work together with others, and their strategies: not its conversation's."""
    schema, own = agent.plan.schema, getattr(agent, "own_keys", ())
    return {key: schema.find(key) for key in schema.known() if key not in ("messages", "input", *own)}


class Named:
    """An agent as the one node of a graph of its own: what it does is told under this name, whoever runs it."""

    def __init__(self, agent: Agent, name: str) -> None:
        made = _output_key(agent)
        keys = {k: s for k, s in agent.plan.schema.strategies.items() if not k.startswith("_")}
        self.name = name
        self.own_keys: tuple[str, ...] = getattr(agent, "own_keys", ())
        self.output_key: str = made if made in keys else _MADE
        strategies: dict[str, Any] = keys if made in keys else {**keys, _MADE: Replace()}
        back = {k: k for k in (*keys, _USAGE)}
        if agent.plan.schema.knows(made):
            back[made] = self.output_key
        graph: StateGraph[dict[str, Any]] = StateGraph(strategies=strategies)
        graph.add_node(name, agent, input={k: k for k in keys}, output=back)
        graph.add_edge(START, name).add_edge(name, END)
        self._app: CompiledGraph[dict[str, Any]] = graph.compile(name=name)

    @property
    def plan(self) -> Any:
        """The compiled form of its graph."""
        return self._app.plan

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
        return await self._app(state, run, input=input, output=output)


async def take_turn(
    agent: Agent,
    state: Mapping[str, Any],
    run: RunContext[Any],
    *,
    conversation: str = "",
) -> Turn:
    """Let an agent answer, as a part of this run.

    `state` is what it is told. Its messages become updates of the key `conversation` of the state of whom it works
    for; "": of none. What it writes to its data keys becomes updates too. Raises what the agent raises.
    """
    said_key = conversation or _SAID
    keys = data_keys(agent)
    made_key = _output_key(agent)
    names = {"messages": said_key, made_key: made_key if made_key in keys else _MADE, _USAGE: _USAGE}
    written = await agent(state, run, output={**{k: k for k in keys}, **names})
    said: list[Any] = []
    output: Any = None
    updates = Updates()
    for update in written:
        kept = dict(update)
        if said_key in kept:
            value = kept[said_key] if conversation else kept.pop(_SAID)
            said += cast("list[Any]", value) if isinstance(value, list) else [value]
        output = kept.get(names[made_key], output)
        kept.pop(_MADE, None)
        if kept:
            updates.append(kept)
    answer = next((m for m in reversed(said) if isinstance(m, (AssistantMessage, ToolResponseMessage))), None)
    if output is None or isinstance(answer, ToolResponseMessage):
        output = "" if answer is None else answer.text
    return Turn(said, answer, output, updates)


def _output_key(agent: Agent) -> str:
    return getattr(agent, "output_key", None) or OUTPUT
