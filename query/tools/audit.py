"""The log line, the count and the usage of a request to a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from mcp.types import CallToolResult
from pydantic import BaseModel

from query.metrics import CALLS
from query.usage.last_calls import LastCall
from query.usage.record import call_rows
from query.usage.usage import today
from shared.errors import (
    ArgumentsInvalid,
    CallDenied,
    CallNotConfirmed,
    CallsExhausted,
    ClientNotAsked,
    InputRequired,
    ResourceNotFound,
    ServerError,
    StateInvalid,
    ToolExcluded,
    ToolNotFound,
    ToolscaleError,
)

if TYPE_CHECKING:
    from query.calling.call import ResolvedTool
    from query.policy import Action
    from query.usage.usage import Row

# The outcomes of calls that Toolscale ended itself.
_ENDED_HERE = frozenset(
    error.__name__
    for error in (
        ArgumentsInvalid,
        CallsExhausted,
        CallDenied,
        ToolExcluded,
        CallNotConfirmed,
        ClientNotAsked,
        InputRequired,
        StateInvalid,
    )
)

# The errors of a request, or of the policy: nobody needs to repair a server.
_REFUSALS = (
    ArgumentsInvalid,
    ToolNotFound,
    ToolExcluded,
    ResourceNotFound,
    CallNotConfirmed,
    ClientNotAsked,
    InputRequired,
    StateInvalid,
)

_log = structlog.get_logger()


@dataclass(slots=True)
class CallAudit:
    """The log line and the count of one call or read: caller, tool, the policy's action and outcome.

    Neither has arguments, URIs or content.

    An error of Toolscale that leaves the block is the outcome; the server is then the replica that it is about.
    """

    caller: str
    tool: str
    server: str | None = None
    policy: Action = "allow"
    outcome: str = "cancelled"
    result_bytes: int = 0
    took_ms: int = 0
    has_asked: bool = False
    """The server asked in mid-call for what the caller's client cannot give, and the call failed."""
    _started_s: float = field(default_factory=time.perf_counter)

    def __enter__(self) -> CallAudit:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        counted = self.outcome
        if isinstance(error, ToolscaleError):
            self.outcome = type(error).__name__
            counted = "refused" if isinstance(error, _REFUSALS) else "failed"
        CALLS.labels(counted).inc()
        if isinstance(error, CallDenied | ToolExcluded):
            self.server, self.tool, self.policy = error.server_id, error.tool, "deny"
        if self.server and isinstance(error, ServerError):
            self.server = error.server_id
        took_s = time.perf_counter() - self._started_s
        self.took_ms = round(took_s * 1e3)
        _log.info(
            "tool_called",
            caller=self.caller,
            server=self.server,
            tool=self.tool,
            policy=self.policy,
            outcome=self.outcome,
            took_ms=round(took_s * 1e3, 2),
            result_bytes=self.result_bytes,
        )

    def set_tool(self, resolved: ResolvedTool) -> None:
        """Record the tool that the request names, and the policy's action."""
        self.server, self.tool = resolved.replicas[0].server_id, resolved.tool.definition.name
        self.policy = resolved.action

    def on_failover(self, error: ServerError) -> None:
        """Log that another replica is tried after this error. Safe to call from any thread."""
        _log.warning(
            "call_failed_over", caller=self.caller, server=error.server_id, tool=self.tool, reason=error.reason
        )

    def rows(self) -> Iterator[Row]:
        """Yield the call as a row of usage; one that Toolscale ended itself has none."""
        if self.server and self.outcome not in _ENDED_HERE:
            is_failed = self.outcome != "ok"
            call = self.caller, self.server, self.tool, self.result_bytes, self.took_ms
            yield from call_rows(today(), *call, is_failed=is_failed)

    def entry(self) -> LastCall:
        """Return the call for the page."""
        return LastCall(time.time(), self.caller, self.server, self.tool, self.outcome, self.took_ms)

    def set_result(self, result: BaseModel, server_id: str) -> None:
        """Record a server's own result."""
        self.server = server_id
        self.outcome = "tool_error" if isinstance(result, CallToolResult) and result.is_error else "ok"
        self.result_bytes = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())
