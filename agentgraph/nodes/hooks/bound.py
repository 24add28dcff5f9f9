"""An agent's hooks and interceptors, put together: who stands where, and in which order.

The rules:
- `before_...` hooks run in the order in which they were given, `after_...` hooks the other way round: an onion.
- Interceptors: the agent's own, outermost first, then those of its hooks. Of one name the first one stays.
- Tools: those of hooks, then of interceptors, then the agent's own. Of one name the first one stays.
- Nothing is written to what was given: a hook may serve several agents.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.models.protocol import ChatModel
from agentgraph.node import Command, is_async
from agentgraph.nodes.hooks.hook import POSITIONS, AgentParts, Jump, Position, as_hook, name_of
from agentgraph.nodes.tool import Tool, as_tools
from agentgraph.strategies import Strategy

log: logging.Logger = logging.getLogger("agentgraph")


class Step(msgspec.Struct, frozen=True):
    """One hook at one position: a node of the agent's graph."""

    node: str
    fn: Callable[..., Any]
    jumps: tuple[str, ...]


class Bound(msgspec.Struct, frozen=True):
    """What an agent's hooks and interceptors come to."""

    tools: tuple[Tool, ...]
    model: tuple[Any, ...]
    """Model interceptors, the first outermost."""
    chunks: tuple[Any, ...]
    tool: tuple[Any, ...]
    """Tool interceptors, the first outermost."""
    steps: Mapping[Position, Sequence[Step]]
    strategies: dict[str, Strategy]
    types: tuple[Any, ...]
    """What threads may hold for them."""


def bound(
    agent: str,
    model: ChatModel,
    hooks: Iterable[Any],
    interceptors: Iterable[Any],
    tool_interceptors: Iterable[Any],
    chunk_interceptors: Iterable[Any],
    tools: Sequence[Tool],
) -> Bound:
    """Put them together. Raises `ConfigError` naming the agent and the hook that does not do."""
    given = [as_hook(hook, agent) for hook in hooks]
    names = [name_of(hook) for hook in given]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"agent {agent!r}: {names.count(name)} hooks are named {name!r}; names must differ: give one a name="
            )
    own = list(interceptors)
    inner = _without_named(own, [i for hook in given for i in getattr(hook, "interceptors", ())])
    brought = [(f"hook {name_of(h)!r}", as_tools(getattr(h, "tools", ()), f"hook {name_of(h)!r}")) for h in given]
    brought += [
        (f"interceptor {name_of(i)!r}", as_tools(getattr(i, "tools", ()), f"interceptor {name_of(i)!r}"))
        for i in (*own, *inner)
    ]
    every = _each_once(agent, [*brought, ("the agent's own", tuple(tools))])
    parts = AgentParts(agent, model, every)
    hung = [_bound_to(hook, parts) for hook in given]
    around = [_bound_to(i, parts) for i in own], [_bound_to(i, parts) for i in inner]
    wraps = [*around[0], *hung, *around[1]]
    strategies: dict[str, Strategy] = {}
    for one in wraps:
        for key, strategy in getattr(one, "strategies", {}).items():
            strategies.setdefault(key, strategy)
    return Bound(
        tools=every,
        model=tuple(m for one in wraps if (m := _wrap(one, "wrap_model", plain=one in around[0] + around[1]))),
        chunks=(*chunk_interceptors, *(c for one in wraps if (c := getattr(one, "wrap_chunks", None)) is not None)),
        tool=(*tool_interceptors, *(t for one in wraps if (t := getattr(one, "wrap_tool", None)) is not None)),
        steps={position: _steps(position, names, hung) for position in POSITIONS},
        strategies=strategies,
        types=tuple(kind for one in wraps for kind in getattr(one, "types", ())),
    )


