"""`toolscale savings`: the report from the history; a running service may write to it at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import typer
from rich.console import Group
from rich.table import Table

from query.history import open_history
from query.history.periods import days_of, today
from query.reports.savings import SavingsReport, UsageRow, report
from shared.settings import Settings
from shared.text.display import printable
from toolscale.console import number_table, thousands


def savings(settings: Settings, period: str) -> SavingsReport:
    """Return the report of all callers.

    Raises:
        HistoryUnavailable: the store does not answer.
    """
    try:
        first, last = days_of(period, today())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="period") from error
    with closing(open_history(settings)) as history:
        return report(history.rows(first, last), first, last, sizes=history.sizes(first, last))


def view(report: SavingsReport) -> Group:
    """Return the report as tables, without empty ones."""
    tables = (_days(report), _catalogue(report), _servers(report.by_server), _tools(report.by_tool))
    filled = [part for table in tables if table.row_count for part in ("", table)]
    return Group(_totals(report), "", report.advice, *filled)


def _totals(report: SavingsReport) -> Table:
    totals, net = report.totals, report.net
    shown = number_table(f"{report.first_day} to {report.last_day}, UTC", "")
    for name, value in (
        ("searches", totals.searches),
        ("  that found nothing", totals.found_nothing),
        ("  that repeated the one before", totals.repeat_searches),
        ("tokens saved, as in the answers", totals.tokens_saved),
        ("net, each search a session", net.if_each_search_is_a_session),
        ("net, one session a caller and day", net.if_callers_have_one_session_a_day),
        ("our own definitions, a session", net.own_definitions_tokens),
    ):
        shown.add_row(name, f"{value:,}")
    return shown


def _days(report: SavingsReport) -> Table:
    shown = number_table("day", "searches", "tokens saved")
    for day in report.by_day:
        shown.add_row(str(day.day), f"{day.searches:,}", f"{day.tokens_saved:,}")
    return shown


def _catalogue(report: SavingsReport) -> Table:
    shown = number_table("day", "servers", "tools", "tokens of all tools")
    for day in report.catalogue:
        shown.add_row(str(day.day), f"{day.servers:,}", f"{day.tools:,}", f"{day.tokens:,}")
    return shown


def _servers(used: Sequence[UsageRow]) -> Table:
    shown = number_table("server", "tokens saved", *_USES)
    for server in used:
        shown.add_row(printable(server.name), thousands(server.tokens_saved), *_uses(server))
    return shown


def _tools(used: Sequence[UsageRow]) -> Table:
    shown = number_table("tool", *_USES)
    for tool in used:
        shown.add_row(printable(tool.name), *_uses(tool))
    return shown


_USES = ("answers", "tokens defined", "tokens shown", "calls", "failed", "result bytes")


def _uses(used: UsageRow) -> list[str]:
    numbers = (
        used.answers,
        used.definition_tokens,
        used.returned_tokens,
        used.calls,
        used.failed_calls,
        used.response_bytes,
    )
    return [f"{number:,}" for number in numbers]
