"""The import: in a fresh interpreter each time, without the interpreter's own start."""

import statistics
import subprocess
import sys

from benchmarks.measure import Row, Side

STATEMENTS: dict[Side, str] = {
    "agentgraph": "from agentgraph import StateGraph",
    "LangGraph": "from langgraph.graph import StateGraph",
    "asyncio": "import asyncio",
}
AGENTS: dict[Side, str] = {
    "agentgraph": "from agentgraph.nodes import ReactAgent; from agentgraph.models import OpenAIChat",
    "LangGraph": "from langgraph.prebuilt import create_react_agent",
}


def seconds(statement: str) -> float:
    """How long the statement takes in an interpreter of its own."""
    code = f"import time; t = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def _row(what: str, statements: dict[Side, str], repeats: int, below: float | None = None) -> Row:
    took: dict[Side, list[float]] = {side: [] for side in statements}
    for turn in range(repeats + 1):  # the first writes the bytecode
        for side, statement in statements.items():
            value = seconds(statement)
            if turn:
                took[side].append(value)
    return Row(what=what, values={side: statistics.median(times) for side, times in took.items()}, below=below)


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    return [
        _row("import of the engine", STATEMENTS, repeats, below=0.120),
        _row("import of agent and model client", AGENTS, repeats),
    ]
