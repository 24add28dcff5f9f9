"""A graph, ready to run: immutable, and safe to share between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from agentgraph._engine import draw
from agentgraph._engine.plan import Plan
from agentgraph._engine.reader import EventBuffer, RunStream
from agentgraph._engine.run import GraphRun, run_child, run_graph
from agentgraph.config import RunConfig, positive
from agentgraph.context import Interrupt, RunContext
from agentgraph.errors import ConfigError, SyncInLoopError
from agentgraph.messages import Usage, new_id
from agentgraph.node import Updates

__all__ = ["CompiledGraph", "RunResult", "RunStream"]

S = TypeVar("S")

_DEFAULT = RunConfig()


class RunResult(msgspec.Struct, Generic[S], frozen=True):
    """How a run ended."""

    state: S
    """The state after the last step, of the type that the graph was built with."""
    status: str
    """ "done", or "interrupted" where nodes asked something and wait for the answer."""
    interrupts: tuple[Interrupt, ...]
    usage: Usage | None
    """Tokens of all model calls of the run; None where there was none."""
    steps: int
    """Steps taken, those of subgraphs included."""
    run_id: str
    thread_id: str | None


class CompiledGraph(Generic[S]):
    """A graph, ready to run. Made by `StateGraph.compile()`; as a node of another graph it is a subgraph."""

    __slots__ = ("plan",)
    plan: Plan

    def __init__(self, plan: Plan) -> None:
        object.__setattr__(self, "plan", plan)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a compiled graph is shared between runs and cannot be changed; put {name!r} in the state, "
            f"or in the context: invoke(..., context=...)"
        )

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.plan.name

    async def invoke(
        self, input: Mapping[str, Any] | S, config: RunConfig | None = None, *, context: Any = None
    ) -> RunResult[S]:
        """Run the graph on `input`, and return how it ended.

        A dict is an update of the empty state; an instance of the state's class is the whole state. `context` is the
        caller's own object, handed to the nodes. Raises `InputError` for what is no input, a node's own exception
        with a note that says where, `RecursionLimitError`, `RunTimeoutError`. Whatever the outcome, and after
        cancellation, nothing of the run runs any more.
        """
        config = _checked(config)
        run_id = config.run_id or new_id()
        return self._result(await run_graph(self.plan, input, config, context, run_id, None))

    def stream(
        self,
        input: Mapping[str, Any] | S,
        config: RunConfig | None = None,
        *,
        context: Any = None,
        buffer: int = 256,
    ) -> RunStream[RunResult[S]]:
        """Run the graph and read its events as they come.

            async with app.stream({"question": "..."}) as events:
                async for event in events: ...
            events.result

        At most `buffer` events wait for the reader; then the run waits. Leaving the block ends the run. An error
        of the run is raised after its last event.
        """
        positive("stream(buffer=...)", buffer, whole=True, needed=True)
        config = _checked(config)
        run_id = config.run_id or new_id()

        async def run(sink: EventBuffer) -> RunResult[S]:
            return self._result(await run_graph(self.plan, input, config, context, run_id, sink))

        return RunStream(run, run_id, buffer)

    def invoke_sync(
        self, input: Mapping[str, Any] | S, config: RunConfig | None = None, *, context: Any = None
    ) -> RunResult[S]:
        """`invoke` for code without an event loop. Raises `SyncInLoopError` where one runs in this thread."""
        return run_sync(lambda: self.invoke(input, config, context=context), "invoke_sync()", "await app.invoke(...)")

    async def __call__(
        self,
        state: Any,
        run: RunContext[Any],
        /,
        *,
        input: Mapping[str, str] | None = None,
        output: Mapping[str, str] | None = None,
    ) -> Updates:
        """Run as a node of another graph: returns this graph's updates, never its whole state."""
        return await run_child(self.plan, state, run, input, output)

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return draw.mermaid(self.plan)

    def _result(self, run: GraphRun) -> RunResult[S]:
        config = run.shared.config
        return RunResult(
            state=self.plan.schema.view(run.state),
            status="interrupted" if run.interrupts else "done",
            interrupts=tuple(run.interrupts),
            usage=run.shared.usage,
            steps=run.shared.steps,
            run_id=run.shared.run_id,
            thread_id=config.thread_id,
        )

    def __str__(self) -> str:
        return draw.text(self.plan)

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.plan.name}: {list(self.plan.names)}>"


def _checked(config: RunConfig | None) -> RunConfig:
    if config is None:
        return _DEFAULT
    if not isinstance(config, RunConfig):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
        raise ConfigError(f"config must be a RunConfig, found {type(config).__name__}: write RunConfig(thread_id=...)")
    return config


R = TypeVar("R")


def run_sync(make: Any, call: str, instead: str) -> Any:
    """Run the coroutine that `make()` gives in a new event loop. Raises `SyncInLoopError` where one runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        coroutine: Coroutine[Any, Any, Any] = make()
        return asyncio.run(coroutine)
    raise SyncInLoopError(call, instead)
