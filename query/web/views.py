"""What each page shows: read through the same functions as the answers of the tools, so within the same scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from query.find import find_tool
from query.history.periods import today
from query.reports.access import report_for, sizes_for
from query.response.summary import first_sentence
from query.savings.savings import context
from query.search.request import FindRequest
from query.tools.listing import tools_of
from query.tools.tool import first_problem
from query.web.charts import Chart, chart
from query.web.page import Shown, Visit, notice
from query.web.servers import ServerRow, Servers, servers_for
from shared.errors import BudgetTooSmall, CursorInvalid, CursorsUnavailable, HistoryUnavailable

if TYPE_CHECKING:
    from query.reports.savings import Report
    from shared.catalog import Encoding, IndexedTool

ROWS = 100
LARGEST = 8
FOUND = 10
OVERVIEW_DAYS = 14
PERIODS = (7, 30, 90)

_log = structlog.get_logger()


def overview(visit: Visit) -> Shown:
    """Return what there is, what it costs, and what was saved lately."""
    servers = servers_for(visit.caller, visit.catalogue)
    report = _report(visit, OVERVIEW_DAYS)
    largest = sorted(servers.rows, key=_by_tokens)[:LARGEST]
    values = {"servers": servers, "largest": [row for row in largest if row.tokens], "report": report}
    attention = [row for row in servers.rows if row.needs_attention][:LARGEST]
    return Shown("overview.html", values | _charts(report) | {"attention": attention, "today": _today(report)})


def servers(visit: Visit) -> Shown:
    """Return all servers, the most expensive first or as they were asked to be sorted."""
    found = servers_for(visit.caller, visit.catalogue)
    asked = visit.query.get("sort", "")
    sort = asked if asked in _SORTED else "tokens"
    rows, pages = _page(sorted(found.rows, key=_SORTED[sort]), visit)
    return Shown("servers.html", {"servers": found, "rows": rows, "sort": sort, **pages})


def server(visit: Visit) -> Shown:
    """Return one server with its tools, the most expensive first."""
    catalogue, found = visit.catalogue, servers_for(visit.caller, visit.catalogue)
    row = found.row(visit.path["server_id"])
    if row is None:
        return notice(404, "No such server", "There is no server of this name that you may see.")
    of_server = replace(visit.caller.scope, servers=frozenset({row.record.server_id}), status=row.record.status)
    tools = sorted(tools_of(of_server, catalogue), key=lambda tool: _by_cost(tool, found))
    shown, pages = _page(tools, visit)
    rows = [_tool_row(tool, found.encoding, row.tokens) for tool in shown]
    sizes = _sizes_chart(visit, row)
    return Shown("server.html", {"row": row, "tools": rows, "servers": found, "sizes": sizes, **pages})


def find(visit: Visit) -> Shown:
    """Return what `find_tool` answers to the question, with its scores and metrics; it counts as nobody's search."""
    question = visit.query.get("q", "").strip()
    values: dict[str, Any] = {"question": question, "answer": None, "problem": None}
    if not question:
        return Shown("find.html", values)
    try:
        cursor = visit.query.get("cursor")
        request = FindRequest(tool_description=question, limit=FOUND, detail="summary", cursor=cursor)
        answer = find_tool(request, visit.caller.scope, visit.catalogue, visit.caller)
    except ValidationError as error:
        return Shown("find.html", values | {"problem": first_problem(error)}, 400)
    except (CursorInvalid, BudgetTooSmall) as error:
        return Shown("find.html", values | {"problem": str(error)}, 400)
    except CursorsUnavailable as error:
        _log.warning("pages_unreachable", reason=str(error))
        return Shown("find.html", values | {"problem": "Further tools cannot be shown at the moment."}, 503)
    return Shown("find.html", values | {"answer": answer})


def history(visit: Visit) -> Shown:
    """Return savings, calls and the context's cost by day, and who was used."""
    asked = visit.query.get("days", "")
    days = int(asked) if asked in map(str, PERIODS) else PERIODS[1]
    report = _report(visit, days)
    known = {record.server_id for record in visit.catalogue.ledger.known(visit.caller.scope)}
    return Shown("history.html", {"report": report, "days": days, "periods": PERIODS, "known": known} | _charts(report))


def _report(visit: Visit, days: int) -> Report | None:
    """Return the report, None where none is kept or the history does not answer: the rest of the page still stands."""
    if visit.catalogue.savings is None:
        return None
    try:
        return report_for(visit.caller, f"{days}d", visit.catalogue, visit.catalogue.savings.history)
    except HistoryUnavailable as error:
        _log.warning("savings_not_read", reason=str(error))
        return None


def _charts(report: Report | None) -> dict[str, Chart | None]:
    if report is None:
        return {"saved_chart": None, "context_chart": None}
    saved = {day.day: day.tokens_saved for day in report.by_day}
    held = {day.day: day.tokens for day in report.catalogue}
    return {
        "saved_chart": chart(saved, report.first_day, report.last_day, missing=0),
        "context_chart": chart(held, report.first_day, report.last_day, missing=None),
    }


def _sizes_chart(visit: Visit, row: ServerRow) -> Chart | None:
    last = today()
    first = last - timedelta(days=PERIODS[1] - 1)
    sizes = _tokens_by_day(visit, row.record.server_id, first, last)
    return chart(sizes, first, last, missing=None) if sizes else None


def _tokens_by_day(visit: Visit, server_id: str, first: date, last: date) -> dict[date, int]:
    if visit.catalogue.savings is None:
        return {}
    try:
        sizes = sizes_for(visit.caller, first, last, visit.catalogue, visit.catalogue.savings.history)
    except HistoryUnavailable as error:
        _log.warning("savings_not_read", reason=str(error))
        return {}
    return {day: of[server_id].tokens for day, of in sizes.items() if server_id in of}


def _today(report: Report | None) -> Any:
    return next((day for day in report.by_day if day.day == report.last_day), None) if report else None


def _tool_row(tool: IndexedTool, encoding: Encoding, of_server: int | None) -> dict[str, Any]:
    tokens = tool.token_counts.get(encoding)
    return {
        "name": tool.definition.name,
        "does": first_sentence(tool.definition.description),
        "tokens": tokens,
        "part": context(tokens, of_server or 0).percent_total,
        "read_only": tool.definition.read_only,
    }


def _page(rows: list[Any], visit: Visit) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of the page that was asked for, its number, and how many pages there are."""
    pages = max(1, -(-len(rows) // ROWS))
    asked = visit.query.get("page", "")
    page = min(int(asked), pages) if asked.isdecimal() and len(asked) < len(str(ROWS**3)) else 1
    page = max(page, 1)
    return rows[(page - 1) * ROWS : page * ROWS], {"page_number": page, "pages": pages}


def _by_cost(tool: IndexedTool, found: Servers) -> tuple[int, str]:
    return -tool.token_counts.get(found.encoding, 0), tool.definition.name


def _by_tokens(row: ServerRow) -> tuple[float, str]:
    return -(row.tokens or 0), row.record.server_id


def _by_name(row: ServerRow) -> tuple[float, str]:
    return 0, row.record.server_id


def _by_freshness(row: ServerRow) -> tuple[float, str]:
    """Return a key that puts the servers that were listed longest ago first."""
    return row.record.last_listed_at or 0, row.record.server_id


_SORTED: Mapping[str, Callable[[ServerRow], tuple[float, str]]] = {
    "tokens": _by_tokens,
    "name": _by_name,
    "freshness": _by_freshness,
}
