"""One thread of very many rounds, with all on that keeps it short: `make soak`.

An agent with summarization, context editing, large results and limits works on one thread, kept in a file. Each request
is checked as the strictest provider would. Prints for each quarter what a round took (of this process's time: others
may be at work on the machine), and how large the process and the largest request were. Ends with 1 where a later
quarter is much slower than the second, or the process has grown. More rounds: `python -m benchmarks.long_run --rounds
10000`.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentgraph import RunConfig
from agentgraph.checkpoint import Checkpointer, SqliteSaver
from agentgraph.messages import AssistantMessage, ToolCall, Usage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.hooks import LargeResults, ModelCallLimit, Summarization, ToolCallLimit
from agentgraph.nodes.interceptors import ContextEditing
from agentgraph.nodes.tokens import approximate_tokens
from agentgraph.testing import FunctionModel, check_request
from benchmarks.soak import memory

ROUNDS_OF_A_TURN = 10
"""Model calls of a turn: nine that call tools, and the answer."""
TURNS_AT_ONCE = 5
"""So many turns are timed together: some have a summary or a full checkpoint among them."""
MOST_TOKENS = 12_000
MOST_SLOWER = 1.5
MOST_GROWTH = 4 * 1024 * 1024
"""Bytes that the process may grow by after the first half."""


class Seen(msgspec.Struct):
    """What the model has been asked."""

    rounds: int = 0
    summaries: int = 0
    largest: int = 0
    """Tokens of the largest request since it was last looked at."""
    models: list[FunctionModel] = []

    def forget(self) -> None:
        """Models of tests keep each request: that is not the agent's growth."""
        for model in self.models:
            model.requests.clear()


@tool
async def search(query: str) -> str:
    """Search: a page of text, and now and then a whole book."""
    number = int(query)
    return f"Page {number}. " + "What stands there is of some length. " * (2_000 if number % 50 == 7 else 20)


@tool
def note(text: str) -> str:
    """Take a note, in a worker thread."""
    return f"noted: {text}"


def agent_of(saver: Checkpointer, folder: Path, seen: Seen) -> ReactAgent:
    """The agent, its model strict, and its summarizing model too."""

    def answer(request: ModelRequest) -> AssistantMessage:
        check_request(request)
        seen.largest = max(seen.largest, approximate_tokens(request.messages))
        seen.rounds += 1
        number = seen.rounds
        if number % ROUNDS_OF_A_TURN == 0:
            return AssistantMessage(f"Answer after {number} rounds.", usage=Usage(100, 10))
        calls = [ToolCall("call_1", "search", f'{{"query": "{number}"}}')]  # as servers do that repeat their ids
        if number % 3 == 0:
            calls.append(ToolCall("call_2", "note", f'{{"text": "round {number}"}}'))
        return AssistantMessage(tool_calls=calls, usage=Usage(100, 10))

    def summarize(request: ModelRequest) -> AssistantMessage:
        check_request(request)
        seen.summaries += 1
        return AssistantMessage(f"Summary {seen.summaries}. " + "It went on. " * 50, usage=Usage(500, 50))

    model, summarizing = seen.models = [FunctionModel(answer), FunctionModel(summarize)]
    return ReactAgent(
        "worker",
        model,
        [search, note],
        hooks=[
            ModelCallLimit(per_run=ROUNDS_OF_A_TURN + 1, per_thread=10**9),
            ToolCallLimit(per_run=3 * ROUNDS_OF_A_TURN),
            Summarization(summarizing, when=("tokens", MOST_TOKENS), keep=("messages", 12)),
            LargeResults(folder),
        ],
        interceptors=[ContextEditing(over=MOST_TOKENS // 2, keep=3)],
        checkpointer=saver,
    )


async def turns(agent: ReactAgent, number: int, seen: Seen) -> None:
    """So many turns on the one thread, each of which must have ended well."""
    config = RunConfig(thread_id="long", recursion_limit=100)
    for _ in range(number):
        result = await agent.run("Go on with the work, please.", config)
        assert result.text == f"Answer after {seen.rounds} rounds.", result.text
        seen.forget()


class Quarter(msgspec.Struct):
    """What was measured."""

    ms: float
    """A round's milliseconds, the median of groups of turns."""
    memory: int
    largest: int


async def long_run(rounds: int) -> list[Quarter]:
    """The quarters of a run of so many rounds."""
    quarters: list[Quarter] = []
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteSaver(Path(folder, "thread.db")) as saver:
            seen = Seen()
            agent = agent_of(saver, Path(folder, "results"), seen)
            with no_collection():
                for _ in range(4):
                    took: list[float] = []
                    for _ in range(max(1, rounds // 4 // ROUNDS_OF_A_TURN // TURNS_AT_ONCE)):
                        started = time.process_time()
                        await turns(agent, TURNS_AT_ONCE, seen)
                        took.append((time.process_time() - started) / TURNS_AT_ONCE / ROUNDS_OF_A_TURN * 1000)
                    gc.collect()
                    quarters.append(Quarter(statistics.median(took), memory(), seen.largest))
                    seen.largest = 0
    print(f"{seen.rounds:,} rounds on one thread, {seen.summaries} summaries; each request was valid")
    return quarters


@contextmanager
def no_collection() -> Generator[None]:
    """Where the collector runs on its own, it does so in one quarter more than in another."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def main() -> None:
    """Read the arguments, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    quarters = asyncio.run(long_run(parser.parse_args().rounds))
    print(f"{'quarter':>8}  {'ms a round':>10}  {'memory':>9}  {'largest request':>15}")
    for number, quarter in enumerate(quarters, 1):
        print(
            f"{number:>8}  {quarter.ms:>10.2f}  {quarter.memory / 1e6:>6.1f} MB  {quarter.largest:>8,} tokens",
            flush=True,
        )
    _, second, *later = quarters
    well = all(q.ms <= second.ms * MOST_SLOWER and q.memory - second.memory <= MOST_GROWTH for q in later)
    print("well" if well else "NOT WELL")
    sys.exit(not well)


if __name__ == "__main__":
    main()
