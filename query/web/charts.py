"""Geometry of the charts that templates draw: bars and step lines, by day."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from query.usage.usage import days_between

# Width of a column and height of the plot, in units of the drawing, which the browser scales.
COLUMN_WIDTH = 10.0
HEIGHT = 100.0
_GAP = 2.0
BELOW = 20.0
"""Height of the strip of costs, in the same units."""
NO_COSTS: Mapping[date, int] = MappingProxyType({})
_STEPS = (1, 2, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class _Column:
    """A day of a chart with its bar; `value` is None if unknown. Coordinates begin at the top left.

    A value below zero has no bar. `cost` hangs below the axis, at the same scale.
    """

    day: date
    value: int | None
    x: float
    y: float
    height: float
    cost: int = 0
    depth: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """All columns from the first to the last, and the grid lines of the scale, from the top.

    `peak` is the highest column, None if no column has a value above 0.
    """

    columns: tuple[_Column, ...]
    levels: tuple[int, ...]
    peak: _Column | None

    @property
    def width(self) -> float:
        """Return the plot's width in units."""
        return COLUMN_WIDTH * len(self.columns)

    def y(self, value: int) -> float:
        """Return the place of a value between the highest and the lowest level."""
        return _place(value, self.levels)

    @property
    def bar_width(self) -> float:
        """Return the width of a bar, with a gap between columns."""
        return COLUMN_WIDTH - _GAP

    @property
    def steps(self) -> str:
        """Return the path of a step line, interrupted at unknown columns."""
        parts: list[str] = []
        is_drawing = False
        for column in self.columns:
            if column.value is not None:
                command = "L" if is_drawing else "M"
                parts.append(f"{command}{column.x:g} {column.y:.2f}H{column.x + COLUMN_WIDTH:g}")
            is_drawing = column.value is not None
        return "".join(parts)

    @property
    def dearest(self) -> _Column | None:
        """Return the column with the highest cost, None without costs."""
        dearest = max(self.columns, key=lambda column: column.cost)
        return dearest if dearest.cost else None

    @property
    def areas(self) -> tuple[_Column, ...]:
        """Return the columns with a known value."""
        return tuple(column for column in self.columns if column.value is not None)


def chart(
    values: Mapping[date, int], first: date, last: date, missing: int | None, costs: Mapping[date, int] = NO_COSTS
) -> Chart:
    """Return the chart from the first to the last day; `missing` is the value of absent ones."""
    # high enough that the costs fit below
    levels = _levels([*values.values(), round(max(costs.values(), default=0) * HEIGHT / BELOW)])
    columns: list[_Column] = []
    for offset, day in enumerate(days_between(first, last)):
        value = values.get(day, missing)
        y = _place(max(value or 0, 0), levels)
        cost = costs.get(day, 0)
        columns.append(_Column(day, value, COLUMN_WIDTH * offset, y, HEIGHT - y, cost, HEIGHT * cost / levels[0]))
    known = [column for column in columns if column.value is not None]
    has_peak = any(column.value and column.value > 0 for column in known)
    peak = max(known, key=lambda column: column.value or 0) if has_peak else None
    return Chart(tuple(columns), levels, peak)


def _levels(values: Collection[int]) -> tuple[int, ...]:
    """Return the grid lines from a round number down to 0."""
    top = round_up(max((*values, 0)))
    return (top, 0) if top % 2 else (top, top // 2, 0)


def _place(value: int, levels: tuple[int, ...]) -> float:
    return HEIGHT * (levels[0] - value) / levels[0]


def round_up(value: int) -> int:
    """Return the next round number of the form step x 10^n, at least 1: the end of a scale."""
    power: int = 10 ** (len(str(value)) - 1)
    return next(step * power for step in _STEPS if step * power >= value)
