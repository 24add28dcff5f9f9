"""What may be hung into an agent: the contract of hooks, and those that come with this library."""

from agentgraph.nodes.hooks.call_limit import CallLimitError
from agentgraph.nodes.hooks.hook import (
    AfterAgent,
    AfterModel,
    AgentParts,
    BeforeAgent,
    BeforeModel,
    Binds,
    BringsInterceptors,
    BringsState,
    BringsTools,
    FunctionHook,
    Hook,
    Jump,
    WrapsModel,
    WrapsTool,
    after_agent,
    after_model,
    before_agent,
    before_model,
)
from agentgraph.nodes.hooks.human_approval import Approve, Decision, Edit, HumanApproval, Reject, Respond, Review
from agentgraph.nodes.hooks.large_results import LargeResults
from agentgraph.nodes.hooks.model_call_limit import ModelCallLimit
from agentgraph.nodes.hooks.pii import PiiRedaction, PiiStrategy
from agentgraph.nodes.hooks.skills import Skill, SkillError, Skills
from agentgraph.nodes.hooks.sub_agents import SubAgents
from agentgraph.nodes.hooks.summarization import SUMMARIZATION_PROMPT, ContextSize, Summarization
from agentgraph.nodes.hooks.todo_list import Todo, TodoList
from agentgraph.nodes.hooks.tool_call_limit import ToolCallLimit

__all__ = [
    "SUMMARIZATION_PROMPT",
    "AfterAgent",
    "AfterModel",
    "AgentParts",
    "Approve",
    "BeforeAgent",
    "BeforeModel",
    "Binds",
    "BringsInterceptors",
    "BringsState",
    "BringsTools",
    "CallLimitError",
    "ContextSize",
    "Decision",
    "Edit",
    "FunctionHook",
    "Hook",
    "HumanApproval",
    "Jump",
    "LargeResults",
    "ModelCallLimit",
    "PiiRedaction",
    "PiiStrategy",
    "Reject",
    "Respond",
    "Review",
    "Skill",
    "SkillError",
    "Skills",
    "SubAgents",
    "Summarization",
    "Todo",
    "TodoList",
    "ToolCallLimit",
    "WrapsModel",
    "WrapsTool",
    "after_agent",
    "after_model",
    "before_agent",
    "before_model",
]
