"""Catalogues of benchmarks: generated or of a corpus, and the search of a small one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.catalogue import fill_corpus, prepare
from benchmarks.corpora import PROTOCOL_VERSION, CorpusServer
from benchmarks.generated import definitions, queries
from benchmarks.search import QUICK, measure_size
from shared.catalog import Listing, Scope
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool

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


def test_generated_texts_depend_only_on_the_seed() -> None:
    assert definitions("billing-0000", 20, 1) == definitions("billing-0000", 20, 1)
    assert definitions("billing-0000", 20, 1) != definitions("billing-0000", 20, 2)
    assert queries(20, 1) == queries(20, 1)


def test_generated_tools_and_queries_are_distinct() -> None:
    assert len({tool["name"] for tool in definitions("billing-0000", 300, 1)}) == 300
    assert len(set(queries(1_000, 1))) == 1_000


def test_a_corpus_is_repeated_until_there_are_so_many_tools() -> None:
    index = FakeIndex()

    servers = fill_corpus(index, prepare(SERVERS, 100, FakeEmbedder()), 30, groups=2)

    assert servers == len(index.servers_with_tools()) == len(index.servers()) == 8
    assert len({record.catalogue_id for record in index.servers()}) == 8
    assert len({tool.digest for tool in index.tools(Scope(), limit=30).tools}) == 30
    assert index.token_sum(Scope(), "cl100k_base").counted == 30
    assert 0 < index.token_sum(Scope(groups=frozenset({"group-1"})), "cl100k_base").counted < 30


def test_no_more_servers_are_prepared_than_are_needed() -> None:
    assert [server for server, _ in prepare(SERVERS, 5, FakeEmbedder())] == SERVERS[:2]
    assert [server for server, _ in prepare(SERVERS, 50, FakeEmbedder())] == SERVERS


def test_a_small_index_is_searched(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    prepared = prepare(SERVERS, 20, embedder)

    size = measure_size(tmp_path / "index", QUICK, 20, prepared, ["tool 1 2", "tool 0 3"], embedder)

    assert (size["tools"], size["servers"]) == (20, 5)
    assert size["parts"]["search"]["p50"] > 0
    assert size["disk_mib"] > 0
