"""The benchmark of a migration's listings, on a tiny index."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.migration.measuring import measure
from benchmarks.migration.results import Results, render
from shared.index.edge import EdgeEngine

KEPT = Path(__file__).parents[3] / "benchmarks" / "results"


def test_the_kept_report_is_the_one_its_numbers_give() -> None:
    results = Results.model_validate_json((KEPT / "migration.json").read_text(encoding="utf-8"))

    assert render(results) == (KEPT / "migration.md").read_text(encoding="utf-8")


def test_each_listing_and_a_pass_with_the_switch_are_measured(tmp_path: Path) -> None:
    with closing(EdgeEngine(tmp_path / "index")) as engine:
        size = measure(engine, tools=40, repetitions=2)

    assert (size.tools, size.servers) == (40, 2)
    assert [len(seconds) for seconds in (size.page_s, size.facet_s, size.scan_s)] == [2, 2, 2]
    assert size.pass_s > 0
