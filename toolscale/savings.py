"""`toolscale savings`: what was saved, as the history knows it, so while a service writes to it too."""

from __future__ import annotations

from contextlib import closing

import typer
from rich.console import Group
from rich.table import Table

from query.history import open_history
from query.history.periods import days_of, today
from query.history.report import Report, Used, report
from shared.settings import Settings
from toolscale.console import plain


def savings(settings: Settings, period: str) -> Report:
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


def view(found: Report) -> Group:
    """Return the report for people."""
    return Group(_totals(found), "", found.advice, "", _days(found), "", _catalogue(found), "",
                 _names("server", found.by_server), "", _names("tool", found.by_tool))  # fmt: skip


def _totals(found: Report) -> Table:
    totals, net = found.totals, found.net
    shown = Table(f"{found.first_day} to {found.last_day}", "", box=None, header_style="bold")
    for name, value in (
        ("searches", totals.searches),
        ("  that found nothing", totals.found_nothing),
        ("  that repeated the one before", totals.repeat_searches),
        ("tokens saved, as answers said", totals.tokens_saved),
        ("net, each search a session", net.if_each_search_is_a_session),
        ("net, one session a caller and day", net.if_callers_have_one_session_a_day),
        ("our own definitions, a session", net.own_definitions_tokens),
    ):
        shown.add_row(name, f"{value:,}")
    return shown


def _days(found: Report) -> Table:
    shown = Table("day", "searches", "tokens saved", box=None, header_style="bold")
    for day in found.by_day:
        shown.add_row(str(day.day), f"{day.searches:,}", f"{day.tokens_saved:,}")
    return shown


def _catalogue(found: Report) -> Table:
    shown = Table("day", "servers", "tools", "tokens of all tools", box=None, header_style="bold")
    for day in found.catalogue:
        shown.add_row(str(day.day), f"{day.servers:,}", f"{day.tools:,}", f"{day.tokens:,}")
    return shown


def _names(of: str, used: list[Used]) -> Table:
    columns = ("answers", "definition tokens", "calls", "failed", "bytes of results")
    shown = Table(of, *columns, box=None, header_style="bold")
    for each in used:
        numbers = (each.answers, each.definition_tokens, each.calls, each.failed_calls, each.response_bytes)
        shown.add_row(plain(each.name), *(f"{number:,}" for number in numbers))
    return shown
