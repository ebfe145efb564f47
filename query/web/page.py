"""One request of a page, and what is shown for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Who asks, of which catalogue, with which parts of the path and of the query string."""

    caller: Caller
    catalogue: Catalogue
    path: Mapping[str, str]
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values, and the status and headers it is sent with."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


View = Callable[[PageRequest], Page]


def message_page(status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> Page:
    """Return a page that says why there is no other."""
    return Page("message.html", {"title": title, "text": text}, status, headers or {})
