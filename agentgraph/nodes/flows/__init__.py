"""Agents that work together, each flow an ordinary graph."""

from agentgraph.nodes.flows.flow import Flow, FlowError
from agentgraph.nodes.flows.handoff import Handoff, HandoffAgent, handoff
from agentgraph.nodes.flows.loop import LoopAgent
from agentgraph.nodes.flows.parallel import ParallelAgent
from agentgraph.nodes.flows.routing import RoutingAgent
from agentgraph.nodes.flows.sequential import SequentialAgent
from agentgraph.nodes.flows.supervisor import SupervisorAgent

__all__ = [
    "Flow",
    "FlowError",
    "Handoff",
    "HandoffAgent",
    "LoopAgent",
    "ParallelAgent",
    "RoutingAgent",
    "SequentialAgent",
    "SupervisorAgent",
    "handoff",
]