def interceptors_of(given: Any) -> tuple[Any, ...]:
    """The agent's own interceptors. Raises `ConfigError` for what is none."""
    made = tuple(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else (given,)
    for one in made:
        if places := [position for position in POSITIONS if hasattr(one, position)]:
            raise ConfigError(
                f"ReactAgent: {name_of(one)!r} among the interceptors has {listed(places)}, so it is a hook; "
                f"write hooks=[...]"
            )
        if not (callable(one) or any(hasattr(one, m) for m in ("wrap_model", "wrap_tool", "wrap_chunks"))):
            raise ConfigError(
                f"ReactAgent: an interceptor is an async function of (request, call), or an object with wrap_model or "
                f"wrap_tool, found {one!r:.80}"
            )
    return made


def _bound_to(one: Any, parts: AgentParts) -> Any:
    bind = getattr(one, "bind", None)
    if bind is None:
        return one
    made = bind(parts)
    if made is None:
        raise ConfigError(
            f"agent {parts.name!r}: bind() of {name_of(one)!r} returned None; return the hook, or another"
        )
    return made


def _without_named(own: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The others whose names neither the agent's own nor an earlier one has."""
    taken = {name_of(i) for i in own}
    kept: list[Any] = []
    for one in others:
        if name_of(one) not in taken:
            taken.add(name_of(one))
            kept.append(one)
    return kept


def _each_once(agent: str, groups: Sequence[tuple[str, tuple[Tool, ...]]]) -> tuple[Tool, ...]:
    found: dict[str, tuple[str, Tool]] = {}
    for whose, tools in groups:
        for tool in tools:
            before = found.get(tool.name)
            if before is None:
                found[tool.name] = (whose, tool)
            elif before[0] == whose:
                raise ConfigError(f"two tools are named {tool.name!r}; names must differ: tool(name=...)")
            elif before[1] is not tool:
                log.warning("agent %r: tool %r of %s stays, and that of %s goes", agent, tool.name, before[0], whose)
    return tuple(tool for _, tool in found.values())


def _wrap(one: Any, member: str, *, plain: bool) -> Any:
    """An interceptor's method; a plain function among the interceptors is the model's."""
    method = getattr(one, member, None)
    if method is None and plain and callable(one) and not hasattr(one, "wrap_tool") and not hasattr(one, "wrap_chunks"):
        return one
    return method


def _steps(position: Position, names: Sequence[str], hooks: Sequence[Any]) -> list[Step]:
    steps: list[Step] = []
    for name, hook in zip(names, hooks, strict=True):
        fn = getattr(hook, position, None)
        if fn is None:
            continue
        jumps = tuple(getattr(hook, "jumps", ()))
        for to in jumps:
            if to not in ("model", "tools", "end"):
                raise ConfigError(f"hook {name!r}: jumps: {unknown('target', to, ('model', 'tools', 'end'))}")
        steps.append(Step(f"{name}.{position}", fn, jumps))
    return steps if position.startswith("before") else steps[::-1]


def node_of(step: Step, targets: Mapping[str, str]) -> Callable[..., Any]:
    """The graph's node of a hook: a `Jump` becomes a `Command` to one of the `targets`."""

    def read(result: Any) -> Any:
        if not isinstance(result, Jump):
            return result
        if result.to not in targets:
            raise ConfigError(f"hook {step.node!r} jumps to {result.to!r}; from there: {listed(targets)}")
        return Command(update=result.update, goto=targets[result.to])

    takes_run = _takes_run(step.fn)
    if is_async(step.fn):

        async def node(state: Any, run: Any) -> Any:
            return read(await cast("Awaitable[Any]", step.fn(state, run) if takes_run else step.fn(state)))

        return node

    def in_thread(state: Any, run: Any) -> Any:
        return read(step.fn(state, run) if takes_run else step.fn(state))

    return in_thread


def _takes_run(fn: Callable[..., Any]) -> bool:
    parameters = inspect.signature(fn).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def chain(graph: Any, steps: Sequence[Step], after: str, then: str, targets: Mapping[str, str]) -> str:
    """Add steps one after the other behind node `after`, and return the last one's name.

    `then` is where the last one goes. "" for either: that edge is the caller's to add.
    """
    for number, step in enumerate(steps):
        following = steps[number + 1].node if number + 1 < len(steps) else then
        ends = [targets[to] for to in step.jumps if to in targets] + ([following] if following else [])
        graph.add_node(step.node, node_of(step, targets), ends=ends if step.jumps else None)
        if after:
            graph.add_edge(after, step.node)
        after = step.node
    if then and steps:
        graph.add_edge(after, then)
    return after
