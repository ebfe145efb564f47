from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.command import RESULTS
from benchmarks.throughput.corpus import definitions, queries
from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.plan import FULL
from benchmarks.throughput.report import render
from benchmarks.throughput.results import (
    Counted,
    EventRate,
    Events,
    Found,
    Ingestion,
    Latency,
    Looks,
    Memory,
    Results,
    Spread,
    StageShare,
    percentile,
)
from benchmarks.throughput.stages import Stages, timed_dependencies
from tests.support.builders import definition, listing, up, write_path
from tests.support.quick_runs import quick_run
from workers.ingest import reconcile


def steady(value: float) -> Spread:
    return Spread(median=value, lowest=value, highest=value)


def latency(p50: float, p95: float, highest: float) -> Latency:
    return Latency(p50=steady(p50), p95=steady(p95), highest=steady(highest))


def looks(embedded: int) -> Looks:
    stage = StageShare(name="embed", ms_per_server=steady(6), share_percent=steady(60), items=embedded)
    return Looks(servers=2, tools=10, repetitions=3, ms_per_server=steady(10), stages=(stage,))


def results(*, others_percent: float = 0) -> Results:
    """Return results with distinct numbers."""
    rate = EventRate(
        kind="storm",
        events=77,
        recorded_per_s=Spread.of([1000, 1111, 1200]),
        committed_per_s=Spread.of([20.04, 30.04, 25.04]),
    )
    none = latency(0, 0, 0)
    return Results(
        made_at="2026-01-02",
        seconds=61.4,
        plan=FULL,
        machine=Machine(
            processor="Abacus", cores=2, memory_gib=4, system="Linux 6", python="3.11.7", packages={"mcp": "2.3.0"}
        ),
        conditions=(Conditions(subject="events", seconds=9, load_1m=1, others_percent=others_percent),),
        events=(Events(composition="embedded", rates=(rate,)),),
        ingestion=Ingestion(
            servers=2,
            tools=10,
            tokens_per_tool=171.5,
            seconds=steady(3),
            tools_per_s=steady(345),
            late_server_tools=5,
            event_to_commit_ms=latency(51, 52, 53),
        ),
        new=looks(embedded=30),
        unchanged=looks(embedded=0),
        found=(
            Found(
                tools=10_000,
                servers=200,
                embed=latency(4.5, 6.5, 8.5),
                embed_cached=none,
                search=latency(1.5, 2.5, 3.5),
                sum=none,
                without_embed=none,
                mcp=latency(14, 15, 16),
                mcp_cached=none,
            ),
        ),
        counted=(Counted(tools=200, encoding="cl100k_base", tokens=34_567, ms=steady(12)),),
        memory=(Memory(moment="peak", mib=steady(432)),),
    )


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50), (95, 95), (100, 100), (1, 1), (0, 1)], ids=["p50", "p95", "max", "p1", "p0"]
)
def test_a_percentile_is_the_sample_of_nearest_rank(percent: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_the_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([7.0], 95) == 7.0


def test_a_latency_takes_its_percentiles_within_each_repetition() -> None:
    found = Latency.of([[1, 2, 3], [10, 20, 30], [100, 200, 300]])

    assert (found.p50.lowest, found.p50.median, found.p50.highest) == (2, 20, 200)
    assert (found.highest.lowest, found.highest.median, found.highest.highest) == (3, 30, 300)


def test_caveats_stand_above_the_first_table() -> None:
    rendered = render(results())

    assert 0 < rendered.index("## Keep in mind") < rendered.index("\n| ")


@pytest.mark.parametrize(
    "row",
    [
        "| embedded | storm | 77 | 1,111 (1,000 to 1,200) | 25.0 (20.0 to 30.0) |",
        "| tools a second | 345 |",
        "| one server, event to commit, p95 in ms | 52.0 |",
        "| embed | 6.00 | 60.0 | 30 texts embedded |",
        "| embed | 6.00 | 60.0 | 0 texts embedded |",
        "| search | 1.50 | 2.50 | 3.50 |",
        "| embed the query, never asked before | 4.50 | 6.50 | 8.50 |",
        "| whole MCP call, never asked before | 14.0 | 15.0 | 16.0 |",
        "| 200 | cl100k_base | 34,567 | 12.0 |",
        "| peak | 432 |",
    ],
)
def test_the_report_shows_every_measurement(row: str) -> None:
    assert row in render(results()).splitlines()


def test_the_report_names_machine_and_versions() -> None:
    rendered = render(results())

    assert "Abacus, 2 cores, 4.0 GiB, Linux 6." in rendered
    assert "Python 3.11.7, mcp 2.3.0." in rendered


def test_the_report_marks_disturbed_subjects() -> None:
    assert "events 43 %" in render(results(others_percent=43.2))
    assert "Other programs took less than a tenth" in render(results(others_percent=3))


def test_results_survive_being_kept_as_json() -> None:
    assert Results.model_validate_json(results().model_dump_json()) == results()


def test_the_kept_report_is_rendered_from_the_kept_numbers() -> None:
    kept = Results.model_validate_json((RESULTS / "throughput.json").read_text(encoding="utf-8"))

    assert (RESULTS / "throughput.md").read_text(encoding="utf-8") == render(kept)


def test_generated_texts_depend_only_on_the_seed() -> None:
    assert definitions("billing-0000", 20, 1) == definitions("billing-0000", 20, 1)
    assert definitions("billing-0000", 20, 1) != definitions("billing-0000", 20, 2)
    assert queries(20, 1) == queries(20, 1)


def test_generated_tools_and_queries_are_distinct() -> None:
    assert len({tool["name"] for tool in definitions("billing-0000", 300, 1)}) == 300
    assert len(set(queries(1_000, 1))) == 1_000


def test_stopwatches_count_the_items_of_each_stage(tmp_path: Path) -> None:
    path, stages = write_path(tmp_path), Stages()
    path.world.servers["s"] = listing(definition("a"), definition("b"))
    path.deps.intents.record(up(), due_in_s=60)

    reconcile("s", timed_dependencies(path.deps, stages))

    assert stages.items == {"intent": 0, "list": 1, "compare": 0, "count": 8, "embed": 4, "write": 2}
    assert all(seconds > 0 for seconds in stages.seconds.values())


def test_stopwatches_count_nothing_at_an_unchanged_server(tmp_path: Path) -> None:
    path, stages = write_path(tmp_path), Stages()
    path.world.servers["s"] = listing(definition("a"), definition("b"))
    for deps in (path.deps, timed_dependencies(path.deps, stages)):
        deps.intents.record(up(), due_in_s=60)
        reconcile("s", deps)

    assert stages.items == {"intent": 0, "list": 1, "compare": 0, "count": 0, "embed": 0, "write": 0}


@pytest.mark.slow
def test_a_quick_run_measures_every_subject(tmp_path: Path) -> None:
    quick_run("throughput", tmp_path)

    found = Results.model_validate_json((tmp_path / "throughput.json").read_text(encoding="utf-8"))
    assert [subject.subject for subject in found.conditions] == [
        "counting",
        "find_tool",
        "looks",
        "ingestion",
        "events",
    ]
    assert {stage.name: stage.items for stage in found.new.stages}["embed"] == 2 * found.new.tools  # two texts a tool
    assert {stage.name: stage.items for stage in found.unchanged.stages}["embed"] == 0
    assert (tmp_path / "throughput.md").read_text(encoding="utf-8") == render(found)
