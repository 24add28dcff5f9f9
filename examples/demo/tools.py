"""The demo's three tools: one reads a real file, one looks something up in a real database, one computes."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import anyio

from agentgraph.nodes import ToolContext, ToolError, tool

HERE = Path(__file__).parent


@tool
async def find_recipe(dish: Literal["soup", "cake", "bread"], context: ToolContext) -> str:
    """Find the recipe of a dish."""
    path = anyio.Path(HERE / "recipes" / f"{dish}.txt")
    await context.progress(text=f"reading {path.name}")
    return (await path.read_text(encoding="utf-8")).strip()


@tool
def find_capital(country: Literal["France", "Italy", "Norway", "Japan"]) -> str:
    """Find the capital of a country."""
    # a plain `def`: it runs in a worker thread, so that the database may block
    with closing(sqlite3.connect(f"{(HERE / 'atlas.db').as_uri()}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT capital FROM countries WHERE name = ?", (country,)).fetchone()
    if row is None:
        raise ToolError(f"the atlas has no {country}")
    return str(row[0])


@tool
async def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b
