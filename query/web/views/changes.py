"""The changes of tool definitions: by server as a page, and as JSON for `toolscale drift`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from query.history.periods import start_s, today
from query.reports.changes import ChangesRequest, changes_as_object, recent_changes
from query.web.page import Page, PageRequest
from query.web.rendering import PAGE_HEADERS
from query.web.row_pages import page_of_rows
from shared.errors import ServerUnknown
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from shared.catalog import DefinitionChange

PERIODS = (1, 7, 30, 90)
DEFAULT_PERIOD = PERIODS[2]


def changes(request: PageRequest) -> Page:
    """Return the changes of these days, the servers with the newest changes first; on request without cosmetic ones."""
    requested, only_meaning = request.query.get("days", ""), request.query.get("kind") == "meaning"
    days = int(requested) if requested in map(str, PERIODS) else DEFAULT_PERIOD
    since = int(start_s(today() - timedelta(days=days - 1)))
    wanted = ChangesRequest(since=since, kind="meaning" if only_meaning else None)
    found = recent_changes(request.caller.scope, request.catalogue, since)
    rows = [(server_id, change) for server_id in found for change in found[server_id] if wanted.admits(change)]
    shown, pages = page_of_rows(rows, request)
    servers = [
        (server_id, _with_diffs(server_id, (change for _, change in of_server), request))
        for server_id, of_server in groupby(shown, key=lambda row: row[0])
    ]
    values = {
        "servers": servers,
        "days": days,
        "periods": PERIODS,
        "only_meaning": only_meaning,
        "count": len(rows),
    }
    return Page("changes.html", values | pages)


def changes_json(request: PageRequest) -> Response:
    """Return the newest changes as JSON, or the reason why there are none."""
    try:
        asked = ChangesRequest.model_validate({name: value for name, value in request.query.items() if value})
        body, status = changes_as_object(request.caller.scope, request.catalogue, asked), 200
    except ValidationError as error:
        body, status = {"error": first_invalid_argument(error)}, 400
    except ServerUnknown as error:
        body, status = {"error": str(error)}, 404
    return JSONResponse(body, status, PAGE_HEADERS)


def _with_diffs(server_id: str, heads: Iterable[DefinitionChange], request: PageRequest) -> Sequence[DefinitionChange]:
    # the caller may see the heads, so also their diffs
    whole = {change.without_diff: change for change in request.catalogue.index.changes(server_id)}
    return [whole.get(head, head) for head in heads]
