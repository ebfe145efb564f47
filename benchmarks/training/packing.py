"""Short texts side by side in rows of one length: half of the places of a batch would be empty otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.data import Integers

PLACES = 64
# Each number of rows is compiled, so there are few.
ROWS = 8


def packed(parts: Sequence[tuple[NDArray[Any], NDArray[np.bool_]]]) -> tuple[NDArray[Any], Integers]:
    """Return all texts of the parts in rows, and the owner of each place: the text's number over all parts, or -1.

    A part has states of shape (texts, tokens, channels), and which of them are tokens: the first ones of each text.
    """
    texts = [states[number, : is_token[number].sum()] for states, is_token in parts for number in range(len(states))]
    rows = fitted([len(text) for text in texts])
    count = -(-len(rows) // ROWS) * ROWS
    found = np.zeros((count, PLACES, texts[0].shape[-1]), dtype=texts[0].dtype)
    owners = np.full((count, PLACES), -1, dtype=np.int32)
    for row, numbers in enumerate(rows):
        filling = np.concatenate([texts[number] for number in numbers])
        found[row, : len(filling)] = filling
        owners[row, : len(filling)] = np.repeat(numbers, [len(texts[number]) for number in numbers])
    return found, owners


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
