"""The MCP tool `get_savings_report`; `query.usage.report` computes the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import structlog
from mcp.types import Tool, ToolAnnotations
from pydantic import AfterValidator, Field

from query.answers.budget import ToolRequest
from query.caller import Caller
from query.tool import CatalogueTool, input_schema
from query.usage.report import report_for
from query.usage.usage import days_of, today

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.usage.usage import Usage


def _known(period: str) -> str:
    days_of(period, today())
    return period


class SavingsRequest(ToolRequest):
    """The days of the report."""

    period: Annotated[str, Field(max_length=20), AfterValidator(_known)] = "today"
    """today, a number of days (7d), or a date; UTC."""


# No output schema: it would cost every session more tokens than the report, which few sessions request.
GET_SAVINGS_REPORT = Tool(
    name="get_savings_report",
    description="Report the net tokens saved by day, and the use of servers and tools.",
    input_schema=input_schema(SavingsRequest),
    annotations=ToolAnnotations(
        title="Report savings", read_only_hint=True, idempotent_hint=True, open_world_hint=False
    ),
)

_log = structlog.get_logger()


class GetSavingsReport(CatalogueTool[SavingsRequest]):
    """Reports the savings that its caller may see."""

    tool = GET_SAVINGS_REPORT
    request_model = SavingsRequest

    def __init__(self, catalogue: Catalogue, usage: Usage) -> None:
        self._catalogue = catalogue
        self._usage = usage

    def respond(self, request: SavingsRequest, caller: Caller) -> dict[str, Any]:
        """Return the report; log its days."""
        scope, index = self._catalogue.scope(caller), self._catalogue.pinned().index
        report = report_for(caller, scope, request.period, self._usage, index)
        _log.info("savings_reported", days=(report.last_day - report.first_day).days + 1)
        return report.as_answer()
