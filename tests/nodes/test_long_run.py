"""Very many rounds on one thread, with all on that keeps it short: what the model gets is valid and small, always."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from agentgraph import RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import HistoryRepaired
from agentgraph.messages import AssistantMessage, Message, ToolCall, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.hooks import LargeResults, ModelCallLimit, Summarization, ToolCallLimit
from agentgraph.nodes.interceptors import ContextEditing
from agentgraph.nodes.tokens import approximate_tokens
from agentgraph.testing import FunctionModel, check_request

ROUNDS = 200
MOST = 6_000


@tool
async def search(query: int) -> str:
    """Search: a page, and now and then a book."""
    return f"Page {query}. " + "What stands there is of some length. " * (2_000 if query % 20 == 7 else 20)


@tool
async def fail(query: int) -> str:
    """Fail."""
    raise ValueError(f"nothing at {query}")


class Worker:
    """A strict model that works on: rounds of calls whose ids repeat, and an answer after each so many of them."""

    def __init__(self, rounds_of_a_turn: int) -> None:
        self.rounds = 0
        self.sizes: list[int] = []
        self.summaries = 0
        self._turn = rounds_of_a_turn

    def answer(self, request: ModelRequest) -> Any:
        check_request(request)
        assert any(isinstance(m, UserMessage) and m.text == "Work on." for m in request.messages)
        self.sizes.append(approximate_tokens(request.messages))
        self.rounds += 1
        if self.rounds % self._turn == 0:
            return f"Answer {self.rounds}."
        names = ["search", "fail", "search"][: 1 + self.rounds % 3]
        return [ToolCall(f"call_{i}", name, json.dumps({"query": self.rounds})) for i, name in enumerate(names)]

    def summarize(self, request: ModelRequest) -> str:
        check_request(request)
        text = request.messages[0].text
        assert f"Summary {self.summaries}." in text or self.summaries == 0  # the one before is never lost
        self.summaries += 1
        return f"Summary {self.summaries}."


def agent_of(worker: Worker, folder: Path) -> ReactAgent:
    hooks = [
        ModelCallLimit(per_run=ROUNDS + 1, per_thread=10 * ROUNDS),
        ToolCallLimit(per_run=5 * ROUNDS),
        Summarization(FunctionModel(worker.summarize), when=("tokens", 2 * MOST), keep=("messages", 9)),
        LargeResults(folder),
    ]
    edits = [ContextEditing(over=MOST, keep=2)]
    model = FunctionModel(worker.answer)
    return ReactAgent("worker", model, [search, fail], hooks=hooks, interceptors=edits, checkpointer=MemorySaver())


@pytest.mark.case("D5")
@pytest.mark.parametrize("rounds_of_a_turn", [10, ROUNDS])
async def test_two_hundred_rounds_stay_valid_and_small(tmp_path: Path, rounds_of_a_turn: int) -> None:
    worker = Worker(rounds_of_a_turn)
    agent = agent_of(worker, tmp_path)
    messages: list[Message] = []
    for _ in range(ROUNDS // rounds_of_a_turn):
        async with agent.stream("Work on.", RunConfig(thread_id="t", recursion_limit=10 * ROUNDS)) as events:
            assert not [event async for event in events if isinstance(event, HistoryRepaired)]
        assert events.result.text == f"Answer {worker.rounds}."
        messages = events.result.messages
    assert worker.rounds == ROUNDS
    assert max(worker.sizes) <= MOST
    assert approximate_tokens(messages) < 2 * MOST + 1_000
    assert 3 <= worker.summaries <= ROUNDS // 20
    (summary,) = [m for m in messages if "summary_of" in m.metadata]
    spoken = 2 * ROUNDS  # a question and an answer each turn, and the rounds between
    assert summary.metadata["summary_of"] + len(messages) - 1 == spoken
    books = sum(1 + (n % 3 == 2) for n in range(ROUNDS) if n % 20 == 7 and (n + 1) % rounds_of_a_turn)
    assert len(list(tmp_path.rglob("*.txt"))) == books  # noqa: ASYNC240  # the test's own look


async def test_no_message_that_was_summarized_is_held_by_anything(tmp_path: Path) -> None:
    worker = Worker(10)
    agent = agent_of(worker, tmp_path)
    model: Any = agent.llm.model
    config = RunConfig(recursion_limit=10 * ROUNDS)
    messages: list[Message] = []
    counts: list[int] = []
    for _ in range(12):
        messages = (await agent.run([*messages, UserMessage("Work on.")], config)).messages
        model.requests.clear()
        gc.collect()
        counts.append(sum(isinstance(o, AssistantMessage) for o in gc.get_objects()) - held(messages))
    assert worker.summaries > 0
    assert counts[-1] <= counts[3]


def held(messages: list[Message]) -> int:
    return sum(isinstance(m, AssistantMessage) for m in messages)
