"""Measure every topic and print one table: `make bench`, or `make bench ARGS="--repeats 3 steps tools"`."""

import argparse
import asyncio
import importlib
import os
import platform
import sys
import time
from importlib.metadata import version
from types import ModuleType

from benchmarks.measure import Row, table

TOPICS = ("steps", "fan_out", "tools", "agent", "tokens", "stream", "concurrent", "threads", "imports")


async def measure(names: list[str], repeats: int) -> list[Row]:
    """The rows of the topics, in order."""
    result: list[Row] = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        topic: ModuleType = importlib.import_module(f"benchmarks.{name}")
        result += await topic.rows(repeats)
    return result


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("topics", nargs="*", choices=[*TOPICS, []], metavar="topic", help=", ".join(TOPICS))
    parser.add_argument("--repeats", type=int, default=7, help="how often each side runs; the median counts")
    arguments = parser.parse_args()
    started = time.perf_counter()
    rows = asyncio.run(measure(arguments.topics or list(TOPICS), arguments.repeats))
    print(
        f"Python {platform.python_version()}, LangGraph {version('langgraph')}, openai {version('openai')}, "
        f"{os.cpu_count()} cores; median of {arguments.repeats}, by turns in one process; "
        f"{time.perf_counter() - started:.0f} s\n"
    )
    print(table(rows))


if __name__ == "__main__":
    main()
