"""Built-in hooks and interceptors together, in any order, over turns that end in every way there is."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph import Command, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.config import Retry
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponseMessage, Usage, UserMessage
from agentgraph.models import ModelError, ModelRequest, ModelResponse
from agentgraph.nodes import AgentResult, ReactAgent, Tool
from agentgraph.nodes.history import repair
from agentgraph.nodes.hooks import (
    Approve,
    Edit,
    HumanApproval,
    LargeResults,
    ModelCallLimit,
    PiiRedaction,
    Reject,
    Respond,
    Summarization,
    TodoList,
    ToolCallLimit,
)
from agentgraph.nodes.interceptors import (
    ContextEditing,
    ModelFallback,
    ModelRetry,
    ToolEmulation,
    ToolRetry,
    ToolSelection,
)
from agentgraph.testing import FunctionModel, check_request

MOST_CALLS = 4
ENDS = ("answer", "fail", "cancel", "leave")
THREAD = RunConfig(thread_id="t", recursion_limit=500)
PRIVATE = ("bob@example.com", "4111 1111 1111 1111")


class World:
    """The models and tools of one example, what was asked of them, and what is to happen next."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random = random
        self.folder = folder
        self.usage = self.asked = self.calls = 0
        self.fails = self.hangs = False
        self.hung = asyncio.Event()
        self.ran: Counter[str] = Counter()
        self.refused: list[ModelError] = []
        self.side = FunctionModel(self._aside, name="side")

    def _checked(self, request: ModelRequest) -> None:
        try:
            check_request(request)
        except ModelError as error:
            self.refused.append(error)
            raise

    def _said(self, text: str, calls: list[ToolCall]) -> ModelResponse:
        self.usage += 11
        return ModelResponse(message=AssistantMessage(text, tool_calls=calls, usage=Usage(input_tokens=11)))

    def _aside(self, request: ModelRequest) -> ModelResponse:
        self._checked(request)
        return self._said('{"tools": ["work", "large", "form"]}', [])

    def _answer(self, request: ModelRequest) -> ModelResponse:
        self._checked(request)
        if self.fails:
            self.fails = False
            raise ModelError("it is down", status_code=500)
        self.asked += 1
        names = [tool.name for tool in request.tools if tool.name not in ("write_todos", "read_result")]
        if not names or self.random.random() < 0.35:
            return self._said(f"Write to {PRIVATE[0]}.", [])
        calls: list[ToolCall] = []
        for _ in range(self.random.randint(1, 3)):
            self.calls += 1
            calls.append(ToolCall(f"c{self.calls}", self.random.choice(names), "{}"))
        return self._said("", calls)

    def tools(self) -> list[Tool]:
        async def work() -> str:
            return "done"

        async def large() -> str:
            return "word " * 100

        async def risky() -> str:
            self.ran["risky"] += 1
            return f"The card is {PRIVATE[1]}."

        async def fails() -> str:
            raise ConnectionError

        async def hangs() -> str:
            if self.hangs:
                self.hangs = False
                self.hung.set()
                await asyncio.Event().wait()
            return "It went on."

        async def form() -> str:
            return "a form"

        named = [Tool(fn, name=fn.__name__) for fn in (work, large, risky, fails, hangs)]
        return [*named, Tool(form, name="form", return_direct=True)]

    def agent(self, hooks: list[str], interceptors: list[str], saver: MemorySaver, **options: Any) -> ReactAgent:
        retry = Retry(attempts=2, delay=0.0001)
        made: dict[str, Any] = {
            "approval": HumanApproval({"risky"}),
            "model limit": ModelCallLimit(per_run=MOST_CALLS),
            "tool limit": ToolCallLimit(per_run=5),
            "work limit": ToolCallLimit("work", per_run=1, at_limit="end"),
            "summarization": Summarization(self.side, when=("messages", 8), keep=("messages", 3)),
            "pii": PiiRedaction(),
            "todo": TodoList(),
            "large": LargeResults(self.folder, over=200, head=50),
            "editing": ContextEditing(over=200, keep=1),
            "model retry": ModelRetry(retry),
            "fallback": ModelFallback(self.side),
            "tool retry": ToolRetry(["fails"], retry),
            "selection": ToolSelection(self.side, most=3),
            "emulation": ToolEmulation(["work"], self.side),
        }
        return ReactAgent(
            "clerk",
            FunctionModel(self._answer),
            self.tools(),
            hooks=[made[name] for name in hooks],
            interceptors=[made[name] for name in interceptors],
            instruction="Mind the rules.",
            checkpointer=saver,
            **options,
        )


