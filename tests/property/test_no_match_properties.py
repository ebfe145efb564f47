"""When nothing fits: what decides it is how close tools are, not their order, and a name that is there always fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from query.catalogue import Catalogue
from query.find import find_tool
from query.response.find_response import FindResponse
from query.savings.ledger import Ledger
from query.search.no_match import coverage, fit, is_match, step_similarity
from query.search.request import FindRequest
from query.search.search import StepResult
from query.search.steps import Step
from shared.catalog import Candidates, IndexedTool, QueryVectors, Scope
from shared.text.bm25 import query_terms
from shared.text.vectors import query_vectors
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

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


results_of_three = st.tuples(scores, scores, scores)


def result(question: str, whole: ThreeLists, clauses: Sequence[ThreeLists]) -> StepResult:
    """Return a step's result with these candidates by name, by text and by terms; every clause has the same text."""
    query = query_vectors(question, EMBEDDER)
    step = Step(question, query, (query,) * len(clauses))
    found, *others = (Candidates(len(POINTS), *lists) for lists in (whole, *clauses))
    return StepResult(step, found, others, (), {})


tools = st.builds(tool_of, st.sampled_from(("x", "y")), st.sampled_from(NAMES), phrases)
fleets = st.lists(tools, min_size=1, max_size=8, unique_by=lambda tool: tool.qualified_name)


def find(fleet: Sequence[IndexedTool], question: str, no_match_threshold: float, limit: int = 8) -> FindResponse:
    index = FakeIndex()
    index.upsert([ingested(tool, EMBEDDER) for tool in fleet])
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
    assert set(answer.nearest or ()) <= {tool.qualified_name for tool in fleet}


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


@given(phrases, results_of_three, results_of_three, fleets, thresholds, st.randoms(use_true_random=False))
def test_the_order_of_candidates_clauses_and_tools_does_not_matter(
    question: str,
    whole: ThreeLists,
    clause: ThreeLists,
    fleet: list[IndexedTool],
    no_match_threshold: float,
    chance: Random,
) -> None:
    def shuffled(found: Mapping[str, float]) -> dict[str, float]:
        return dict(chance.sample(sorted(found.items()), len(found)))

    clauses = [clause, whole, clause]
    as_found = result(question, whole, clauses)
    in_another_order = result(
        question, [shuffled(each) for each in whole], [[shuffled(each) for each in one] for one in reversed(clauses)]
    )

    found = is_match(as_found, fleet, EMBEDDER, no_match_threshold)
    assert found == is_match(in_another_order, chance.sample(fleet, len(fleet)), EMBEDDER, no_match_threshold)


@given(phrases, scores.filter(bool), st.lists(scores.filter(bool), min_size=2, max_size=4), fleets)
def test_two_clauses_raise_the_similarity_and_terms_the_fit(
    question: str, whole: dict[str, float], clauses: list[dict[str, float]], fleet: list[IndexedTool]
) -> None:
    alone = step_similarity(result(question, [whole, whole, {}], []), EMBEDDER)
    each = [step_similarity(result(question, [clause, clause, {}], []), EMBEDDER) for clause in clauses]
    together = result(question, [whole, whole, {}], [[clause, clause, {}] for clause in clauses])

    assert step_similarity(together, EMBEDDER) == max(alone, sorted(each)[-2])
    assert fit(together, fleet, EMBEDDER) >= step_similarity(together, EMBEDDER)


@given(fleets, phrases, st.randoms(use_true_random=False))
def test_the_order_of_tools_does_not_matter_and_one_more_never_covers_less(
    fleet: list[IndexedTool], question: str, chance: Random
) -> None:
    query = QueryVectors(None, query_terms(question))

    covered = coverage(query, fleet)

    assert covered == coverage(query, chance.sample(fleet, len(fleet)))
    assert covered >= coverage(query, fleet[1:])
