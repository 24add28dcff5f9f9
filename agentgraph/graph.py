"""Building a graph: `StateGraph` writes down what is said, `compile` checks it all at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from agentgraph._engine.checks import check
from agentgraph._engine.journal import Keeper
from agentgraph._engine.plan import Description, NodeSpec, Plan, RouterSpec, names_in
from agentgraph._engine.schema import Schema
from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.compiled import CompiledGraph
from agentgraph.config import Retry, positive
from agentgraph.context import RunContext
from agentgraph.strategies import Strategy

if TYPE_CHECKING:
    from agentgraph.checkpoint.kinds import StoredType

__all__ = ["StateGraph"]

S = TypeVar("S")

# the state of a node or router is Any here: what a `Send` gives it is no part of the graph's type
NodeFunction = Callable[[Any], Any] | Callable[[Any, RunContext[Any]], Any]
ErrorHandler = Callable[[Any, Any], Any] | Callable[[Any, Any, RunContext[Any]], Any]


class StateGraph(Generic[S]):
    """A graph of nodes over one state.

    The state is a TypedDict, a dataclass, a msgspec.Struct or `dict`. A key's strategy stands in its annotation
    (`notes: Annotated[list[str], Append()]`) or in `strategies`; a key without one is replaced. With
    `validate=True` each value that is written is checked against its key's type.

        graph = StateGraph(State)
        graph.add_node("plan", plan)
        graph.add_edge(START, "plan")
        graph.add_edge("plan", END)
        app = graph.compile()
        result = await app.invoke({"question": "..."})
    """

    @overload
    def __init__(
        self: StateGraph[dict[str, Any]],
        state: None = None,
        *,
        strategies: Mapping[str, Strategy] | None = None,
        validate: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self, state: type[S], *, strategies: Mapping[str, Strategy] | None = None, validate: bool = False
    ) -> None: ...
    def __init__(
        self, state: Any = None, *, strategies: Mapping[str, Strategy] | None = None, validate: bool = False
    ) -> None:
        self._state = dict if state is None else state
        self._said = Description(Schema(self._state, strategies, validates=validate))

    def add_node(
        self,
        name: str,
        node: NodeFunction,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        retry: Retry | None = None,
        on_error: ErrorHandler | None = None,
        wait: bool = False,
        ends: Sequence[str] | None = None,
        input: Mapping[str, str] | None = None,
        output: Mapping[str, str] | None = None,
    ) -> StateGraph[S]:
        """Add a node: a function of `(state)` or `(state, run)`, a compiled graph, or any `Node` object.

        An `async def` runs on the event loop, a plain `def` in a worker thread. `timeout` and `idle_timeout` are
        seconds an attempt may take and may be silent; `retry` says when it is made again. `on_error` gets
        `(state, error)` or `(state, error, run)` when the last attempt has failed, and returns what the node
        would have. `wait=True`: runs once nothing active can reach it any more. `ends`: where its `Command`s may
        go. For a graph: `input` maps the keys it gets (this graph's key -> its own), `output` those it gives back
        (its own key -> this graph's); without, the keys that both know, which then must merge alike in both.
        """
        self._said.nodes.append(
            NodeSpec(
                name,
                node,
                wait=wait,
                ends=ends,
                timeout=timeout,
                idle_timeout=idle_timeout,
                retry=retry,
                on_error=on_error,
                input=input,
                output=output,
            )
        )
        return self

    def add_edge(self, source: str | Sequence[str], target: str) -> StateGraph[S]:
        """Run `target` after `source`. A list of sources is a join: it waits for all of them that can still come."""
        if isinstance(source, str) or not isinstance(source, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._said.edges.append((source, target))
        else:
            self._said.joins.append((names_in(source), target))
        return self

    def add_conditional_edges(
        self,
        source: str,
        router: NodeFunction,
        targets: Mapping[Hashable, str] | Iterable[str] | None = None,
    ) -> StateGraph[S]:
        """After `source`, go where `router(state)` or `router(state, run)` says; it may be async, and must not block.

        It returns a name, a list of names (empty: this branch ends), or `Send`s. `targets` are the names it may
        give, or a mapping from its answers to names; a `Literal` as return annotation says the same. Without
        either it may go anywhere, and whatever waits then waits until nothing is active.
        """
        self._said.routers.append(RouterSpec(source, router, targets))
        return self

    def compile(
        self,
        *,
        name: str = "graph",
        debug: bool = False,
        checkpointer: Checkpointer | None = None,
        types: Iterable[type | StoredType[Any]] = (),
        lease: float = 30.0,
        interrupt_before: Sequence[str] = (),
        interrupt_after: Sequence[str] = (),
    ) -> CompiledGraph[S]:
        """Check the graph and make it ready to run; this builder may go on to change without touching it.

        `debug=True` finds nodes that change a value in place, and tells in the log of nodes that keep the event
        loop from turning. With a `checkpointer`, runs that have a `thread_id` are kept and can be continued; `types`
        are what their states hold besides plain values, messages and what the state's annotations name; `lease` is
        the seconds after which the thread of a process that has died is free. Of several graphs in one store each
        needs a `name` of its own. `interrupt_before` and `interrupt_after` name nodes before and after which a run
        stops, as if it had been asked something. Raises `GraphError` with all faults at once.
        """
        positive("compile(lease=...)", lease, needed=True)
        stops = {"interrupt_before": names_in(interrupt_before), "interrupt_after": names_in(interrupt_after)}
        check(self._said, stops)
        plan = Plan(self._said, name=name, debug=debug, **stops)
        keeper = None if checkpointer is None else Keeper(plan, checkpointer, types, lease)
        return CompiledGraph(plan, keeper)

    def __repr__(self) -> str:
        return f"<StateGraph {getattr(self._state, '__name__', self._state)}: {[n.name for n in self._said.nodes]}>"
