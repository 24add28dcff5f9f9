"""A model, or a function, chooses which agent answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError, unknown
from agentgraph.messages import AssistantMessage, Message, ToolResponseMessage
from agentgraph.models.protocol import ChatModel
from agentgraph.node import END, START, Command, Updates
from agentgraph.nodes.flows.flow import Agents, Conversation, Flow, FlowError, opened
from agentgraph.nodes.flows.parallel import Merge, check_merge, merged, said_key
from agentgraph.nodes.llm_node import LlmNode
from agentgraph.nodes.output import OutputError, OutputFormat
from agentgraph.nodes.turn import take_turn
from agentgraph.strategies import Replace, Strategy

__all__ = ["RoutingAgent"]

_CHOOSE, _MERGE = "choose", "merge"
_PROMPT = "Choose who is to answer the user. Do not answer yourself. There are:"


class RoutingAgent(Flow):
    """Chooses the agent that answers, by a model or a function.

        desk = RoutingAgent("desk", model, {"billing": billing, "travel": travel})
        by_rule = RoutingAgent("by_rule", lambda state: "billing", [billing, travel])

    `chooser` is a model (or its name, "openai:gpt-4.1-mini"), which is told the conversation's texts and each agent's
    description; or a function of `(state)`, sync (it must not block) or async, that returns a name, or a list of names.
    `system_prompt` is what the model is told before the list of agents.
    `descriptions`: by name, in place of the agents' own. A model's answer that names no agent goes back to it once. If
    that does not help, or a function names no agent, `default` answers, and without one that is a `FlowError`.
    `several=True`: more than one may be chosen; these work beside each other, each on its own, and `merge` makes one
    answer of theirs, as in `ParallelAgent`. `conversation="shared"`: whoever is chosen has the flow's `messages`;
    `"separate"`: is told the question alone, and the answer joins `messages`. What the chooser says is not kept.
    The other options are as in `Flow`.
    """

    def __init__(
        self,
        name: str,
        chooser: ChatModel | str | Callable[[Any], Any],
        agents: Agents,
        *,
        system_prompt: str = _PROMPT,
        descriptions: Mapping[str, str] | None = None,
        default: str | None = None,
        several: bool = False,
        merge: Merge = "text",
        conversation: Conversation = "shared",
        description: str = "",
        output_key: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
    ) -> None:
        check_merge("RoutingAgent", merge)
        names = list(agents) if isinstance(agents, Mapping) else [getattr(a, "name", "") for a in agents]
        super().__init__(
            name,
            agents,
            conversation=conversation,
            description=description,
            output_key=output_key,
            strategies=strategies,
            private={said_key(n): Replace() for n in names} if several else {},
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        for given in (*([] if default is None else [default]), *(descriptions or {})):
            if given not in self.agents:
                raise ConfigError(f"RoutingAgent: {unknown('agent', given, self.agents)}")
        self.default = default
        self.several = several
        self.merge: Merge = merge
        self._llm: LlmNode | None = None
        self._function: Callable[[Any], Any] | None = None
        if isinstance(chooser, (str, ChatModel)):
            told = {n: (descriptions or {}).get(n) or getattr(a, "description", "") for n, a in self.agents.items()}
            lines = [f"- {n}: {text}" if text else f"- {n}" for n, text in told.items()]
            self._llm = LlmNode(
                chooser,
                agent_name=name,
                system_prompt="\n".join([system_prompt, *lines]),
                output_key="choice",
            )
            self._llm.output = _choice(list(self.agents), several=several)
        elif callable(chooser):
            self._function = chooser
        else:
            raise ConfigError(f"RoutingAgent: the chooser is a model or a function of (state), found {chooser!r:.80}")
        graph = self.graph
        graph.add_node(_CHOOSE, self._choose, ends=[*self.agents])
        graph.add_edge(START, _CHOOSE)
        shared = conversation == "shared" and not several
        for each in self.agents:
            self._add(each, self.agents[each], self._take(each), shared=shared)
            if not several:
                graph.add_edge(each, END)
        if several:
            graph.add_edge([*self.agents], _MERGE)
            graph.add_node(_MERGE, self._merge)
            graph.add_edge(_MERGE, END)

    async def _choose(self, state: Mapping[str, Any], run: RunContext[Any]) -> Command[Any]:
        update = {said_key(n): None for n in self.agents} if self.several else {}
        goto, usage = await self._chosen(state, run)
        return Command(update={**update, **usage}, goto=goto)

    async def _chosen(self, state: Mapping[str, Any], run: RunContext[Any]) -> tuple[list[str], Mapping[str, Any]]:
        """Who is to answer, and what it took to find out."""
        if self._llm is None:
            chosen: Any = cast("Callable[[Any], Any]", self._function)(state)
            if inspect.isawaitable(chosen):
                chosen = await chosen
            return self._checked(chosen), {}
        messages, _ = opened(state, run)
        try:
            update = await self._llm({"messages": _texts(messages)}, run)
        except OutputError as error:
            if self.default is None:
                raise FlowError(self.name, f"its model chose no agent: {error}") from error
            return [self.default], {}
        usage = {k: v for k, v in update.items() if k == "_token_usage"}
        return self._checked(update.get("choice")), usage

    def _checked(self, chosen: Any) -> list[str]:
        """The names that were chosen, each once; the default's where none of them will do."""
        names = list(cast("Sequence[Any]", chosen)) if isinstance(chosen, (list, tuple)) else [chosen]
        names = list(dict.fromkeys(names))
        wrong = [n for n in names if n not in self.agents]
        if not wrong and names and (len(names) == 1 or self.several):
            return names
        if self.default is not None:
            return [self.default]
        if wrong:
            raise FlowError(self.name, f"the chooser gave an {unknown('agent', wrong[0], self.agents)}")
        raise FlowError(self.name, f"the chooser gave {len(names)} agents; one is wanted, or say several=True")

    def _take(self, name: str) -> Any:
        agent = self.agents[name]

        async def beside(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            if self.conversation == "separate":
                asked, _ = self._question(state, run)
                turn = await self._ask(name, agent, state, run, asked)
            else:
                messages, _ = opened(state, run)
                turn = await take_turn(agent, {**self._data(state), "messages": messages}, run)
            return Updates([*turn.updates, {said_key(name): {"text": turn.text, "output": turn.output}}])

        async def alone(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            if self.conversation == "shared":
                turn = await self._go_on(name, agent, state, run)
                return Updates([*turn.updates, {self._made: turn.output}])
            asked, added = self._question(state, run)
            turn = await self._ask(name, agent, state, run, asked)
            said = {"messages": [*added, self._answered(name, turn)], self._made: turn.output}
            return Updates([said, *turn.updates])

        return beside if self.several else alone

    async def _merge(self, state: Mapping[str, Any], run: RunContext[Any]) -> dict[str, Any]:
        made = {n: told for n in self.agents if (told := state.get(said_key(n))) is not None}
        return await merged(self, self.merge, made, state, run)


def _choice(names: list[str], *, several: bool) -> OutputFormat:
    """The form of a choice: an object, which all providers take; a bare name does too."""
    one: Any = Literal[tuple(names)]
    chosen: Any = Annotated[list[one], msgspec.Meta(min_length=1)] if several else one
    key = "agents" if several else "agent"
    decoder = msgspec.json.Decoder(msgspec.defstruct("Choice", [(key, chosen)]))

    def read(text: str) -> Any:
        return text if text in names else getattr(decoder.decode(text), key)

    name = {"type": "string", "enum": names}
    value = {"type": "array", "items": name, "minItems": 1, "maxItems": len(names)} if several else name
    schema = {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
    return OutputFormat(schema, read)


def _texts(messages: Sequence[Message]) -> list[Message]:
    """What was said, without tool calls and their answers: the chooser has no tools."""
    kept: list[Message] = []
    for message in messages:
        if isinstance(message, ToolResponseMessage):
            continue
        if isinstance(message, AssistantMessage):
            if message.text.strip():
                kept.append(msgspec.structs.replace(message, tool_calls=[], reasoning=[]))
        else:
            kept.append(message)
    return kept
