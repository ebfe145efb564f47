"""A request of a page, and the page that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The caller, the catalogue, the parameters of path and query string, and the address of the service.

    `address` is the public one of the settings, or `http://host:port`, as the browser used it.
    """

    caller: Caller
    catalogue: Catalogue
    path: Mapping[str, str]
    query: Mapping[str, str]
    address: str = ""


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
