"""A server whose tools' texts try to be markup, run as a program: `python markup_server.py stdio`."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from good_server import run  # type: ignore[import-not-found]  # a sibling, where this runs as a program
from mcp.server import Server
from mcp.server.context import ServerRequestContext

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
LONG = "a_name_that_no_page_is_wide_enough_for_" * 20

TOOLS = [
    types.Tool(name=name, description=f"alert {SCRIPT} \u202e{LONG}", input_schema={"type": "object"})
    for name in (SCRIPT, LONG, "</table></main><style>body{display:none}</style>")
]


async def list_tools(
    _context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


if __name__ == "__main__":
    run(Server(SCRIPT, version="1", on_list_tools=list_tools))
