"""A process that works on threads of a shared store: `python process_worker.py STORE WHAT THREAD MARK`.

It says a line when something has happened, and goes on when a line comes.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, TypedDict

from agentgraph import END, START, CompiledGraph, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer
from agentgraph.errors import FencedError, ThreadBusyError
from agentgraph.strategies import Append
from tests.checkpoint.killed_worker import store


class Log(TypedDict):
    log: Annotated[list[str], Append()]


def say(*words: object) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def told() -> str:
    """Wait for a line."""
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


Node = Callable[[Any, RunContext[Any]], Coroutine[Any, Any, dict[str, Any]]]


def chain(saver: Checkpointer, nodes: dict[str, Node], lease: float = 0.4) -> CompiledGraph[Log]:
    """Nodes one after the other."""
    graph = StateGraph(Log)
    before = START
    for name, fn in nodes.items():
        graph.add_node(name, fn)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph.compile(name="worker", checkpointer=saver, lease=lease)


def two_marks(saver: Checkpointer, mark: str) -> CompiledGraph[Log]:
    """Two steps that each write this mark."""

    async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"log": [mark]}

    return chain(saver, {"one": node, "two": node})


async def marks(saver: Checkpointer, thread: str, mark: str, if_busy: Literal["wait", "refuse"]) -> None:
    """Begin when told, with others at once."""
    app = two_marks(saver, mark)
    say("ready")
    await told()
    try:
        await app.invoke({}, RunConfig(thread_id=thread, if_busy=if_busy))
    except ThreadBusyError as error:
        say("refused", error)
    else:
        say("done")


async def hold(saver: Checkpointer, thread: str, mark: str) -> None:
    """Stay in the second of three steps until told."""

    async def first(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"{mark} first"]}

    async def second(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        await run.once("call", lambda: f"{mark}'s call")
        say("holding")
        await told()
        return {"log": [f"{mark} second"]}

    app = chain(saver, {"first": first, "second": second, "third": first})
    try:
        await app.invoke({}, RunConfig(thread_id=thread, durability="sync"))
    except FencedError:
        say("fenced off")
    except asyncio.CancelledError:
        say("cancelled")
        raise
    else:
        say("done")


def five_steps(saver: Checkpointer, mark: str) -> CompiledGraph[Log]:
    """Five steps, each of which says that it has begun, and waits for a line to end."""

    def step(n: int) -> Node:
        async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
            say("step", n)
            await told()
            return {"log": [f"{mark} {n}"]}

        return node

    return chain(saver, {str(n): step(n) for n in range(1, 6)})


async def drain(saver: Checkpointer, thread: str, mark: str) -> None:
    """Stop between two steps at SIGTERM."""
    app = five_steps(saver, mark)

    def stop() -> None:
        app.drain()
        say("draining")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    result = await app.invoke({}, RunConfig(thread_id=thread, durability="sync"))
    say(result.status, *result.state["log"])


async def resume(saver: Checkpointer, thread: str, mark: str) -> None:
    """Continue all that is left, when told."""
    app = five_steps(saver, mark)
    say("ready")
    await told()
    for resumed in await app.resume_pending():
        say("resumed", resumed.thread_id, resumed.error or (resumed.result and resumed.result.state["log"]))
    say("ended")


async def die(saver: Checkpointer, thread: str, mark: str) -> None:
    """Continue what is left, or begin the thread, whose node kills this process."""

    async def node(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        say("killing")
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    app = chain(saver, {"node": node}, lease=0.2)
    info = await saver.thread(thread)
    if info is None:
        await app.invoke({}, RunConfig(thread_id=thread, durability="sync"))
    while info is not None and info.claimed:
        await asyncio.sleep(0.02)
        info = await saver.thread(thread)
    say(await app.resume_pending())


async def main(where: str, what: str, thread: str, mark: str) -> None:
    """Do what is asked for."""
    async with store(where) as saver:
        if what == "wait" or what == "refuse":
            await marks(saver, thread, mark, what)
        else:
            await {"hold": hold, "drain": drain, "resume": resume, "die": die}[what](saver, thread, mark)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
