from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.web.charts import BELOW, COLUMN_WIDTH, HEIGHT, chart, round_up

FIRST = date(2026, 11, 1)
DAYS = 20
LAST = FIRST + timedelta(days=DAYS - 1)

some_days = st.dictionaries(st.dates(FIRST, LAST), st.integers(0, 10**9))


@given(some_days)
def test_every_day_has_a_place_within_the_plot(values: dict[date, int]) -> None:
    drawn = chart(values, FIRST, LAST, missing=0)

    assert [column.day for column in drawn.columns] == [FIRST + timedelta(days=offset) for offset in range(DAYS)]
    assert all(0 <= column.x <= drawn.width - COLUMN_WIDTH for column in drawn.columns)
    assert all(0 <= column.y <= HEIGHT for column in drawn.columns)
    assert drawn.levels[0] >= max(values.values(), default=0)
    assert drawn.levels[-1] == 0


@given(st.dictionaries(st.dates(FIRST, LAST), st.integers(-(10**9), 10**9)))
def test_a_bar_spans_from_its_value_to_zero_and_a_value_below_zero_has_none(values: dict[date, int]) -> None:
    drawn = chart(values, FIRST, LAST, missing=0)

    assert drawn.levels[0] >= max((*values.values(), 0))
    assert drawn.levels[-1] == 0
    for column in drawn.columns:
        ends = [drawn.y(max(column.value or 0, 0)), drawn.y(0)]
        assert [column.y, column.y + column.height] == pytest.approx(ends)
        assert 0 <= column.y <= column.y + column.height <= HEIGHT


@given(some_days, some_days)
def test_costs_hang_below_at_the_scale_of_the_bars_and_fit_their_strip(
    values: dict[date, int], costs: dict[date, int]
) -> None:
    drawn = chart(values, FIRST, LAST, missing=0, costs=costs)

    for column in drawn.columns:
        assert column.cost == costs.get(column.day, 0)
        assert column.depth == pytest.approx(HEIGHT * column.cost / drawn.levels[0])
        assert column.depth <= BELOW + 1e-6
    assert (drawn.dearest.cost if drawn.dearest else 0) == max(costs.values(), default=0)


@given(some_days)
def test_a_higher_value_is_drawn_higher(values: dict[date, int]) -> None:
    drawn = chart(values, FIRST, LAST, missing=0)

    ordered = sorted(drawn.columns, key=lambda column: column.value or 0)
    assert [column.y for column in ordered] == sorted((column.y for column in ordered), reverse=True)


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    values = {FIRST: 5, FIRST + timedelta(days=1): 10, FIRST + timedelta(days=3): 10}

    drawn = chart(values, FIRST, FIRST + timedelta(days=3), missing=None)

    assert drawn.steps == "M0 50.00H10L10 0.00H20M30 0.00H40"
    assert [column.day for column in drawn.areas] == list(values)


def test_without_a_value_there_is_no_peak() -> None:
    assert chart({}, FIRST, LAST, missing=None).peak is None
    assert chart({FIRST: 0}, FIRST, LAST, missing=0).peak is None


@given(st.integers(0, 10**12))
def test_a_scale_ends_at_a_round_number_above_the_value_and_below_twice_of_it(value: int) -> None:
    top = round_up(value)

    assert value <= top <= max(1, 2 * value)
    assert re.fullmatch(r"[1-9]0*", str(top))
