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

from query.calling.call import Callee, call_tool, callee
from query.calling.pool import CallerSide
from query.calling.progress import ProgressRelay
from query.calling.request import CallRequest
from query.history.recorder import called
from query.tools.schema import input_schema
from query.tools.tool import CATALOGUE_UNREACHABLE, Asked, Offer, first_problem, refusal
from shared.errors import ArgumentsInvalid, CallsExhausted, IndexUnavailable, ServerError, ToolNotFound

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.history.store import Called
    from query.metrics import QueryMetrics

CALL_TOOL = Tool(
    name="call_tool",
    description="Call a tool that find_tool or describe_tool showed you, and return its result.",
    input_schema=input_schema(CallRequest),
    # of the tools behind it, any of which may be called
    annotations=ToolAnnotations(title="Call a tool", read_only_hint=False, destructive_hint=True, open_world_hint=True),
)

_log = structlog.get_logger()


def call_tool_offer(catalogue: Catalogue, upstreams: Upstreams) -> Offer:
    """Return the tool that calls the tools of this catalogue."""

    async def answer(asked: Asked) -> CallToolResult:
        try:
            request = CallRequest.model_validate(asked.arguments)
        except ValidationError as error:
            return refusal(first_problem(error))
        audit = _Audit(asked.caller.name, request.name, catalogue.metrics)
        try:
            with audit:
                return await _outcome(request, asked, audit)
        finally:
            if catalogue.savings and audit.server:
                catalogue.savings.note(audit.as_note(audit.server))

    async def _outcome(request: CallRequest, asked: Asked, audit: _Audit) -> CallToolResult:
        try:
            of = await anyio.to_thread.run_sync(callee, request, asked.caller.scope, catalogue)
            audit.names(of)
            # to a caller that did not ask for progress, nothing is reported
            progress = ProgressRelay(asked.context.session.report_progress)
            turn = asked.until_answered.enter_context(upstreams.admission.admitted(asked.caller.name))
            result = await call_tool(request, of, upstreams, CallerSide(progress, turn), asked.context.meta)
        except ArgumentsInvalid as error:
            audit.outcome = type(error).__name__
            raise MCPError(INVALID_PARAMS, f"{audit.tool}: {error}", {"field": error.field}) from error
        except (ServerError, ToolNotFound, CallsExhausted, IndexUnavailable) as error:
            audit.outcome = type(error).__name__
            return refusal(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))
        audit.got(result)
        return _as_ours(result, asked.context.protocol_version)

    return Offer(CALL_TOOL, "tools:call", answer)


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
        self.metrics.called(self.outcome, took_s)
        _log.info(
            "tool_called",
            caller=self.caller,
            server=self.server,
            tool=self.tool,
            outcome=self.outcome,
            took_ms=round(took_s * 1e3, 2),
            result_bytes=self.result_bytes,
        )

    def names(self, of: Callee) -> None:
        """Note the tool that was meant."""
        self.server, self.tool = of.tool.server_id, of.tool.definition.name

    def as_note(self, server: str) -> Called:
        """Return what the history keeps of the call."""
        return called(self.caller, server, self.tool, self.result_bytes, is_failed=self.outcome != "ok")

    def got(self, result: CallToolResult) -> None:
        """Note the tool's own result."""
        self.outcome = "tool_error" if result.is_error else "ok"
        self.result_bytes = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())


def _as_ours(result: CallToolResult, protocol_version: str) -> CallToolResult:
    """Return a server's result as one that we may give in this revision of the protocol."""
    meta = {key: value for key, value in (result.meta or {}).items() if key != SERVER_INFO_META_KEY}
    given: dict[str, Any] = {"meta": meta or None}
    structured = result.structured_content
    if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and not isinstance(structured, dict | None):
        # only an object may be structured content there; the same is said as text
        text = TextContent(type="text", text=json.dumps(structured, ensure_ascii=False))
        given |= {"structured_content": None, "content": result.content or [text]}
    return result.model_copy(update=given)
