"""All servers, and one server with its tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from query.history.periods import today
from query.reports.access import is_unrestricted, sees_whole
from query.response.summary import first_sentence
from query.savings.context import share
from query.tools.list_available_tools import tools_of
from query.web.charts import chart
from query.web.page import Page, PageRequest, message_page
from query.web.row_pages import ROWS, page_of_rows
from query.web.server_facts import address, callers_of, next_run, split_error
from query.web.server_table import COLUMNS, LONGEST, ORIGINS, origin_of, table_query
from query.web.servers import STATES, ServerTable, servers_for
from query.web.views.history import DEFAULT_PERIOD
from query.web.views.overview import followed_config
from shared.errors import HistoryUnavailable

if TYPE_CHECKING:
    from shared.catalog import Encoding, IndexedTool

_log = structlog.get_logger()


def servers(request: PageRequest) -> Page:
    """Return the servers that the filters admit, replicas in one row, the most expensive first or as requested."""
    table, query = servers_for(request.caller, request.catalogue), table_query(request)
    found, counts = query.applied(table.sets)
    sources = {row.record.source for row in table.rows}
    sets, pages = page_of_rows(found, request)
    values = {
        "servers": table,
        "query": query,
        "counts": counts,
        "widest": max((of_set.tokens or 0 for of_set in found), default=0),
        "sets": sets,
        "columns": COLUMNS,
        "origins": _present(ORIGINS, map(origin_of, sources), query.source),
        "known_states": _present(STATES, (row.state for row in table.rows), query.status),
        "sees_all": is_unrestricted(request.caller),
        "longest": LONGEST,
        "shown": ROWS,
        "followed": followed_config(request),
    }
    return Page("servers.html", values | pages)


def _present(values: Iterable[str], of_rows: Iterable[str], chosen: str) -> list[str]:
    """Return the values that a row has, and the chosen one, in their order."""
    present = {*of_rows, chosen}
    return [value for value in values if value in present]


def server(request: PageRequest) -> Page:
    """Return one server with its tools, the most expensive first."""
    catalogue, table = request.catalogue, servers_for(request.caller, request.catalogue)
    row = table.row(request.path["server_id"])
    if row is None:
        return message_page(404, "No such server", "There is no server of this name that you may see.")
    record = row.record
    of_server = replace(request.caller.scope, servers=frozenset({record.server_id}), status=record.status)
    tools = sorted(tools_of(of_server, catalogue), key=lambda tool: _by_cost(tool, table))
    page_of_tools, pages = page_of_rows(tools, request)
    error, last_words = split_error(record.last_error)
    values = {
        "row": row,
        "servers": table,
        "sees_all": is_unrestricted(request.caller),
        "address": address(record, request),
        "origin": origin_of(record.source),
        "next_run": next_run(record, catalogue),
        "error": error,
        "last_words": last_words,
        "command": f"toolscale resync {shlex.quote(record.server_id)}",
        "tools": [_tool_row(tool, table.encoding, row.tokens) for tool in page_of_tools],
        "widest": tools[0].model_counts.get(table.encoding, 0) if tools else 0,
        "replicas": table.set_of(row).rows,
        "shown": ROWS,
    }
    return Page("server.html", values | _history(request, record.server_id) | pages)


def _history(request: PageRequest, server_id: str) -> dict[str, Any]:
    """Return the chart of the server's size and its callers; None where the history does not have them."""
    last = today()
    first = last - timedelta(days=DEFAULT_PERIOD - 1)
    try:
        sizes = _tokens_by_day(request, server_id, first, last)
        callers = callers_of(server_id, first, last, request)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return {"sizes": None, "callers": None, "days": DEFAULT_PERIOD}
    drawn = chart(sizes, first, last, missing=None) if sizes else None
    return {"sizes": drawn, "callers": callers, "days": DEFAULT_PERIOD}


def _tokens_by_day(request: PageRequest, server_id: str, first: date, last: date) -> dict[date, int]:
    if request.catalogue.recorder is None or not sees_whole(request.caller, server_id):
        return {}
    sizes = request.catalogue.recorder.history.sizes(first, last, server_id)
    return {day: by_server[server_id].tokens for day, by_server in sizes.items()}


def _tool_row(tool: IndexedTool, encoding: Encoding, of_server: int | None) -> dict[str, Any]:
    tokens = tool.model_counts.get(encoding)
    return {
        "name": tool.definition.name,
        "does": first_sentence(tool.definition.description),
        "tokens": tokens,
        "part": share(tokens, of_server or 0),
        "read_only": tool.definition.read_only,
    }


def _by_cost(tool: IndexedTool, table: ServerTable) -> tuple[int, str]:
    return -tool.model_counts.get(table.encoding, 0), tool.definition.name
