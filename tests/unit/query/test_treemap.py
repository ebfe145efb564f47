"""A treemap: areas in the proportion of their weights, side by side, within the frame."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.web.treemap import Rect, squarified

weights = st.lists(st.integers(1, 10**7), min_size=1, max_size=40)
frames = st.builds(Rect, st.floats(-50, 50), st.floats(-50, 50), st.floats(1, 2_000), st.floats(1, 2_000))


@given(weights, frames)
def test_areas_are_proportional_to_weights_and_fill_the_frame(weights: list[int], frame: Rect) -> None:
    rects = squarified(weights, frame)

    area = frame.width * frame.height
    expected = [area * weight / sum(weights) for weight in weights]
    assert [rect.width * rect.height for rect in rects] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(weights, frames)
def test_no_rectangle_leaves_the_frame_or_covers_another(weights: list[int], frame: Rect) -> None:
    rects = squarified(weights, frame)

    slack = 1e-6 * (frame.width + frame.height)
    for rect in rects:
        assert frame.x - slack <= rect.x
        assert frame.y - slack <= rect.y
        assert rect.x + rect.width <= frame.x + frame.width + slack
        assert rect.y + rect.height <= frame.y + frame.height + slack
    for one, other in combinations(rects, 2):
        across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
        down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
        assert min(across, down) <= slack


def test_the_example_of_the_paper_has_the_rows_of_the_paper() -> None:
    rects = squarified([6, 6, 4, 3, 2, 2, 1], Rect(0, 0, 6, 4))

    assert rects[0] == pytest.approx((0, 0, 3, 2))
    assert rects[1] == pytest.approx((0, 2, 3, 2))
    assert rects[2] == pytest.approx((3, 0, 12 / 7, 7 / 3))
    assert rects[3] == pytest.approx((3 + 12 / 7, 0, 9 / 7, 7 / 3))


def test_of_nothing_there_is_nothing_to_draw() -> None:
    assert squarified([], Rect(0, 0, 10, 10)) == []
