"""The pages, from the same functions as the tools, hence within the same scope."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import structlog
from pydantic import ValidationError

from query.answers.answer import first_sentence, share
from query.tools.list_available_tools import tools_of
from query.toolsets.advice import AdviceRequest, advice_for
from query.usage.report import is_unrestricted
from query.usage.usage import days_of, today
from query.web.changes import DONE
from query.web.charts import chart
from query.web.difference import changes_of
from query.web.money import kept_price
from query.web.page import (
    ROWS,
    Page,
    PageRequest,
    followed_config,
    message_page,
    page_of_rows,
    read_usage,
    savings_report,
    servers_of,
)
from query.web.servers import COLUMNS, LONGEST, ORIGINS, origin_of, table_query
from shared.catalog import OPERATOR_SOURCE, SERVER_STATES, ServerRecord, object_of
from shared.errors import (
    ConfigInvalid,
    ToolsetUnknown,
)
from shared.upstream.log import STARTED, last_lines
from shared.upstream.masking import masked
from shared.upstream.session import LAST_WORDS
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.usage.report import SavingsReport
    from query.usage.usage import Usage

PERIODS = (7, 30, 90)
DEFAULT_PERIOD = PERIODS[1]
MOST_CALLERS = 20
NO_HISTORY = "No history can be read at the moment, or none is kept here."
SHOWN_LINES = 20
NEAR = 8
# Candidates of which the nearest distinct definitions are shown.
NEAR_DEPTH = 40

_log = structlog.get_logger()


def history(request: PageRequest) -> Page:
    """Return savings, calls and the context's cost by day, and usage by server and tool."""
    requested = request.query.get("days", "")
    days = int(requested) if requested in map(str, PERIODS) else DEFAULT_PERIOD
    report = savings_report(request, days)
    server_ids = {record.server_id for record in request.catalogue.ledger.known(request.scope)}
    values: dict[str, Any] = {"report": report, "days": days, "periods": PERIODS, "known": server_ids}
    headers = kept_price(request.query["price"]) if "price" in request.query else {}
    return Page("history.html", values | _by_day(report) | {"price": request.price}, headers=headers)


def _by_day(report: SavingsReport | None) -> dict[str, Any]:
    """Return the charts of a report, and the net of today beside the mean of the days before; None without them."""
    if report is None:
        return {"saved_chart": None, "context_chart": None, "today": None, "mean": None}
    first, last = report.first_day, report.last_day
    saved = {day.day: day.net_tokens_saved for day in report.by_day}
    spent = {day.day: day.listed_tokens + day.answer_tokens for day in report.by_day}
    held = {day.day: day.tokens for day in report.catalogue}
    before = [net for day, net in saved.items() if day < last]
    return {
        "saved_chart": chart(saved, first, last, missing=0, costs=spent),
        # a caller with groups or a toolset gets no size of the catalogue
        "context_chart": chart(held, first, last, missing=None) if held else None,
        "today": saved.get(last, 0),
        "mean": round(sum(before) / len(before)) if before else None,
    }


def advice(request: PageRequest) -> Page:
    """Return the advice on the tools of a toolset, or the reason why there is none."""
    values: dict[str, Any] = {
        "advice": None,
        "asked": {name: request.query.get(name, "") for name in AdviceRequest.model_fields},
    }
    try:
        asked = AdviceRequest.model_validate({name: value for name, value in request.query.items() if value})
        found = read_usage(
            request,
            lambda usage: advice_for(request.caller, request.catalogue, usage, asked.toolset, asked.budget),
        )
    except ValidationError as error:
        return Page("advice.html", values | {"problem": first_invalid_argument(error)}, 400)
    except ToolsetUnknown as error:
        return Page("advice.html", values | {"problem": str(error)}, 404)
    if found is None:
        return Page("advice.html", values | {"problem": NO_HISTORY}, 503)
    return Page("advice.html", values | {"advice": found, "problem": ""})


def servers(request: PageRequest) -> Page:
    """Return the servers that the filters admit, replicas in one row, the most expensive first or as requested."""
    table, query = servers_of(request), table_query(request)
    found, counts = query.applied(table.sets)
    sets, pages = page_of_rows(found, request)

    def present(values: Iterable[str], of_rows: Iterable[str], chosen: str) -> list[str]:
        """Return the values that a row has, and the chosen one, in their order."""
        return [value for value in values if value in {*of_rows, chosen}]

    values = {
        "servers": table,
        "query": query,
        "counts": counts,
        "widest": max((of_set.tokens or 0 for of_set in found), default=0),
        "sets": sets,
        "columns": COLUMNS,
        "origins": present(ORIGINS, {origin_of(row.record.source) for row in table.rows}, query.source),
        "known_states": present(SERVER_STATES, {row.state for row in table.rows}, query.status),
        "sees_all": is_unrestricted(request.caller),
        "longest": LONGEST,
        "shown": ROWS,
        "followed": followed_config(request),
    }
    return Page("servers.html", values | pages)


