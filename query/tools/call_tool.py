"""The MCP tool `call_tool`; `query.calling.call` implements it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, SERVER_INFO_META_KEY, CallToolResult, TextContent, Tool, ToolAnnotations
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from query.calling.call import ResolvedTool, call_tool, resolve_tool
from query.calling.pool import CallResources
from query.calling.progress import ProgressRelay
from query.calling.request import CallRequest
from query.history.events import call_rows
from query.history.periods import today
from query.tools.schema import input_schema
from query.tools.tool import CATALOGUE_UNREACHABLE, ToolCallContext, ToolHandler, error_result
from shared.errors import ArgumentsInvalid, CallsExhausted, IndexUnavailable, ServerError, ToolNotFound
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.history.store import Row
    from query.metrics import QueryMetrics

CALL_TOOL = Tool(
    name="call_tool",
    description="Call a tool that find_tool or describe_tool showed you, and return its result.",
    input_schema=input_schema(CallRequest),
    # the hints describe the tools behind it
    annotations=ToolAnnotations(title="Call a tool", read_only_hint=False, destructive_hint=True, open_world_hint=True),
)

_log = structlog.get_logger()


class CallTool(ToolHandler):
    """Calls the tools of a catalogue on their servers."""

    tool = CALL_TOOL
    permission = "tools:call"

    def __init__(self, catalogue: Catalogue, upstreams: Upstreams) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the called tool's result; log, count and record the call."""
        try:
            request = CallRequest.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_invalid_argument(error))
        audit = _Audit(context.caller.name, request.name, self._catalogue.metrics)
        try:
            with audit:
                return await self._result(request, context, audit)
        finally:
            if self._catalogue.recorder and audit.server:
                self._catalogue.recorder.record(audit.rows(audit.server))

    async def _result(self, request: CallRequest, context: ToolCallContext, audit: _Audit) -> CallToolResult:
        mcp_context = context.mcp_context
        try:
            resolved = await anyio.to_thread.run_sync(resolve_tool, request, context.caller.scope, self._catalogue)
            audit.set_tool(resolved)
            # the session drops reports to a caller that did not ask for progress
            progress = ProgressRelay(mcp_context.session.report_progress)
            slot = context.exit_stack.enter_context(self._upstreams.admission.admitted(context.caller.name))
            resources = CallResources(progress, slot)
            result = await call_tool(request, resolved, self._upstreams, resources, mcp_context.meta)
        except ArgumentsInvalid as error:
            audit.outcome = type(error).__name__
            raise MCPError(INVALID_PARAMS, f"{audit.tool}: {error}", {"field": error.field}) from error
        except (ServerError, ToolNotFound, CallsExhausted, IndexUnavailable) as error:
            audit.outcome = type(error).__name__
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))
        audit.set_result(result)
        return _for_protocol(result, mcp_context.protocol_version)


@dataclass(slots=True)
class _Audit:
    """The log line and metrics of one call: caller, tool and outcome, never arguments or content."""

    caller: str
    tool: str
    metrics: QueryMetrics
    server: str | None = None
    outcome: str = "cancelled"
    result_bytes: int = 0
    _started_s: float = field(default_factory=time.perf_counter)

    def __enter__(self) -> _Audit:
        return self

    def __exit__(self, *_: object) -> None:
        took_s = time.perf_counter() - self._started_s
        self.metrics.count_call(self.outcome, took_s)
        _log.info(
            "tool_called",
            caller=self.caller,
            server=self.server,
            tool=self.tool,
            outcome=self.outcome,
            took_ms=round(took_s * 1e3, 2),
            result_bytes=self.result_bytes,
        )

    def set_tool(self, resolved: ResolvedTool) -> None:
        """Record the tool that the request names."""
        self.server, self.tool = resolved.tool.server_id, resolved.tool.definition.name

    def rows(self, server: str) -> Iterator[Row]:
        """Return the call as a row of the history."""
        is_failed = self.outcome != "ok"
        return call_rows(today(), self.caller, server, self.tool, self.result_bytes, is_failed=is_failed)

    def set_result(self, result: CallToolResult) -> None:
        """Record the tool's own result."""
        self.outcome = "tool_error" if result.is_error else "ok"
        self.result_bytes = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())


def _for_protocol(result: CallToolResult, protocol_version: str) -> CallToolResult:
    """Return a server's result in the form that this revision of the protocol allows."""
    meta = {key: value for key, value in (result.meta or {}).items() if key != SERVER_INFO_META_KEY}
    update: dict[str, Any] = {"meta": meta or None}
    structured = result.structured_content
    if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and not isinstance(structured, dict | None):
        # these revisions allow only objects as structured content; the text repeats it
        text = TextContent(type="text", text=json.dumps(structured, ensure_ascii=False))
        update |= {"structured_content": None, "content": result.content or [text]}
    return result.model_copy(update=update)
