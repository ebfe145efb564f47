"""When nothing fits: what decides it is how close tools are, not their order, and a name that is there always fits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from query.answers.answer import FindResponse
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import (
    CATEGORIES,
    CATEGORY_WEIGHT,
    MIN_COVERAGE,
    NEAREST,
    NO_THRESHOLD,
    adjusted_similarity,
    category_similarity,
    coverage,
    fit,
    is_match,
    passages,
    similarity,
    step_similarity,
)
from query.search.request import FindRequest
from query.search.search import Step, StepResult
from shared.catalog import Candidates, IndexedTool, QueryVectors, Scope
from shared.text.bm25 import query_terms
from shared.text.embedding import Embedder, FastEmbedder, query_vectors
from shared.text.subjects import SUBJECTS
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of

WORDS = ("read", "send", "search", "convert", "calendar", "file", "mail", "time")
# of the last two a query keeps no term, so that only the name itself finds them
NAMES = (*WORDS, "the", "is_it")
ThreeLists = Sequence[Mapping[str, float]]
POINTS = ("a", "b", "c", "d", "e")
EMBEDDER = FakeEmbedder()
# no text is closer than 1
BEYOND_ALL = 2.0

phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
thresholds = st.floats(-1, BEYOND_ALL)
scores = st.dictionaries(st.sampled_from(POINTS), st.floats(-1, 1))


def tool_of(server: str, name: str, description: str) -> IndexedTool:
    return make_tool(server, name, description, 10)


three_lists = st.tuples(scores, scores, scores)
# A clause has a text of its own, and so other categories are nearest to it.
clauses_found = st.lists(st.tuples(phrases, three_lists), min_size=2, max_size=4)


def result(question: str, whole: ThreeLists, clauses: Sequence[tuple[str, ThreeLists]] = ()) -> StepResult:
    """Return a step's result with these candidates by name, by text and by terms."""
    texts, lists = (question, *(text for text, _ in clauses)), (whole, *(found for _, found in clauses))
    query, *others = (query_vectors(text, EMBEDDER) for text in texts)
    found, *of_clauses = (Candidates(len(POINTS), *three) for three in lists)
    return StepResult(Step(question, query, tuple(others)), found, of_clauses, (), {})


tools = st.builds(tool_of, st.sampled_from(("x", "y")), st.sampled_from(NAMES), phrases)
fleets = st.lists(tools, min_size=1, max_size=8, unique_by=lambda tool: tool.qualified_name)


def find(fleet: Sequence[IndexedTool], question: str, no_match_threshold: float, limit: int = 8) -> FindResponse:
    index = index_of(*fleet)
    catalogue = Catalogue(index, EMBEDDER, Ledger(index), no_match_threshold=no_match_threshold)
    return find_tool(FindRequest(tool_description=question, limit=limit), Scope(), catalogue)[0]


