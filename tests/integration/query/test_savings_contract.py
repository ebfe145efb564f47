"""The contract of a history, on a file, on a fake Redis and on a real Redis."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from query.history.periods import start_s, today
from query.history.recorder import UsageRecorder
from query.history.redis_store import PREFIX, SIZES_PREFIX, RedisHistory
from query.history.sqlite_store import SqliteHistory
from query.history.store import (
    COUNTER_OVERHEAD_BYTES,
    OTHERS,
    Row,
    RowKey,
    Rows,
    SavingsHistory,
    ServerSize,
    TotalSize,
    summed,
)
from shared.errors import HistoryUnavailable
from shared.service.redis import connect
from tests.support.fake_redis import FakeRedisServer
from tests.support.waiting import eventually

TODAY = today()

# Of a counter with the short names of these tests.
COUNTER_BYTES = 30 + COUNTER_OVERHEAD_BYTES

Opened = Callable[..., SavingsHistory]


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Opened]:
    """Yield a function that opens the history of this test, for about so many counters a day."""
    histories: list[SavingsHistory] = []

    def open_one(max_counters: int) -> SavingsHistory:
        limit = max_counters * COUNTER_BYTES
        if request.param == "sqlite":
            histories.append(SqliteHistory(tmp_path / "savings.sqlite3", 30, limit))
        else:
            histories.append(RedisHistory(_client(request), 30, limit))
        return histories[-1]

    yield open_one
    for store in histories:
        store.close()


def _client(request: pytest.FixtureRequest) -> redis.Redis:
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client()
    return connect(request.getfixturevalue("own_redis_url"))


@pytest.fixture
def history(opened: Opened) -> SavingsHistory:
    return opened(10_000)


def answer(tool: str = "find_tool", caller: str = "ann", day: date = TODAY) -> Row:
    """Return the row of an answer of 10 tokens."""
    return RowKey(day, caller, "", tool), {"answers": 1, "tokens": 10}


def call(tool: str = "read", caller: str = "ann") -> Row:
    """Return the row of a call with a result of 100 bytes."""
    return RowKey(TODAY, caller, "srv", tool), {"answers": 0, "calls": 1, "bytes": 100}


def test_counters_are_summed_by_day_caller_server_and_tool(history: SavingsHistory) -> None:
    yesterday = TODAY - timedelta(days=1)
    history.add(summed([answer(), answer(), answer("describe_tool"), call()]))
    history.add(summed([answer(), answer(caller="bob"), answer(day=yesterday)]))

    assert history.rows(TODAY, TODAY) == {
        RowKey(TODAY, "ann", "", "find_tool"): {"answers": 3, "tokens": 30},
        RowKey(TODAY, "ann", "", "describe_tool"): {"answers": 1, "tokens": 10},
        RowKey(TODAY, "ann", "srv", "read"): {"answers": 0, "calls": 1, "bytes": 100},
        RowKey(TODAY, "bob", "", "find_tool"): {"answers": 1, "tokens": 10},
    }
    assert {key.day for key in history.rows(TODAY - timedelta(days=6), TODAY)} == {TODAY, yesterday}


def test_counters_are_summed_over_the_days_of_a_period(history: SavingsHistory) -> None:
    yesterday, long_ago = TODAY - timedelta(days=1), TODAY - timedelta(days=9)
    odd = 'x]calls"*\n'
    used = {"answers": 4, "calls": 2, "failed_calls": 1, "bytes": 100}
    for day in (TODAY, yesterday, long_ago):
        history.add({RowKey(day, "ann", "srv", "read"): used, RowKey(day, odd, "srv", odd): {"answers": 1, "calls": 1}})
    history.add(summed([answer(), (RowKey(TODAY, "ann", "srv", "shown"), {"answers": 1}), call(caller="bob")]))

    recent = TODAY - timedelta(days=7), TODAY
    assert history.sums(*recent, ("calls",)) == {
        ("ann", "srv", "read"): {"calls": 4}, ("bob", "srv", "read"): {"calls": 1}, (odd, "srv", odd): {"calls": 2}
    }  # fmt: skip
    assert history.sums(*recent, ("answers", "calls")) == {
        ("ann", "", "find_tool"): {"answers": 1},
        ("ann", "srv", "read"): {"answers": 8, "calls": 4},
        ("ann", "srv", "shown"): {"answers": 1},
        ("bob", "srv", "read"): {"answers": 0, "calls": 1},
        (odd, "srv", odd): {"answers": 2, "calls": 2},
    }
    assert history.sums(long_ago, long_ago, ("failed_calls",)) == {("ann", "srv", "read"): {"failed_calls": 1}}


def test_calls_of_a_large_day_are_all_read(opened: Opened) -> None:
    history = opened(25_000)
    history.add(summed(call(f"tool{number}") for number in range(3_000)))

    assert history.sums(TODAY, TODAY, ("calls",)) == {
        ("ann", "srv", f"tool{number}"): {"calls": 1} for number in range(3_000)
    }


def test_called_tools_beyond_the_bound_are_summed_as_others(opened: Opened) -> None:
    history = opened(12)

    history.add(summed(call(f"tool{number}") for number in range(50)))
    history.add(summed([call("tool0")]))

    rows = history.rows(TODAY, TODAY)
    assert len(rows) < 12
    assert sum(row["calls"] for row in rows.values()) == 51
    assert rows[RowKey(TODAY, "ann", "srv", "tool0")]["calls"] == 2
    assert rows[RowKey(TODAY, OTHERS, OTHERS, OTHERS)]["calls"] > 30


def test_callers_beyond_the_bound_are_summed_as_others_for_each_tool_of_ours(opened: Opened) -> None:
    history = opened(20)
    history.add(summed(answer(caller=f"caller{number}") for number in range(50)))
    history.add(summed([answer(caller="caller0"), answer("tools/list", caller="late")]))

    rows = history.rows(TODAY, TODAY)

    assert len(rows) < 20
    assert sum(row["answers"] for row in rows.values()) == 52
    assert rows[RowKey(TODAY, "caller0", "", "find_tool")]["answers"] == 2
    assert rows[RowKey(TODAY, OTHERS, "", "find_tool")]["answers"] > 30
    assert rows[RowKey(TODAY, OTHERS, "", "tools/list")]["answers"] == 1


def test_totals_of_sizes_count_the_chosen_servers_and_those_with_tools(history: SavingsHistory) -> None:
    yesterday = TODAY - timedelta(days=1)
    history.store_sizes(yesterday, {'"odd': ServerSize(1, 10)})
    history.store_sizes(TODAY, {'"odd': ServerSize(1, 11), "b": ServerSize(2, 20), "stopped": ServerSize(0, 0)})

    everything = history.total_sizes(TODAY - timedelta(days=5), TODAY)

    assert everything == {yesterday: TotalSize(1, 1, 10), TODAY: TotalSize(2, 3, 31)}
    assert history.total_sizes(yesterday, TODAY, ["b", "stopped"]) == {
        yesterday: TotalSize(),
        TODAY: TotalSize(1, 2, 20),
    }
    assert history.total_sizes(TODAY, TODAY, ()) == {TODAY: TotalSize()}


def test_the_last_size_of_a_server_on_a_day_is_the_days(history: SavingsHistory) -> None:
    yesterday = TODAY - timedelta(days=1)
    history.store_sizes(yesterday, {"a": ServerSize(1, 10), "b": ServerSize(2, 20)})
    history.store_sizes(TODAY, {"a": ServerSize(3, 30), 'odd"] 1:é': ServerSize(1, 1)})

    history.store_sizes(TODAY, {"a": ServerSize(0, 0)})
    history.store_sizes(TODAY, {})

    assert history.sizes(TODAY - timedelta(days=5), TODAY) == {
        yesterday: {"a": ServerSize(1, 10), "b": ServerSize(2, 20)},
        TODAY: {"a": ServerSize(0, 0), 'odd"] 1:é': ServerSize(1, 1)},
    }
    assert history.sizes(yesterday, yesterday).keys() == {yesterday}
    assert history.sizes(yesterday, TODAY, "b") == {yesterday: {"b": ServerSize(2, 20)}}
    assert history.rows(yesterday, TODAY) == {}


def test_threads_lose_no_count(history: SavingsHistory) -> None:
    def add(number: int) -> None:
        for _ in range(20):
            history.add(summed([answer(caller=f"caller{number}")]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))  # raises the error of a thread

    assert sum(row["answers"] for row in history.rows(TODAY, TODAY).values()) == 80


def test_names_of_any_kind_come_back_as_they_were(history: SavingsHistory) -> None:
    odd = 'a"]b:é\n' + OTHERS
    keys = {RowKey(TODAY, odd, "", "find_tool"), RowKey(TODAY, odd, "s/x", odd)}
    history.add({key: {"answers": 1} for key in keys})

    assert history.rows(TODAY, TODAY).keys() == keys


def test_queued_events_are_written_at_the_end(history: SavingsHistory) -> None:
    with closing(UsageRecorder(history)) as recorder:
        for _ in range(500):
            recorder.record([answer()])

    assert history.rows(TODAY, TODAY)[answer()[0]]["answers"] == 500


class CountingHistory(SqliteHistory):
    """Counts its transactions."""

    added = 0

    def add(self, rows: Rows) -> None:
        super().add(rows)
        self.added += 1


def test_events_after_a_write_share_the_next_one(tmp_path: Path) -> None:
    with closing(CountingHistory(tmp_path / "savings.sqlite3", keep_days=2)) as history:
        with closing(UsageRecorder(history, pause_s=600)) as recorder:
            recorder.record([answer()])
            eventually(lambda: history.added == 1)
            for _ in range(50):
                recorder.record([answer()])
                history.rows(TODAY, TODAY)  # a thread that does not pause would write meanwhile

        assert history.added == 2
        assert history.rows(TODAY, TODAY)[answer()[0]]["answers"] == 51


def test_a_read_waits_for_no_write(tmp_path: Path) -> None:
    path = tmp_path / "savings.sqlite3"
    with closing(SqliteHistory(path, keep_days=2)) as history, closing(sqlite3.connect(path)) as writer:
        history.add(summed([answer()]))
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM counters")

        assert history.rows(TODAY, TODAY)[answer()[0]]["answers"] == 1
        assert history.sizes(TODAY, TODAY) == {}


def test_an_event_that_cannot_be_counted_is_dropped_alone(history: SavingsHistory) -> None:
    class Panic(BaseException):
        """As tiktoken's Rust side raises it."""

    def uncountable(error: BaseException) -> Iterator[Row]:
        yield answer()
        raise error

    with capture_logs() as logs, closing(UsageRecorder(history)) as recorder:
        for error in (ValueError("no count"), Panic("index out of range")):
            recorder.record(uncountable(error))
            recorder.record([answer()])

    assert history.rows(TODAY, TODAY)[answer()[0]]["answers"] == 2
    assert [log["event"] for log in logs].count("savings_event_invalid") == 2


