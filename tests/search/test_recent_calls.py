"""The recent calls of callers: read every few minutes, and never the cause of a failed answer."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from query.usage import recent_calls
from query.usage.recent_calls import DAYS, NO_CALLS, REFRESH_S, CallCounts, RecentCalls
from query.usage.record import call_rows
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Counts, Use, summed, today
from shared.errors import HistoryUnavailable
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("noon")


@dataclass
class Clock:
    """A clock that a test moves."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedHistory(SqliteUsage):
    """A history that fails or hangs where its test says so, and counts its reads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep_days=60)
        self.reads, self.is_down, self.answers = 0, False, threading.Event()
        self.answers.set()

    def sums(
        self,
        first: date,
        last: date,
        counters: Collection[str],
        servers: Collection[str] | None = None,
        tool: str | None = None,
    ) -> Mapping[Use, Counts]:
        self.reads += 1
        self.answers.wait(30)
        if self.is_down:
            raise HistoryUnavailable("down")
        return super().sums(first, last, counters, servers, tool)


@pytest.fixture
def history(tmp_path: Path) -> Generator[ScriptedHistory]:
    with closing(ScriptedHistory(tmp_path / "savings.sqlite3")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the first read on a busy machine too."""
    monkeypatch.setattr(recent_calls, "FIRST_READ_S", 30.0)


def add(history: ScriptedHistory, caller: str, tool: str, times: int = 1, days_ago: int = 0) -> None:
    """Record calls of this tool of the server `git`."""
    day = today() - timedelta(days=days_ago)
    history.add(summed(row for _ in range(times) for row in call_rows(day, caller, "git", tool, 10, 7)))


def test_the_calls_are_a_callers_own_of_the_last_days(history: ScriptedHistory) -> None:
    add(history, "ann", "log", 2)
    add(history, "ann", "log", 3, days_ago=DAYS - 1)
    add(history, "ann", "log", 4, days_ago=DAYS)
    add(history, "bob", "now")

    with closing(RecentCalls(history)) as calls:
        assert [calls.of(caller) for caller in ("ann", "bob", "eve")] == [{("git:log", 5)}, {("git:now", 1)}, NO_CALLS]


def test_the_history_is_read_once_for_all_answers_of_some_minutes(history: ScriptedHistory) -> None:
    add(history, "ann", "log")
    clock = Clock()
    calls = RecentCalls(history, clock)

    assert calls.of("ann") == {("git:log", 1)}
    add(history, "ann", "log")
    clock.now_s = REFRESH_S - 1
    assert {calls.of(caller) for caller in ("ann", "ann")} == {frozenset({("git:log", 1)})}
    assert history.reads == 1

    clock.now_s = REFRESH_S
    eventually(lambda: calls.of("ann") == frozenset({("git:log", 2)}))
    assert history.reads == 2
    calls.close()


def test_a_history_that_is_down_is_logged_once_and_the_last_counts_stay(history: ScriptedHistory) -> None:
    add(history, "ann", "log")
    clock = Clock()
    with capture_logs() as lines, closing(RecentCalls(history, clock)) as calls:
        found: list[CallCounts] = []
        for is_down in (True, True, False, True, True):
            history.is_down = is_down
            clock.now_s += REFRESH_S
            calls.of("ann")
            calls.close()  # this read has ended
            found.append(calls.of("ann"))

    assert found == [NO_CALLS] * 2 + [{("git:log", 1)}] * 3
    assert history.reads == 5
    assert [(line["event"], line["reason"]) for line in lines] == [("recent_calls_not_read", "down")] * 2


def test_a_history_that_hangs_delays_only_the_first_answer_and_is_read_once(history: ScriptedHistory) -> None:
    add(history, "ann", "log")
    history.answers.clear()
    with patch.object(recent_calls, "FIRST_READ_S", 0.01):
        calls = RecentCalls(history)
        assert calls.of("ann") == NO_CALLS
    with patch.object(recent_calls, "FIRST_READ_S", 600.0):  # a wait would exceed the time of this test
        assert [calls.of("ann") for _ in range(20)] == [NO_CALLS] * 20
    eventually(lambda: history.reads, what="the start of the read")
    assert history.reads == 1

    history.answers.set()
    calls.close()
    assert calls.of("ann") == {("git:log", 1)}


def test_the_first_answers_wait_for_one_read(history: ScriptedHistory) -> None:
    add(history, "ann", "log")
    calls, found = RecentCalls(history), list[object]()
    threads = [threading.Thread(target=lambda: found.append(calls.of("ann"))) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [{("git:log", 1)}] * 8
    assert history.reads == 1