async def attempt(world: World, agent: ReactAgent, given: Any, *, read: bool) -> AgentResult | None:
    """Run; None where the model failed, or where a tool hung, and so the run was cancelled."""

    async def run() -> AgentResult:
        if not read:
            return await agent.run(given, THREAD)
        async with agent.stream(given, THREAD) as events:
            numbers = [event.seq async for event in events]
        assert numbers == sorted(numbers)
        return events.result

    running, hung = asyncio.create_task(run()), asyncio.create_task(world.hung.wait())
    await asyncio.wait((running, hung), return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        running.cancel()
    hung.cancel()
    world.hung.clear()
    await asyncio.wait((running, hung))
    if running.cancelled() or isinstance(running.exception(), ModelError):
        return None
    return running.result()


HOOKS = ("approval", "model limit", "tool limit", "work limit", "summarization", "pii", "todo", "large")
INTERCEPTORS = ("editing", "model retry", "fallback", "tool retry", "selection", "emulation")


@pytest.mark.case("F9")
@pytest.mark.case("F13")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.permutations(HOOKS),
    st.integers(0, len(HOOKS)),
    st.permutations(INTERCEPTORS),
    st.integers(0, len(INTERCEPTORS)),
    st.lists(st.sampled_from(ENDS), min_size=2, max_size=5),
    st.fixed_dictionaries({"stream": st.booleans(), "parallel": st.booleans()}),
    st.randoms(use_true_random=False),
)
async def test_in_any_order_over_any_turns_requests_are_valid_and_what_is_counted_is_right(
    tmp_path: Path,
    hooks: list[str],
    first: int,
    interceptors: list[str],
    some: int,
    turns: list[str],
    options: dict[str, bool],
    random: Random,
) -> None:
    world, saver = World(random, tmp_path), MemorySaver()
    hooks, interceptors = hooks[:first], interceptors[:some]
    for end in turns:
        agent = world.agent(hooks, interceptors, saver, **options)
        world.usage = world.asked = 0
        world.fails, world.hangs = end == "fail", end == "cancel"
        question = UserMessage(f"My card is {PRIVATE[1]}.")
        result = await attempt(world, agent, question, read=random.random() < 0.5)
        undisturbed = result is not None and not world.fails
        while result is not None and result.interrupts and end != "leave":
            undisturbed = False
            agent = world.agent(hooks, interceptors, saver, **options)  # as in another process
            decisions = [Approve(), Edit({}), Reject("no"), Respond("seen to")]
            told = {q.id: random.choice(decisions) for q in result.interrupts[: random.randint(1, 3)]}
            result = await attempt(world, agent, Command(resume=told), read=random.random() < 0.5)
        assert not world.refused
        if "model limit" in hooks:
            assert world.asked <= MOST_CALLS
        if result is None or result.interrupts:
            continue
        assert repair(result.messages)[1] == []
        assert {k for k in result.state if not k.startswith("_")} <= {"messages", "todos"}
        assert not any(isinstance(m, ToolResponseMessage) and not m.responses for m in result.messages)
        if "pii" in hooks:
            assert not any(private in repr(result.state) for private in PRIVATE)
        if undisturbed:
            assert (result.usage.input_tokens if result.usage else 0) == world.usage
