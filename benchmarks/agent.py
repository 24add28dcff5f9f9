"""A round of a ReAct agent: a model's message with eight calls, and their answers. The model answers at once."""

from agentgraph import RunConfig
from agentgraph.nodes import ReactAgent
from benchmarks import peer
from benchmarks.measure import Case, Row, Side, compare
from benchmarks.models import Scripted
from benchmarks.tools import call_all, plus

ROUNDS, CALLS = 10, 8


def ours() -> Case:
    agent = ReactAgent("bench", Scripted(ROUNDS, CALLS), [plus], max_parallel=CALLS)
    config = RunConfig(recursion_limit=2 * ROUNDS + 10)

    async def case() -> None:
        result = await agent.run("go", config)
        assert len(result.messages) == 2 + 2 * ROUNDS

    return case


async def _think() -> None:
    pass


async def plain() -> None:
    for _ in range(ROUNDS):
        await _think()
        await call_all(CALLS)
    await _think()


async def rows(repeats: int) -> list[Row]:
    """Measure."""
    cases: dict[Side, Case] = {"agentgraph": ours(), "LangGraph": peer.agent(ROUNDS, CALLS), "asyncio": plain}
    what = f"a round of an agent, {CALLS} tools"
    return [await compare(what, cases, units=ROUNDS, repeats=repeats, loops=5, times=15)]
