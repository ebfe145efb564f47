"""The history of savings and use: its page, and all that other pages read of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from query.usage import report as reports
from query.usage.report import is_unrestricted, report_for
from query.usage.usage import days_of, today
from query.web.charts import Chart, chart
from query.web.page import Page, PageRequest
from shared.errors import HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from query.usage.report import SavingsReport, UsageRow

PERIODS = (7, 30, 90)
DEFAULT_PERIOD = PERIODS[1]
MOST_CALLERS = 20

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


def callers_of(server_id: str, request: PageRequest) -> Sequence[tuple[str, int]] | None:
    """Return the callers of a server with their calls, the most frequent first.

    None without a history or if it does not answer, and for a caller with a restriction.
    """
    usage = request.catalogue.usage
    if usage is None or not is_unrestricted(request.caller):
        return None
    counts: Counter[str] = Counter()
    first, last = days_of(f"{DEFAULT_PERIOD}d", today())
    try:
        for (caller, _, _), sums in usage.sums(first, last, ("calls",), servers=[server_id]).items():
            counts[caller] += sums["calls"]
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None
    return counts.most_common(MOST_CALLERS)


def use_of_tool(name: str, server_ids: Collection[str], request: PageRequest) -> tuple[UsageRow | None, int | None]:
    """Return the use of a tool on these servers and the mean duration of a call in ms; None where not known."""
    usage = request.catalogue.usage
    if usage is None:
        return None, None
    try:
        return reports.use_of_tool(request.caller, name, server_ids, f"{DEFAULT_PERIOD}d", usage)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None, None
