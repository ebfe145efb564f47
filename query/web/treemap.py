"""Rectangles whose areas are proportional to weights.

Bruls, Huizing and van Wijk, "Squarified Treemaps", Data Visualization 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rect(NamedTuple):
    """A rectangle in units of the drawing, from its top left corner."""

    x: float
    y: float
    width: float
    height: float


def squarified(weights: Sequence[float], frame: Rect) -> list[Rect]:
    """Return a rectangle for each weight, in their order; together they fill the frame.

    Weights are above 0. In descending order they give the shapes closest to squares.
    """
    placed: list[Rect] = []
    while len(placed) < len(weights):
        left = weights[len(placed) :]
        scale = frame.width * frame.height / sum(left)
        row = _row([weight * scale for weight in left], min(frame.width, frame.height))
        rects, frame = _placed(row, frame, is_last=len(row) == len(left))
        placed += rects
    return placed


def _row(areas: Sequence[float], side: float) -> Sequence[float]:
    """Return the first areas that form the best row along a side: a further one makes its worst shape worse."""
    count = 1
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return areas[:count]


def _worst(row: Sequence[float], side: float) -> float:
    """Return the highest ratio of a longer to a shorter side in a row."""
    thickness = sum(row) / side
    return max(max(thickness**2 / area, area / thickness**2) for area in row)


def _placed(row: Sequence[float], frame: Rect, *, is_last: bool) -> tuple[list[Rect], Rect]:
    """Return the rectangles of a row at the shorter side of the frame, and the rest of the frame."""
    x, y, width, height = frame
    is_wide = width >= height
    thickness = (width if is_wide else height) if is_last else sum(row) / (height if is_wide else width)
    rects: list[Rect] = []
    for area in row:
        length = area / thickness
        rects.append(Rect(x, y, thickness, length) if is_wide else Rect(x, y, length, thickness))
        x, y = (x, y + length) if is_wide else (x + length, y)
    if is_wide:
        return rects, Rect(frame.x + thickness, frame.y, width - thickness, height)
    return rects, Rect(frame.x, frame.y + thickness, width, height - thickness)
