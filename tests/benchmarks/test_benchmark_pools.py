from __future__ import annotations

from pathlib import Path

from benchmarks.pools.report import render
from benchmarks.pools.results import Results

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_kept_report_is_the_one_its_numbers_give() -> None:
    results = Results.model_validate_json((KEPT / "pools.json").read_text(encoding="utf-8"))

    assert render(results) == (KEPT / "pools.md").read_text(encoding="utf-8")


def test_the_report_names_every_arrangement_and_every_size_of_batch() -> None:
    results = Results.model_validate_json((KEPT / "pools.json").read_text(encoding="utf-8"))

    report = render(results)

    assert all(f"| {arrangement.pool.name} |" in report for arrangement in results.arrangements)
    assert all(f"| {batch.size} | " in report for batch in results.batches)
