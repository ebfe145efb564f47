"""Output of the command line: results on stdout, everything else on stderr; no colour in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

# A pipe has no width. One line per row suits grep and cut.
PIPED_WIDTH = 200


FIRST_SERVERS = "`toolscale import` takes over the servers of your clients, and `toolscale add` adds one."
"""The next step where a catalogue has no servers."""

# no markup: servers and events supply some of the text
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
out = Console(**_PLAIN, width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH)
err = Console(**_PLAIN, stderr=True)


class Column(NamedTuple):
    """A column of a table: numbers are right-aligned and never cut; other cells are folded in a narrow terminal."""

    title: str
    is_number: bool = False


def print_lines(*lines: str | Text) -> None:
    """Print lines of results as they are, without colour; only a terminal wraps them."""
    for line in lines:
        out.print(line, soft_wrap=True)


def print_notes(*lines: str | Text) -> None:
    """Print lines that are no results in the same way, on stderr, if it takes them."""
    with suppress(OSError):
        for line in lines:
            err.print(line, soft_wrap=True)


def print_json(document: object) -> None:
    """Print one JSON document in ASCII, unwrapped and without colour."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def number_columns(first: str, *titles: str) -> tuple[Column, ...]:
    """Return columns of numbers after a first one of texts."""
    return (Column(first), *(Column(title, is_number=True) for title in titles))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], total: Sequence[str] = ()) -> None:
    """Print rows under the titles of their columns, and their total, within the width of the terminal."""
    totals = [total] if total else []
    head, *body = _table([[column.title for column in columns], *rows, *totals], columns, out.width)
    last = body.pop() if total else []
    out.print(Text("\n".join(head), style="bold"), soft_wrap=True)
    if body:
        out.out("\n".join(line for lines in body for line in lines))
    if last:
        out.print(Text("\n".join(last), style="bold"), soft_wrap=True)


def working(text: str) -> AbstractContextManager[object]:
    """Show on stderr that something takes time, until the block ends; nothing where that is no terminal."""
    return err.status(text) if err.is_terminal else nullcontext()


def thousands(number: int | None) -> str:
    """Return 12,345; an empty text for None."""
    return "" if number is None else f"{number:,}"


def percent(part: float | None) -> str:
    """Return a share between 0 and 1 in percent; an empty text for None."""
    return "" if part is None else f"{part:.1%}"


def _table(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> Iterator[list[str]]:
    """Yield the lines of each row. rich's table takes a millisecond for a row, which is too much for thousands."""
    lengths = [[cell_len(cell) for cell in row] for row in rows]
    widths = [max(of_column) for of_column in zip(*lengths, strict=True)]
    too_wide = sum(widths) + 2 * len(widths) - 1 - width  # a space before each column, and one more between two
    folded = [number for number, column in enumerate(columns) if not column.is_number]
    while too_wide > 0 and max(widths[number] for number in folded) > 1:
        widths[max(folded, key=lambda number: widths[number])] -= 1
        too_wide -= 1
    for row, of_row in zip(rows, lengths, strict=True):
        if all(length <= most for length, most in zip(of_row, widths, strict=True)):
            yield [_line(row, of_row, widths, columns)]
            continue
        cells = [_folded(cell, most) for cell, most in zip(row, widths, strict=True)]
        lines = [
            [cell[number] if number < len(cell) else "" for cell in cells] for number in range(max(map(len, cells)))
        ]
        yield [_line(line, list(map(cell_len, line)), widths, columns) for line in lines]


def _line(cells: Sequence[str], lengths: Sequence[int], widths: Sequence[int], columns: Sequence[Column]) -> str:
    parts: list[str] = []
    for cell, length, width, column in zip(cells, lengths, widths, columns, strict=True):
        blank = " " * (width - length)
        parts.append(blank + cell if column.is_number else cell + blank)
    return (" " + "  ".join(parts)).rstrip()


def _folded(cell: str, width: int) -> list[str]:
    lines: Any = Text(cell).wrap(out, width, overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]
