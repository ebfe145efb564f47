"""A tool in a list of tools: its names, its description in a sentence, and its cost to a context."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from query.response.summary import first_sentence
from query.savings.context import CAMEL_CASE, ContextInfo, context_info
from shared.catalog import Encoding, IndexedTool
from shared.text.display import encodable


def is_none(value: object) -> bool:
    """Return whether a field is omitted from the JSON."""
    return value is None


class ToolInfo(BaseModel):
    """A tool and the cost of its definition; `namespaced_name` is `server:tool`."""

    model_config = CAMEL_CASE

    namespaced_name: str
    server_name: str
    name: str
    description: str
    context: ContextInfo
    definition: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


def tool_info(tool: IndexedTool, encoding: Encoding, total: int, definition: dict[str, Any] | None = None) -> ToolInfo:
    """Return a tool, its share of `total`, and its definition as it is to be shown."""
    return ToolInfo(
        namespaced_name=tool.qualified_name,
        server_name=tool.server_id,
        name=tool.definition.name,
        description=encodable(first_sentence(tool.definition.description)),
        context=context_info(tool.model_counts.get(encoding), total),
        definition=definition,
    )
