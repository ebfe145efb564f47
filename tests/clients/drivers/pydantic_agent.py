"""Pydantic AI: each call is a run of an agent, whose scripted model calls the tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from answering import Result, Session, answer
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield an agent with the toolset of a server."""
    toolset = MCPToolset(target["url"] if "url" in target else StdioTransport(**target))
    async with Agent(toolsets=[toolset]) as agent:

        async def list_tools() -> list[str]:
            return [tool.name for tool in await toolset.list_tools()]

        async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
            parts: list[Any] = []

            def model(messages: list[Any], _: Any) -> ModelResponse:
                parts[:] = [part for part in messages[-1].parts if getattr(part, "tool_name", None) == name]
                return ModelResponse([TextPart("done") if parts else ToolCallPart(name, arguments)])

            await agent.run("Call the tool.", model=FunctionModel(model))
            (part,) = parts
            return Result(part.model_response_str(wrap_if_error=False), part.outcome != "success")

        yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
