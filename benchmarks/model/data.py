"""Requests and tools as arrays of tokens, in one file and in rows of a batch.

Rows of tokens are filled with 0, which is no token of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]

# Tokens of a row. Few texts are longer, and time grows with the longest one.
QUERY_TOKENS, NAME_TOKENS, TEXT_TOKENS = 64, 20, 56
MISSING = -1
PLACES = 64
# Each number of rows is compiled, so there are few.
ROWS = 8


@dataclass(frozen=True, slots=True)
class Data:
    """Requests and tools; a tool is named by its row."""

    queries: Integers
    """Tokens, shape (requests, QUERY_TOKENS)."""
    names: Integers
    """Tokens of the name passages, shape (tools, NAME_TOKENS)."""
    texts: Integers
    """Tokens of the text passages, shape (tools, TEXT_TOKENS)."""
    servers: Integers
    """The number of each tool's server, shape (tools,)."""
    relevant: Integers
    """The tools of each request, filled with MISSING, shape (requests, most)."""
    styles: NDArray[np.str_]
    """The style of each request, shape (requests,)."""


def write_data(data: Data, path: Path) -> None:
    """Write the arrays to this file, in the format npz."""
    np.savez_compressed(path, **{field.name: getattr(data, field.name) for field in fields(Data)})


def read_data(path: Path) -> Data:
    """Return the arrays of this file."""
    with np.load(path) as kept:
        return Data(**{field.name: kept[field.name] for field in fields(Data)})


def rows(tokens: Iterable[Sequence[int]], length: int) -> Integers:
    """Return these tokens as rows, shape (texts, length); a longer text is cut and keeps its closing token."""
    cut = [row if len(row) <= length else [*row[: length - 1], row[-1]] for row in tokens]
    return filled(cut, length, 0)


def filled(values: Sequence[Sequence[int]], length: int, filling: int) -> Integers:
    """Return rows of this length, each filled at its end."""
    found = np.full((len(values), length), filling, dtype=np.int32)
    for row, own in zip(found, values, strict=True):
        row[: len(own)] = own
    return found


def tokens_of(chosen: Integers) -> list[list[int]]:
    """Return the tokens of these rows without the filling."""
    return [row[row != 0].tolist() for row in chosen]


class Rows(NamedTuple):
    """Short texts side by side; each array has the shape (rows, PLACES)."""

    tokens: Integers
    positions: Integers
    """The place of each token in its text."""
    owners: Integers
    """The number of each token's text, and -1 where a row is empty."""


def packed(texts: Sequence[Sequence[int]]) -> Rows:
    """Return these texts in rows, where half of the places would be empty otherwise; none is longer than a row.

    First-fit decreasing, Johnson, 1973.
    """
    fitted: list[list[int]] = []
    free: list[int] = []
    for number in sorted(range(len(texts)), key=lambda number: -len(texts[number])):
        length = len(texts[number])
        row = next((row for row, places in enumerate(free) if places >= length), len(fitted))
        if row == len(fitted):
            fitted.append([])
            free.append(PLACES)
        fitted[row].append(number)
        free[row] -= length
    shape = (-(-len(fitted) // ROWS) * ROWS, PLACES)
    found = Rows(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32))
    for row, numbers in enumerate(fitted):
        lengths = [len(texts[number]) for number in numbers]
        end = sum(lengths)
        found.tokens[row, :end] = np.concatenate([texts[number] for number in numbers])
        found.positions[row, :end] = np.concatenate([np.arange(length) for length in lengths])
        found.owners[row, :end] = np.repeat(numbers, lengths)
    return found
