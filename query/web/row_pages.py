"""Rows of a table by pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from query.web.page import PageRequest

ROWS = 100


def page_of_rows(rows: list[Any], request: PageRequest) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of the requested page, its number, and the number of pages."""
    pages = max(1, -(-len(rows) // ROWS))
    requested = request.query.get("page", "")
    page = min(int(requested), pages) if requested.isdecimal() and len(requested) < len(str(ROWS**3)) else 1
    page = max(page, 1)
    return rows[(page - 1) * ROWS : page * ROWS], {"page_number": page, "pages": pages}
