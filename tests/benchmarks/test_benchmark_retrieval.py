"""The retrieval benchmark reads its files right, and its scores and curves are right."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.corpora import Query, ingested, read_queries, read_servers
from benchmarks.harness import ROOT, Figures, filled, kept
from benchmarks.retrieval import DOCUMENTS, Judged, bm25, dense, document_table, judge_elsewhere, mean_curve, rrf
from shared.catalog import Candidates
from tests.support.tiny_retrieval import write_lines

pytestmark = pytest.mark.process


def tool(server: str, name: str, description: str) -> dict[str, object]:
    return {"server": server, "name": name, "description": description, "inputSchema": {"type": "object"}}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    tools = [
        tool("Files of mine", "read_file", "Read a file from disk"),
        tool("Files of mine", "read_file", "A second tool of this name"),
        tool("mail", "send_letter", "Send a letter by mail"),
    ]
    return write_lines(tmp_path / "corpus.jsonl", tools)


def test_a_corpus_is_its_servers_under_ids_that_the_product_takes(corpus: Path) -> None:
    servers = read_servers([corpus])

    assert [(server.server_id, server.name) for server in servers] == [
        ("server-0", "Files of mine"),
        ("server-1", "mail"),
    ]
    assert [definition.description for definition in servers[0].listing.tools] == ["Read a file from disk"]


def test_a_query_may_carry_steps(tmp_path: Path) -> None:
    needed = [{"server": "mail", "name": "send_letter"}]
    lines = [
        {"id": "1", "query": "q", "relevant": needed, "subqueries": ["a", "b"]},
        {"id": "2", "query": "r", "relevant": needed},
    ]

    first, second = read_queries(write_lines(tmp_path / "queries.jsonl", lines))

    assert (first.asked(in_steps=True), first.asked(in_steps=False)) == (["a", "b"], ["q"])
    assert second.asked(in_steps=True) == ["r"]
    assert first.relevant == (("mail", "send_letter"),)


@pytest.mark.slow
def test_a_run_over_any_files_goes_through_the_whole_system(corpus: Path, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"id": "letter", "query": "send a letter to my aunt", "relevant": []},
        {"id": "both", "query": "two things", "relevant": [], "subqueries": ["read a file", "send a letter"]},
    ]
    queries, out = write_lines(tmp_path / "queries.jsonl", lines), tmp_path / "run.jsonl"
    files = ["--corpus", str(corpus), "--queries", str(queries), "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.retrieval", *files, "--subqueries", "--k", "2"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert ran.returncode == 0, ran.stderr
    run = {line["id"]: line["ranked"] for line in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    assert run["letter"][0] == {"server": "mail", "name": "send_letter"}
    assert run["both"] == [
        {"server": "Files of mine", "name": "read_file"},
        {"server": "mail", "name": "send_letter"},
    ]


def test_each_rival_uses_its_own_evidence() -> None:
    found = Candidates(5, {"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.1}, {"b": 7.0})

    assert bm25(found) == {"b": 7.0}
    assert dense(found) == {"a": 0.9, "b": 0.1}
    assert rrf(found) == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61})


def test_a_higher_threshold_recognises_more_and_costs_more() -> None:
    judged = [Judged(0.6, 0.28, 0.2, 1.0), Judged(0.22, 0.1, 0.1, 0.5)]

    points = {point.pop("threshold"): point for point in mean_curve([(judged, [0.1, 0.28]), (judged, [0.1, 0.28])])}

    assert points[0.15] == {"elsewhere": 50, "servers_removed": 50, "tools_removed": 50, "lost_recall": 0}
    assert points[0.3] == {"elsewhere": 100, "servers_removed": 100, "tools_removed": 100, "lost_recall": 25}


@pytest.mark.slow
def test_a_query_is_asked_elsewhere_only_where_no_server_sounds_like_one_that_it_needs(corpus: Path) -> None:
    related = Query("1", "send a letter", (), (("Mail Server", "send"),))
    stranger = Query("2", "the weather of tomorrow", (), (("Weather Server", "forecast"),))

    with ingested(read_servers([corpus])) as system:
        close_to_letters, *others = judge_elsewhere(system, [replace(related, relevant=stranger.relevant), related])
        (close_to_weather,) = judge_elsewhere(system, [stranger, related])

    assert others == []
    assert close_to_weather < close_to_letters


def documented(text: str, figures: Figures) -> str:
    return filled(text, lambda name: document_table(figures, name))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_documents_show_the_recall_that_was_kept(document: Path) -> None:
    text, figures = document.read_text(encoding="utf-8"), kept("retrieval")

    assert figures["sets"][0]["name"] in text
    assert text == documented(text, figures)


def test_a_table_of_named_sets_has_a_row_for_each() -> None:
    figures = kept("retrieval")
    first, second = (found["name"] for found in figures["sets"][:2])

    lines = documented(f"<!-- table: recall of {second}; {first} -->\n<!-- end -->", figures).splitlines()

    assert [line.split(" | ")[0] for line in lines[3:-1]] == [f"| {second}", f"| {first}"]
