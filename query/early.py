"""The MCP server that answers while the service starts: the handshake, pings, and the list of built-in tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, ListToolsResult

from query.completion import Complete
from query.digest import BEING_LISTED, with_digest
from query.mcp import BesideTools, build_server, introduced
from query.policy import ReadPolicy, no_policy
from query.prompts import GetPrompt
from query.tool import ToolCallContext, ToolHandler
from query.tools.read_resource import ReadResource
from query.tools.registry import BUILTIN_TOOLS
from query.tools.run_script import RUN_SCRIPT

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.types import CallToolResult

    from query.caller import Caller
    from shared.upstream.auth import Requester

    Context = ServerRequestContext[Any, Any]
    Listed = tuple[Context, ListToolsResult]


class _Definition(ToolHandler):
    """The definition of a built-in tool, without the catalogue that a call needs."""

    def __init__(self, handler: type[ToolHandler], read_policy: ReadPolicy = no_policy) -> None:
        self.tool = with_digest(handler.tool, BEING_LISTED)
        self.permission = handler.permission
        self.paging = handler.paging
        self._read_policy = read_policy

    def is_for(self, caller: Caller) -> bool:
        """Return whether the caller will see the tool."""
        may = self.tool.name != RUN_SCRIPT.name or self._read_policy().allows_scripts(caller)
        return super().is_for(caller) and may

    async def call(self, context: ToolCallContext) -> CallToolResult:
        raise MCPError(INTERNAL_ERROR, f"{context.mcp_context.method}: the service is starting")


async def _starting(_: Caller, __: Requester, ___: str | None) -> Any:
    raise MCPError(INTERNAL_ERROR, "the service is starting")


def early_service(lists: list[Listed], read_policy: ReadPolicy = no_policy) -> Server[Any]:
    """Return a server with the handshake and the built-in tools of the service; it answers no call and no read.

    It adds the lists that it sends to `lists`, for the service to record.
    """
    reads: tuple[type[ToolHandler], ...] = (GetPrompt, ReadResource, Complete)
    beside = BesideTools(_starting, _starting, _starting, *map(_Definition, reads))
    server = build_server([_Definition(tool, read_policy) for tool in BUILTIN_TOOLS], beside=beside)

    async def noted(ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method == "tools/list":
            lists.append((ctx, ListToolsResult.model_validate(result, by_name=False)))
        return result

    server.instructions = introduced(BEING_LISTED)
    server.middleware.append(noted)
    return server
