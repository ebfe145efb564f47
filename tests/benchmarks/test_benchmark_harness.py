"""The statistics of benchmarks, their tables, and that each kept report is rendered from the kept figures."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.harness import (
    RESULTS,
    Figures,
    cell,
    document,
    figures_table,
    filled,
    head,
    keep,
    kept,
    latency,
    others,
    percentile,
    spread,
    this_machine,
)
from benchmarks.page import LIMIT_MS
from benchmarks.serving import render as render_serving

# Results, and the module that renders them.
KEPT = {
    **{name: name for name in ("throughput", "serving", "search", "fleet", "fairness", "page")},
    **{name: name for name in ("retrieval", "requests", "capture", "answers", "recount", "peers")},
    **{f"beside-{part}": "beside" for part in ("reads", "writes")},
    "model": "model.evaluation",
    "whole_calls": "whole_calls.__main__",
    **{f"{name}-qdrant": name for name in ("throughput", "serving", "search", "fleet")},
}


@pytest.mark.parametrize("name", KEPT)
def test_the_kept_report_is_rendered_from_the_kept_figures(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{KEPT[name]}")

    assert document(module.render(kept(name))) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50), (95, 95), (100, 100), (1, 1), (0, 1)], ids=["p50", "p95", "max", "p1", "p0"]
)
def test_a_percentile_is_the_sample_of_nearest_rank(percent: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_the_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([7.0], 95) == 7.0


def test_a_latency_takes_its_percentiles_within_each_repetition() -> None:
    found = latency([[1, 2, 3], [10, 20, 30], [100, 200, 300]])

    assert found["p50"] == {"median": 20, "lowest": 2, "highest": 200}
    assert found["highest"] == {"median": 30, "lowest": 3, "highest": 300}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (1_234, "1,234"),
        (1_234.5, "1,234"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (spread([1.0, 2.0, 4.0]), "2.00 (1.00 to 4.00)"),
        (spread([1.0, 1.001]), "1.00"),
    ],
)
def test_a_figure_has_three_significant_digits(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_a_table_shows_figures_within_figures_and_units() -> None:
    rows = [{"sent_s": 1.5, "tools_per_s": 200, "answers": {"p95": 3.25}}]

    found = figures_table(rows, "sent_s", "tools_per_s", "answers.p95").splitlines()

    assert found == ["| sent, s | tools a second | answers p95 |", "|---|---|---|", "| 1.50 | 200 | 3.25 |"]


def test_the_caveats_the_date_and_the_machine_are_at_the_beginning_of_a_report() -> None:
    machine = {**this_machine(), "processor": "Abacus"}

    found = document(head("A title.\n\nA caveat.\n", {"made_at": "2026-01-02", "machine": machine}))

    assert found.startswith("# A title\n\nA caveat.\n\nA run on 2026-01-02.\nAbacus, ")


def test_disturbed_subjects_are_named() -> None:
    quiet = {"subject": "quiet", "others_percent": 3.0}

    assert others([quiet]) == "Other programs took less than a tenth of the processors."
    assert others([quiet, {"subject": "events", "others_percent": 43.2}]).endswith(": events 43 %.")


def test_only_the_marked_tables_of_a_document_are_replaced() -> None:
    page = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n"

    assert filled(page, lambda name: f"new {name}") == "a\n<!-- table: x -->\nnew x\n<!-- end -->\nb\n"


def test_figures_survive_being_kept(tmp_path: Path) -> None:
    figures: Figures = {"plan": {"name": "full"}, "seconds": 1.5}

    keep("name", tmp_path / "new", figures)

    assert kept("name", tmp_path / "new") == figures
    assert kept("other", tmp_path) == {}


def test_the_page_states_a_limit_that_every_page_kept() -> None:
    figures = kept("page")
    means = [page["mean_ms"] for size in figures["sizes"] for page in size["pages"]]

    assert [size["servers"] for size in figures["sizes"]] == [11, 500, 5_000]
    assert max(means) <= LIMIT_MS
    page = (RESULTS.parents[1] / "docs" / "page.md").read_text(encoding="utf-8")
    assert f"at most {max(means):.0f} ms of processor time" in page


def test_a_wait_beyond_the_target_is_not_hidden() -> None:
    figures = kept("serving")
    figures["served"][0]["crowds"][0]["latency"]["highest"]["highest"] = 4_321.0

    assert "The longest wait of all was 4,321 ms; the target is at most 1,000." in document(render_serving(figures))


def test_the_processor_time_of_answers_is_also_in_pings() -> None:
    figures = kept("serving")
    new, _, pings = figures["served"][0]["crowds"][:3]
    pings["processor"]["service_ms"]["median"] = new["processor"]["service_ms"]["median"] / 4

    first = f"| {new['clients']} | 1 | never asked"
    rows = [row for row in document(render_serving(figures)).splitlines() if row.startswith(first)]

    assert "| 4.00 |" in rows[0]
