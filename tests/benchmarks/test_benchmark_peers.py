"""The comparison with peers: what it does with systems that answer, break, or take too long. No peer is needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.peers.__main__ import merged
from benchmarks.peers.answering import Tool, keys, one_by_one, read_tools
from benchmarks.peers.candidates import CANDIDATES, Candidate, interpreter
from benchmarks.peers.corpora import write_tools
from benchmarks.peers.latency import Limits, measure_latency
from benchmarks.peers.launching import Launcher
from benchmarks.peers.recall import measure_recall
from benchmarks.peers.report import render
from benchmarks.peers.results import Latency, LatencyPart, RecallPart, Results, SetRecall
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.sets import QuerySet
from benchmarks.throughput.machine import this_machine

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"
TOOLSCALE = CANDIDATES[0]
MISSING = Candidate("missing", "no_such_module", None, "nothing")
SCORER = """
def load_jsonl(path): return []
def score(queries, run, ci):
    share = float(run["letter"][0] == ("mail", "send_letter"))
    return {"recall@5": share, "recall@8": share, "recall@10": share,
            "ci": {"recall@5": (share, share), "recall@10": (share, share)}}, {}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with three tools and a query."""
    for directory in ("corpora", "queries"):
        (tmp_path / directory).mkdir()
    tools = [("mail", "send_letter", "Send a letter"), ("files", "read_file", "Read a file"), ("files", "move", "")]
    lines = [
        {"server": server, "name": name, "description": text, "inputSchema": {"type": "object"}}
        for server, name, text in tools
    ]
    needed = [{"server": "mail", "name": "send_letter"}]
    write_lines(tmp_path / "corpora" / "small.jsonl", lines)
    write_lines(tmp_path / "queries" / "asked.jsonl", [{"id": "letter", "query": "send a letter", "relevant": needed}])
    (tmp_path / "evaluate.py").write_text(SCORER)
    return tmp_path


def write_lines(path: Path, lines: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def launcher(tmp_path: Path, *candidates: Candidate) -> Launcher:
    return Launcher(candidates, tmp_path / "environments", tmp_path / "vectors")


def test_a_corpus_is_repeated_to_a_size_by_copies_that_differ_only_in_their_server(data: Path) -> None:
    written = write_tools([data / "corpora" / "small.jsonl"], data / "tools.jsonl", 5)

    tools = read_tools(data / "tools.jsonl")
    assert written == len(tools) == 5
    assert [tool.copy for tool in tools] == [0, 0, 0, 1, 1]
    assert tools[3].key == tools[0].key


def test_steps_are_asked_one_by_one_and_their_answers_merged_in_turns() -> None:
    async def find(text: str, k: int) -> list[tuple[str, str]]:
        return [(text, "first"), ("both", "second")][:k]

    async def search() -> Sequence[tuple[str, str]]:
        return await one_by_one(find)(["a", "b"], 3)

    assert anyio.run(search) == [("a", "first"), ("b", "first"), ("both", "second")]


def test_tools_that_would_get_the_same_name_are_all_kept() -> None:
    tools = [Tool("a-b", "t", 0, "", {}), Tool("a_b", "t", 0, "", {})]

    named = keys(tools, lambda tool: f"{tool.server}_{tool.name}".replace("-", "_"))

    assert list(named.values()) == tools


@pytest.mark.slow
def test_a_system_is_scored_by_its_results_and_a_broken_system_is_reported_with_the_reason(
    data: Path, tmp_path: Path
) -> None:
    sets = [QuerySet("one set", "asked", ("small",), 5)]

    (found,) = measure_recall(data, sets, launcher(tmp_path, TOOLSCALE, MISSING), tmp_path / "runs")

    assert found.scores["Toolscale"].recall_at_5 == 100
    assert "no_such_module" in found.failed["missing"]
    run = json.loads((tmp_path / "runs" / "one set, Toolscale.jsonl").read_text(encoding="utf-8"))
    assert run["ranked"][0] == {"server": "mail", "name": "send_letter"}


@pytest.mark.slow
def test_a_system_is_timed_as_a_whole_and_without_the_model(data: Path, tmp_path: Path) -> None:
    corpus = data / "corpora" / "small.jsonl"

    (row,) = measure_latency(corpus, 4, ["send a letter", "move"], launcher(tmp_path, TOOLSCALE), Limits())

    assert (row.answers, row.failed) == (2, "")
    assert 0 < row.without_model_p50 < row.p50


@pytest.mark.slow
def test_a_system_that_is_not_ready_in_time_is_reported_and_not_asked(data: Path, tmp_path: Path) -> None:
    corpus = data / "corpora" / "small.jsonl"

    (row,) = measure_latency(corpus, 3, ["move"], launcher(tmp_path, TOOLSCALE), Limits(ready_s=0.01))

    assert (row.answers, row.failed) == (0, "not ready: no answer within 0 s")


@pytest.mark.slow
def test_a_system_whose_time_is_up_is_asked_no_more(data: Path, tmp_path: Path) -> None:
    corpus = data / "corpora" / "small.jsonl"

    (row,) = measure_latency(corpus, 3, ["move"] * 3, launcher(tmp_path, TOOLSCALE), Limits(all_answers_s=1e-6))

    assert row.answers == 1


def test_toolscale_runs_in_the_environment_of_the_benchmark(tmp_path: Path) -> None:
    assert interpreter(TOOLSCALE, tmp_path) == Path(sys.executable)


@pytest.mark.parametrize("candidate", CANDIDATES[1:], ids=lambda candidate: candidate.package)
def test_the_environment_of_a_peer_has_the_version_that_the_report_names(candidate: Candidate) -> None:
    assert candidate.version
    assert f"{candidate.package}=={candidate.version} " in candidate.lock.read_text(encoding="utf-8")


def made(at: str) -> dict[str, Any]:
    return {"made_at": at, "machine": this_machine(), "conditions": ()}


def test_a_part_that_is_not_measured_stays_as_it_was_kept() -> None:
    kept = merged(None, CANDIDATES, recall=RecallPart(**made("then"), sets=()))

    now = merged(kept, CANDIDATES, latency=[LatencyPart(**made("now"), tools=1, systems=())])

    assert now.recall == kept.recall
    assert [part.made_at for part in now.latency] == ["now"]


def test_a_size_that_is_measured_again_replaces_only_itself() -> None:
    kept = merged(None, CANDIDATES, latency=[LatencyPart(**made("then"), tools=size, systems=()) for size in (1, 9)])

    now = merged(kept, CANDIDATES, latency=[LatencyPart(**made("now"), tools=1, systems=())])

    assert [(part.tools, part.made_at) for part in now.latency] == [(1, "now"), (9, "then")]


def test_the_report_gives_the_reason_for_a_missing_number() -> None:
    score = Score(recall_at_5=1, recall_at_8=1, recall_at_10=1, interval_at_5=(0, 2), interval_at_10=(0, 2))
    one_set = SetRecall(name="s", queries=1, tools=1, scores={"a": score}, failed={"b": "it fell over"})
    late = Latency(system="b", failed="not ready")

    report = render(
        Results(
            systems=(),
            recall=RecallPart(**made("then"), sets=(one_set,)),
            latency=(LatencyPart(**made("now"), tools=1, systems=(late,)),),
        )
    )

    assert "| **1.0 (0 to 2) / 1.0 (0 to 2)** | it fell over |" in report
    assert "| 1 | b | not ready |" in report


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    kept = Results.model_validate_json((KEPT / "peers.json").read_text(encoding="utf-8"))

    assert render(kept) == (KEPT / "peers.md").read_text(encoding="utf-8")
