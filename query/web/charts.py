"""Geometry of the charts that templates draw: bars and step lines, by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

# Width of a day and height of the plot, in units of the drawing, which the browser scales.
DAY_WIDTH = 10.0
HEIGHT = 100.0
_GAP = 2.0
_STEPS = (1, 2, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class _Column:
    """A day of a chart; `value` is None if unknown. Coordinates start at the plot's top left corner."""

    day: date
    value: int | None
    x: float
    y: float

    @property
    def height(self) -> float:
        """Return the height of the day's bar."""
        return HEIGHT - self.y


@dataclass(frozen=True, slots=True)
class Chart:
    """All days from the first to the last; `top`, a round number, ends the scale; `peak` is the highest day."""

    columns: tuple[_Column, ...]
    top: int
    peak: _Column | None

    @property
    def width(self) -> float:
        """Return the plot's width in units."""
        return DAY_WIDTH * len(self.columns)

    @property
    def levels(self) -> tuple[int, ...]:
        """Return the values of the grid lines, from the top."""
        return (self.top, 0) if self.top % 2 else (self.top, self.top // 2, 0)

    @property
    def bar_width(self) -> float:
        """Return the width of a bar, with a gap between days."""
        return DAY_WIDTH - _GAP

    @property
    def steps(self) -> str:
        """Return the path of a step line, interrupted at unknown days."""
        parts: list[str] = []
        is_drawing = False
        for column in self.columns:
            if column.value is not None:
                command = "L" if is_drawing else "M"
                parts.append(f"{command}{column.x:g} {column.y:.2f}H{column.x + DAY_WIDTH:g}")
            is_drawing = column.value is not None
        return "".join(parts)

    @property
    def areas(self) -> tuple[_Column, ...]:
        """Return the days with a known value."""
        return tuple(column for column in self.columns if column.value is not None)


def chart(values: Mapping[date, int], first: date, last: date, missing: int | None) -> Chart:
    """Return the chart of these days, both included; `missing` is the value of absent days."""
    days = [first + timedelta(days=offset) for offset in range((last - first).days + 1)]
    top = round_up(max(values.values(), default=0))
    columns = tuple(
        _Column(day, value := values.get(day, missing), DAY_WIDTH * at, HEIGHT * (1 - (value or 0) / top))
        for at, day in enumerate(days)
    )
    known = [column for column in columns if column.value]
    return Chart(columns, top, max(known, key=lambda column: column.value or 0, default=None))


def round_up(value: int) -> int:
    """Return the next round number of the form step x 10^n, at least 1: the end of a scale."""
    power: int = 10 ** (len(str(value)) - 1)
    return next(step * power for step in _STEPS if step * power >= value)