def test_days_beyond_the_retention_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "savings.sqlite3"
    with closing(SqliteHistory(path, keep_days=2, clock=lambda: start_s(TODAY) + 60)) as history:
        history.add(summed(answer(day=TODAY - timedelta(days=days)) for days in range(4)))
        history.add(summed([answer()]))

        kept = {key.day for key in history.rows(TODAY - timedelta(days=9), TODAY)}
        for days in (3, 2, 1, 0):
            history.store_sizes(TODAY - timedelta(days=days), {"a": ServerSize(1, 10)})
        kept_sizes = history.sizes(TODAY - timedelta(days=9), TODAY).keys()

    assert kept == kept_sizes == {TODAY, TODAY - timedelta(days=1)}


@pytest.mark.redis
def test_redis_forgets_a_day_by_itself(own_redis_url: str) -> None:
    with connect(own_redis_url) as client:
        history = RedisHistory(client, keep_days=2)
        history.add(summed([answer()]))
        history.store_sizes(TODAY, {"a": ServerSize(1, 10)})
        left_s = [client.ttl(prefix + TODAY.isoformat()) for prefix in (PREFIX, SIZES_PREFIX)]

    assert [isinstance(seconds, int) and 0 < seconds <= 2 * 86_400 for seconds in left_s] == [True] * 2


