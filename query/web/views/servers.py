"""All servers, and one server with its tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from query.answers.detail import first_sentence, share
from query.tools.list_available_tools import tools_of
from query.usage.report import is_unrestricted
from query.usage.usage import today
from query.web.page import Page, PageRequest, message_page
from query.web.row_pages import ROWS, page_of_rows
from query.web.server_facts import address, callers_of, next_run, split_error
from query.web.server_table import COLUMNS, LONGEST, ORIGINS, origin_of, table_query
from query.web.servers import ServerTable, servers_for
from query.web.views.history import DEFAULT_PERIOD
from query.web.views.overview import followed_config
from shared.catalog import SERVER_STATES
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
        "known_states": _present(SERVER_STATES, (row.state for row in table.rows), query.status),
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
        "callers": _callers(request, record.server_id),
        "days": DEFAULT_PERIOD,
        "shown": ROWS,
    }
    return Page("server.html", values | pages)


def _callers(request: PageRequest, server_id: str) -> Sequence[tuple[str, int]] | None:
    """Return the callers of the server with their calls; None if not for this caller, or not known now."""
    last = today()
    try:
        return callers_of(server_id, last - timedelta(days=DEFAULT_PERIOD - 1), last, request)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None


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
