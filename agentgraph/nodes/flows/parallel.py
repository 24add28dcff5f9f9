"""Agents beside each other, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, cast

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.config import positive
from agentgraph.context import Interrupt, Interrupted, RunContext
from agentgraph.errors import ConfigError, unknown
from agentgraph.events import shown
from agentgraph.messages import AssistantMessage, new_id
from agentgraph.node import END, START, Updates
from agentgraph.nodes.answer import content_of
from agentgraph.nodes.flows.flow import Agents, Conversation, Flow, FlowError, opened
from agentgraph.nodes.turn import Agent, Named, Turn, take_turn
from agentgraph.strategies import Replace, Strategy
from agentgraph.tasks import all_ended

__all__ = ["Merge", "ParallelAgent", "check_merge", "merged", "said_key"]

log: logging.Logger = logging.getLogger("agentgraph")

Merge = Literal["dict", "list", "text"] | Callable[[Mapping[str, Any]], Any]
"""What becomes of the outputs: a dict by agents' names, a list, a text with all answers, or what a function of the dict
returns. The function may be async; it must not block."""

_MERGE = "merge"
_RACE = "race"


class ParallelAgent(Flow):
    """Agents beside each other, on the same question; their outputs are merged in the order in which they were given.

        panel = ParallelAgent("panel", [optimist, pessimist], merge="text")
        result = await panel.run("Shall we?")

    No agent sees what another one does. The flow's output is what `merge` makes of theirs; its answer is one message
    with it. `conversation="shared"`: each agent is told the flow's `messages`; `"separate"`: the question alone.
    `max_parallel`: most agents at work at once; None: all. `until="first"`: the first answer is the flow's, and all
    other agents are cancelled, and have ended before the flow goes on; `merge` then gets that one output, and in
    place of the agents the graph has one node.
    `on_error="raise"`: an agent that fails fails the flow, the others are cancelled. `"keep"`: the flow goes on with
    what the others made, and the state key `errors` says what failed, by name; where all fail, that is a `FlowError`.
    `agents` and the other options are as in `Flow`.
    """

    own_keys: ClassVar[tuple[str, ...]] = ("errors",)

    def __init__(
        self,
        name: str,
        agents: Agents,
        *,
        merge: Merge = "text",
        conversation: Conversation = "shared",
        max_parallel: int | None = None,
        until: Literal["all", "first"] = "all",
        on_error: Literal["raise", "keep"] = "raise",
        description: str = "",
        output_key: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
    ) -> None:
        check_merge("ParallelAgent", merge)
        positive("ParallelAgent(max_parallel=...)", max_parallel, whole=True)
        for option, value, known in (("until", until, ("all", "first")), ("on_error", on_error, ("raise", "keep"))):
            if value not in known:
                raise ConfigError(f"ParallelAgent({option}=...): {unknown('choice', value, known)}")
        names = list(agents) if isinstance(agents, Mapping) else [getattr(a, "name", "") for a in agents]
        super().__init__(
            name,
            agents,
            conversation=conversation,
            description=description,
            output_key=output_key,
            strategies={"errors": Replace(), **(strategies or {})} if on_error == "keep" else strategies,
            private={said_key(n): Replace() for n in names},
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        self.merge: Merge = merge
        self.max_parallel = max_parallel
        self.until = until
        self.on_error = on_error
        if until == "first":
            self._named: dict[str, Agent] = {n: Named(a, n) for n, a in self.agents.items()}
            self.graph.add_node(_RACE, self._race)
            self.graph.add_edge(START, _RACE).add_edge(_RACE, _MERGE)
        else:
            for each in self.agents:
                self._add(each, self.agents[each], self._branch(each), shared=False)
                self.graph.add_edge(START, each)
            self.graph.add_edge([*self.agents], _MERGE)
        self.graph.add_node(_MERGE, self._merge)
        self.graph.add_edge(_MERGE, END)

    def _branch(self, name: str) -> Any:
        async def take(state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
            try:
                turn = await self._turn(name, self.agents[name], state, run)
            except Exception as error:
                if self.on_error == "raise":
                    raise
                return Updates([{said_key(name): {"error": self._failed(name, error)}}])
            return Updates([*turn.updates, {said_key(name): _told(turn)}])

        return take

    async def _turn(self, name: str, agent: Agent, state: Mapping[str, Any], run: RunContext[Any]) -> Turn:
        most = self.max_parallel or len(self.agents)
        permits = cast("asyncio.Semaphore", run.scratch.setdefault("permits", asyncio.Semaphore(most)))
        messages, _ = opened(state, run)
        async with permits:
            if self.conversation == "separate":
                asked, _ = self._question(state, run)
                return await self._ask(name, agent, state, run, asked)
            return await take_turn(agent, {**self._data(state), "messages": messages}, run)

    def _failed(self, name: str, error: Exception) -> str:
        log.warning("flow %r goes on without agent %r, which failed", self.name, name, exc_info=error)
        return f"{type(error).__name__}: {shown(error, str)}"

    async def _race(self, state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
        """All agents at once, until the first one has answered."""
        updates = await run.once("first", lambda: self._first(state, run))
        return Updates(updates)

    async def _first(self, state: Mapping[str, Any], run: RunContext[Any]) -> list[Any]:
        # tasks of one node: where each were a node of its own, a step would wait for all of them
        parts = {name: run.part(name) for name in self.agents}
        tasks = {
            name: asyncio.create_task(self._turn(name, self._named[name], state, parts[name])) for name in self.agents
        }
        try:
            return await self._winner(tasks)
        finally:
            for name, task in tasks.items():
                parts[name].close("another agent was first", cancel=not task.done())
                task.cancel()
            await all_ended([*tasks.values()])

    async def _winner(self, tasks: Mapping[str, asyncio.Task[Turn]]) -> list[Any]:
        asked: list[Interrupt] = []
        errors: dict[str, str] = {}
        left = dict(tasks)
        while left:
            await asyncio.wait(left.values(), return_when=asyncio.FIRST_COMPLETED)
            for name, task in [(n, t) for n, t in left.items() if t.done()]:
                del left[name]
                error = task.exception()
                if error is None:
                    turn = task.result()
                    return [*turn.updates, {said_key(name): _told(turn)}]
                if isinstance(error, Interrupted):
                    asked += error.interrupts
                elif self.on_error == "raise":
                    raise error
                elif isinstance(error, Exception):
                    errors[name] = self._failed(name, error)
        if asked:
            raise Interrupted(tuple(asked))
        return [{said_key(name): {"error": text}} for name, text in errors.items()]

    async def _merge(self, state: Mapping[str, Any], run: RunContext[Any]) -> dict[str, Any]:
        made = {n: told for n in self.agents if (told := state.get(said_key(n))) is not None}
        errors = {n: told["error"] for n, told in made.items() if "error" in told}
        if len(errors) == len(made):
            told = "; ".join(f"{n}: {text}" for n, text in errors.items())
            raise FlowError(self.name, f"no agent has answered: {told}")
        update = await merged(self, self.merge, {n: told for n, told in made.items() if n not in errors}, state, run)
        if self.on_error == "keep":
            update["errors"] = errors
        return update


def said_key(name: str) -> str:
    """Where an agent's answer stands until it is merged."""
    return f"_said.{name}"


