"""`Mcp-Param-*` headers: arguments that a client repeats for what lies on the way, and that must say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.types import Tool


def check_param_headers(tool: Tool, arguments: dict[str, Any], context: ServerRequestContext[Any]) -> None:
    """Return when the headers of this call repeat its arguments as the tool's input schema asks for.

    Only calls over HTTP have headers, and only newer revisions ask for these.

    Raises:
        MCPError: one is missing, or says something else; over HTTP, status 400.
    """
    if not isinstance(context.request, Request) or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    rejection = validate_mcp_param_headers(tool.input_schema, arguments, context.request.headers)
    if rejection is not None:
        raise MCPError(code=rejection.code, message=rejection.message, data=rejection.data)
