"""The fleet benchmark plays its servers right, merges its parts, and renders what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import RESULTS
from benchmarks.fleet.__main__ import SCALING
from benchmarks.fleet.report import render
from benchmarks.fleet.results import (
    Answers,
    Crowd,
    Findable,
    Findables,
    Haystack,
    Ingestion,
    Metrics,
    MetricsBySize,
    Part,
    Replicas,
    Results,
    Resync,
    Stages,
    StageTime,
    Storm,
    StormRun,
)
from benchmarks.fleet.scaling import NOT_MEASURED, costs, filled
from benchmarks.fleet.servers import MODERN, Era, Fleet, running_fleet
from benchmarks.fleet.targets import targets
from benchmarks.throughput.machine import Conditions, this_machine
from shared.catalog import Listing
from shared.upstream.target import HttpTarget
from tests.support.quick_runs import quick_run
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking


def listed(url: str) -> Listing:
    return fetch_tools_blocking("s", HttpTarget(url, addresses=("127.0.0.1",)), Limits())


def corpus(directory: Path) -> Path:
    tools = [("Mail", "send"), ("Files", "read"), ("Mail", "fetch"), ("Maps", "route"), ("News", "list")]
    lines = [
        json.dumps({"server": server, "name": name, "description": name, "inputSchema": {"type": "object"}})
        for server, name in tools
    ]
    path = directory / "corpus.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def results() -> Results:
    """Return results with distinct numbers."""
    conditions = Conditions(subject="storm", seconds=61, load_1m=1, others_percent=3)
    run = StormRun(
        way="door",
        sent_s=11,
        drained_s=12,
        listings=301,
        tools_written=0,
        cpu_s=13,
        answers=Answers(count=14, p50=15, p95=16, p99=17, highest=18),
    )
    return Results(
        machine=this_machine(),
        parts={"storm": Part(made_at="2026-01-02", plan="full", index="Qdrant Edge", conditions=conditions)},
        storm=Storm(servers=100, tools=2_000, events=10_000, distinct=1_000, runs=(run,)),
    )


def measured() -> Results:
    """Return results of all parts, enough for unit costs."""
    resync = Resync(
        protocol="2025-11-25",
        servers=1_000,
        tools=20_000,
        seconds=20,
        listings=1_000,
        tools_written=0,
        cpu_s=10,
        peak_mib=300,
        redis_commands=20_000,
        redis_grown_mib=1,
    )
    first = resync.model_copy(update={"cpu_s": 15})
    second = resync.model_copy(update={"listing": "second"})
    wide = second.model_copy(update={"servers": 100, "tools": 10_000, "cpu_s": 1.8})
    replicas = Replicas(servers=1_000, tools=20_000, counted=20, embedded=40, seconds=9, cpu_s=9, peak_mib=300)
    ingestion = Ingestion(
        setting="1 worker",
        servers=2_000,
        tools=20_000,
        seconds=100,
        tools_per_s=200,
        cpu_s=100,
        peak_mib=400,
        disk_mib=100,
    )
    stages = Stages(servers=1, tools=1, seconds=1, stages=(StageTime(name="embed", seconds=1, items=2),))
    answers = Answers(count=1, p50=1, p95=1, p99=1, highest=1)
    small = Metrics(
        tools=1_000,
        servers=20,
        events=1,
        looks=1,
        seconds=1,
        resident_mib=300,
        token_metrics=answers,
        find_tool=answers,
    )
    large = small.model_copy(
        update={"tools": 101_000, "resident_mib": 400, "find_tool": answers.model_copy(update={"p50": 51})}
    )
    return results().model_copy(
        update={
            "crowd": Crowd(replicas=replicas, resyncs=(first, second, wide)),
            "haystack": Haystack(corpus_servers=2_000, corpus_tools=20_000, ingestions=(ingestion,), stages=stages),
            "metrics": MetricsBySize(event_rate=10, question_rate=10, sizes=(small, large)),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("era", "version"), [("modern", MODERN), ("handshake", "2025-11-25")])
def test_a_scripted_server_is_listed_over_both_protocols_with_all_of_its_pages(era: Era, version: str) -> None:
    with running_fleet(Fleet(kind="generated", servers=2, tools=120, seed=1)) as fleet:
        first, second = (listed(server.url) for server in fleet.servers(era))

        assert fleet.listings() == 2
    assert (len(first.tools), len(second.tools), fleet.tools) == (120, 120, 240)
    assert (first.protocol_version, first.declared_name) == (version, fleet.ids[0])
    assert first.tools != second.tools


@pytest.mark.slow
def test_replicas_are_one_and_the_same_server() -> None:
    with running_fleet(Fleet(kind="replicas", servers=2, tools=3, seed=1)) as fleet:
        first, second = (listed(server.url) for server in fleet.servers())

    assert (first.declared_name, first.tools) == (second.declared_name, second.tools)


def test_a_changing_server_has_another_first_tool_at_each_listing() -> None:
    with running_fleet(Fleet(kind="changing", servers=1, tools=3, seed=1)) as fleet:
        before, after = (listed(fleet.servers()[0].url).tools for _ in range(2))

    assert before[0] != after[0]
    assert before[1:] == after[1:]


@pytest.mark.slow
def test_a_corpus_is_played_by_one_server_for_each_of_its_names(tmp_path: Path) -> None:
    with running_fleet(Fleet(kind="corpus", corpus=corpus(tmp_path), share=2)) as fleet:
        listings = [listed(server.url) for server in fleet.servers()]

    found = {listing.declared_name: [tool.name for tool in listing.tools] for listing in listings}
    assert found == {"Mail": ["send", "fetch"], "Maps": ["route"]}


def test_the_report_shows_measurements_and_the_targets_met() -> None:
    rendered = render(results()).splitlines()

    assert "| storm | 2026-01-02 | full | Qdrant Edge | 61 | 3 % |" in rendered
    assert "| door | 11.0 | 12.0 | 301 | 0 | 13.0 | 14 | 15.0 | 16.0 | 17.0 | 18.0 |" in rendered
    assert "| 10,000 events for 100 servers, door: until the index follows | 30 s | 12.0 s | yes |" in rendered
    assert "| 10,000 events for 100 servers, door: listings | 300 | 301 | no |" in rendered


def test_a_target_is_met_at_its_bound() -> None:
    at_bound = Answers(count=1, p50=1, p95=2_000, p99=1, highest=1)
    beyond = at_bound.model_copy(update={"p95": 2_000.1})
    runs = tuple(Findable(load="none", tools=50, answers=answers) for answers in (at_bound, beyond))

    found = targets(results().model_copy(update={"storm": None, "findable": Findables(runs=runs)}))

    assert [target.is_met for target in found] == [True, False]


def test_results_survive_being_kept_as_json() -> None:
    assert Results.model_validate_json(results().model_dump_json()) == results()


def test_the_kept_report_is_rendered_from_the_kept_numbers() -> None:
    kept = Results.model_validate_json((RESULTS / "fleet.json").read_text(encoding="utf-8"))

    assert (RESULTS / "fleet.md").read_text(encoding="utf-8") == render(kept)


def test_the_tables_on_scaling_are_reckoned_from_the_kept_numbers() -> None:
    kept = Results.model_validate_json((RESULTS / "fleet.json").read_text(encoding="utf-8"))
    document = SCALING.read_text(encoding="utf-8")

    assert document == filled(document, kept)


def test_a_reconciliation_costs_its_server_and_its_tools() -> None:
    cost = costs(measured())

    assert cost.look_ms == pytest.approx(8)
    assert cost.look_tool_ms == pytest.approx(0.1)
    assert cost.look_at(20) == pytest.approx(10)
    assert cost.look_at(100) == pytest.approx(18)


def test_the_tables_on_scaling_show_costs_needs_and_limits() -> None:
    document = "".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in ("costs", "needs", "breaks"))

    found = filled(document, measured()).splitlines()

    assert "| and for each of its tools | processor ms | crowd |" not in found
    assert "| and for each of its tools | 0.10 | processor ms | crowd |" in found
    assert "| a new tool, listed, counted, embedded and written | 5.00 | processor ms | haystack |" in found
    # 10,000 servers / 262.5 s, each 18 ms
    assert "| processors for that | 0.04 | 0.07 | 0.69 |" in found
    assert "| worker processes, each 50% busy | 1 | 1 | 2 |" in found
    assert "| dense vectors, GiB | 0.03 | 0.14 | 1.43 |" in found
    assert "| Qdrant server, GiB in memory | 0.18 | 0.89 | 8.86 |" in found
    assert any("200,000 tools for 100 ms" in line for line in found)


def test_tables_on_scaling_mark_missing_measurements() -> None:
    document = "<!-- table: needs -->\n<!-- end -->\n"

    assert NOT_MEASURED in filled(document, results())


@pytest.mark.slow
@pytest.mark.redis
def test_a_quick_run_measures_one_part_and_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(results().model_dump_json(), encoding="utf-8")

    quick_run("fleet", tmp_path, "--only", "crowd")

    found = Results.model_validate_json((tmp_path / "fleet.json").read_text(encoding="utf-8"))
    assert found.crowd
    replicas = found.crowd.replicas
    assert (replicas.tools, replicas.counted, replicas.embedded) == (18, 6, 6)
    listings = [(resync.listing, resync.listings, resync.tools_written) for resync in found.crowd.resyncs]
    assert listings == [*[("first", 6, 0), ("second", 6, 0)] * 2, ("first", 2, 0), ("second", 2, 0)]
    assert (found.storm, found.parts["storm"]) == (results().storm, results().parts["storm"])
    assert (tmp_path / "fleet.md").read_text(encoding="utf-8") == render(found)


@pytest.mark.slow
@pytest.mark.redis
def test_a_quick_run_finds_each_new_server(tmp_path: Path) -> None:
    quick_run("fleet", tmp_path, "--only", "findable")

    found = Results.model_validate_json((tmp_path / "fleet.json").read_text(encoding="utf-8"))
    assert found.findable
    assert [run.answers.count for run in found.findable.runs] == [2, 2]
