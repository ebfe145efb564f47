"""The report on what clients wait for, and that everything they can ask is measured."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.command import RESULTS
from benchmarks.serving.plan import QUICK
from benchmarks.serving.report import render
from benchmarks.serving.results import PINGS, Results
from benchmarks.throughput.embedded import embedded_settings
from query.catalogue import Catalogue
from query.records import Ledger
from query.tools.registry import builtin_tools
from query.usage.usage import open_usage
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.quick_runs import quick_run


@pytest.fixture(scope="module")
def kept() -> Results:
    return Results.model_validate_json((RESULTS / "serving.json").read_text(encoding="utf-8"))


def test_the_kept_report_is_the_one_its_numbers_give(kept: Results) -> None:
    assert render(kept) == (RESULTS / "serving.md").read_text(encoding="utf-8")


def test_the_report_has_a_line_for_every_question_and_every_way_to_call(kept: Results) -> None:
    report = render(kept)

    for served in kept.served:
        assert f"find_tool for many clients at once, at {served.tools:,} tools" in report
        assert all(f"| {question.what} |" in report for question in served.asked)
        assert all(f"| {calls.transport} | {calls.protocol} |" in report for calls in served.called)


def test_a_wait_beyond_the_target_is_not_hidden(kept: Results) -> None:
    slow = kept.model_dump()
    slow["served"][0]["crowds"][0]["latency"]["highest"]["highest"] = 4_321.0

    assert "The longest wait of all was 4,321 ms; the target is at most 1,000." in render(Results.model_validate(slow))


def test_the_processor_time_of_answers_is_also_in_pings(kept: Results) -> None:
    measured = kept.model_dump()
    new, *_ = measured["served"][0]["crowds"]
    pings = {**new, "queries": PINGS, "service_ms": {**new["service_ms"], "median": new["service_ms"]["median"] / 4}}
    measured["served"][0]["crowds"] = [new, pings]

    report = render(Results.model_validate(measured))

    assert f"| {new['clients']} | 1 | {new['queries']} | 4.00 |" in report


@pytest.mark.slow
def test_a_quick_run_asks_every_tool_on_both_revisions_and_calls_over_both_transports(tmp_path: Path) -> None:
    quick_run("serving", tmp_path)

    found = Results.model_validate_json((tmp_path / "serving.json").read_text(encoding="utf-8"))
    (served,) = found.served
    asked = {(question.what.split(",")[0], question.protocol) for question in served.asked}
    revisions = ("2025-11-25", "2026-07-28")
    assert asked == {
        (name, revision) for name in (tool_names(tmp_path) - {"call_tool"}) | {"tools/list"} for revision in revisions
    }
    assert {(calls.transport, calls.protocol) for calls in served.called} == {
        (transport, revision) for transport in ("streamable HTTP", "stdio") for revision in revisions
    }
    assert all(calls.own.p50.median >= QUICK.work_ms for calls in served.called)
    assert [crowd.answers for crowd in served.crowds] == [QUICK.questions] * 3


def tool_names(directory: Path) -> set[str]:
    """Return the names of all tools that a query service offers."""
    index = FakeIndex()
    upstreams = upstreams_to({})
    with closing(open_usage(embedded_settings(directory))) as usage:
        catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), usage=usage)
        return {offer.tool.name for offer in builtin_tools(catalogue, upstreams)}
