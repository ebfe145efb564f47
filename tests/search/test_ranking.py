"""Fusion and merging: nothing lost, nothing twice, and no engine's order in the result."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.search.ranking import (
    NAMED_WEIGHT,
    ROUNDING,
    boost_servers,
    fuse,
    rank,
    rank_steps,
    round_robin,
    similarity,
    with_best_clause,
)
from shared.catalog import Candidates, point_id, server_half

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


def candidates(
    depth: int = 10,
    name: dict[str, float] | None = None,
    text: dict[str, float] | None = None,
    terms: dict[str, float] | None = None,
) -> Candidates:
    """Return candidates; points with short ids are each on a server of their own."""
    return Candidates(depth, name or {}, text or {}, terms or {})


def test_a_candidate_missing_from_a_dense_list_is_as_close_as_the_last_one_there() -> None:
    found = candidates(depth=2, name={"a": 0.9, "b": 0.5}, text={"a": 0.9, "c": 0.7})

    assert similarity(found, ["c"]) == pytest.approx([(0.6 + 0.7) / 2])


def test_a_candidate_missing_from_a_list_of_terms_that_was_not_cut_off_scores_nothing_there() -> None:
    dense = {"a": 0.5, "b": 0.5, "c": 0.5}

    _, b, c = fuse(candidates(depth=3, name=dense, text=dense, terms={"a": 9.0, "b": 8.0}), list("abc"))
    assert b > c

    _, b, c = fuse(candidates(depth=2, name=dense, text=dense, terms={"a": 9.0, "b": 8.0}), list("abc"))
    assert b == c


def test_words_and_meaning_both_count_and_meaning_counts_more() -> None:
    by_meaning = {"meant": 0.9, "worded": 0.3, "x": 0.3}

    scores = rank(candidates(name=by_meaning, text=by_meaning, terms={"worded": 9.0}))

    assert list(scores) == ["meant", "worded", "x"]


def test_a_tool_that_one_clause_is_about_rises() -> None:
    whole = np.array([1.0, 0.9, 0.0])

    a, b, c = with_best_clause(whole, [np.array([0.0, 2.0, 0.0]), np.array([0.0, 0.0, 0.1])])

    assert b > a > c
    assert with_best_clause(whole, []) is whole


def test_a_tool_that_is_no_candidate_of_a_clause_scores_there_as_the_last_one() -> None:
    every, last, other = {"a": 0.9, "b": 0.5, "c": 0.5}, {"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.1, "c": 0.1}

    without = rank(candidates(name=every, text=every), [candidates(name=last, text=last)])
    as_last = rank(candidates(name=every, text=every), [candidates(name=other, text=other)])

    assert without["b"] == without["c"]
    assert list(without) == list(as_last) == ["a", "b", "c"]


def test_a_tool_rises_with_the_best_of_its_server() -> None:
    points = [point_id("s", "best"), point_id("s", "sibling"), point_id("t", "stranger")]

    best, sibling, stranger = boost_servers(np.array([3.0, 1.0, 1.1]), list(map(server_half, points)))

    assert best > sibling > stranger


def test_a_tool_rises_with_the_best_of_its_server_for_another_step() -> None:
    near, equal, far = point_id("used", "read"), point_id("used", "write"), point_id("unused", "write")
    reading = candidates(name={near: 0.9, far: 0.1}, text={near: 0.9, far: 0.1})
    writes = {equal: 0.6, far: 0.61, point_id("other", "draw"): 0.1}
    writing = candidates(name=writes, text=writes)

    (alone,) = rank_steps([[writing]])
    _, beside = rank_steps([[reading], [writing]])

    assert list(alone)[:2] == [far, equal]
    assert list(beside)[:2] == [equal, far]


def test_a_server_without_candidates_for_another_step_scores_there_as_the_last_one() -> None:
    first, last, missing = point_id("first", "a"), point_id("last", "a"), point_id("missing", "a")
    elsewhere = candidates(name={first: 0.9, last: 0.1}, text={first: 0.9, last: 0.1})
    equal = dict.fromkeys((first, last, missing), 0.5)

    scores, _ = rank_steps([[candidates(name=equal, text=equal)], [elsewhere]])

    assert scores[first] > scores[last] == scores[missing]


def test_rankings_are_interleaved() -> None:
    assert round_robin([["a", "b", "c"], ["b", "d"], []], 10) == ["a", "b", "d", "c"]


@given(step=found(), servers=st.sets(st.sampled_from(["x", "y"])))
def test_tools_of_a_named_server_gain_the_same_and_others_nothing(step: Candidates, servers: set[str]) -> None:
    halves = {server_half(point_id(server, "")) for server in servers}

    (before,), (after,) = rank_steps([[step]]), rank_steps([[step]], [halves.intersection])

    gains = {point: after[point] - before[point] for point in before}
    assert after.keys() == before.keys()
    for point, gain in gains.items():
        assert gain == pytest.approx(NAMED_WEIGHT if server_half(point) in halves else 0)
