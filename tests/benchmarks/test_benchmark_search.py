from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval.data import PROTOCOL_VERSION, CorpusServer
from benchmarks.search.catalogue import enough, fill, prepare
from benchmarks.search.measuring import Subject, measure_size
from benchmarks.search.plan import QUICK
from benchmarks.search.report import render
from benchmarks.search.results import Results
from benchmarks.search.vectors import KeptEmbedder
from shared.catalog import Listing, Scope
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"
SERVERS = [
    CorpusServer(
        f"server-{server}",
        f"Server {server}",
        Listing(
            "s", PROTOCOL_VERSION, tuple(make_tool("s", f"tool_{server}_{number}").definition for number in range(4))
        ),
    )
    for server in range(3)
]


@pytest.mark.parametrize("name", ["search", "search-qdrant"])
def test_the_kept_report_is_the_one_its_numbers_give(name: str) -> None:
    results = Results.model_validate_json((KEPT / f"{name}.json").read_text(encoding="utf-8"))

    assert render(results) == (KEPT / f"{name}.md").read_text(encoding="utf-8")


def test_a_corpus_is_repeated_until_there_are_so_many_tools() -> None:
    index = FakeIndex()

    servers = fill(index, prepare(SERVERS, FakeEmbedder()), 30, groups=2)

    assert servers == len(index.servers_with_tools()) == len(index.servers()) == 8
    assert len({record.catalogue_id for record in index.servers()}) == 8
    assert len({tool.digest for tool in index.tools(Scope(), limit=30).tools}) == 30
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


def test_a_small_index_is_measured(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    subject = Subject(tmp_path / "index", QUICK, embedder, ["tool 1 2", "tool 0 3"])

    size = measure_size(subject, 20, prepare(SERVERS, embedder))

    assert size.index.parts.search.p50 > 0
    assert size.index.disk_mib > 0
    assert 0 < size.selectivity < 1
