"""`call_tool`, as MCP clients see it; what it does is in `query.calling.call`."""

from __future__ import annotations

import json
import time
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
from query.history.recorder import call_event
from query.tools.schema import input_schema
from query.tools.tool import CATALOGUE_UNREACHABLE, ToolCallContext, ToolHandler, error_result
from shared.errors import ArgumentsInvalid, CallsExhausted, IndexUnavailable, ServerError, ToolNotFound
from shared.validation import first_problem

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.history.store import CallEvent
    from query.metrics import QueryMetrics

CALL_TOOL = Tool(
    name="call_tool",
    description="Call a tool that find_tool or describe_tool showed you, and return its result.",
    input_schema=input_schema(CallRequest),
    # of the tools behind it, any of which may be called
    annotations=ToolAnnotations(title="Call a tool", read_only_hint=False, destructive_hint=True, open_world_hint=True),
)

_log = structlog.get_logger()


def call_tool_handler(catalogue: Catalogue, upstreams: Upstreams) -> ToolHandler:
    """Return the tool that calls the tools of this catalogue."""

    async def handle(context: ToolCallContext) -> CallToolResult:
        try:
            request = CallRequest.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_problem(error))
        audit = _Audit(context.caller.name, request.name, catalogue.metrics)
        try:
            with audit:
                return await _outcome(request, context, audit)
        finally:
            if catalogue.recorder and audit.server:
                catalogue.recorder.record(audit.as_event(audit.server))

    async def _outcome(request: CallRequest, context: ToolCallContext, audit: _Audit) -> CallToolResult:
        try:
            resolved = await anyio.to_thread.run_sync(resolve_tool, request, context.caller.scope, catalogue)
            audit.set_tool(resolved)
            # to a caller that did not ask for progress, nothing is reported
            progress = ProgressRelay(context.mcp_context.session.report_progress)
            slot = context.exit_stack.enter_context(upstreams.admission.admitted(context.caller.name))
            result = await call_tool(
                request, resolved, upstreams, CallResources(progress, slot), context.mcp_context.meta
            )
        except ArgumentsInvalid as error:
            audit.outcome = type(error).__name__
            raise MCPError(INVALID_PARAMS, f"{audit.tool}: {error}", {"field": error.field}) from error
        except (ServerError, ToolNotFound, CallsExhausted, IndexUnavailable) as error:
            audit.outcome = type(error).__name__
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))
        audit.set_result(result)
        return _for_protocol(result, context.mcp_context.protocol_version)

    return ToolHandler(CALL_TOOL, "tools:call", handle)


@dataclass(slots=True)
class _Audit:
    """What becomes one log line, and is counted: who called which tool, and what came of it; never what was said."""

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
        """Note the tool that was meant."""
        self.server, self.tool = resolved.tool.server_id, resolved.tool.definition.name

    def as_event(self, server: str) -> CallEvent:
        """Return what the history keeps of the call."""
        return call_event(self.caller, server, self.tool, self.result_bytes, is_failed=self.outcome != "ok")

    def set_result(self, result: CallToolResult) -> None:
        """Note the tool's own result."""
        self.outcome = "tool_error" if result.is_error else "ok"
        self.result_bytes = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())


def _for_protocol(result: CallToolResult, protocol_version: str) -> CallToolResult:
    """Return a server's result as one that we may give in this revision of the protocol."""
    meta = {key: value for key, value in (result.meta or {}).items() if key != SERVER_INFO_META_KEY}
    update: dict[str, Any] = {"meta": meta or None}
    structured = result.structured_content
    if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and not isinstance(structured, dict | None):
        # only an object may be structured content there; the same is said as text
        text = TextContent(type="text", text=json.dumps(structured, ensure_ascii=False))
        update |= {"structured_content": None, "content": result.content or [text]}
    return result.model_copy(update=update)
