"""Fusion and merging for any scores: nothing lost, nothing twice, and no engine's order in the result."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.search.ranking import ROUNDING, fuse, rank, rank_steps, round_robin
from shared.catalog import Candidates, point_id

# tools of two servers
points = st.sampled_from([point_id("y" if number % 2 else "x", str(number)) for number in range(8)])
cosines = st.dictionaries(points, st.floats(-1, 1).map(lambda score: round(score, 3)), max_size=8)
bm25 = st.dictionaries(points, st.integers(1, 40).map(float), max_size=8)


@st.composite
def found(draw: st.DrawFn) -> Candidates:
    lists = (draw(cosines), draw(cosines), draw(bm25))
    return Candidates(8, *lists)


@given(whole=found(), clauses=st.lists(found(), max_size=3), seed=st.integers())
def test_every_candidate_is_ranked_once_and_in_an_order_the_engine_does_not_decide(
    whole: Candidates, clauses: list[Candidates], seed: int
) -> None:
    ranked = rank(whole, clauses)

    assert set(ranked) == {point for candidates in (whole, *clauses) for point in candidates.points}
    assert list(ranked.values()) == pytest.approx(sorted(ranked.values(), reverse=True), abs=10 * ROUNDING)
    assert list(rank(_shuffled(whole, seed), clauses)) == list(ranked)


@given(whole=found(), seed=st.integers())
def test_rounding_errors_of_bm25_do_not_order_equal_tools(whole: Candidates, seed: int) -> None:
    draw = random.Random(seed)
    rounded = {point: score * (1 + draw.uniform(-1, 1) * 2**-23) for point, score in whole.terms.items()}

    assert list(rank(replace(whole, terms=rounded))) == list(rank(whole))


@given(steps=st.lists(found(), max_size=4), order=st.randoms())
def test_the_order_of_the_steps_changes_no_score(steps: list[Candidates], order: random.Random) -> None:
    numbers = list(range(len(steps)))
    order.shuffle(numbers)

    scores = rank_steps([[each] for each in steps])

    assert rank_steps([[steps[number]] for number in numbers]) == [scores[number] for number in numbers]


@given(whole=found(), factor=st.floats(0.1, 10))
def test_bm25_on_another_scale_changes_no_score(whole: Candidates, factor: float) -> None:
    scaled = {point: score * factor for point, score in whole.terms.items()}

    other = fuse(replace(whole, terms=scaled), sorted(whole.points))

    assert other == pytest.approx(fuse(whole, sorted(whole.points)), abs=1e-6)


@given(rankings=st.lists(st.lists(points, unique=True), max_size=4), limit=st.integers(0, 10))
def test_merging_respects_the_limit_loses_nothing_and_repeats_nothing(rankings: list[list[str]], limit: int) -> None:
    merged = round_robin(rankings, limit)

    everything = {point for ranking in rankings for point in ranking}
    assert len(merged) == len(set(merged)) == min(limit, len(everything))
    assert {ranking[0] for ranking in rankings[:limit] if ranking} <= set(merged)


def _shuffled(whole: Candidates, seed: int) -> Candidates:
    draw = random.Random(seed)

    def shuffle(scores: Mapping[str, float]) -> dict[str, float]:
        items = list(scores.items())
        draw.shuffle(items)
        return dict(items)

    return replace(whole, name=shuffle(whole.name), text=shuffle(whole.text), terms=shuffle(whole.terms))
