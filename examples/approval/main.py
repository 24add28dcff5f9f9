"""An agent pauses before it pays, its process ends, and another process brings the answer. No key is needed.

The first: `python -m examples.approval.main ask`. The second: `python -m examples.approval.main answer approve`.
"""

import argparse
import asyncio
import re
import sys
from pathlib import Path

import anyio

from agentgraph import Command, RunConfig
from agentgraph.checkpoint import SqliteSaver
from agentgraph.messages import ToolCall, ToolResponseMessage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import AgentResult, ReactAgent, tool
from agentgraph.nodes.hooks import Approve, Decision, Edit, HumanApproval, Reject, Review
from agentgraph.testing import FunctionModel

FOLDER = Path(__file__).parent.parent.parent / ".demo" / "approval"
THREAD = RunConfig(thread_id="order-42")  # by this name the second process finds what the first one left
QUESTION = "Pay Ann 500 and Bob 20, please."


def clerk(folder: Path) -> tuple[ReactAgent, SqliteSaver]:
    """The agent, made anew by each process, and the store that both share."""

    @tool
    async def pay(to: str, amount: int) -> str:
        """Pay somebody."""
        async with await anyio.open_file(folder / "payments.txt", "a", encoding="utf-8") as payments:
            await payments.write(f"{amount} to {to}\n")
        return f"{amount} paid to {to}"

    saver = SqliteSaver(folder / "runs.db")
    agent = ReactAgent(
        "clerk",
        FunctionModel(answer),  # a real one: OpenAIChat("gpt-4o-mini")
        [pay],
        hooks=[HumanApproval({"pay": Review(when=is_large, description="A large payment.")})],
        checkpointer=saver,
    )
    return agent, saver


def is_large(call: ToolCall, _: object) -> bool:
    """Whether a human has to see this call: sums of three digits and more."""
    return re.search(r'"amount": \d{3}', call.arguments) is not None


def answer(request: ModelRequest) -> list[ToolCall] | str:
    """In place of a model: a call for each payment that is asked for, then a sentence on what came of them."""
    last = request.messages[-1]
    if isinstance(last, ToolResponseMessage):
        return "; ".join(response.text for response in last.responses)
    asked = re.findall(r"(\w+) (\d+)", last.text if isinstance(last, UserMessage) else "")
    return [
        ToolCall(f"call_{number}", "pay", f'{{"to": "{to}", "amount": {amount}}}')
        for number, (to, amount) in enumerate(asked, 1)
    ]


def show(result: AgentResult) -> None:
    """Print where the run stands."""
    print(f"The run is {result.status}.")
    for question in result.interrupts:
        print(f"May I {question.value['tool']} {question.value['arguments']}? {question.value['description']}")
    if result.text:
        print(f"The agent says: {result.text}")


async def ask(folder: Path, text: str) -> None:
    """The first process: ask, and end while the run waits."""
    agent, saver = clerk(folder)
    async with saver:
        show(await agent.run(text, THREAD))


async def decide(folder: Path, decision: Decision) -> int:
    """The second process: answer each open question by the decision; the exit code is 1 where there is none."""
    agent, saver = clerk(folder)
    async with saver:
        found = await agent.app.state(THREAD)
        if found is None or not found.interrupts:
            print("Nothing waits for an answer; ask first.")
            return 1
        show(await agent.run(Command(resume={question.id: decision for question in found.interrupts}), THREAD))
    return 0


def main() -> int:
    """Run one of the two processes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.approval.main")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where runs and payments are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    asks = commands.add_parser("ask", help="ask the agent to pay")
    asks.add_argument("text", nargs="?", default=QUESTION)
    answers = commands.add_parser("answer", help="answer what it asks")
    answers.add_argument("decision", choices=["approve", "reject", "edit"])
    answers.add_argument("words", nargs="*", help="why not (reject), or to whom and how much (edit)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.command == "ask":
        asyncio.run(ask(given.folder, given.text))
        return 0
    decision: Decision = Approve()
    if given.decision == "reject":
        decision = Reject(" ".join(given.words))
    elif given.decision == "edit":
        if len(given.words) != 2 or not given.words[1].isdigit():
            parser.error("edit needs a name and a sum: answer edit Ann 50")
        decision = Edit({"to": given.words[0], "amount": int(given.words[1])})
    return asyncio.run(decide(given.folder, decision))


if __name__ == "__main__":
    sys.exit(main())
