"""What may stand round an agent's calls of its model and its tools."""

from agentgraph.nodes.interceptors.context_editing import ContextEditing
from agentgraph.nodes.interceptors.model_fallback import ModelFallback
from agentgraph.nodes.interceptors.model_retry import ModelRetry
from agentgraph.nodes.interceptors.tool_emulation import TOOL_EMULATION_PROMPT, ToolEmulation
from agentgraph.nodes.interceptors.tool_retry import ToolRetry
from agentgraph.nodes.interceptors.tool_selection import TOOL_SELECTION_PROMPT, ToolSelection

__all__ = [
    "TOOL_EMULATION_PROMPT",
    "TOOL_SELECTION_PROMPT",
    "ContextEditing",
    "ModelFallback",
    "ModelRetry",
    "ToolEmulation",
    "ToolRetry",
    "ToolSelection",
]
