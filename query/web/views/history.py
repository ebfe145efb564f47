"""The history of savings and use, and its report for other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from query.reports.access import is_unrestricted, report_for
from query.reports.hours import Hours, hours_of
from query.web.charts import Chart, chart, hour_chart
from query.web.page import Page, PageRequest
from shared.errors import HistoryUnavailable

if TYPE_CHECKING:
    from query.history.store import SavingsHistory
    from query.reports.savings import SavingsReport

PERIODS = (7, 30, 90)
DEFAULT_PERIOD = PERIODS[1]
# Charts of a shorter history have hours in place of days.
FEW_DAYS = 3

_log = structlog.get_logger()


def history(request: PageRequest) -> Page:
    """Return savings, calls and the context's cost by day or hour, and usage by server and tool."""
    requested = request.query.get("days", "")
    days = int(requested) if requested in map(str, PERIODS) else DEFAULT_PERIOD
    report = savings_report(request, days)
    server_ids = {record.server_id for record in request.catalogue.ledger.known(request.caller.scope)}
    return Page(
        "history.html",
        {"report": report, "days": days, "periods": PERIODS, "known": server_ids} | savings_charts(request, report),
    )


def savings_report(request: PageRequest, days: int) -> SavingsReport | None:
    """Return the report, None without a history or if it does not answer; the page shows the rest."""
    if request.catalogue.recorder is None:
        return None
    try:
        return report_for(request.caller, f"{days}d", request.catalogue, request.catalogue.recorder.history)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None


def savings_charts(request: PageRequest, report: SavingsReport | None) -> dict[str, Chart | None]:
    """Return the charts of a report: of a short history by hour, else by day; None without a report."""
    if report is None:
        return {"saved_chart": None, "context_chart": None}
    saved = {day.day: day.net_tokens_saved for day in report.by_day}
    held = {day.day: day.tokens for day in report.catalogue}
    by_day: dict[str, Chart | None] = {
        "saved_chart": chart(saved, report.first_day, report.last_day, missing=0),
        "context_chart": chart(held, report.first_day, report.last_day, missing=None),
    }
    return by_day | _charts_by_hour(request, report)


def _charts_by_hour(request: PageRequest, report: SavingsReport) -> dict[str, Chart]:
    """Return the charts of fewer than FEW_DAYS days that have hours; a caller with groups has those of its own use."""
    history = request.catalogue.recorder and request.catalogue.recorder.hours
    if not history or known_days(report) >= FEW_DAYS:
        return {}
    net, context = _hours(history, None if is_unrestricted(request.caller) else request.caller.name)
    first = min({*net, *context}, default=None)
    if first is None:
        return {}
    by_hour = {"saved_chart": hour_chart(net, first, missing=0)}
    return by_hour | ({"context_chart": hour_chart(context, first, missing=None)} if context else {})


def _hours(history: SavingsHistory, caller: str | None) -> Hours:
    try:
        return hours_of(history, caller)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return Hours({}, {})


def known_days(report: SavingsReport) -> int:
    """Return the number of days since the first one with figures, today included; 0 without any."""
    days = [row.day for row in (*report.by_day, *report.catalogue)]
    return (report.last_day - min(days)).days + 1 if days else 0
