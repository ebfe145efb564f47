"""Geometry of the map of tools: rectangles in a rectangle, each as large as its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATIO = 1.6
"""Width by height of the drawing on a desk; areas stay right in any other."""
# What rounding leaves of a side is at least this, so that nothing is divided by zero.
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle, in per cent of the drawing's width and height, from the top left."""

    x: float = 0.0
    y: float = 0.0
    width: float = 100.0
    height: float = 100.0


def squarified(weights: Sequence[float], within: Area) -> list[Area]:
    """Return an area for each weight, in their order; they fill `within`, nearly as squares.

    The weights are positive and descend. Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
    """
    areas: list[Area] = []
    left, start = within, 0
    while start < len(weights):
        scale = left.width * left.height / sum(weights[start:])
        is_wide = left.width * RATIO >= left.height
        side = left.height if is_wide else left.width * RATIO
        end = start + 1
        while end < len(weights) and _worst(weights[start : end + 1], side, scale * RATIO) <= _worst(
            weights[start:end], side, scale * RATIO
        ):
            end += 1
        row, left = _row(weights[start:end], left, scale, is_column=is_wide)
        areas += row
        start = end
    return areas


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return the ratio of the least square rectangle in a row along a side."""
    total = sum(row) * scale
    return max(side * side * row[0] * scale / total**2, total**2 / (side * side * row[-1] * scale))


def _row(row: Sequence[float], left: Area, scale: float, *, is_column: bool) -> tuple[list[Area], Area]:
    """Return the areas of a row, or of a column at the left, and the area that it leaves."""
    total = sum(row)
    areas: list[Area] = []
    offset = 0.0
    if is_column:
        width = total * scale / left.height
        for weight in row:
            height = left.height * weight / total
            areas.append(Area(left.x, left.y + offset, width, height))
            offset += height
        return areas, Area(left.x + width, left.y, max(left.width - width, _LEAST), left.height)
    height = total * scale / left.width
    for weight in row:
        width = left.width * weight / total
        areas.append(Area(left.x + offset, left.y, width, height))
        offset += width
    return areas, Area(left.x, left.y + height, left.width, max(left.height - height, _LEAST))
