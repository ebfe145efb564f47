"""The servers and tools of a page of `list_available_tools`, at each detail level."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel, Field

from query.response.find_response import shown_definition
from query.response.tool_info import ToolInfo, is_none, tool_info
from query.savings.context import CAMEL_CASE, ContextInfo
from shared.catalog import Encoding, IndexedTool

ListDetail = Literal["name", "summary", "detailed", "full"]


class ListedServer(BaseModel):
    """A server with the cost of all its listed tools, and with those of this page: as names, or as tools.

    `names` are separated by spaces. A name with other characters than an identifier's is quoted as in a shell.
    """

    model_config = CAMEL_CASE

    server_name: str
    context: ContextInfo
    names: str | None = Field(default=None, exclude_if=is_none)
    tools: list[ToolInfo] | None = Field(default=None, exclude_if=is_none)


def listed_servers(
    tools: Sequence[IndexedTool],
    contexts: Mapping[str, ContextInfo],
    detail: ListDetail,
    encoding: Encoding,
    total: int,
) -> list[ListedServer]:
    """Return these tools by server, with their shares of `total`; `contexts` are those of the servers."""
    return [
        ListedServer(
            server_name=server,
            context=contexts[server],
            **_shown(list(of_server), detail, encoding, total),
        )
        for server, of_server in groupby(tools, key=lambda tool: tool.server_id)
    ]


def _shown(tools: Sequence[IndexedTool], detail: ListDetail, encoding: Encoding, total: int) -> dict[str, Any]:
    if detail == "name":
        return {"names": shlex.join(tool.definition.name for tool in tools)}
    return {"tools": [tool_info(tool, encoding, total, shown_definition(tool.definition, detail)) for tool in tools]}
