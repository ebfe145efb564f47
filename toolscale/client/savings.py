"""`toolscale savings`: what was saved, as the history knows it, so while a service writes to it too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import typer
from rich.console import Group
from rich.table import Table

from query.history import open_history
from query.history.periods import days_of, today
from query.reports.savings import Report, Used, report
from shared.settings import Settings
from toolscale.console import count, figures, plain


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
    """Return the report for people, without the tables that would be empty."""
    tables = (_days(found), _catalogue(found), _servers(found.by_server), _tools(found.by_tool))
    filled = [part for table in tables if table.row_count for part in ("", table)]
    return Group(_totals(found), "", found.advice, *filled)


def _totals(found: Report) -> Table:
    totals, net = found.totals, found.net
    shown = figures(f"{found.first_day} to {found.last_day}, UTC", "")
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
    shown = figures("day", "searches", "tokens saved")
    for day in found.by_day:
        shown.add_row(str(day.day), f"{day.searches:,}", f"{day.tokens_saved:,}")
    return shown


def _catalogue(found: Report) -> Table:
    shown = figures("day", "servers", "tools", "tokens of all tools")
    for day in found.catalogue:
        shown.add_row(str(day.day), f"{day.servers:,}", f"{day.tools:,}", f"{day.tokens:,}")
    return shown


def _servers(used: Sequence[Used]) -> Table:
    shown = figures("server", "tokens saved", *_USES)
    for each in used:
        shown.add_row(plain(each.name), count(each.tokens_saved), *_uses(each))
    return shown


def _tools(used: Sequence[Used]) -> Table:
    shown = figures("tool", *_USES)
    for each in used:
        shown.add_row(plain(each.name), *_uses(each))
    return shown


_USES = ("answers", "tokens defined", "tokens shown", "calls", "failed", "result bytes")


def _uses(of: Used) -> list[str]:
    numbers = (of.answers, of.definition_tokens, of.returned_tokens, of.calls, of.failed_calls, of.response_bytes)
    return [f"{number:,}" for number in numbers]
