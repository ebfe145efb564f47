"""When a worker counts as one that does nothing, by a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from shared.errors import IndexUnavailable
from workers.monitoring.checks import (
    IDLE_AT_MOST_S,
    Deadline,
    PeriodicCheck,
    Prolonged,
    WorkerProgress,
    WorkerSample,
)

RECONCILE_S = 30.0
STEP_S = 2.0


@dataclass
class Steady:
    """A clock that stands still until it is turned."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Steady:
    return Steady()


def watch(clock: Steady, for_s: float, *, waiting: int, ends: bool, is_full: bool = False) -> str | None:
    """Check a worker for so long, as the monitor does, and return the last result."""
    consumption, ended = WorkerProgress(RECONCILE_S, clock), 0
    until = clock.now + for_s
    while clock.now < until:
        consumption.add_sample(WorkerSample(waiting, ended, is_full))
        clock.now += STEP_S
        ended += ends
    return consumption.problem()


def test_a_worker_that_takes_nothing_of_what_waits_is_in_trouble_soon(clock: Steady) -> None:
    assert watch(clock, IDLE_AT_MOST_S - STEP_S, waiting=3, ends=False) is None
    assert watch(clock, IDLE_AT_MOST_S + 2 * STEP_S, waiting=3, ends=False) == (
        "3 messages wait, and no task has ended for 20 s"
    )


def test_a_worker_for_which_nothing_waits_may_be_idle_for_ever(clock: Steady) -> None:
    assert watch(clock, 86_400, waiting=0, ends=False) is None


def test_a_worker_with_a_long_queue_that_ends_tasks_is_well(clock: Steady) -> None:
    assert watch(clock, 3_600, waiting=10_000, ends=True) is None


def test_a_worker_whose_threads_all_wait_for_servers_has_the_time_of_a_reconciliation(clock: Steady) -> None:
    assert watch(clock, RECONCILE_S + IDLE_AT_MOST_S - STEP_S, waiting=5, ends=False, is_full=True) is None
    assert watch(clock, RECONCILE_S + IDLE_AT_MOST_S + 2 * STEP_S, waiting=5, ends=False, is_full=True) is not None


def test_a_queue_that_was_empty_in_between_is_no_trouble(clock: Steady) -> None:
    consumption = WorkerProgress(RECONCILE_S, clock)
    for waiting in (1, 1, 1, 1, 1, 0, 1, 1, 1, 1):
        consumption.add_sample(WorkerSample(waiting, 0, is_full=False))
        clock.now += STEP_S

    assert consumption.problem() is None


def test_a_check_returns_the_last_result_of_its_probe_and_reports_a_hanging_probe(clock: Steady) -> None:
    found: list[str | IndexUnavailable | None] = [None, "empty", IndexUnavailable("away"), None]

    def probe() -> str | None:
        now = found.pop(0)
        if isinstance(now, IndexUnavailable):
            raise now
        return now

    check = PeriodicCheck(probe, every_s=2.0, patience_s=10.0, clock=clock)
    said: list[str | None] = []
    for _ in range(4):
        check.run_once()
        said.append(check.problem())
    clock.now += 13.0

    assert said == [None, "empty", "away", None]
    assert check.problem() == "no answer for 13 s"


def test_what_was_done_in_time_is_fresh_and_what_never_was_is_trouble_too(clock: Steady) -> None:
    fresh = Deadline(within_s=20.0, clock=clock)
    assert fresh.problem() is None

    clock.now += 21.0
    assert fresh.problem() == "not done for 21 s"

    fresh.touch()
    clock.now += 20.0
    assert fresh.problem() is None
    clock.now += 5.0
    assert fresh.problem() == "not done for 25 s"


STUCK_AFTER_S = 60.0
States = Literal["well", "stands still", "without a broker"]


def restarts(clock: Steady, *states: tuple[States, float]) -> str | None:
    """Return the last result after these states, each with its seconds, checked every two seconds."""
    state: States = "well"
    prolonged = Prolonged(
        lambda: None if state == "well" else "no task has ended",
        lambda: "no answer" if state == "without a broker" else None,
        STUCK_AFTER_S,
        clock,
    )
    found: str | None = None
    for state, for_s in states:  # noqa: B007  # the checks read it
        until = clock.now + for_s
        while clock.now <= until:
            found = prolonged.problem()
            clock.now += STEP_S
    return found


def test_work_that_stands_still_for_long_while_the_broker_is_well_needs_a_restart(clock: Steady) -> None:
    assert restarts(clock, ("stands still", STUCK_AFTER_S - STEP_S)) is None
    assert restarts(clock, ("stands still", STUCK_AFTER_S)) == "no task has ended"


def test_work_that_goes_on_again_needs_no_restart(clock: Steady) -> None:
    assert restarts(clock, ("stands still", 58), ("well", 0), ("stands still", 58)) is None
    assert restarts(clock, ("stands still", 80), ("well", 0)) is None


def test_no_restart_replaces_a_broker(clock: Steady) -> None:
    assert restarts(clock, ("without a broker", 3_600)) is None
    # the worker has the whole time again when the broker is back
    assert restarts(clock, ("stands still", 58), ("without a broker", 0), ("stands still", 58)) is None


def test_an_error_that_a_check_did_not_expect_is_its_problem_until_the_next_run() -> None:
    raised = [KeyError("role"), None]

    def check() -> None:
        if error := raised.pop(0):
            raise error

    periodic = PeriodicCheck(check, 3600.0)
    with pytest.raises(KeyError):
        periodic.run_once()
    assert "role" in str(periodic.problem())

    periodic.run_once()
    assert periodic.problem() is None
