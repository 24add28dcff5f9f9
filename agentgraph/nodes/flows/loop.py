"""An agent again and again: so many times, until a condition holds, or for each of several items."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from agentgraph.checkpoint.kinds import StoredType
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.config import positive
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError, InputError, unknown
from agentgraph.messages import REMOVE_ALL, AssistantMessage, UserMessage, new_id
from agentgraph.node import END, START, Command, Updates
from agentgraph.nodes.answer import content_of
from agentgraph.nodes.flows.flow import HAND_ON, Conversation, Flow, FlowError, opened
from agentgraph.nodes.turn import Agent
from agentgraph.strategies import Append, Replace, Strategy

__all__ = ["LoopAgent"]

_BEGIN, _CHECK = "begin", "check"
_HANDED, _ITEMS, _MADE_EACH = "_handed", "_items", "_made_each"


class LoopAgent(Flow):
    """An agent (a flow of several, too) again and again.

        better = LoopAgent("better", writer, times=5, until=lambda state: "APPROVED" in state["messages"][-1].text)
        each = LoopAgent("each", translator, items=["one", "two"])

    `times`: most rounds; with it alone so many are made. `until`: a function of `(state)`, sync (it must not block) or
    async, asked after each round: true ends the loop. `items`: a list, the name of a state key that holds one, or a
    function of `(state)` that gives one: a round for each of them, in which the agent is told that item (a text, or its
    JSON form) in a conversation of its own; the flow's output is then the list of the agent's outputs.
    `on_limit`: what happens where `times` rounds were made, and `until` does not hold or items are left: "end", or
    "raise" a `FlowError`.
    Without `items` the flow's output is that of the last round. `conversation="shared"`: the agent has the flow's
    `messages`, and is told `hand_on` (`{agent}` stands for its name) before each round but the first. `"separate"`:
    each round is a conversation of its own, which begins with the answer of the round before. The state keys `round`
    (from 1) and `item` say where the loop stands; an agent that names them in its instruction gets them.
    The other options are as in `Flow`.
    """

    own_keys: ClassVar[tuple[str, ...]] = ("round", "item")

    def __init__(
        self,
        name: str,
        agent: Any,
        *,
        times: int | None = None,
        until: Callable[[Any], Any] | None = None,
        items: Sequence[Any] | str | Callable[[Any], Any] | None = None,
        on_limit: Literal["end", "raise"] = "end",
        conversation: Conversation = "shared",
        hand_on: str = HAND_ON,
        description: str = "",
        output_key: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
    ) -> None:
        positive("LoopAgent(times=...)", times, whole=True)
        if times is None and items is None:
            raise ConfigError(
                "LoopAgent needs times=, the most rounds, or items=: a loop without a limit may never end"
            )
        if until is not None and not callable(until):
            raise ConfigError(f"LoopAgent(until=...) is a function of (state), found {until!r:.80}")
        if on_limit not in ("end", "raise"):
            raise ConfigError(f"LoopAgent(on_limit=...): {unknown('choice', on_limit, ('end', 'raise'))}")
        keys: dict[str, Strategy] = {"round": Replace(), "item": Replace(), **(strategies or {})}
        if isinstance(items, str):
            keys.setdefault(items, Replace())
        super().__init__(
            name,
            [agent],
            conversation=conversation,
            description=description,
            output_key=output_key,
            strategies=keys,
            private={_HANDED: Replace(), _ITEMS: Replace(), _MADE_EACH: Append()},
            checkpointer=checkpointer,
            types=types,
            lease=lease,
        )
        self.times = times
        self.until = until
        self.items = items
        self.on_limit = on_limit
        self.hand_on = hand_on
        ((self._name, self._agent),) = cast("Iterable[tuple[str, Agent]]", self.agents.items())
        graph = self.graph
        graph.add_node(_BEGIN, self._begin, ends=[self._name, END])
        shared = conversation == "shared" and items is None
        self._add(self._name, self._agent, self._shared if shared else self._separate, shared=shared)
        graph.add_node(_CHECK, self._check, ends=[self._name, END])
        graph.add_edge(START, _BEGIN).add_edge(self._name, _CHECK)

    async def _begin(self, state: Mapping[str, Any], run: RunContext[Any]) -> Command[Any]:
        """Each turn of a thread begins anew."""
        update: dict[str, Any] = {"round": 1, "item": None, _HANDED: None, _ITEMS: None, _MADE_EACH: REMOVE_ALL}
        if self.items is None:
            return Command(update=update, goto=self._name)
        given = self.items
        if isinstance(given, str):
            found: Any = state.get(given, ())
        elif callable(given):
            found = given(state)
            if inspect.isawaitable(found):
                found = await found
        else:
            found = given
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise InputError(f"flow {self.name!r}: items are a list, found {type(found).__name__}: {found!r:.80}")
        items = list(cast("Iterable[Any]", found))
        if not items:
            return Command(update=update | self._whole(state, run, []), goto=END)
        return Command(update=update | {_ITEMS: items, "item": items[0]}, goto=self._name)

    async def _shared(self, state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
        turn = await self._go_on(self._name, self._agent, state, run, self.hand_on)
        return Updates([*turn.updates, {self._made: turn.output}])

    async def _separate(self, state: Mapping[str, Any], run: RunContext[Any]) -> Updates:
        added: list[Any] = []
        if (items := state[_ITEMS]) is not None:
            content = content_of(items[state["round"] - 1], self.name)
            asked: Any = UserMessage(content, id=f"item {state['round']}@{run.address}")
        elif (asked := state[_HANDED]) is None:
            asked, added = self._question(state, run)
        turn = await self._ask(self._name, self._agent, state, run, asked)
        answer = self._answered(self._name, turn)
        said: dict[str, Any] = {"messages": added} if added else {}
        if items is not None:
            said[_MADE_EACH] = [{"text": turn.text, "output": turn.output}]
        return Updates([said, *turn.updates, {_HANDED: answer, self._made: turn.output}])

    async def _check(self, state: Mapping[str, Any], run: RunContext[Any]) -> Command[Any]:
        """Go on, or end."""
        done: int = state["round"]
        items = state[_ITEMS]
        over = items is not None and done >= len(items)
        if not over and self.until is not None:
            answer: Any = self.until(state)
            over = bool(await answer if inspect.isawaitable(answer) else answer)
        if not over and self.times is not None and done >= self.times:
            if self.on_limit == "raise" and (items is not None or self.until is not None):
                left = "not all items were reached" if self.until is None else "its condition does not hold"
                raise FlowError(self.name, f"it has made its {self.times} rounds, and {left}; raise it by times=")
            over = True
        if not over:
            item = None if items is None else items[done]
            return Command(update={"round": done + 1, "item": item}, goto=self._name)
        update: dict[str, Any] = {}
        if items is not None:
            update = self._whole(state, run, state[_MADE_EACH])
        elif self.conversation == "separate":
            update = {"messages": [state[_HANDED]]}
        return Command(update={**update, "item": None, _HANDED: None, _ITEMS: None, _MADE_EACH: REMOVE_ALL}, goto=END)

    def _whole(self, state: Mapping[str, Any], run: RunContext[Any], made: Sequence[Any]) -> dict[str, Any]:
        """What came of all items, as the flow's answer."""
        text = "\n\n".join(each["text"] for each in made) or "There was nothing to do."
        _, added = opened(state, run)
        answer = AssistantMessage(text, id=new_id(), finish_reason="stop")
        return {"messages": [*added, answer], self._made: [each["output"] for each in made]}
