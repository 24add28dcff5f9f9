"""Run tool calls until a leak would show: `make soak`, or `make soak ARGS="--calls 200000"`.

First very many calls, async ones and some in threads, some that write to the state and some that fail: the process may
not grow. Then ten thousand, a third of which time out: nothing of them may be left. Ends with 1 where it is otherwise.
"""

import argparse
import asyncio
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgraph import END, START, CompiledGraph, StateGraph, threads
from agentgraph.errors import RunEndedError
from agentgraph.messages import AssistantMessage, ToolCall
from agentgraph.nodes import Tool, ToolContext, ToolError, ToolNode, tool
from agentgraph.strategies import Append, LastWrite, Messages

MESSAGE = 50
"""Calls of one message."""
MOST_GROWTH = 4 * 1024 * 1024
"""Bytes that the process may grow by after the first tenth: less than five for a call."""
LATE_CALLS = 10_000
LEAVE_SECONDS = 30.0
"""How long worker threads may take to end, once nothing blocks them: they stay ten seconds in case of more work."""

State = dict[str, Any]


@tool
async def plus(a: int) -> int:
    """Add one."""
    return a + 1


@tool
async def turn(a: int) -> int:
    """Let the event loop turn."""
    await asyncio.sleep(0)
    return a


@tool
async def note(a: int, context: ToolContext) -> str:
    """Write to the state."""
    context.update(log=[a], last=a)
    return "written"


@tool
async def fail(a: int) -> None:
    """Fail, as a bug does or as a tool says that it cannot."""
    if a % 2:
        raise ValueError("odd")
    raise ToolError("even")


@tool
def plus_in_thread(a: int, context: ToolContext) -> int:
    """Add one, and write to the state."""
    context.update(last=a)
    return a + 1


MIX: list[Tool] = [*[plus] * 10, *[turn] * 4, *[note] * 2, fail, plus_in_thread, plus_in_thread, plus]


def app_of(tools: Iterable[Tool], **options: Any) -> CompiledGraph[State]:
    graph = StateGraph(strategies={"messages": Messages(), "log": Append(), "last": LastWrite()})
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


def asking(tools: Iterable[Tool]) -> State:
    calls = [ToolCall(f"call_{i}", asked.name, f'{{"a":{i}}}') for i, asked in enumerate(tools)]
    return {"messages": [AssistantMessage("", tool_calls=calls)]}


async def many(calls: int) -> bool:
    """Make so many calls, and print a line for each tenth of them. Tells whether the process has not grown."""
    app = app_of(dict.fromkeys(MIX), max_parallel=10)
    asked = [MIX[i % len(MIX)] for i in range(MESSAGE)]
    good = sum(made is not fail for made in asked)
    sizes: list[int] = []
    print(f"{'calls':>10}  {'us a call':>9}  {'memory':>8}")
    for part in range(1, 11):
        started = time.perf_counter()
        for _ in range(calls // 10 // MESSAGE):
            state = (await app.invoke(asking(asked))).state
            assert sum(not answer.is_error for answer in state["messages"][-1].responses) == good
        took = time.perf_counter() - started
        gc.collect()
        sizes.append(memory())
        print(f"{calls // 10 * part:>10,}  {took / (calls // 10) * 1e6:>9.1f}  {sizes[-1] / 1e6:>5.1f} MB", flush=True)
    growth = sizes[-1] - sizes[0]
    print(f"grown by {growth / 1e6:.2f} MB since the first tenth; {MOST_GROWTH / 1e6:.2f} MB are allowed")
    return growth <= MOST_GROWTH


async def third_late(calls: int) -> bool:
    """Make so many calls, a third of which time out. Tells whether nothing is left of them."""
    gate = threading.Event()
    refused: list[str] = []  # by threads that were left behind

    @tool(timeout=0.05)
    async def hang(a: int) -> None:
        """Never end."""
        await asyncio.Event().wait()

    @tool(timeout=0.05)
    def block(a: int, context: ToolContext) -> None:
        """Block a thread, and write when it is let go."""
        gate.wait()
        try:
            context.update(last=0)
        except RunEndedError:
            refused.append(context.call_id)
            raise

    # one in twelve blocks a thread, which stays until the end
    mix = [hang, plus, turn, hang, note, plus, block, plus_in_thread, turn, hang, note, plus]
    app = app_of([hang, block, plus, turn, note, plus_in_thread], max_parallel=None)
    started = time.perf_counter()
    ended = late = timed_out = blocked = 0
    while ended < calls:
        asked = [mix[i % len(mix)] for i in range(ended, min(ended + 100, calls))]
        answers = (await app.invoke(asking(asked))).state["messages"][-1].responses
        assert [a.is_error for a in answers] == [made in (hang, block) for made in asked]
        ended += len(answers)
        late += sum(made in (hang, block) for made in asked)
        timed_out += sum("timed out after 0.05 s" in a.text for a in answers)
        blocked += sum(made is block for made in asked)
    print(f"\n{ended:,} calls, of which {timed_out:,} timed out: {time.perf_counter() - started:.1f} s")
    left = {
        "tasks": len(asyncio.all_tasks()) - 1,
        "timers": pending_timers(asyncio.get_running_loop()),
        "threads waited for": threads.awaited_calls(asyncio.get_running_loop()),
        "turns taken": threads._turns._busy,  # pyright: ignore[reportPrivateUsage]  # nobody else asks
    }
    gate.set()
    given_up = time.monotonic() + LEAVE_SECONDS
    while workers() and time.monotonic() < given_up:  # noqa: ASYNC110  # nobody tells when a thread has ended
        await asyncio.sleep(0.1)
    left["threads"] = workers()
    left["writes of threads that were left behind"] = blocked - len(refused)
    print("left: " + ", ".join(f"{count} {what}" for what, count in left.items()))
    return timed_out == late and not any(left.values())


def pending_timers(loop: asyncio.AbstractEventLoop) -> int:
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


def workers() -> int:
    return sum(thread.name == "agentgraph worker" for thread in threading.enumerate())


def memory() -> int:
    """Bytes that the process has in memory; where the system does not tell, the most that it has had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


async def soak(calls: int) -> bool:
    """Both parts, whatever comes of the first."""
    flat = await many(calls)
    return await third_late(LATE_CALLS) and flat


def main() -> None:
    """Read the arguments, soak, tell."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="how many in the first part")
    well = asyncio.run(soak(parser.parse_args().calls))
    print("well" if well else "NOT WELL")
    sys.exit(not well)


if __name__ == "__main__":
    main()
