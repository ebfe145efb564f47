"""A request of a page, the page that answers it, and its rendering by templates that escape every value."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from shared.amounts import ago, ahead, size
from shared.quoting import printable

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.toolsets.offers import Offers

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
# A page is specific to its caller.
PAGE_HEADERS = HEADERS | {"Cache-Control": "no-store"}

UNKNOWN = "—"
ROWS = 100
"""Rows on a page of a table."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the page reads and does beside the catalogue; None where this process cannot.

    `resync` requests a listing of a server. `log_directory` has the stderr of stdio servers.
    """

    resync: Callable[[str], None] | None = None
    log_directory: Path | None = None


NO_MEANS = Means()


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The caller, the catalogue, the parameters of path and query string, and the address of the service.

    `address` is the public one of the settings, or `http://host:port`, as the browser used it. `offers` has the tools
    that `tools/list` shows the caller. `may_operate` has the permission `operate` for all groups.
    """

    caller: Caller
    catalogue: Catalogue
    path: Mapping[str, str]
    query: Mapping[str, str]
    address: str = ""
    offers: Offers | None = None
    may_operate: bool = False
    means: Means = field(default_factory=lambda: NO_MEANS)


HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values, status and headers."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


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
    """Return the response of a page; `values` are added to the page's own. Each of its forms has a new token."""
    html = _TEMPLATES.get_template(page.template).render(**page.values, **values, token=token)
    return Response(html.encode(), page.status, {**PAGE_HEADERS, **page.headers}, HTML)


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


def percent(part: float | None) -> str:
    """Return a part of 1 as 12.3 %, or a dash if unknown."""
    return UNKNOWN if part is None else f"{100 * part:.1f} %"


def moment(at_s: float) -> str:
    """Return a time in seconds since the epoch as 2026-11-21 07:30 UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine_moment(at_s: float) -> str:
    """Return a time in seconds since the epoch for HTML's `datetime`: 2026-11-21T07:30:00Z."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
    filters = (cut, lines, number, percent, size, ago, ahead, moment, machine_moment, short, part_of_path)
    untyped: Any = made  # jinja2 types its filters and globals too narrowly
    untyped.filters.update({function.__name__: function for function in filters})
    untyped.globals.update(version=importlib.metadata.version("toolscale"))
    return made


_TEMPLATES = _templates()
