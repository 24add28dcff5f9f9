"""A worker that is killed: it begins the runs that are not there yet, continues those that are left, and ends.

`python killed_worker.py STORE RUNS LOG`. Each run is an agent's: five steps, and three tools in each of two of them. A
line in LOG tells of each call of the model or a tool when it begins.
"""

import asyncio
import os
import random
import sys
from typing import Any

from agentgraph import RunConfig
from agentgraph.checkpoint import Checkpointer, SqliteSaver
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponseMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.strategies import Append
from agentgraph.testing import FunctionModel

ROUNDS = 2
TOOLS = 3
AT_ONCE = 16


def store(where: str) -> Checkpointer:
    """The store that a word names: a path, or a Postgres address."""
    if where.startswith("postgres"):
        from agentgraph.checkpoint import PostgresSaver

        return PostgresSaver(where)
    return SqliteSaver(where)


def agent(saver: Checkpointer, log: int) -> ReactAgent:
    """The agent whose calls are told in the file `log`."""

    async def answer(request: ModelRequest) -> AssistantMessage:
        rounds = sum(isinstance(m, ToolResponseMessage) for m in request.messages)
        name = request.messages[0].text
        os.write(log, f"{name} model {rounds}\n".encode())
        await asyncio.sleep(random.random() * 0.01)
        if rounds == ROUNDS:
            return AssistantMessage("done")
        calls = [ToolCall(f"{name}-{rounds}-{k}", "work", f'{{"k": {k}}}') for k in range(TOOLS)]
        return AssistantMessage("", tool_calls=calls)

    @tool
    async def work(k: int, context: ToolContext) -> str:
        os.write(log, f"{context.call_id.replace('-', ' tool ', 1)}\n".encode())
        await asyncio.sleep(random.random() * 0.01)
        context.update(done=[context.call_id])
        return f"did {k}"

    return ReactAgent(
        "worker", FunctionModel(answer), [work], strategies={"done": Append()}, checkpointer=saver, lease=0.2
    )


async def main(where: str, runs: int, path: str) -> None:
    """Do all runs."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with store(where) as saver:
        worker = agent(saver, log)
        app = worker.app
        config = RunConfig(durability="sync")
        permits = asyncio.Semaphore(AT_ONCE)

        async def begin(name: str) -> None:
            async with permits:
                info = await saver.thread(name)
                if info is None or not info.last:
                    await worker.run(name, RunConfig(thread_id=name, durability="sync"))

        async with asyncio.TaskGroup() as group:
            for k in range(runs):
                group.create_task(begin(f"run{k}"))
            while await left(saver, runs):
                for resumed in await app.resume_pending(config, most_deaths=10_000, at_once=AT_ONCE):
                    if resumed.error is not None:
                        raise resumed.error
                await asyncio.sleep(0.02)


async def left(saver: Checkpointer, runs: int) -> bool:
    """Whether a run has not come to its end."""
    done: list[Any] = []
    while page := await saver.threads(status="done", after=done[-1].thread_id if done else "", limit=1000):
        done += page
    return len(done) < runs


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
