"""The comparison of two builds: its report, and a run of this build beside itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.beside.report import render
from benchmarks.beside.results import Results
from benchmarks.command import RESULTS
from tests.support.quick_runs import quick_run

DOCUMENT = (Path(__file__).parents[3] / "docs" / "performance.md").read_text(encoding="utf-8")
KEPT = Results.model_validate_json((RESULTS / "beside.json").read_text(encoding="utf-8"))


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(KEPT) == (RESULTS / "beside.md").read_text(encoding="utf-8")


def test_the_document_states_the_ratios_of_the_kept_results() -> None:
    stated = sorted(re.findall(r"^\| [^|]+ \| (\d\.\d\d) \|$", DOCUMENT, re.MULTILINE))
    ratios = {compared.request: f"{compared.ratio.median:.2f}" for compared in KEPT.sizes[0].compared}
    ratios.pop("describe_tool")  # it did not change

    assert stated == sorted(ratios.values())
    assert f"of the commit {KEPT.before}" in DOCUMENT


@pytest.mark.slow
def test_a_quick_run_compares_every_request(tmp_path: Path) -> None:
    quick_run("beside", tmp_path)

    quick = Results.model_validate_json((tmp_path / "beside.json").read_text(encoding="utf-8"))
    requests = [compared.request for compared in KEPT.sizes[0].compared]
    assert [compared.request for compared in quick.sizes[0].compared] == requests
    assert all(compared.now.processor.lowest > 0 for compared in quick.sizes[0].compared)
    assert quick.before == quick.now