@given(fleets, phrases, thresholds, thresholds)
def test_a_higher_threshold_never_makes_a_match_of_none(
    fleet: list[IndexedTool], question: str, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    by_low, by_high = find(fleet, question, low), find(fleet, question, high)

    assert by_high.no_match or not by_low.no_match
    if by_low.no_match == by_high.no_match:
        assert (by_low.tools, by_low.nearest) == (by_high.tools, by_high.nearest)


@given(fleets, phrases, thresholds)
def test_an_answer_without_a_match_names_the_nearest_and_returns_none(
    fleet: list[IndexedTool], question: str, no_match_threshold: float
) -> None:
    answer = find(fleet, question, no_match_threshold)

    assert bool(answer.tools) == (not answer.no_match)
    assert bool(answer.nearest) == bool(answer.no_match)
    assert {line.split(": ")[0] for line in answer.nearest or ()} <= {tool.qualified_name for tool in fleet}


@given(fleets, phrases, thresholds, st.integers(1, 7))
@example(
    [
        tool_of("x", "read", "time convert mail read read"),
        tool_of("x", "mail", "file calendar mail read calendar"),
        tool_of("y", "file", "calendar send"),
    ],
    "calendar search search search",
    BEYOND_ALL,
    1,
)
def test_one_who_asks_for_fewer_tools_is_told_as_much_of_whether_any_fits(
    fleet: list[IndexedTool], question: str, no_match_threshold: float, limit: int
) -> None:
    few, many = (find(fleet, question, no_match_threshold, each) for each in (limit, 8))

    assert few.no_match == many.no_match
    assert [tool.name for tool in few.tools] == [tool.name for tool in many.tools][:limit]


@given(fleets, st.data())
def test_a_tool_that_is_asked_for_by_its_name_is_always_a_match(fleet: list[IndexedTool], data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(fleet))
    name = data.draw(st.sampled_from((tool.definition.name, tool.qualified_name)))

    answer = find(fleet, name, BEYOND_ALL)

    assert not answer.no_match
    assert tool.qualified_name in [found.name for found in answer.tools]


@given(phrases, three_lists, clauses_found, fleets, thresholds, st.randoms(use_true_random=False))
def test_the_order_of_candidates_clauses_and_tools_does_not_matter(
    question: str,
    whole: ThreeLists,
    clauses: list[tuple[str, ThreeLists]],
    fleet: list[IndexedTool],
    no_match_threshold: float,
    chance: Random,
) -> None:
    def shuffled(lists: ThreeLists) -> ThreeLists:
        return [dict(chance.sample(sorted(found.items()), len(found))) for found in lists]

    others = [(text, shuffled(lists)) for text, lists in chance.sample(clauses, len(clauses))]

    found = is_match(result(question, whole, clauses), fleet, EMBEDDER, no_match_threshold)
    in_another_order = result(question, shuffled(whole), others)
    assert found == is_match(in_another_order, chance.sample(fleet, len(fleet)), EMBEDDER, no_match_threshold)


@given(phrases, scores.filter(bool), clauses_found)
def test_the_second_best_clause_may_raise_the_similarity(
    question: str, whole: dict[str, float], clauses: list[tuple[str, ThreeLists]]
) -> None:
    alone = step_similarity(result(question, [whole, whole, {}]), EMBEDDER)
    each = [step_similarity(result(text, lists), EMBEDDER) for text, lists in clauses]

    assert step_similarity(result(question, [whole, whole, {}], clauses), EMBEDDER) == max(alone, sorted(each)[-2])


@given(phrases, scores.filter(bool), clauses_found, fleets, thresholds)
def test_the_fit_adds_a_tenth_of_the_covered_terms_and_decides(
    question: str,
    whole: dict[str, float],
    clauses: list[tuple[str, ThreeLists]],
    fleet: list[IndexedTool],
    no_match_threshold: float,
) -> None:
    found = result(question, [whole, whole, {}], clauses)
    share = coverage(found.step.whole, fleet)

    by_terms = inf if share >= MIN_COVERAGE else 0.1 * share
    assert fit(found, fleet, EMBEDDER) == step_similarity(found, EMBEDDER) + by_terms
    is_enough = no_match_threshold <= -1 or fit(found, fleet, EMBEDDER) >= no_match_threshold
    assert is_match(found, fleet, EMBEDDER, no_match_threshold) == is_enough


@given(fleets, phrases, st.randoms(use_true_random=False))
def test_the_order_of_tools_does_not_matter_and_one_more_never_covers_less(
    fleet: list[IndexedTool], question: str, chance: Random
) -> None:
    query = QueryVectors(None, query_terms(question))

    covered = coverage(query, fleet)

    assert covered == coverage(query, chance.sample(fleet, len(fleet)))
    assert covered >= coverage(query, fleet[1:])


# --- categories of tools ---

OWN_TOOLS = (
    ("git", "commit", "Record changes to a repository"),
    ("git", "log", "Show the history of commits"),
    ("clock", "get_current_time", "Tell the time in a time zone"),
    ("clock", "convert_time", "Convert a time between time zones"),
)

texts = st.lists(st.sampled_from(" ".join(SUBJECTS.values()).split()), min_size=1, max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def bundled() -> Embedder:
    return FastEmbedder()


def index_of_own_tools(embedder: Embedder) -> FakeIndex:
    return index_of(*(make_tool(*tool) for tool in OWN_TOOLS), embedder=embedder)


def candidates_with_similarity(cosine: float) -> Candidates:
    return Candidates(1, {"a": cosine}, {"a": cosine}, {})


def closest(question: str, embedder: Embedder) -> float:
    (found,) = index_of_own_tools(embedder).search([query_vectors(question, embedder)], Scope(), depth=10)
    return float(similarity(found, list(found.points)).max())


def test_concurrent_threads_embed_the_tool_categories_once_and_keep_them_as_long_as_the_embedder() -> None:
    embedder = FakeEmbedder()

    with ThreadPoolExecutor(8) as threads:
        each = list(threads.map(CATEGORIES.of, [embedder] * 8))

    assert len({id(vectors) for vectors in each}) == 1
    assert embedder.embedded_texts == passages()
    vectors = weakref.ref(each[0])
    del embedder, each
    gc.collect()
    assert vectors() is None


@given(texts)
def test_only_the_nearest_tool_categories_decide(question: str) -> None:
    query = EMBEDDER.query(question)

    each = sorted((float(row @ query) for row in CATEGORIES.of(EMBEDDER)), reverse=True)

    assert category_similarity(query, EMBEDDER) == pytest.approx(sum(each[:NEAREST]) / NEAREST, abs=1e-6)
    assert -1.001 <= category_similarity(query, EMBEDDER) <= 1.001


@given(texts, texts)
def test_a_higher_category_similarity_lowers_the_adjusted_similarity(one: str, other: str) -> None:
    first, second = query_vectors(one, EMBEDDER), query_vectors(other, EMBEDDER)
    found = {"a": 0.5}

    difference = adjusted_similarity(first, found, EMBEDDER) - adjusted_similarity(second, found, EMBEDDER)

    by_kinds = category_similarity(EMBEDDER.query(other), EMBEDDER) - category_similarity(EMBEDDER.query(one), EMBEDDER)
    assert difference == pytest.approx(CATEGORY_WEIGHT * by_kinds, abs=1e-6)


def test_at_minus_one_the_furthest_tool_matches_and_no_category_is_embedded() -> None:
    embedder = FakeEmbedder()
    step = Step(passages()[0], query_vectors(passages()[0], embedder))
    furthest = StepResult(step, candidates_with_similarity(-1.0), (), (), {})

    assert is_match(furthest, (), embedder, NO_THRESHOLD)
    assert embedder.embedded_texts == []
    assert not is_match(furthest, (), embedder, -0.999)


def test_a_task_of_another_tool_category_is_no_match_at_the_same_similarity(bundled: Embedder) -> None:
    elsewhere, here = "weather forecast for tomorrow", "save my work"
    index = index_of_own_tools(bundled)
    catalogue = Catalogue(index, bundled, Ledger(index))

    answers = [find_tool(FindRequest(tool_description=each), Scope(), catalogue)[0] for each in (elsewhere, here)]

    assert closest(elsewhere, bundled) == pytest.approx(closest(here, bundled), abs=0.04)
    assert [answer.no_match for answer in answers] == [True, None]
    assert answers[1].tools[0].first_server[0] == "git"