def check_merge(kind: str, merge: Any) -> None:
    """Raise `ConfigError` for what is no way to merge."""
    if not callable(merge) and merge not in ("dict", "list", "text"):
        raise ConfigError(f"{kind}(merge=...): {unknown('choice', merge, ('dict', 'list', 'text'))}, or a function")


def _told(turn: Turn) -> dict[str, Any]:
    return {"text": turn.text, "output": turn.output}


async def merged(
    flow: Flow, merge: Merge, made: Mapping[str, Any], state: Mapping[str, Any], run: RunContext[Any]
) -> dict[str, Any]:
    """What the agents have made, by name, as the flow's answer: the update for it."""
    outputs = {name: told["output"] for name, told in made.items()}
    texts = {name: told["text"] for name, told in made.items()}
    joined = next(iter(texts.values())) if len(texts) == 1 else "\n\n".join(f"{n}: {t}" for n, t in texts.items())
    if callable(merge):
        output = merge(outputs)
        if inspect.isawaitable(output):
            output = await output
        text = content_of(output, flow.name)
        joined = text if isinstance(text, str) else joined
    else:
        output = outputs if merge == "dict" else [*outputs.values()] if merge == "list" else joined
    _, added = opened(state, run)
    answer = AssistantMessage(joined, id=new_id(), finish_reason="stop")
    made_key = flow.output_key or "_output"
    return {"messages": [*added, answer], made_key: output, **{said_key(n): None for n in flow.agents}}
