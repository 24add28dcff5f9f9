"""The pluggable nodes: a model that reasons, tools that act, and the agent that joins them."""

from agentgraph.nodes.agent import ReactAgent
from agentgraph.nodes.answer import Answer
from agentgraph.nodes.chunks import ChunkInterceptor
from agentgraph.nodes.collector import CallUpdates, ToolStateCollector
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.llm_node import Advisor, LlmNode, LlmRequest, ModelCall, ModelInterceptor
from agentgraph.nodes.output import OutputError
from agentgraph.nodes.result import AgentResult
from agentgraph.nodes.template import TemplateError, TemplateRenderer
from agentgraph.nodes.tool import Tool, ToolContext, ToolError, ToolTimeoutError, tool
from agentgraph.nodes.tool_node import ToolNode, ToolResolver
from agentgraph.nodes.tool_request import ErrorProcessor, LastAttempt, ToolHandler, ToolInterceptor, ToolRequest

__all__ = [
    "Advisor",
    "AgentResult",
    "Answer",
    "CallUpdates",
    "ChunkInterceptor",
    "ErrorProcessor",
    "LastAttempt",
    "Limiter",
    "LlmNode",
    "LlmRequest",
    "ModelCall",
    "ModelInterceptor",
    "OutputError",
    "ReactAgent",
    "TemplateError",
    "TemplateRenderer",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolHandler",
    "ToolInterceptor",
    "ToolNode",
    "ToolRequest",
    "ToolResolver",
    "ToolStateCollector",
    "ToolTimeoutError",
    "tool",
]
