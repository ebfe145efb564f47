"""The report of the pages is that of the kept JSON, and each page keeps to its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.command import RESULTS
from benchmarks.page.report import render
from benchmarks.page.results import LIMIT_MS, Results
from tests.support.quick_runs import quick_run

KEPT = Results.model_validate_json((RESULTS / "page.json").read_text(encoding="utf-8"))
DOCUMENT = (Path(__file__).parents[2] / "docs" / "page.md").read_text(encoding="utf-8")


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(KEPT) == (RESULTS / "page.md").read_text(encoding="utf-8")


def test_the_document_states_a_limit_that_every_page_kept() -> None:
    means = [page.mean_ms for size in KEPT.sizes for page in size.pages]

    assert [size.servers for size in KEPT.sizes] == [11, 500, 5_000]
    assert max(means) <= LIMIT_MS
    assert f"at most {max(means):.0f} ms of processor time" in DOCUMENT


@pytest.mark.slow
def test_a_quick_run_measures_every_page(tmp_path: Path) -> None:
    quick_run("page", tmp_path)

    quick = Results.model_validate_json((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert [page.page for page in quick.sizes[0].pages] == [page.page for page in KEPT.sizes[0].pages]
