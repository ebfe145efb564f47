from __future__ import annotations

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent, Tool

from query.caller import PERMISSIONS, Caller, Permission
from query.mcp import build_server
from query.tool import ToolCallContext, ToolHandler

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Done(ToolHandler):
    """A tool whose result names itself and its caller."""

    def __init__(self, name: str, permission: Permission) -> None:
        self.tool = Tool(name=name, input_schema={"type": "object"})
        self.permission = permission

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return both names."""
        done = {"done": self.tool.name, "for": context.caller.name}
        return CallToolResult(content=[], structured_content=done)


def client_of(caller: Caller, mode: str) -> Client:
    tools = [Done("read", "catalog:read"), Done("act", "tools:call")]
    return Client(build_server(tools, lambda _: caller), mode=mode)


@both_eras
async def test_a_tool_that_a_caller_may_not_use_is_neither_listed_nor_run(mode: str) -> None:
    async with client_of(Caller("ann", permissions=frozenset({"catalog:read"})), mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        refused = await client.call_tool("act", {})
        answered = await client.call_tool("read", {})

    (said,) = refused.content
    assert listed == ["read"]
    assert refused.is_error
    assert isinstance(said, TextContent)
    assert "tools:call" in said.text
    assert answered.structured_content == {"done": "read", "for": "ann"}


@both_eras
async def test_a_caller_with_every_permission_may_use_every_tool(mode: str) -> None:
    async with client_of(Caller("ann", permissions=PERMISSIONS), mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        answered = await client.call_tool("act", {})

    assert listed == ["read", "act"]
    assert answered.structured_content == {"done": "act", "for": "ann"}
