"""Each benchmark ends with tiny sizes, and leaves figures and the report rendered from them."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.harness import Figures, document, keep, kept
from benchmarks.page import PAGES
from benchmarks.retrieval import QUICK, RIVALS
from benchmarks.serving import NEW, PINGS, PROTOCOLS
from benchmarks.serving import QUICK as SERVING
from tests.support.quick_runs import quick_run
from tests.support.redis_server import PROGRAM as REDIS
from tests.support.tiny_retrieval import TOOLS, write_retrieval_data

pytestmark = [pytest.mark.process, pytest.mark.slow]


def measured(name: str, directory: Path, *options: str) -> Figures:
    """Return the figures of a quick run, from which the report is rendered."""
    quick_run(name, directory, *options)
    figures = kept(name, directory)
    module = importlib.import_module(f"benchmarks.{name}")
    assert document(module.render(figures)) == (directory / f"{name}.md").read_text(encoding="utf-8")
    return figures


def test_throughput(tmp_path: Path) -> None:
    figures = measured("throughput", tmp_path)

    assert figures["tools_per_s"]["median"] > 0
    assert list(figures["memory_mib"])[-1] == "peak"


def test_serving_calls_over_both_revisions(tmp_path: Path) -> None:
    (served,) = measured("serving", tmp_path)["served"]

    assert [calls["protocol"] for calls in served["called"]] == list(PROTOCOLS)
    assert all(calls["direct"]["p50"]["median"] > 0 for calls in served["called"])
    crowds = {(crowd["clients"], crowd["queries"]): crowd["answers"] for crowd in served["crowds"]}
    assert crowds[1, NEW] == crowds[3, NEW] == crowds[3, PINGS] == SERVING.questions


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_parts(tmp_path: Path) -> None:
    (answered,) = measured("parts", tmp_path)["answered"]

    assert answered["processor_ms"] > 0
    assert answered["readings"]["index"] > 0


def test_fairness(tmp_path: Path) -> None:
    figures = measured("fairness", tmp_path)

    assert figures["loaded"]["p95"]["median"] > 0


def test_the_page(tmp_path: Path) -> None:
    figures = measured("page", tmp_path)

    assert [page["page"] for page in figures["sizes"][0]["pages"]] == list(PAGES)


@pytest.mark.redis
def test_the_fleet_in_a_storm_measures_what_follows(tmp_path: Path) -> None:
    storm = measured("fleet", tmp_path, "--only", "storm")["storm"]

    assert [run["tools_written"] for run in storm["runs"]] == [0, 0]
    assert all(run["answers"]["count"] > 0 for run in storm["runs"])


@pytest.mark.redis
def test_the_fleet_measures_one_part_and_keeps_the_others(tmp_path: Path) -> None:
    before = kept("fleet")
    keep("fleet", tmp_path, before)

    figures = measured("fleet", tmp_path, "--only", "crowd")

    assert {**figures, "crowd": before["crowd"]} == before
    resyncs = [(each["listing"], each["listings"], each["tools_written"]) for each in figures["crowd"]["resyncs"]]
    assert resyncs == [*[("first", 6, 0), ("second", 6, 0)] * 2, ("first", 2, 0), ("second", 2, 0)]


@pytest.mark.redis
def test_the_fleet_grows_while_events_arrive(tmp_path: Path) -> None:
    sizes = measured("fleet", tmp_path, "--only", "metrics")["metrics"]["sizes"]

    assert [size["tools"] for size in sizes] == [50, 100]
    assert all(size["events"] and size["find_tool"]["count"] for size in sizes)


@pytest.mark.redis
def test_the_fleet_ingests_a_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"server": "Mail", "name": "send", "inputSchema": {"type": "object"}}))

    figures = measured("fleet", tmp_path, "--only", "haystack", "--haystack", str(corpus))

    assert [ingestion["tools"] for ingestion in figures["haystack"]["ingestions"]] == [1]


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_retrieval_data(tmp_path / "data"))


def test_retrieval(data: str, tmp_path: Path) -> None:
    figures = measured("retrieval", tmp_path, "--data", data)

    (found,) = figures["sets"]
    assert (found["name"], found["tools"], list(found["rivals"])) == (QUICK, len(TOOLS), list(RIVALS))
    assert found["toolscale"]["recall_at_5"] == 100


def test_answers(data: str, tmp_path: Path) -> None:
    figures = measured("answers", tmp_path, "--data", data)

    assert (figures["queries"], figures["same_ranking"]) == (2, 2)
    assert len({form["median_tools"] for form in figures["forms"].values()}) == 1


def test_peers_are_found_and_timed_as_a_whole_and_without_the_model(data: str, tmp_path: Path) -> None:
    figures = measured("peers", tmp_path, "--data", data, "--sizes", "6")

    (found,) = figures["recall"]["sets"]
    assert found["scores"]["Toolscale"]["recall_at_5"] == 100
    (timed,) = figures["latency"][0]["systems"]
    assert (timed["answers"], timed["failed"]) == (2, "")
    assert 0 < timed["without_model_p50"] < timed["p50"]


def test_models_are_compared_with_each_other(data: str, tmp_path: Path) -> None:
    quick_run("model.evaluation", tmp_path, "before", "after", "--data", data)

    figures = kept("model", tmp_path)
    assert figures["models"]["before"] == figures["models"]["after"]
    assert [change["difference"] for change in figures["changes"]] == [0, 0]


@pytest.mark.parametrize("part", ["reads", "writes"])
def test_a_build_beside_itself(part: str, tmp_path: Path) -> None:
    quick_run("beside", tmp_path, "--only", part)

    quick, full = kept(f"beside-{part}", tmp_path), kept(f"beside-{part}")
    assert quick["before"] == quick["now"]
    rows = [row for table in quick["tables"] for row in table["rows"]]
    assert all(row["now"]["lowest"] > 0 for row in rows)
    if part == "reads":
        assert [row["subject"] for row in rows] == [row["subject"] for row in full["tables"][0]["rows"]]
    else:
        assert len(rows) == sum(len(table["rows"]) for table in full["tables"]) if REDIS else 13


@pytest.mark.index
def test_a_build_answers_with_as_many_tokens_as_itself(demo_servers: Path, tmp_path: Path) -> None:
    quick_run("beside", tmp_path, "--only", "answers", "--demo", str(demo_servers))

    (found,) = kept("beside-answers", tmp_path)["tables"]
    asked = found["rows"][1:-1]
    # but for the random cursors
    assert [row["now"]["median"] for row in asked] == pytest.approx([row["before"]["median"] for row in asked], abs=9)
    assert found["rows"][0]["before"] == found["rows"][0]["now"]
    assert all(row["now"]["lowest"] > 0 for row in found["rows"])
