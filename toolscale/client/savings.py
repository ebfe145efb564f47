"""`toolscale savings`: the report from the stored usage; a running service may write to it at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import typer
from rich.console import Group
from rich.table import Table

from query.usage.report import OwnUse, SavingsReport, UsageRow, report
from query.usage.usage import days_of, open_usage, today
from shared.quoting import printable
from shared.settings import Settings
from toolscale.console import number_table


def savings(settings: Settings, period: str) -> SavingsReport:
    """Return the report of all callers.

    Raises:
        HistoryUnavailable: the store does not answer.
    """
    try:
        first, last = days_of(period, today())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="period") from error
    with closing(open_usage(settings)) as usage:
        return report(usage.rows(first, last), first, last, sizes=usage.sizes(first, last))


def view(report: SavingsReport) -> Group:
    """Return the report as tables, without empty ones."""
    tables = (
        _days(report),
        _catalogue(report),
        _own_tools(report.own_tools),
        _used("server", report.by_server),
        _used("tool", report.by_tool),
    )
    filled = [part for table in tables if table.row_count for part in ("", table)]
    return Group(_totals(report), "", report.advice, *filled)


def _totals(report: SavingsReport) -> Table:
    totals = report.totals
    shown = number_table(f"{report.first_day} to {report.last_day}, UTC", "")
    for name, value in (
        (f"net tokens saved, {report.profile} profile", totals.net_tokens_saved),
        ("  contexts", totals.contexts),
        ("  tokens of all tools in them", totals.baseline_tokens),
        ("  less tokens of lists", totals.listed_tokens),
        ("  less tokens of answers", totals.answer_tokens),
        ("gross, as answers state, wire form", totals.tokens_saved),
        ("searches", totals.searches),
        ("  that found nothing", totals.found_nothing),
    ):
        shown.add_row(name, f"{value:,}")
    return shown


def _days(report: SavingsReport) -> Table:
    shown = number_table("day", "net tokens saved", "gross", "searches")
    for day in report.by_day:
        shown.add_row(str(day.day), f"{day.net_tokens_saved:,}", f"{day.tokens_saved:,}", f"{day.searches:,}")
    return shown


def _catalogue(report: SavingsReport) -> Table:
    shown = number_table("day", "servers", "tools", "tokens of all tools")
    for day in report.catalogue:
        shown.add_row(str(day.day), f"{day.servers:,}", f"{day.tools:,}", f"{day.tokens:,}")
    return shown


def _own_tools(used: Sequence[OwnUse]) -> Table:
    shown = number_table("our tool", "answers", "tokens", "text bytes")
    for tool in used:
        shown.add_row(tool.name, f"{tool.answers:,}", f"{tool.tokens:,}", f"{tool.bytes:,}")
    return shown


def _used(of: str, used: Sequence[UsageRow]) -> Table:
    shown = number_table(of, "in answers", "calls", "failed", "result bytes")
    for row in used:
        numbers = (row.shown, row.calls, row.failed_calls, row.result_bytes)
        shown.add_row(printable(row.name), *(f"{number:,}" for number in numbers))
    return shown
