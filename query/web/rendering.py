"""Rendering of pages: templates that escape every value, and security headers."""

from __future__ import annotations

import importlib.metadata
import math
import time
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from query.web.page import Page
from shared.quoting import printable

# Only our own style sheet and images; no scripts, no framing, no form to another origin.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# A page is specific to its caller.
PAGE_HEADERS = HEADERS | {"Cache-Control": "no-store"}

UNKNOWN = "—"
_KIB = 1024


def render(page: Page, **values: object) -> Response:
    """Return the response of a page; `values` are added to the page's own."""
    html = _TEMPLATES.get_template(page.template).render(**page.values, **values)
    return Response(html.encode(), page.status, {**PAGE_HEADERS, **page.headers}, "text/html; charset=utf-8")


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


def size(length: int) -> str:
    """Return bytes as 1.2 MiB."""
    if length < _KIB:
        return f"{length} B"
    power = min(int(math.log(length, _KIB)), 4)
    return f"{length / _KIB**power:.1f} {'KMGT'[power - 1]}iB"


def ago(at_s: float | None) -> str:
    """Return the age of a time in seconds since the epoch, in its largest unit."""
    return "never" if at_s is None else f"{_span(time.time() - at_s)} ago"


def ahead(at_s: float) -> str:
    """Return the wait until a time in seconds since the epoch, in its largest unit."""
    wait_s = at_s - time.time()
    return f"in {_span(wait_s)}" if wait_s >= 1 else "now"


def _span(span_s: float) -> str:
    whole_s = max(0, int(span_s))
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if whole_s >= seconds:
            return f"{whole_s // seconds} {unit}"
    return f"{whole_s} s"


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
