"""How things are measured: the sides take turns in one process, and the median of each counts.

Ratios hold on a busy machine, since all sides are slowed alike; absolute numbers do not.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Side = Literal["agentgraph", "LangGraph", "asyncio"]
SIDES: tuple[Side, ...] = ("agentgraph", "LangGraph", "asyncio")
Case = Callable[[], Awaitable[object]]
"""Does the work once. What it needs is made beforehand."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `values` are seconds, or bytes where `unit` says so."""

    what: str
    values: Mapping[Side, float]
    unit: Literal["seconds", "bytes"] = "seconds"
    below: float | None = None
    """Wanted: our value is below this."""
    times: float | None = None
    """Wanted: LangGraph takes at least this many times what we take."""

    def ratio(self, side: Side) -> float | None:
        """What the side takes, as a multiple of ours."""
        return self.values[side] / self.values["agentgraph"] if side in self.values else None

    def met(self) -> bool | None:
        """Whether all that was wanted is so; None where nothing was."""
        ratio = self.ratio("LangGraph")
        wants: list[bool] = []
        if self.below is not None:
            wants.append(self.values["agentgraph"] < self.below)
        if self.times is not None and ratio is not None:
            wants.append(ratio >= self.times)
        return all(wants) if wants else None


async def compare(
    what: str,
    cases: Mapping[Side, Case],
    *,
    units: int,
    repeats: int,
    loops: int = 1,
    below: float | None = None,
    times: float | None = None,
) -> Row:
    """Run the cases by turns, `repeats` times each after a turn to warm up; a value is the median by `units`.

    A turn runs its case `loops` times: short ones would measure cold caches. What lives already (a peer's many
    modules) is kept out of the garbage collector's way, else whoever allocates pays for it.
    """
    gc.collect()
    gc.freeze()
    seconds: dict[Side, list[float]] = {side: [] for side in cases}
    for turn in range(repeats + 1):
        for side, case in cases.items():
            gc.collect()
            started = time.perf_counter()
            for _ in range(loops):
                await case()
            if turn:
                seconds[side].append(time.perf_counter() - started)
    values: dict[Side, float] = {side: statistics.median(took) / (units * loops) for side, took in seconds.items()}
    return Row(what=what, values=values, below=below, times=times)


def amount(value: float, unit: Literal["seconds", "bytes"]) -> str:
    """A value as people read it: three digits, and the unit that fits."""
    scale = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6)] if unit == "seconds" else [("MB", 1e6), ("KB", 1e3), ("B", 1.0)]
    name, size = next((pair for pair in scale if value >= pair[1]), scale[-1])
    shown = value / size
    return f"{shown:.{0 if shown >= 100 else 1 if shown >= 10 else 2}f} {name}"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = ["", *SIDES, "LangGraph / ours", "ours / asyncio", "wanted", "met"]
    lines = [head, ["---", *["---:"] * 5, "---", "---"]]
    for row in rows:
        peer, plain = row.ratio("LangGraph"), row.ratio("asyncio")
        wanted = [f"< {amount(row.below, row.unit)}"] if row.below is not None else []
        if row.times is not None:
            wanted.append(f">= {row.times:.0f}x")
        lines.append(
            [
                row.what,
                *(amount(row.values[side], row.unit) if side in row.values else "-" for side in SIDES),
                "-" if peer is None else f"{peer:.0f}x" if peer >= 10 else f"{peer:.1f}x",
                "-" if not plain else f"{1 / plain:.1f}x",
                ", ".join(wanted),
                {True: "yes", False: "NO", None: ""}[row.met()],
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
