"""A compiled graph as Mermaid and as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agentgraph._engine.plan import Plan, bits, declared_targets
from agentgraph.node import END, START

_Edge = tuple[str, str, str]  # from, to, kind: "-->", "-.->", "-. label .->"


def mermaid(plan: Plan) -> str:
    """The graph as a Mermaid flowchart: conditional ways dotted, subgraphs as double boxes."""
    ids = {name: f"n{i}" for i, name in enumerate(plan.names)} | {START: "start", END: "end_"}
    lines = ["flowchart TD", f"    start([{_quoted('START')}])"]
    for spec in plan.nodes:
        shape = ("[[", "]]") if spec.is_graph else ("[", "]")
        lines.append(f"    {ids[spec.name]}{shape[0]}{_quoted(spec.name)}{shape[1]}")
    lines.append(f"    end_([{_quoted('END')}])")
    for source, target, label, conditional in _ways(plan):
        arrow = ("-.->" if conditional else "-->") + (f"|{_quoted(label)}|" if label else "")
        lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    return "\n".join(lines) + "\n"


def text(plan: Plan) -> str:
    """The graph in lines: a node each, then an edge each."""
    lines = [f"graph {plan.name!r}: {len(plan.names)} nodes"]
    for spec in plan.nodes:
        said = [k for k in ("timeout", "idle_timeout", "retry", "on_error") if getattr(spec, k)]
        kind = " (graph)" if spec.is_graph else "" if spec.is_async else " (thread)"
        lines.append(
            f"  node {spec.name}{kind}" + (f" [{', '.join(said)}]" if said else "") + (" waits" if spec.wait else "")
        )
    for source, target, label, conditional in _ways(plan):
        shown = {START: "START", END: "END"}
        lines.append(
            f"  {shown.get(source, source)} {'-?>' if conditional else '->'} {shown.get(target, target)}"
            + (f" ({label})" if label else "")
        )
    return "\n".join(lines)


def _ways(plan: Plan) -> Iterator[tuple[str, str, str, bool]]:
    """Each way as (from, to, label, conditional)."""
    for i, name in enumerate((*plan.names, START)):
        for target in bits(plan.edge_mask[i]):
            yield name, plan.names[target], "", False
        for router in plan.routers[i]:
            for target in dict.fromkeys(router.targets or (*plan.names, END)):
                yield name, target, router.label.get(target, "") if router.targets else "anywhere", True
        for j in plan.joins_of[i]:
            yield name, plan.names[plan.joins[j].target], "join", False
        if i < plan.start:
            goto = declared_targets(plan.nodes[i])
            for target in (*plan.names, END) if goto is None else goto:
                yield name, target, "goto", True
        if plan.ending[i]:
            yield name, END, "", False


def _quoted(label: str) -> str:
    escaped = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return f'"{escaped}"'
