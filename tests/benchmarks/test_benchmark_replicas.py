from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.command import RESULTS
from benchmarks.replicas.catalogues import ALONE, opened, with_replicas, with_unrelated
from benchmarks.replicas.measuring import Run, measure
from benchmarks.replicas.report import render
from benchmarks.replicas.results import CatalogueResult, Results
from benchmarks.retrieval.data import PROTOCOL_VERSION, CorpusServer, Query
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.system import System
from shared.catalog import Listing
from tests.support.fakes import FakeEmbedder, make_tool

COPIES = 5
# texts of different lengths have different scores, and equal scores may come in any order
SERVERS = [
    CorpusServer(f"server-{number}", name, Listing(name, PROTOCOL_VERSION, tuple(tool.definition for tool in tools)))
    for number, (name, tools) in enumerate(
        {
            "files": [
                make_tool(name="read", description="a file"),
                make_tool(name="write", description="a new file with text"),
                make_tool(name="copy", description="a file to another place, and keep its date of change"),
            ],
            "mail": [
                make_tool(name="send", description="a letter"),
                make_tool(name="receive", description="all letters since yesterday, the latest first"),
            ],
        }.items()
    )
]
QUERIES = [Query("1", "copy a file", (), (("files", "copy"),)), Query("2", "read a file", (), (("files", "read"),))]


@pytest.fixture(scope="module")
def systems() -> Iterator[dict[str, System]]:
    with opened(SERVERS, "files", [COPIES], FakeEmbedder()) as systems:
        yield systems


def share_found(_queries: str, run: Run) -> Score:
    found = [set(query.relevant) <= set(run[query.id]) for query in QUERIES]
    percent = 100 * sum(found) / len(found)
    return Score(
        recall_at_5=percent,
        recall_at_8=percent,
        recall_at_10=percent,
        interval_at_5=(percent, percent),
        interval_at_10=(percent, percent),
    )


def test_replicas_change_neither_rankings_nor_answers(systems: dict[str, System]) -> None:
    alone, replicas, unrelated = measure(systems, {"all": QUERIES}, share_found, rounds=1)

    assert [(found.name, found.servers, found.tools) for found in (alone, replicas, unrelated)] == [
        (ALONE, 2, 5),
        (with_replicas(COPIES), 2 + COPIES, 5 + 3 * COPIES),
        (with_unrelated(COPIES), 2 + COPIES, 5 + 3 * COPIES),
    ]
    assert alone.same_rankings == replicas.same_rankings == len(QUERIES)
    assert replicas.repeated == 0
    assert replicas.tokens["summary"].median_definitions == 5
    assert replicas.scores["all"].recall_at_10 == 100


def test_unrelated_copies_fill_the_answers(systems: dict[str, System]) -> None:
    unrelated = measure(systems, {"all": QUERIES}, share_found, rounds=1)[-1]

    assert unrelated.same_rankings == 0
    assert unrelated.repeated == len(unrelated.tokens) * len(QUERIES)
    assert unrelated.tokens["summary"].median_definitions < 5


def kept() -> Results:
    return Results.model_validate_json((RESULTS / "replicas.json").read_text(encoding="utf-8"))


def by_name() -> dict[str, CatalogueResult]:
    return {catalogue.name: catalogue for catalogue in kept().catalogues}


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(kept()) == (RESULTS / "replicas.md").read_text(encoding="utf-8")


def test_a_thousand_replicas_change_neither_rankings_nor_recall() -> None:
    alone, replicas = by_name()[ALONE], by_name()[with_replicas(1_000)]

    assert replicas.servers == alone.servers + 1_000
    assert replicas.same_rankings == kept().queries
    assert replicas.scores == alone.scores
    assert replicas.repeated == 0
