"""A request of a page, and the page that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The caller, the catalogue, and the parameters of path and query string."""

    caller: Caller
    catalogue: Catalogue
    path: Mapping[str, str]
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values, status and headers."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


View = Callable[[PageRequest], Page]


def message_page(status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> Page:
    """Return a page with an error message."""
    return Page("message.html", {"title": title, "text": text}, status, headers or {})
