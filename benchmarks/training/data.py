"""The tokens of requests and tools, as arrays in one file: the training environment has no code of the product.

Rows of tokens are filled with 0, which is no token of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]

# Tokens of a row. Few texts are longer, and time grows with the longest one.
QUERY_TOKENS, NAME_TOKENS, TEXT_TOKENS = 64, 20, 56
PIECE_TOKENS = 122
MISSING = -1


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
    pieces: Integers
    """Tokens of descriptions of tools and parameters, shape (pieces, PIECE_TOKENS); a long one is several pieces."""


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
