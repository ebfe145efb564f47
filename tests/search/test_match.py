"""Kinds of tools in general: embedded once, and what a query's closest tool is compared with."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import (
    CATEGORIES,
    CATEGORY_WEIGHT,
    NEAREST,
    NO_MATCH_THRESHOLD,
    NO_THRESHOLD,
    adjusted_similarity,
    category_similarity,
    category_vectors,
    is_match,
    passages,
    similarity,
)
from query.search.request import FindRequest
from query.search.search import Step, StepResult
from shared.catalog import Candidates, Scope
from shared.settings import load_settings
from shared.text.embedding import Embedder, FastEmbedder, query_vectors
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

OWN_TOOLS = (
    ("git", "commit", "Record changes to a repository"),
    ("git", "log", "Show the history of commits"),
    ("clock", "get_current_time", "Tell the time in a time zone"),
    ("clock", "convert_time", "Convert a time between time zones"),
)
EMBEDDER = FakeEmbedder()

texts = st.lists(st.sampled_from(" ".join(CATEGORIES.values()).split()), min_size=1, max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def bundled() -> Embedder:
    return FastEmbedder()


def index_of_own_tools(embedder: Embedder) -> FakeIndex:
    index = FakeIndex()
    index.upsert([ingested(make_tool(*tool), embedder) for tool in OWN_TOOLS])
    return index


def candidates_with_similarity(cosine: float) -> Candidates:
    return Candidates(1, {"a": cosine}, {"a": cosine}, {})


def closest(question: str, embedder: Embedder) -> float:
    (found,) = index_of_own_tools(embedder).search([query_vectors(question, embedder)], Scope(), depth=10)
    return float(similarity(found, list(found.points)).max())


def test_an_embedder_embeds_the_tool_categories_once_and_keeps_their_vectors() -> None:
    embedder = FakeEmbedder()

    one, other = category_vectors(embedder), category_vectors(embedder)

    assert one is other
    assert one.shape == (len(passages()), embedder.dimension)
    assert embedder.embedded_texts == passages()
    vectors = weakref.ref(one)
    del embedder, one, other
    gc.collect()
    assert vectors() is None


def test_concurrent_threads_embed_the_tool_categories_once() -> None:
    embedder = FakeEmbedder()

    with ThreadPoolExecutor(8) as threads:
        each = list(threads.map(category_vectors, [embedder] * 8))

    assert len({id(vectors) for vectors in each}) == 1
    assert len(embedder.embedded_texts) == len(passages())


@given(texts)
def test_only_the_nearest_tool_categories_decide(question: str) -> None:
    query = EMBEDDER.query(question)

    each = sorted((float(row @ query) for row in category_vectors(EMBEDDER)), reverse=True)

    assert category_similarity(query, EMBEDDER) == pytest.approx(sum(each[:NEAREST]) / NEAREST, abs=1e-6)
    assert -1.001 <= category_similarity(query, EMBEDDER) <= 1.001


@given(texts, texts)
def test_a_higher_category_similarity_lowers_the_adjusted_similarity(one: str, other: str) -> None:
    first, second = EMBEDDER.query(one), EMBEDDER.query(other)
    found = candidates_with_similarity(0.5)

    difference = adjusted_similarity(first, found, EMBEDDER) - adjusted_similarity(second, found, EMBEDDER)

    by_kinds = category_similarity(second, EMBEDDER) - category_similarity(first, EMBEDDER)
    assert difference == pytest.approx(CATEGORY_WEIGHT * by_kinds, abs=1e-6)


def test_at_minus_one_the_furthest_tool_matches_and_no_category_is_embedded() -> None:
    embedder = FakeEmbedder()
    step = Step(passages()[0], query_vectors(passages()[0], embedder))
    furthest = StepResult(step, candidates_with_similarity(-1.0), (), (), {})

    assert is_match(furthest, (), embedder, NO_THRESHOLD)
    assert embedder.embedded_texts == []
    assert not is_match(furthest, (), embedder, -0.999)


def test_what_is_measured_is_what_is_served() -> None:
    assert load_settings().no_match_threshold == NO_MATCH_THRESHOLD


def test_a_task_of_another_tool_category_is_no_match_at_the_same_similarity(bundled: Embedder) -> None:
    elsewhere, here = "weather forecast for tomorrow", "save my work"
    index = index_of_own_tools(bundled)
    catalogue = Catalogue(index, bundled, Ledger(index))

    answers = [find_tool(FindRequest(tool_description=each), Scope(), catalogue)[0] for each in (elsewhere, here)]

    assert closest(elsewhere, bundled) == pytest.approx(closest(here, bundled), abs=0.04)
    assert [answer.no_match for answer in answers] == [True, None]
    assert answers[1].tools[0].first_server[0] == "git"


def test_every_tool_category_is_nearest_to_its_own_tools(bundled: Embedder) -> None:
    own = bundled.passages([f"{kind}: list {of.split(', ')[0]}" for kind, of in CATEGORIES.items()])
    kinds = [*(kind for kind, of in CATEGORIES.items() for _ in of.split(", ")), *CATEGORIES]

    nearest: list[int] = np.argmax(own @ category_vectors(bundled).T, axis=1).tolist()

    right = sum(kinds[number] == kind for number, kind in zip(nearest, CATEGORIES, strict=True))
    assert right > 0.9 * len(CATEGORIES)
