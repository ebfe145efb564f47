"""A request of a page, the page that answers it, and its rendering by templates that escape every value."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from query.servers import servers_for
from query.usage.report import is_unrestricted, report_for
from shared.amounts import ahead, size, span
from shared.errors import HistoryUnavailable
from shared.quoting import printable

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.servers import ServerTable, ServerTables
    from query.toolsets.offers import Offers
    from query.usage.report import SavingsReport
    from query.usage.usage import Usage
    from query.web.tool_map import LargestTools
    from shared.catalog import Scope
    from shared.upstream.followed_config import FollowedConfig

T = TypeVar("T")

_log = structlog.get_logger()

# Only our own style sheet and images; no scripts, no framing, no form to another origin.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # with `no-referrer`, a browser sends a form of this page without its origin, which is then refused
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# A page with live parts also has a script of ours, which reads from this service alone.
LIVE_POLICY = f"{CONTENT_SECURITY_POLICY}; script-src 'self'; connect-src 'self'"
# A page is specific to its caller.
PAGE_HEADERS = HEADERS | {"Cache-Control": "no-store"}

UNKNOWN = "—"
ROWS = 100
"""Rows on a page of a table."""
_UNITS = {"min": "minute", "h": "hour", "d": "day"}
_NOW_S = 10


@dataclass(frozen=True, slots=True)
class Means:
    """What the page reads and does beside the catalogue; None where this process cannot.

    `resync` requests a listing of a server. `log_directory` has the stderr of stdio servers. `exclude` leaves tools,
    by their server, out of the followed `mcp.json`, `config_file`; it raises ConfigInvalid.
    """

    resync: Callable[[str], None] | None = None
    log_directory: Path | None = None
    exclude: Callable[[Mapping[str, Collection[str]]], None] | None = None
    config_file: Path | None = None


NO_MEANS = Means()


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The caller, the catalogue, the parameters of path and query string, and the address of the service.

    The `scope` is that of the caller, without the tools that the policy denies, except to one that may operate.
    `address` is the public one of the settings, or `http://host:port`, as the browser used it. `offers` has the tools
    that `tools/list` shows the caller. `may_operate` has the permission `operate` for all groups.
    """

    caller: Caller
    scope: Scope
    catalogue: Catalogue
    path: Mapping[str, str]
    query: Mapping[str, str]
    address: str = ""
    offers: Offers | None = None
    may_operate: bool = False
    means: Means = field(default_factory=lambda: NO_MEANS)
    largest: LargestTools | None = None
    tables: ServerTables | None = None
    tools: Sequence[str] = ()
    """Qualified names in the query string."""
    price: float | None = None
    """What the person pays for a million tokens, in a currency of their own; None if unknown."""


HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values, status and headers; a `live` one has the script."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    live: bool = False


View = Callable[[PageRequest], Page | Response]
"""Returns a page, or a response that is no page."""


def message_page(status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> Page:
    """Return a page with an error message."""
    return Page("message.html", {"title": title, "text": text}, status, headers or {})


def page_of_rows(rows: list[Any], request: PageRequest) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of the requested page, its number, and the number of pages."""
    pages = max(1, -(-len(rows) // ROWS))
    requested = request.query.get("page", "")
    page = min(int(requested), pages) if requested.isdecimal() and len(requested) < len(str(ROWS**3)) else 1
    page = max(page, 1)
    return rows[(page - 1) * ROWS : page * ROWS], {"page_number": page, "pages": pages}


def render(page: Page, token: Callable[[], str] = str, **values: object) -> Response:
    """Return the response of a page; `values` are added to the page's own. Its forms have the `token`."""
    html = _TEMPLATES.get_template(page.template).render(**page.values, **values, token=token, live=page.live)
    policy = {"Content-Security-Policy": LIVE_POLICY} if page.live else {}
    return Response(html.encode(), page.status, {**PAGE_HEADERS, **policy, **page.headers}, HTML)


def servers_of(request: PageRequest) -> ServerTable:
    """Return the servers of the caller's scope.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return request.tables.of(request.scope) if request.tables else servers_for(request.scope, request.catalogue)


def followed_config(request: PageRequest) -> FollowedConfig | None:
    """Return the state of the followed `mcp.json` for a caller without restriction, else None."""
    return request.catalogue.followed_config() if is_unrestricted(request.caller) else None


def read_usage(request: PageRequest, read: Callable[[Usage], T]) -> T | None:
    """Return what `read` finds in the history; None where none is kept, or if it does not answer."""
    usage = request.catalogue.usage
    if usage is None:
        return None
    try:
        return read(usage)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None


def savings_report(request: PageRequest, days: int) -> SavingsReport | None:
    """Return the report, None without a history or if it does not answer; the page shows the rest."""
    index = request.catalogue.pinned().index
    return read_usage(request, lambda usage: report_for(request.caller, request.scope, f"{days}d", usage, index))


def _output(value: Any) -> Any:
    """Make every text of a page printable; the template engine escapes it."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def cut(text: str, characters: int) -> str:
    """Return the text, cut where it is longer than these characters."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def lines(text: str) -> Markup:
    """Return the text with its line breaks, and otherwise printable."""
    return Markup("\n").join(escape(printable(line)) for line in text.split("\n"))


def number(value: int | None) -> str:
    """Return 12,345, or a dash if unknown."""
    return UNKNOWN if value is None else f"{value:,}"


def money(tokens: int, price: float) -> str:
    """Return what tokens cost at a price for a million."""
    return f"{tokens * price / 1e6:,.2f}"


def percent(part: float | None) -> str:
    """Return a part of 1 as 12.3 %, or a dash if unknown."""
    return UNKNOWN if part is None else f"{100 * part:.1f} %"


def moment(at_s: float) -> str:
    """Return a time in seconds since the epoch as 2026-11-21 07:30 UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine_moment(at_s: float) -> str:
    """Return a time in seconds since the epoch for HTML's `datetime`: 2026-11-21T07:30:00Z."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(at_s: float) -> str:
    """Return the age of a time in seconds since the epoch in words: just now, 3 minutes ago."""
    amount, _, unit = span(time.time() - at_s).partition(" ")
    if unit == "s":
        return "just now" if int(amount) < _NOW_S else f"{amount} seconds ago"
    return f"{amount} {_UNITS[unit]}{'' if amount == '1' else 's'} ago"


def short(day: date) -> str:
    """Return a day as 21 Nov."""
    return f"{day.day} {day:%b}"


def part_of_path(text: str) -> str:
    """Return the text as one segment of a path."""
    return quote(text, safe="", errors="replace")


def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("query.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_output,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (cut, lines, money, number, percent, size, age, ahead, moment, machine_moment, short, part_of_path)
    untyped: Any = made  # jinja2 types its filters and globals too narrowly
    untyped.filters.update({function.__name__: function for function in filters})
    untyped.globals.update(version=importlib.metadata.version("toolscale"))
    return made


_TEMPLATES = _templates()
