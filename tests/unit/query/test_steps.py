from __future__ import annotations

import pytest

from query.search.steps import MAX_CLAUSES, clauses, embed_steps
from shared.text.bm25 import query_terms
from tests.support.fakes import FakeEmbedder, WithoutModel

LONG = (
    "I have a meeting in Lisbon next week and want to prepare for it well. "
    "What will the weather be like there? Find me a hotel close to the river, and then book the cheapest flight."
)


def test_a_long_text_has_the_clauses_that_say_something() -> None:
    assert clauses(LONG) == [
        "I have a meeting in Lisbon next week and want to prepare for it well.",
        "What will the weather be like there?",
        "Find me a hotel close to the river",
        "book the cheapest flight.",
    ]


@pytest.mark.parametrize("text", ["", "Read a file. Write a file.", "word " * 40, "Yes. " + "word " * 40])
def test_a_short_text_or_one_of_a_single_clause_has_none(text: str) -> None:
    assert clauses(text) == []


def test_no_text_costs_more_than_so_many_queries() -> None:
    assert len(clauses("Do this thing first. " * 50)) == MAX_CLAUSES


def test_a_step_is_searched_whole_and_by_its_clauses() -> None:
    embedder = FakeEmbedder()

    short, long = embed_steps(["read a file", LONG], embedder)

    assert len(short.queries) == 1
    assert len(long.queries) == 1 + len(clauses(LONG))
    assert embedder.queries == ["read a file", LONG, *clauses(LONG)]


def test_without_a_model_steps_have_their_terms_alone() -> None:
    (step,) = embed_steps(["read a file"], WithoutModel())

    assert step.whole.dense is None
    assert step.whole.terms == query_terms("read a file")