def server(request: PageRequest) -> Page:
    """Return one server with its tools, the most expensive first."""
    catalogue, table = request.catalogue, servers_of(request)
    encoding = table.encoding
    row = table.row(request.path["server_id"])
    if row is None:
        return message_page(404, "No such server", "There is no server of this name that you may see.")
    record = row.record
    of_server = replace(request.scope, servers=frozenset({record.server_id}), status=record.status)
    tools = sorted(
        tools_of(of_server, catalogue), key=lambda tool: (-tool.model_counts.get(encoding, 0), tool.definition.name)
    )
    page_of_tools, pages = page_of_rows(tools, request)
    permitted = catalogue.scope(request.caller)
    error, last_words = split_error(record.last_error)
    is_editable = request.may_operate and record.source == OPERATOR_SOURCE

    def callers(usage: Usage) -> Sequence[tuple[str, int]]:
        """Return the callers of the server with their calls, the most frequent first."""
        counts: Counter[str] = Counter()
        period = days_of(f"{DEFAULT_PERIOD}d", today())
        for (caller, _, _), sums in usage.sums(*period, ("calls",), servers=[record.server_id]).items():
            counts[caller] += sums["calls"]
        return counts.most_common(MOST_CALLERS)

    values = {
        "row": row,
        "servers": table,
        "sees_all": is_unrestricted(request.caller),
        "may_sign_in": is_unrestricted(request.caller) and "operate" in request.caller.permissions,
        "address": _address(record, request),
        "origin": origin_of(record.source),
        "next_run": next_run(record, catalogue),
        "error": error,
        "last_lines": _last_lines(record, request) or last_words,
        "may_retry": request.may_operate and request.means.resync is not None and record.status != "stopped",
        "entry_file": str(request.means.config_file or "") if is_editable else "",
        "resync_command": f"toolscale resync {shlex.quote(record.server_id)}",
        "logs_command": f"toolscale logs {shlex.quote(record.server_id)}",
        "changes": changes_of(record, request),
        "may_accept": request.means.resync is not None,
        "done": DONE.get(request.query.get("done", "")),
        "tools": [
            {
                "name": tool.definition.name,
                "does": first_sentence(tool.definition.description),
                "tokens": tool.model_counts.get(encoding),
                "part": share(tool.model_counts.get(encoding), row.tokens or 0),
                "read_only": tool.definition.read_only,
                "is_denied": not permitted.permits(tool.server_id, tool.definition),
            }
            for tool in page_of_tools
        ],
        "widest": tools[0].model_counts.get(encoding, 0) if tools else 0,
        "replicas": table.set_of(row).rows,
        "callers": read_usage(request, callers) if is_unrestricted(request.caller) else None,
        "days": DEFAULT_PERIOD,
        "shown": ROWS,
    }
    return Page("server.html", values | pages)


def split_error(error: str | None) -> tuple[str | None, str | None]:
    """Return the last error without its quote of the process's stderr, and that quote as text."""
    before, mark, quoted = (error or "").rpartition(LAST_WORDS)
    try:
        words: object = json.loads(quoted) if mark else None
    except ValueError:  # a server's own text contains the mark
        words = None
    return (before, words) if isinstance(words, str) else (error, None)


def _last_lines(record: ServerRecord, request: PageRequest) -> str:
    """Return what the server wrote last to stderr, for operators where this process has its log."""
    directory = request.means.log_directory
    if not request.may_operate or directory is None or record.endpoint.transport != "stdio":
        return ""
    try:
        lines = last_lines(directory, record.server_id, SHOWN_LINES)
        starts = [number for number, line in enumerate(lines) if line.startswith(STARTED)]
        return "\n".join(lines[starts[-1] if starts else 0 :])  # of the last start alone
    except ConfigInvalid as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class NextRun:
    """The time of the next reconciliation in seconds since the epoch, or a word; `is_latest` marks an upper bound."""

    at_s: float | None = None
    is_latest: bool = False
    word: Literal["", "when announced", "paused after failures", "soon"] = ""


def next_run(record: ServerRecord, catalogue: Catalogue) -> NextRun:
    """Return when the server is reconciled next, as far as its record and the settings of this process show it."""
    if record.status == "stopped":
        return NextRun(word="when announced")
    if record.next_reconcile_at is not None:
        return NextRun(record.next_reconcile_at)
    if record.failures:
        return NextRun(word="paused after failures")
    if record.last_listed_at is None:
        return NextRun(word="soon")
    is_stdio = record.endpoint.transport == "stdio"
    interval_s = catalogue.stdio_resync_interval_s if is_stdio else catalogue.resync_interval_s
    return NextRun(record.last_listed_at + interval_s, is_latest=True) if interval_s else NextRun(word="when announced")


def _address(record: ServerRecord, request: PageRequest) -> str | None:
    """Return the URL or the command of a server with masked secrets; None if unknown, or not for this caller.

    Only the entry of an `mcp.json` has a command, as it is written there.
    """
    if not is_unrestricted(request.caller):
        return None
    entry: object = {"url": record.endpoint.url}
    if not record.endpoint.url:
        entry = request.catalogue.operator_entry(record.server_id) if record.source == OPERATOR_SOURCE else None
    if entry is None:
        return None
    parts = object_of(masked(entry))
    return parts.get("url") or " ".join(map(str, (parts.get("command", ""), *parts.get("args", ()))))
