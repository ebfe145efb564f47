from __future__ import annotations

import pytest

from query.search.search import MAX_CHARACTERS, MAX_CLAUSES, clauses, embed_steps
from tests.support.fakes import FakeEmbedder

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


@pytest.mark.parametrize(("long_steps", "clauses_each"), [(1, 8), (2, 4), (3, 2), (4, 2), (5, 0), (20, 0)])
def test_the_long_steps_of_a_request_share_its_clauses(long_steps: int, clauses_each: int) -> None:
    texts = [f"Do this thing {number} first. " * 13 for number in range(long_steps)]

    steps = embed_steps([*texts, "read a file"], FakeEmbedder())

    assert [len(step.clauses) for step in steps] == [*[clauses_each] * long_steps, 0]
    assert long_steps * clauses_each <= MAX_CLAUSES


def test_the_model_reads_a_bounded_number_of_characters_of_a_request() -> None:
    embedder = FakeEmbedder()

    embed_steps([f"{number} " + "word " * 800 for number in range(20)], embedder)

    assert sum(map(len, embedder.queries)) <= MAX_CHARACTERS


def test_a_step_is_searched_whole_and_by_its_clauses() -> None:
    embedder = FakeEmbedder()

    short, long = embed_steps(["read a file", LONG], embedder)

    assert len(short.queries) == 1
    assert len(long.queries) == 1 + len(clauses(LONG))
    assert embedder.queries == ["read a file", LONG, *clauses(LONG)]
