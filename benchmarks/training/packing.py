"""Short texts side by side in rows of one length: half of the places of a batch would be empty otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.training.data import Integers

PLACES = 64
# Each number of rows is compiled, so there are few.
ROWS = 8


class Rows(NamedTuple):
    """Texts in rows; each array has the shape (rows, PLACES)."""

    tokens: Integers
    positions: Integers
    """The place of each token in its text."""
    owners: Integers
    """The number of each token's text, and -1 where a row is empty."""


def packed(texts: Sequence[Sequence[int]]) -> Rows:
    """Return these texts in rows; ValueError if a text is longer than a row."""
    fitted_rows = fitted([len(text) for text in texts])
    shape = (-(-len(fitted_rows) // ROWS) * ROWS, PLACES)
    found = Rows(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32))
    for row, numbers in enumerate(fitted_rows):
        lengths = [len(texts[number]) for number in numbers]
        end = sum(lengths)
        found.tokens[row, :end] = np.concatenate([texts[number] for number in numbers])
        found.positions[row, :end] = np.concatenate([np.arange(length) for length in lengths])
        found.owners[row, :end] = np.repeat(numbers, lengths)
    return found


def fitted(lengths: Sequence[int]) -> list[list[int]]:
    """Return the texts of each row, none longer than PLACES: first-fit decreasing (Johnson, 1973)."""
    rows: list[list[int]] = []
    free: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, places in enumerate(free) if places >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(PLACES)
        rows[row].append(number)
        free[row] -= lengths[number]
    return rows
