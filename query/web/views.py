"""The contents of each page, from the same functions as the tools, hence within the same scope."""

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
from query.savings.context import share
from query.search.request import FindRequest
from query.tools.listing import tools_of
from query.web.charts import Chart, chart
from query.web.page import Page, PageRequest, message_page
from query.web.servers import ServerRow, ServerTable, SetRow, servers_for
from shared.errors import BudgetTooSmall, CursorInvalid, CursorsUnavailable, HistoryUnavailable
from shared.index.contract import EMBEDDED_MAX_ADVISED_TOOLS
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.reports.savings import SavingsReport
    from shared.catalog import Encoding, IndexedTool
    from shared.upstream.followed_config import FollowedConfig

ROWS = 100
LARGEST = 8
FOUND = 10
OVERVIEW_DAYS = 14
PERIODS = (7, 30, 90)

_log = structlog.get_logger()


def overview(request: PageRequest) -> Page:
    """Return the catalogue's size, its cost, and recent savings."""
    servers = servers_for(request.caller, request.catalogue)
    report = _report(request, OVERVIEW_DAYS)
    largest = [of_set for of_set in sorted(servers.sets, key=_by_tokens)[:LARGEST] if of_set.tokens]
    values: dict[str, Any] = {"servers": servers, "largest": largest, "report": report}
    exceeds_advice = request.catalogue.index_is_embedded and servers.tools > EMBEDDED_MAX_ADVISED_TOOLS
    values["advised_tools"] = EMBEDDED_MAX_ADVISED_TOOLS if exceeds_advice else None
    values["followed"] = _followed_config(request)
    attention = [row for row in servers.rows if row.needs_attention][:LARGEST]
    return Page("overview.html", values | _charts(report) | {"attention": attention, "today": _today(report)})


def servers(request: PageRequest) -> Page:
    """Return all servers, replicas in one row, the most expensive first or in the requested order."""
    table = servers_for(request.caller, request.catalogue)
    requested = request.query.get("sort", "")
    sort = requested if requested in _SORTED else "tokens"
    sets, pages = _page_of_rows(sorted(table.sets, key=_SORTED[sort]), request)
    values = {"servers": table, "sets": sets, "sort": sort, "shown": ROWS, "followed": _followed_config(request)}
    return Page("servers.html", values | pages)


def server(request: PageRequest) -> Page:
    """Return one server with its tools, the most expensive first."""
    catalogue, table = request.catalogue, servers_for(request.caller, request.catalogue)
    row = table.row(request.path["server_id"])
    if row is None:
        return message_page(404, "No such server", "There is no server of this name that you may see.")
    of_server = replace(request.caller.scope, servers=frozenset({row.record.server_id}), status=row.record.status)
    tools = sorted(tools_of(of_server, catalogue), key=lambda tool: _by_cost(tool, table))
    page_of_tools, pages = _page_of_rows(tools, request)
    rows = [_tool_row(tool, table.encoding, row.tokens) for tool in page_of_tools]
    sizes = _sizes_chart(request, row)
    values = {"row": row, "tools": rows, "servers": table, "sizes": sizes, "shown": ROWS}
    return Page("server.html", values | {"replicas": table.set_of(row).rows} | pages)


def find(request: PageRequest) -> Page:
    """Return the answer of `find_tool` with its metrics; the search is not recorded."""
    question = request.query.get("q", "").strip()
    values: dict[str, Any] = {"question": question, "answer": None, "problem": None}
    if not question:
        return Page("find.html", values)
    try:
        cursor = request.query.get("cursor")
        find_request = FindRequest(tool_description=question, limit=FOUND, detail="summary", cursor=cursor)
        response, timings = find_tool(find_request, request.caller.scope, request.catalogue, request.caller)
    except ValidationError as error:
        return Page("find.html", values | {"problem": first_invalid_argument(error)}, 400)
    except (CursorInvalid, BudgetTooSmall) as error:
        return Page("find.html", values | {"problem": str(error)}, 400)
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        return Page("find.html", values | {"problem": "Further tools cannot be shown at the moment."}, 503)
    return Page("find.html", values | {"answer": response, "timings": timings})


