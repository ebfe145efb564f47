"""The comparison of two builds: its reports, and runs of this build beside itself."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.beside.results import Results, render
from benchmarks.beside.writes import Life
from benchmarks.command import RESULTS
from tests.support.quick_runs import quick_run
from tests.support.redis_server import PROGRAM as REDIS

KEPT = sorted(RESULTS.glob("beside-*.json"))


def results_in(file: Path) -> Results:
    """Return the results that this file keeps."""
    return Results.model_validate_json(file.read_text(encoding="utf-8"))


READS = results_in(RESULTS / "beside-reads.json")


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_kept_report_is_rendered_from_the_kept_results(kept: Path) -> None:
    assert render(results_in(kept)) == kept.with_suffix(".md").read_text(encoding="utf-8")


def test_the_report_names_costs_that_rose_by_more_than_five_percent() -> None:
    measured = READS.model_dump()
    rows = measured["tables"][0]["rows"]
    rows[1]["ratio"]["median"], rows[2]["ratio"]["median"] = 1.06, 1.04

    report = render(Results.model_validate(measured))

    assert re.findall(r"worse: (.*)\.$", report, re.MULTILINE) == [rows[1]["subject"], "nothing"]


def test_only_events_that_were_not_recorded_are_sent_again() -> None:
    answers = [[202, 503, 202, 503], [503, 202], [202]]
    sent: list[list[str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append([event["id"] for event in json.loads(request.content)])
        return httpx2.Response(503, json={"events": [{"status": status} for status in answers[len(sent) - 1]]})

    events: list[dict[str, Any]] = [{"id": name} for name in "abcd"]
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        Life([], io.BytesIO(), "http://127.0.0.1/events", client).post(events)

    assert sent == [["a", "b", "c", "d"], ["b", "d"], ["b"]]


def test_a_rejected_event_ends_the_run() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(400, json={"events": [{"status": 400}]}))

    with httpx2.Client(transport=transport) as client, pytest.raises(RuntimeError, match="400"):
        Life([], io.BytesIO(), "http://127.0.0.1/events", client).post([{"id": "a"}])


@pytest.mark.slow
def test_a_quick_run_compares_every_request(tmp_path: Path) -> None:
    quick_run("beside", tmp_path, "--only", "reads")

    quick = results_in(tmp_path / "beside-reads.json")
    (table,) = quick.tables
    assert [row.subject for row in table.rows] == [row.subject for row in READS.tables[0].rows]
    assert all(row.now.lowest > 0 for row in table.rows)
    assert quick.before == quick.now


@pytest.mark.slow
def test_a_quick_run_takes_every_step_of_the_write_side(tmp_path: Path) -> None:
    quick_run("beside", tmp_path, "--only", "writes")

    serve, scaled = results_in(tmp_path / "beside-writes.json").tables
    steps = {row.subject for row in serve.rows if not row.subject.startswith("start")}
    assert len(serve.rows) == len(steps) + 4
    assert len(steps) == 9
    assert {row.subject for row in scaled.rows} == (steps if REDIS else set())
    assert all(row.now.lowest > 0 for table in (serve, scaled) for row in table.rows)