class StuckHistory(SqliteHistory):
    """A history that adds nothing before `let_go` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep_days=2)
        self.let_go = threading.Event()

    def add(self, rows: Rows) -> None:
        self.let_go.wait(30)
        super().add(rows)


def test_a_history_that_hangs_drops_events_and_delays_no_answer(tmp_path: Path) -> None:
    with closing(StuckHistory(tmp_path / "savings.sqlite3")) as history:
        with closing(UsageRecorder(history, max_waiting=5)) as recorder:
            for _ in range(100):
                recorder.record([answer()])  # would wait for ever where it waited for room
            history.let_go.set()
        counted = history.rows(TODAY, TODAY)[answer()[0]]["answers"]

    assert 5 <= counted <= 6


def test_a_history_that_is_down_delays_no_answer() -> None:
    history = RedisHistory(connect("redis://127.0.0.1:9/0"), keep_days=2)

    with closing(history), closing(UsageRecorder(history, max_waiting=10)) as recorder:
        for _ in range(100):
            recorder.record([answer()])
        with pytest.raises(HistoryUnavailable):
            history.rows(TODAY, TODAY)


def test_a_file_that_cannot_be_a_history_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "savings.sqlite3").write_bytes(b"something else entirely" * 100)

    with pytest.raises(HistoryUnavailable):
        SqliteHistory(tmp_path / "savings.sqlite3", keep_days=2)