def history(request: PageRequest) -> Page:
    """Return savings, calls and the context's cost by day, and usage by server and tool."""
    requested = request.query.get("days", "")
    days = int(requested) if requested in map(str, PERIODS) else PERIODS[1]
    report = _report(request, days)
    server_ids = {record.server_id for record in request.catalogue.ledger.known(request.caller.scope)}
    return Page(
        "history.html", {"report": report, "days": days, "periods": PERIODS, "known": server_ids} | _charts(report)
    )


def _followed_config(request: PageRequest) -> FollowedConfig | None:
    """Return the state of the followed `mcp.json` for a caller without restriction, else None."""
    caller = request.caller
    return request.catalogue.followed_config() if caller.groups is None and caller.toolset is None else None


def _report(request: PageRequest, days: int) -> SavingsReport | None:
    """Return the report, None without a history or if it does not answer; the page shows the rest."""
    if request.catalogue.recorder is None:
        return None
    try:
        return report_for(request.caller, f"{days}d", request.catalogue, request.catalogue.recorder.history)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None


def _charts(report: SavingsReport | None) -> dict[str, Chart | None]:
    if report is None:
        return {"saved_chart": None, "context_chart": None}
    saved = {day.day: day.net_tokens_saved for day in report.by_day}
    held = {day.day: day.tokens for day in report.catalogue}
    return {
        "saved_chart": chart(saved, report.first_day, report.last_day, missing=0),
        "context_chart": chart(held, report.first_day, report.last_day, missing=None),
    }


def _sizes_chart(request: PageRequest, row: ServerRow) -> Chart | None:
    last = today()
    first = last - timedelta(days=PERIODS[1] - 1)
    sizes = _tokens_by_day(request, row.record.server_id, first, last)
    return chart(sizes, first, last, missing=None) if sizes else None


def _tokens_by_day(request: PageRequest, server_id: str, first: date, last: date) -> dict[date, int]:
    if request.catalogue.recorder is None:
        return {}
    try:
        sizes = sizes_for(request.caller, first, last, request.catalogue, request.catalogue.recorder.history)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return {}
    return {day: by_server[server_id].tokens for day, by_server in sizes.items() if server_id in by_server}


def _today(report: SavingsReport | None) -> Any:
    return next((day for day in report.by_day if day.day == report.last_day), None) if report else None


def _tool_row(tool: IndexedTool, encoding: Encoding, of_server: int | None) -> dict[str, Any]:
    tokens = tool.model_counts.get(encoding)
    return {
        "name": tool.definition.name,
        "does": first_sentence(tool.definition.description),
        "tokens": tokens,
        "part": share(tokens, of_server or 0),
        "read_only": tool.definition.read_only,
    }


def _page_of_rows(rows: list[Any], request: PageRequest) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of the requested page, its number, and the number of pages."""
    pages = max(1, -(-len(rows) // ROWS))
    requested = request.query.get("page", "")
    page = min(int(requested), pages) if requested.isdecimal() and len(requested) < len(str(ROWS**3)) else 1
    page = max(page, 1)
    return rows[(page - 1) * ROWS : page * ROWS], {"page_number": page, "pages": pages}


def _by_cost(tool: IndexedTool, table: ServerTable) -> tuple[int, str]:
    return -tool.model_counts.get(table.encoding, 0), tool.definition.name


def _by_tokens(of_set: SetRow) -> tuple[float, str]:
    return -(of_set.tokens or 0), of_set.server_id


def _by_name(of_set: SetRow) -> tuple[float, str]:
    return 0, of_set.server_id


def _by_freshness(of_set: SetRow) -> tuple[float, str]:
    """Return a key that sorts the servers with the oldest listing first."""
    return of_set.last_listed_at or 0, of_set.server_id


_SORTED: Mapping[str, Callable[[SetRow], tuple[float, str]]] = {
    "tokens": _by_tokens,
    "name": _by_name,
    "freshness": _by_freshness,
}
