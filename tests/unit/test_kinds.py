"""Kinds of tools in general: embedded once, and what a query's closest tool is compared with."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.abstain import is_close, lead
from query.kinds import KINDS, NEAREST, closeness_of_kinds, kinds, passage
from query.ranking import closeness
from shared.catalog import Candidates, Scope
from shared.embedding import Embedder, FastEmbedder
from shared.vectors import query_vectors
from tests.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

OWN_TOOLS = (
    ("git", "commit", "Record changes to a repository"),
    ("git", "log", "Show the history of commits"),
    ("clock", "get_current_time", "Tell the time in a time zone"),
    ("clock", "convert_time", "Convert a time between time zones"),
)
EMBEDDER = FakeEmbedder()

texts = st.lists(st.sampled_from(" ".join(KINDS.values()).split()), min_size=1, max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def bundled() -> Embedder:
    return FastEmbedder()


def found(question: str, embedder: Embedder) -> Candidates:
    index = FakeIndex()
    index.upsert([ingested(make_tool(*tool), embedder) for tool in OWN_TOOLS])
    return index.search([query_vectors(question, embedder)], Scope(), depth=10)[0]


def closest(question: str, embedder: Embedder) -> float:
    return max(closeness(found(question, embedder)).values())


def test_an_embedder_embeds_the_kinds_once_and_takes_their_vectors_with_it() -> None:
    embedder = FakeEmbedder()

    one, other = kinds(embedder), kinds(embedder)

    assert one is other
    assert one.shape == (len(KINDS), embedder.dimension)
    assert embedder.embedded_texts == [passage(kind, of) for kind, of in KINDS.items()]
    vectors = weakref.ref(one)
    del embedder, one, other
    gc.collect()
    assert vectors() is None


@given(texts)
def test_the_nearest_kinds_decide_and_no_others(question: str) -> None:
    query = EMBEDDER.query(question)

    each = sorted((float(row @ query) for row in kinds(EMBEDDER)), reverse=True)

    assert closeness_of_kinds(query, EMBEDDER) == pytest.approx(sum(each[:NEAREST]) / NEAREST, abs=1e-6)
    assert -1.001 <= closeness_of_kinds(query, EMBEDDER) <= 1.001


@given(texts)
def test_a_tool_as_close_as_the_kinds_leads_by_less_the_closer_they_are(question: str) -> None:
    query = EMBEDDER.query(question)
    near, far = (Candidates(1, {"a": close}, {"a": close}, {}, {"a": "s"}) for close in (0.9, 0.5))

    assert lead(query, near, EMBEDDER) - lead(query, far, EMBEDDER) == pytest.approx(0.4)
    assert lead(query, near, EMBEDDER) <= 0.9 + 1e-6  # a bag of words is never further away than at a right angle


def test_what_another_kind_of_tool_would_do_is_no_match_though_tools_here_are_as_close_to_it(bundled: Embedder) -> None:
    elsewhere, here = "list my calendar events", "is it morning in Lima"

    assert closest(elsewhere, bundled) == pytest.approx(closest(here, bundled), abs=0.04)
    assert not is_close(query_vectors(elsewhere, bundled), found(elsewhere, bundled), bundled, 0.15)
    assert is_close(query_vectors(here, bundled), found(here, bundled), bundled, 0.15)


def test_every_kind_is_nearest_to_its_own_tools(bundled: Embedder) -> None:
    own = bundled.passages([f"{kind}: list {of.split(', ')[0]}" for kind, of in KINDS.items()])

    nearest = np.argmax(own @ kinds(bundled).T, axis=1)

    assert np.mean(nearest == np.arange(len(KINDS))) > 0.9
