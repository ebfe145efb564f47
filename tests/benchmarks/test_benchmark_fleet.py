"""The fleet of servers is played right, and the needs of larger fleets follow from the kept figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fleet import SCALING, targets
from benchmarks.fleet_servers import MODERN, Era, Fleet, running_fleet
from benchmarks.harness import Figures, kept
from benchmarks.scaling import NOT_MEASURED, costs, scaling_page
from shared.catalog import Listing
from shared.upstream.target import HttpTarget
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

RESYNC = {"listing": "second", "servers": 1_000, "tools": 20_000, "redis_commands": 20_000, "redis_grown_mib": 1.0}
METRICS = {"tools": 1_000, "servers": 20, "resident_mib": 300.0, "token_metrics": {"p95": 1.0}}


def listed(url: str) -> Listing:
    return fetch_tools_blocking("s", HttpTarget(url, addresses=("127.0.0.1",)), Limits())


def measured() -> Figures:
    """Return figures of all parts, enough for unit costs."""
    first, second = {**RESYNC, "listing": "first", "processor_s": 15.0}, {**RESYNC, "processor_s": 10.0}
    wide = {**RESYNC, "servers": 100, "tools": 10_000, "processor_s": 1.8}
    small = {**METRICS, "find_tool": {"p50": 1.0}}
    large = {**METRICS, "tools": 101_000, "resident_mib": 400.0, "find_tool": {"p50": 51.0}}
    whole = {"tools": 20_000, "tools_per_s": 200.0, "processor_s": 100.0, "disk_mib": 100.0}
    return {
        "storm": {"events": 10_000, "runs": [{"processor_s": 13.0}]},
        "crowd": {"replicas": {"servers": 1_000, "tools": 20_000}, "resyncs": [first, second, wide]},
        "haystack": {"ingestions": [whole]},
        "metrics": {"sizes": [small, large]},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("era", "version"), [("modern", MODERN), ("handshake", "2025-11-25")])
def test_a_scripted_server_is_listed_over_both_protocols_with_all_of_its_pages(era: Era, version: str) -> None:
    with running_fleet(Fleet("generated", servers=2, tools=120, seed=1)) as fleet:
        first, second = (listed(server.url) for server in fleet.servers(era))

        assert fleet.listings() == 2
    assert (len(first.tools), len(second.tools), fleet.tools) == (120, 120, 240)
    assert (first.protocol_version, first.declared_name) == (version, fleet.ids[0])
    assert first.tools != second.tools


@pytest.mark.slow
def test_replicas_are_one_and_the_same_server() -> None:
    with running_fleet(Fleet("replicas", servers=2, tools=3, seed=1)) as fleet:
        first, second = (listed(server.url) for server in fleet.servers())

    assert (first.declared_name, first.tools) == (second.declared_name, second.tools)


@pytest.mark.process
def test_a_changing_server_has_another_first_tool_at_each_listing() -> None:
    with running_fleet(Fleet("changing", servers=1, tools=3, seed=1)) as fleet:
        before, after = (listed(fleet.servers()[0].url).tools for _ in range(2))

    assert before[0] != after[0]
    assert before[1:] == after[1:]


@pytest.mark.slow
def test_a_corpus_is_played_by_one_server_for_each_of_its_names(tmp_path: Path) -> None:
    tools = [("Mail", "send"), ("Files", "read"), ("Mail", "fetch"), ("Maps", "route"), ("News", "list")]
    corpus = tmp_path / "corpus.jsonl"
    schema = {"type": "object"}
    lines = (json.dumps({"server": server, "name": name, "inputSchema": schema}) for server, name in tools)
    corpus.write_text("\n".join(lines))

    with running_fleet(Fleet("corpus", corpus=str(corpus), share=2)) as fleet:
        found = [listed(server.url) for server in fleet.servers()]

    assert {each.declared_name: [tool.name for tool in each.tools] for each in found} == {
        "Mail": ["send", "fetch"],
        "Maps": ["route"],
    }


def test_a_target_is_met_at_its_bound() -> None:
    sizes = [{"tools": 1_000, "token_metrics": {"p99": p99}} for p99 in (10.0, 10.1)]

    found = list(targets({"metrics": {"sizes": sizes}}))

    assert [(bound, measured) for _, bound, measured, _ in found] == [(10, 10.0), (10, 10.1)]


def test_the_tables_on_scaling_are_computed_from_the_kept_figures() -> None:
    page = SCALING.read_text(encoding="utf-8")

    assert page == scaling_page(page, kept("fleet"))


def test_a_reconciliation_costs_its_server_and_its_tools() -> None:
    cost = costs(measured())

    assert cost.look_ms == pytest.approx(8)
    assert cost.look_tool_ms == pytest.approx(0.1)
    assert cost.look_at(100) == pytest.approx(18)


def test_the_tables_on_scaling_show_costs_needs_and_limits() -> None:
    page = "".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in ("costs", "needs", "breaks"))

    found = scaling_page(page, measured()).splitlines()

    assert "| and for each of its tools | 0.10 | processor ms | crowd |" in found
    assert "| a new tool, listed, counted, embedded and written | 5.00 | processor ms | haystack |" in found
    # 10,000 servers / 262.5 s, each 18 ms
    assert "| processors for that | 0.04 | 0.07 | 0.69 |" in found
    assert "| worker processes, each 50% busy | 1 | 1 | 2 |" in found
    assert "| dense vectors, GiB | 0.03 | 0.14 | 1.43 |" in found
    # 9.29 KiB a tool
    assert "| Qdrant server, GiB in memory | 0.18 | 0.89 | 8.86 |" in found
    assert any("200,000 tools for 100 ms" in line for line in found)


def test_tables_on_scaling_mark_missing_measurements() -> None:
    page = "<!-- table: needs -->\n<!-- end -->\n"

    assert NOT_MEASURED in scaling_page(page, {"storm": {}})
