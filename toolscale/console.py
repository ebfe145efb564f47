"""Output of the command line: results on stdout, everything else on stderr; no colour in a pipe."""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console
from rich.table import Table

# A pipe has no width. One line per row suits grep and cut.
PIPED_WIDTH = 200


def _width() -> int | None:
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH


# no markup: servers and events supply some of the text
out = Console(markup=False, emoji=False, width=_width())
err = Console(stderr=True, markup=False, emoji=False)


def print_json(document: object) -> None:
    """Print one JSON document in ASCII, unwrapped and without colour."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def number_table(first_column: str, *columns: str) -> Table:
    """Return an empty table; all columns but the first are right-aligned numbers, which are never cut."""
    table = Table(box=None, header_style="bold")
    table.add_column(first_column, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def thousands(number: int | None) -> str:
    """Return 12,345; an empty text for None."""
    return "" if number is None else f"{number:,}"


def percent(part: float | None) -> str:
    """Return a share between 0 and 1 in percent; an empty text for None."""
    return "" if part is None else f"{part:.1%}"


def ago(at: float | None, now: float) -> str:
    """Return the time since `at` in the largest unit that fits; both times are seconds since the epoch."""
    if at is None:
        return "never"
    passed_s = max(0.0, now - at)
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed_s >= length_s:
            return f"{passed_s / length_s:.0f} {unit} ago"
    return f"{passed_s:.0f} s ago"
