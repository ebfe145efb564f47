"""The comparison with peers: what it does with systems that answer, break, or take too long. No peer is needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from benchmarks.harness import Figures, document
from benchmarks.peer_systems.answering import Tool, keys, one_by_one, read_tools
from benchmarks.peers import (
    CANDIDATES,
    OF_LATENCY,
    TOOLSCALE,
    Candidate,
    Limits,
    interpreter,
    measure_latency,
    measure_recall,
    merged,
    render,
    write_tools,
)
from benchmarks.retrieval import QUICK, SETS
from tests.support.tiny_retrieval import write_retrieval_data

pytestmark = pytest.mark.process

MISSING = Candidate("missing", "no_such_module", None, "nothing")
(SET,) = (query_set for query_set in SETS if query_set.name == QUICK)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_retrieval_data(tmp_path / "data")


def timed(data: Path, limits: Limits, *queries: str) -> Figures:
    (corpus,) = SET.corpus_files(data)
    (row,) = measure_latency(corpus, 4, queries, [TOOLSCALE], data / "vectors", limits)
    return row


def test_a_corpus_is_repeated_to_a_size_by_copies_that_differ_only_in_their_server(data: Path) -> None:
    written = write_tools(SET.corpus_files(data), data / "tools.jsonl", 6)

    tools = read_tools(data / "tools.jsonl")
    assert written == len(tools) == 6
    assert [tool.copy for tool in tools] == [0, 0, 0, 0, 1, 1]
    assert tools[4].key == tools[0].key


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
def test_a_system_is_scored_by_its_results_and_a_broken_system_is_reported_with_the_reason(data: Path) -> None:
    (found,) = measure_recall([SET], [TOOLSCALE, MISSING], data, data / "vectors")

    assert found["scores"]["Toolscale"]["recall_at_5"] == 100
    assert "no_such_module" in found["failed"]["missing"]


@pytest.mark.slow
def test_a_system_that_is_not_ready_in_time_is_reported_and_not_asked(data: Path) -> None:
    row = timed(data, Limits(0.01, 60.0, 60.0), "move")

    assert (row["answers"], row["failed"]) == (0, "not ready: no answer within 0 s")


@pytest.mark.slow
def test_a_system_whose_time_is_up_is_asked_no_more(data: Path) -> None:
    row = timed(data, Limits(OF_LATENCY.ready_s, OF_LATENCY.answer_s, 1e-6), "move", "move", "move")

    assert row["answers"] == 1


def test_toolscale_runs_in_the_environment_of_the_benchmark() -> None:
    assert interpreter(TOOLSCALE) == Path(sys.executable)


@pytest.mark.parametrize("candidate", CANDIDATES[1:], ids=lambda candidate: candidate.package)
def test_the_environment_of_a_peer_has_the_version_that_the_report_names(candidate: Candidate) -> None:
    assert candidate.version
    assert f"{candidate.package}=={candidate.version} " in candidate.lock.read_text(encoding="utf-8")


def part(made_at: str, **fields: object) -> Figures:
    machine = {"processor": "Abacus", "cores": 2}
    return {"made_at": made_at, "machine": machine, "conditions": [{"others_percent": 0.0}], **fields}


def test_a_part_or_size_that_is_not_measured_stays_as_it_was_kept() -> None:
    sizes = [part("then", tools=size, systems=[]) for size in (1, 9)]
    before = merged({}, CANDIDATES, part("then", sets=[]), sizes)

    now = merged(json.loads(json.dumps(before)), CANDIDATES, {}, [part("now", tools=1, systems=[])])

    assert now["recall"] == before["recall"]
    assert [(each["tools"], each["made_at"]) for each in now["latency"]] == [(1, "now"), (9, "then")]


def test_the_report_gives_the_reason_for_a_missing_number() -> None:
    score = {"recall_at_5": 1, "recall_at_10": 1, "interval_at_5": [0, 2], "interval_at_10": [0, 2]}
    one_set = {"name": "s", "queries": 1, "tools": 1, "scores": {"a": score}, "failed": {"b": "it fell over"}}
    late = {"system": "b", "answers": 0, "failed": "not ready"}

    report = document(render(merged({}, (), part("then", sets=[one_set]), [part("now", tools=1, systems=[late])])))

    assert "| **1.0 (0 to 2) / 1.0 (0 to 2)** | it fell over |" in report
    assert "| 1 | b | not ready |" in report
