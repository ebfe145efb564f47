"""The servers and tools of a page of `list_available_tools`, at each detail level."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel, Field

from query.answers.detail import (
    CAMEL_CASE,
    ContextInfo,
    ContextMeta,
    ServedBy,
    ToolInfo,
    is_none,
    served_by,
    shown_definition,
    tool_info,
)
from shared.catalog import Encoding, IndexedTool

ListDetail = Literal["name", "summary", "detailed", "full"]


@dataclass(frozen=True, slots=True)
class ReplicaSetCost:
    """A replica set, of one server or several: its servers, sorted, and the cost of all their tools."""

    servers: Sequence[str]
    context: ContextInfo


@dataclass(frozen=True, slots=True)
class ToolsInOrder:
    """Tools in their order, of which a page shows the first; `is_end`: no further tools follow these.

    `sets` are by the server that represents them. `names` has the names for `call_tool` by definition, if requested.
    `total` is the cost of all requested tools, of which all shares are. `revision` is the highest as of the first page.
    `warnings` are about the filters of the request.
    """

    tools: Sequence[IndexedTool]
    is_end: bool
    sets: Mapping[str, ReplicaSetCost]
    names: Mapping[str, str]
    encoding: Encoding
    total: int
    meta: ContextMeta
    revision: int
    warnings: Sequence[str]


class ListedServer(BaseModel):
    """A server with the cost of all its listed tools, and with those of this page: as names, or as tools.

    A server with replicas represents them: the costs are those of all.

    `names` are separated by spaces. A name with other characters than an identifier's is quoted as in a shell.
    """

    model_config = CAMEL_CASE

    server_name: str
    served_by: ServedBy | None = Field(default=None, exclude_if=is_none)
    context: ContextInfo
    names: str | None = Field(default=None, exclude_if=is_none)
    tools: list[ToolInfo] | None = Field(default=None, exclude_if=is_none)


def listed_servers(page: ToolsInOrder, count: int, detail: ListDetail) -> list[ListedServer]:
    """Return the first tools of the page by server."""
    by_server = groupby(page.tools[:count], key=lambda tool: tool.server_id)
    return [_server(server, list(tools), page, detail) for server, tools in by_server]


def _server(server: str, tools: Sequence[IndexedTool], page: ToolsInOrder, detail: ListDetail) -> ListedServer:
    replicas = page.sets[server]
    shown: dict[str, Any] = (
        {"names": shlex.join(tool.definition.name for tool in tools)}
        if detail == "name"
        else {"tools": [_tool(tool, len(replicas.servers), page, detail) for tool in tools]}
    )
    return ListedServer(server_name=server, served_by=served_by(replicas.servers), context=replicas.context, **shown)


def _tool(tool: IndexedTool, replicas: int, page: ToolsInOrder, detail: ListDetail) -> ToolInfo:
    definition, name = shown_definition(tool.definition, detail), page.names.get(tool.qualified_name)
    return tool_info(tool, page.encoding, page.total, definition, name, replicas)
