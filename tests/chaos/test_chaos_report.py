"""The parts of `make chaos` are stored together, and the report is rendered from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import this_machine
from tests.chaos.playing import play_all
from tests.chaos.report import render, write
from tests.chaos.results import Asked, Outcome, Played, Results, Schedules, read

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"

MACHINE = this_machine()
ASKED = Asked(
    questions=91, answers=71, incomplete=5, hidden=4, errors={"gone": 20},
    within_s=21, longest_s=3.14, longest_error_s=0.27, longest_stale_s=8.76,
)  # fmt: skip
FAULTS = Outcome(
    made_at="2026-01-02", seed=7, index="an index", workers=2, servers=22, sick=6, seconds=345.6,
    faults={"something killed": 33}, events=444, unannounced_changes=55, listings=66, resync_s=8, bound_s=12,
    converged_after_s=4.32, clocks_ahead_s=(-120, 0), parked=17, lost_acknowledged_events=0, tools_compared=(77, 78),
    differences=(), machine=MACHINE, asked=ASKED,
)  # fmt: skip
PLAYED = Played(what="a machine", store="a store", schedules=1001, steps=39_999, seconds=123.4, failure="")
SCHEDULES = Schedules(made_at="2026-01-03", seed=8, steps_at_most=40, runs=(PLAYED,), machine=MACHINE)


def report(results: Results) -> str:
    return "\n".join(render(results))


def test_the_kept_report_is_the_one_its_numbers_give() -> None:
    assert report(read(KEPT)) + "\n" == (KEPT / "chaos.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("first", ["faults", "schedules"])
def test_a_run_of_one_part_keeps_the_other(tmp_path: Path, first: str) -> None:
    parts = [Results(faults=(FAULTS,)), Results(schedules=SCHEDULES)]
    for part in parts if first == "faults" else reversed(parts):
        write(read(tmp_path).replaced_by(part), tmp_path)

    assert read(tmp_path) == Results(faults=(FAULTS,), schedules=SCHEDULES)
    rendered = (tmp_path / "chaos.md").read_text(encoding="utf-8")
    assert "| something killed | 33 |" in rendered
    assert "| a machine | a store | 1,001 | 39,999 | 123 | none |" in rendered


@pytest.mark.parametrize(
    "row",
    [
        "| questions | 91 |",
        "| answers | 71 |",
        "| answers without a tool of a parked server | 4 |",
        "| errors: gone | 20 |",
        "| longest wait for an answer | 3.1 s, allowed 21 s |",
        "| longest wait for an error | 0.3 s, allowed 21 s |",
        "| longest time that a removed tool was found during the faults | 8.8 s |",
    ],
)
def test_the_report_shows_the_results_of_queries(row: str) -> None:
    assert row in report(Results(faults=(FAULTS,)))


def test_a_schedule_that_failed_fails_the_run_and_is_seen_in_the_report() -> None:
    failed = SCHEDULES.model_copy(update={"runs": (PLAYED, PLAYED.model_copy(update={"failure": "assert 1 == 2"}))})

    assert SCHEDULES.passed
    assert not failed.passed
    assert "| 123 | yes |" in report(Results(schedules=failed))


def test_a_run_whose_answers_were_wrong_has_not_passed() -> None:
    assert FAULTS.passed
    assert not FAULTS.model_copy(update={"differences": ("found, though it was gone",)}).passed


@pytest.mark.redis
def test_the_stored_schedules_are_those_that_ran() -> None:
    told: list[Played] = []

    found = play_all(2, 3, told.append)

    assert found.passed, [run.failure for run in found.runs]
    assert list(found.runs) == told
    assert {run.store for run in found.runs} == {"SQLite", "Redis"}
    assert all(run.schedules >= 2 for run in found.runs)
    assert all(run.schedules <= run.steps <= run.schedules * found.steps_at_most for run in found.runs)
