"""The history of savings and use, and its report for other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from query.usage.report import report_for
from query.web.charts import Chart, chart
from query.web.page import Page, PageRequest
from shared.errors import HistoryUnavailable

if TYPE_CHECKING:
    from query.usage.report import SavingsReport

PERIODS = (7, 30, 90)
DEFAULT_PERIOD = PERIODS[1]

_log = structlog.get_logger()


def history(request: PageRequest) -> Page:
    """Return savings, calls and the context's cost by day, and usage by server and tool."""
    requested = request.query.get("days", "")
    days = int(requested) if requested in map(str, PERIODS) else DEFAULT_PERIOD
    report = savings_report(request, days)
    server_ids = {record.server_id for record in request.catalogue.ledger.known(request.caller.scope)}
    return Page(
        "history.html",
        {"report": report, "days": days, "periods": PERIODS, "known": server_ids} | savings_charts(report),
    )


def savings_report(request: PageRequest, days: int) -> SavingsReport | None:
    """Return the report, None without a history or if it does not answer; the page shows the rest."""
    usage = request.catalogue.usage
    if usage is None:
        return None
    try:
        return report_for(request.caller, f"{days}d", usage, request.catalogue.pinned().index)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None


def savings_charts(report: SavingsReport | None) -> dict[str, Chart | None]:
    """Return the charts of a report; None without a report."""
    if report is None:
        return {"saved_chart": None, "context_chart": None}
    saved = {day.day: day.net_tokens_saved for day in report.by_day}
    held = {day.day: day.tokens for day in report.catalogue}
    return {
        "saved_chart": chart(saved, report.first_day, report.last_day, missing=0),
        # a caller with groups or a toolset gets no size of the catalogue
        "context_chart": chart(held, report.first_day, report.last_day, missing=None) if held else None,
    }


def known_days(report: SavingsReport) -> int:
    """Return the number of days since the first one with figures, today included; 0 without any."""
    days = [*(row.day for row in report.by_day), *(row.day for row in report.catalogue)]
    return (report.last_day - min(days)).days + 1 if days else 0
