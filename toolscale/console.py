"""Where the command line prints: results on stdout, everything else on stderr; no colour when piped."""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console
from rich.table import Table

# Where nothing says how wide it is, as in a pipe: a row that is one line can be searched and cut.
PIPED_WIDTH = 200


def _width() -> int | None:
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH


# no markup: what is printed comes from servers and events as well
out = Console(markup=False, emoji=False, width=_width())
err = Console(stderr=True, markup=False, emoji=False)


def print_json(document: object) -> None:
    """Print one JSON document in ASCII, unwrapped and without colour."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def number_table(first_column: str, *columns: str) -> Table:
    """Return a table to be filled whose columns but the first are of numbers, which end at the right."""
    table = Table(first_column, box=None, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def thousands(number: int | None) -> str:
    """Return 12,345; nothing for what is not known."""
    return "" if number is None else f"{number:,}"


def percent(part: float | None) -> str:
    """Return a part of a whole, 0 to 1, in percent; nothing where there is no such part."""
    return "" if part is None else f"{part:.1%}"


def ago(at: float | None, now: float) -> str:
    """Return how long ago that was, in the largest unit that fits; times are seconds since the epoch."""
    if at is None:
        return "never"
    passed_s = max(0.0, now - at)
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed_s >= length_s:
            return f"{passed_s / length_s:.0f} {unit} ago"
    return f"{passed_s:.0f} s ago"


def printable(text: str) -> str:
    """Return someone else's text as one line that a terminal does not act upon."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text)
