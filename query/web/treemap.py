"""Geometry of the map of tools: rectangles in a rectangle, each as large as its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

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

    @property
    def place(self) -> Markup:
        """Return the attributes of an element of this area, as SVG has them."""
        sides = f'width="{self.width:.2f}%" height="{self.height:.2f}%"'
        return Markup(f'x="{self.x:.2f}%" y="{self.y:.2f}%" {sides}')  # noqa: S704  # of numbers alone


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
        end, total = start + 1, weights[start]
        while end < len(weights):
            wider = total + weights[end]
            # the largest weight of a row is its first, the smallest its last
            before, after = (
                _worst(weights[start], last, of_row, side, scale * RATIO)
                for last, of_row in ((weights[end - 1], total), (weights[end], wider))
            )
            if after > before:
                break
            end, total = end + 1, wider
        row, left = _row(weights[start:end], left, scale, is_column=is_wide)
        areas += row
        start = end
    return areas


def _worst(largest: float, smallest: float, total: float, side: float, scale: float) -> float:
    """Return the ratio of the least square rectangle in a row of this total along a side."""
    breadth = total * scale / side
    return max(largest * scale / breadth**2, breadth**2 / (smallest * scale))


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
