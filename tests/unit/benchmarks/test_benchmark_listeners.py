"""The report of the notifications processes is that of the kept JSON, and the documents state its numbers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.command import RESULTS
from benchmarks.listeners.report import IDLE, render
from benchmarks.listeners.results import Results

DOCUMENT = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text(encoding="utf-8")
KEPT = Results.model_validate_json((RESULTS / "listeners.json").read_text(encoding="utf-8"))


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(KEPT) == (RESULTS / "listeners.md").read_text(encoding="utf-8")


def test_the_document_states_the_measured_costs() -> None:
    (idle,) = (reading for reading in KEPT.readings if reading.case == IDLE)
    subscriptions = max(KEPT.connections, key=lambda measured: measured.memory_kib_each)
    memory_mib = subscriptions.memory_kib_each * subscriptions.connections / 1024

    assert f"each takes {idle.core_percent:.1f} % of a core and reads {idle.redis_kib_per_s:.0f} KiB/s" in DOCUMENT
    assert f"subscriptions take {memory_mib:.0f} MiB, and {subscriptions.core_percent:.1f} % of a core" in DOCUMENT
