"""How things are measured: the sides take turns in one process, and the median of each counts.

Ratios hold on a busy machine, since all sides are slowed alike; absolute numbers do not.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Side = Literal["agentgraph", "LangGraph", "LangGraph delta", "openai SDK", "asyncio"]
PEERS: tuple[Side, ...] = ("LangGraph", "LangGraph delta", "openai SDK")
Unit = Literal["seconds", "bytes", "times"]
Case = Callable[[], Awaitable[object]]
"""Does the work once. What it needs is made beforehand."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `values` are seconds, or what `unit` says."""

    what: str
    values: Mapping[Side, float]
    unit: Unit = "seconds"
    below: float | None = None
    """Wanted: our value is below this."""
    times: float | None = None
    """Wanted: LangGraph takes at least this many times what we take."""
    times_delta: float | None = None
    """Wanted: LangGraph with its DeltaChannel does."""
    times_sdk: float | None = None
    """Wanted: the openai SDK does."""

    def ratio(self, side: Side) -> float | None:
        """What the side takes, as a multiple of ours."""
        return self.values[side] / self.values["agentgraph"] if side in self.values else None

    def met(self) -> bool | None:
        """Whether all that was wanted is so; None where nothing was."""
        wants = [ratio >= times for peer, times in self.wanted() if (ratio := self.ratio(peer)) is not None]
        if self.below is not None:
            wants.append(self.values["agentgraph"] < self.below)
        return all(wants) if wants else None

    def wanted(self) -> list[tuple[Side, float]]:
        """The peers that are to take so many times what we take."""
        given: list[tuple[Side, float | None]] = [
            ("LangGraph", self.times),
            ("LangGraph delta", self.times_delta),
            ("openai SDK", self.times_sdk),
        ]
        return [(peer, times) for peer, times in given if times is not None]


async def compare(
    what: str,
    cases: Mapping[Side, Case],
    *,
    units: int,
    repeats: int,
    loops: int = 1,
    below: float | None = None,
    times: float | None = None,
    times_sdk: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
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
            started = clock()
            for _ in range(loops):
                await case()
            if turn:
                seconds[side].append(clock() - started)
    values: dict[Side, float] = {side: statistics.median(took) / (units * loops) for side, took in seconds.items()}
    return Row(what=what, values=values, below=below, times=times, times_sdk=times_sdk)


def amount(value: float, unit: Unit) -> str:
    """A value as people read it: three digits, and the unit that fits."""
    if unit == "times":
        return f"{value:.2f}"
    scale = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6)] if unit == "seconds" else [("MB", 1e6), ("KB", 1e3), ("B", 1.0)]
    name, size = next((pair for pair in scale if value >= pair[1]), scale[-1])
    shown = value / size
    return f"{shown:.{0 if shown >= 100 else 1 if shown >= 10 else 2}f} {name}"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table. A peer has its columns where a row has its value."""
    peers: list[Side] = [side for side in PEERS if any(side in row.values for row in rows)]
    sides: list[Side] = ["agentgraph", *peers, "asyncio"]
    head = ["", *sides, *(f"{peer} / ours" for peer in peers), "ours / asyncio", "wanted", "met"]
    lines = [head, ["---", *["---:"] * (len(head) - 3), "---", "---"]]
    for row in rows:
        plain = row.ratio("asyncio")
        wanted = [f"< {amount(row.below, row.unit)}"] if row.below is not None else []
        wanted += [f">= {times:.0f}x {peer}" for peer, times in row.wanted()]
        lines.append(
            [
                row.what,
                *(amount(row.values[side], row.unit) if side in row.values else "-" for side in sides),
                *(_ratio(row.ratio(peer)) for peer in peers),
                _ratio(1 / plain if plain else None),
                ", ".join(wanted),
                {True: "yes", False: "NO", None: ""}[row.met()],
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"
