"""Tools that a model may call: how it is told of them, how calls are forced, and how they are found in its output."""

from gateway.tokenizer.tools.parser import FoundCall, Part, ToolCallParser
from gateway.tokenizer.tools.styles import ToolStyle
from gateway.tokenizer.tools.values import AS_IT_LIKES, ChoiceMode, Tool, ToolCall, ToolChoice

__all__ = [
    "AS_IT_LIKES",
    "ChoiceMode",
    "FoundCall",
    "Part",
    "Tool",
    "ToolCall",
    "ToolCallParser",
    "ToolChoice",
    "ToolStyle",
]
