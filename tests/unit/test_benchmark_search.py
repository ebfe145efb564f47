from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval.data import PROTOCOL_VERSION, CorpusServer
from benchmarks.search.asking import share_found
from benchmarks.search.catalogue import enough, fill, prepare
from benchmarks.search.measuring import Subject, measure_size
from benchmarks.search.plan import QUICK
from benchmarks.search.report import render
from benchmarks.search.results import Results
from benchmarks.search.vectors import KeptEmbedder
from shared.catalog import Listing, Scope
from tests.fakes import FakeEmbedder, FakeIndex, make_tool

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"
SERVERS = [
    CorpusServer(
        f"server-{server}",
        f"Server {server}",
        Listing("s", PROTOCOL_VERSION, tuple(make_tool("s", f"tool_{server}_{each}").definition for each in range(4))),
    )
    for server in range(3)
]


def test_the_kept_report_is_the_one_its_numbers_give() -> None:
    results = Results.model_validate_json((KEPT / "search.json").read_text(encoding="utf-8"))

    assert render(results) == (KEPT / "search.md").read_text(encoding="utf-8")


def test_a_corpus_is_repeated_until_there_are_so_many_tools() -> None:
    index = FakeIndex()

    servers = fill(index, prepare(SERVERS, FakeEmbedder()), 30, groups=2)

    assert servers == len(index.owners()) == len(index.servers()) == 8
    assert index.token_sum(Scope(), "cl100k_base").counted == 30
    assert 0 < index.token_sum(Scope(groups=frozenset({"group-1"})), "cl100k_base").counted < 30


def test_no_more_servers_are_taken_than_are_needed() -> None:
    assert enough(SERVERS, 5) == SERVERS[:2]
    assert enough(SERVERS, 50) == SERVERS


def test_a_text_is_embedded_once_and_kept_from_one_run_to_the_next(tmp_path: Path) -> None:
    first = KeptEmbedder(tmp_path / "kept" / "vectors.npz", FakeEmbedder())
    rows = first.passages(["list files", "send mail", "list files"])
    first.keep()

    again = KeptEmbedder(tmp_path / "kept" / "vectors.npz", UnwillingEmbedder()).passages(["send mail", "list files"])

    assert np.array_equal(again, rows[[1, 0]])


class UnwillingEmbedder(FakeEmbedder):
    def passages(self, texts: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        assert not texts, "it was embedded before"
        return np.empty((0, self.dimension), dtype=np.float32)


@pytest.mark.parametrize(
    ("ours", "exact", "k", "share"),
    [
        ([0.9, 0.8], [0.9, 0.8, 0.7], 2, 1.0),
        ([0.9, 0.7], [0.9, 0.8, 0.7], 2, 0.5),
        ([0.8, 0.8], [0.8, 0.8, 0.8], 2, 1.0),
        ([], [], 5, 1.0),
        ([], [0.5], 5, 0.0),
    ],
)
def test_what_was_found_is_judged_by_its_score(ours: list[float], exact: list[float], k: int, share: float) -> None:
    assert share_found(ours, exact, k) == share


@pytest.mark.slow
def test_a_small_index_is_measured_with_and_without_a_graph_and_finds_all_by_it(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    subject = Subject(tmp_path / "index", QUICK, embedder, ["tool 1 2", "tool 0 3"])

    size = measure_size(subject, 20, prepare(SERVERS, embedder))

    assert size.recall.lists_at_150 == size.recall.ranked_at_5 == size.filtered_recall.ranked_at_5 == 1.0
    assert size.building.build_s > 0
    assert size.exact.parts.search.p50 > 0
    assert 0 < size.selectivity < 1
