"""The requests that a connection sends: calls of tools, and reads of resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mcp import Client, MCPError
from mcp_types import (
    HEADER_MISMATCH,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParamsMeta,
)
from pydantic import BaseModel, TypeAdapter
from typing_extensions import override

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

ToolResult = CallToolResult | InputRequiredResult
ReadResult = ReadResourceResult | InputRequiredResult
ResultT = TypeVar("ResultT", bound=BaseModel)

_TOOL_RESULT: TypeAdapter[ToolResult] = TypeAdapter(ToolResult)
_READ_RESULT: TypeAdapter[ReadResult] = TypeAdapter(ReadResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest(ABC, Generic[ResultT]):
    """A request to one server; `protocol_version` is the server's at its last listing.

    `meta` is the request metadata that is forwarded to the server.
    """

    server_id: str
    protocol_version: str | None
    meta: RequestParamsMeta | None

    @abstractmethod
    async def send(self, client: Client, on_progress: ProgressFnT) -> ResultT:
        """Send the request, and return its result.

        Raises:
            MCPError: the server returned an error, or the connection broke.
            ValidationError: the result is invalid.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(UpstreamRequest[ToolResult]):
    """One call of a tool."""

    tool: str
    arguments: dict[str, Any]

    @override
    async def send(self, client: Client, on_progress: ProgressFnT) -> ToolResult:
        try:
            return await self._send_once(client, on_progress)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # the server requires parameters in headers; the SDK sends those only for tools that it has listed
        await _list(client, self.tool)
        return await self._send_once(client, on_progress)

    async def _send_once(self, client: Client, on_progress: ProgressFnT) -> ToolResult:
        # not Client.call_tool, which lists all tools first and refuses a result that its output schema does not allow
        params = CallToolRequestParams(name=self.tool, arguments=self.arguments, _meta=self.meta)
        request = CallToolRequest(params=params)
        return await client.session.send_request(request, _TOOL_RESULT, progress_callback=on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRead(UpstreamRequest[ReadResult]):
    """One read of a resource, by its server's own URI."""

    uri: str

    @override
    async def send(self, client: Client, on_progress: ProgressFnT) -> ReadResult:
        # not Client.read_resource, which asks this process for the input that a server requires
        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=self.uri, _meta=self.meta))
        return await client.session.send_request(request, _READ_RESULT, progress_callback=on_progress)


async def _list(client: Client, tool: str) -> None:
    cursor: str | None = None
    while True:  # the call's deadline ends a list that does not
        page = await client.list_tools(cursor=cursor)
        cursor = page.next_cursor
        if not cursor or any(listed.name == tool for listed in page.tools):
            return
