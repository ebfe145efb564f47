"""`get_savings_report`, as MCP clients see it; what it says is made in `query.history.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import structlog
from mcp.types import Tool, ToolAnnotations
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from query.caller import Caller
from query.history.contract import RowKey, Rows
from query.history.periods import days_of, today
from query.history.report import report
from query.schema import input_schema
from query.tools.offer import Offer, answering
from shared.catalog import IndexedTool, Scope, point_id

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.history.recorder import Recorder


def _known(period: str) -> str:
    days_of(period, today())
    return period


class SavingsRequest(BaseModel):
    """Which days are asked about."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    period: Annotated[str, Field(max_length=20), AfterValidator(_known)] = "today"
    """today, a number of days (7d), or a date; UTC."""


# Without an output schema: it would cost every session more than the report that few of them ask for.
GET_SAVINGS_REPORT = Tool(
    name="get_savings_report",
    description="Report the tokens that find_tool saved, by day, server and tool, and net of what finding costs.",
    input_schema=input_schema(SavingsRequest),
    annotations=ToolAnnotations(
        title="Report savings", read_only_hint=True, idempotent_hint=True, open_world_hint=False
    ),
)

_log = structlog.get_logger()


def get_savings_report_offer(catalogue: Catalogue, recorder: Recorder) -> Offer:
    """Return the tool that reports what this service saved.

    A caller of all groups and no toolset sees what all callers saved; any other its own searches, and the
    names of tools that it may see now.
    """

    def respond(request: SavingsRequest, caller: Caller) -> dict[str, Any]:
        first, last = days_of(request.period, today())
        rows = recorder.history.rows(first, last)
        _log.info("savings_reported", days=(last - first).days + 1)
        if caller.groups is None and caller.toolset is None:
            return report(rows, first, last).as_object()
        own = {key: counters for key, counters in rows.items() if key.caller == caller.name}
        visible = _visible(own, caller.scope, catalogue)
        return report(own, first, last, lambda key: (key.server, key.tool) in visible).as_object()

    return Offer(GET_SAVINGS_REPORT, "catalog:read", answering(SavingsRequest, respond))


def _visible(rows: Rows, scope: Scope, catalogue: Catalogue) -> set[tuple[str, str]]:
    tools = sorted({(key.server, key.tool) for key in rows if _is_tool(key)})
    ids = {point_id(server, tool): (server, tool) for server, tool in tools}
    held = catalogue.pinned().index.fetch(list(ids))
    return {ids[point] for point, tool in held.items() if _admits(scope, tool)}


def _admits(scope: Scope, tool: IndexedTool) -> bool:
    """Return whether the caller may know this tool, running or not."""
    is_in_groups = scope.groups is None or not scope.groups.isdisjoint(tool.groups)
    return is_in_groups and (scope.within is None or scope.within.admits(tool.server_id, tool.definition.name))


def _is_tool(key: RowKey) -> bool:
    return bool(key.tool)
