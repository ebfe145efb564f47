"""A tool in a list of tools: its names, its description in a sentence, and its cost to a context."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from query.response.summary import first_sentence
from query.savings.context import CAMEL_CASE, ContextInfo, context_info
from shared.catalog import Encoding, IndexedTool
from shared.quoting import encodable


def is_none(value: object) -> bool:
    """Return whether a field is omitted from the JSON."""
    return value is None


class ToolInfo(BaseModel):
    """A tool and the cost of its definition; `namespaced_name` is its name for `call_tool`."""

    model_config = CAMEL_CASE

    namespaced_name: str
    server_name: str
    name: str
    description: str
    context: ContextInfo
    definition: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


def tool_info(
    tool: IndexedTool,
    encoding: Encoding,
    total: int,
    definition: dict[str, Any] | None = None,
    name: str | None = None,
    replicas: int = 1,
) -> ToolInfo:
    """Return a tool, its share of `total`, and its definition as it is to be shown.

    `name` is the name for `call_tool`, by default `server:tool`. The cost is that of all its replicas.
    """
    tokens = tool.model_counts.get(encoding)
    return ToolInfo(
        namespaced_name=name or tool.qualified_name,
        server_name=tool.server_id,
        name=tool.definition.name,
        description=encodable(first_sentence(tool.definition.description)),
        context=context_info(None if tokens is None else replicas * tokens, total),
        definition=definition,
    )
