"""The contract of usage, on a file, on a fake Redis and on a real Redis."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import time_machine
from redis.client import Pipeline
from structlog.testing import capture_logs

from query.backup import Restored, SavingsLine, Stores, restored
from query.usage import usage as rows_of_usage
from query.usage.record import recording
from query.usage.store_redis import PREFIX, SIZE_PREFIX, RedisUsage
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import OTHERS, CatalogueSize, Row, RowKey, Rows, Usage, Use, summed, today
from shared.errors import HistoryUnavailable
from shared.service.redis import connect
from tests.support.fake_redis import FakeRedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

TODAY = today()


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Callable[[], Usage]]:
    """Yield a function that opens the usage of this test."""
    with ExitStack() as stores:

        def open_one() -> Usage:
            if request.param == "sqlite":
                return stores.enter_context(closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)))
            return stores.enter_context(closing(RedisUsage(_client(request), 30)))

        yield open_one


@pytest.fixture
def usage(opened: Callable[[], Usage]) -> Usage:
    return opened()


def _client(request: pytest.FixtureRequest) -> redis.Redis:
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client()
    return connect(request.getfixturevalue("own_redis_url"))


def answer(tool: str = "find_tool", caller: str = "ann", day: date = TODAY) -> Row:
    """Return the row of an answer of 10 tokens."""
    return RowKey(day, caller, "", tool), {"answers": 1, "tokens": 10}


def call(tool: str = "read", caller: str = "ann") -> Row:
    """Return the row of a call with a result of 100 bytes."""
    return RowKey(TODAY, caller, "srv", tool), {"answers": 0, "calls": 1, "bytes": 100}


def test_counters_are_summed_by_day_caller_server_and_tool(usage: Usage) -> None:
    yesterday = TODAY - timedelta(days=1)
    usage.add(summed([answer(), answer(), answer("describe_tool"), call()]))
    usage.add(summed([answer(), answer(caller="bob"), answer(day=yesterday)]))

    assert usage.rows(TODAY, TODAY) == {
        RowKey(TODAY, "ann", "", "find_tool"): {"answers": 3, "tokens": 30},
        RowKey(TODAY, "ann", "", "describe_tool"): {"answers": 1, "tokens": 10},
        RowKey(TODAY, "ann", "srv", "read"): {"answers": 0, "calls": 1, "bytes": 100},
        RowKey(TODAY, "bob", "", "find_tool"): {"answers": 1, "tokens": 10},
    }
    assert {key.day for key in usage.rows(TODAY - timedelta(days=6), TODAY)} == {TODAY, yesterday}


def test_counters_are_summed_over_the_days_of_a_period(usage: Usage) -> None:
    yesterday, long_ago = TODAY - timedelta(days=1), TODAY - timedelta(days=9)
    odd = 'x]calls"*\n'
    used = {"answers": 4, "calls": 2, "failed_calls": 1, "bytes": 100}
    for day in (TODAY, yesterday, long_ago):
        usage.add({RowKey(day, "ann", "srv", "read"): used, RowKey(day, odd, "srv", odd): {"answers": 1, "calls": 1}})
    usage.add(summed([answer(), (RowKey(TODAY, "ann", "srv", "shown"), {"answers": 1}), call(caller="bob")]))

    recent = TODAY - timedelta(days=7), TODAY
    assert usage.sums(*recent, ("calls",)) == {
        ("ann", "srv", "read"): {"calls": 4}, ("bob", "srv", "read"): {"calls": 1}, (odd, "srv", odd): {"calls": 2}
    }  # fmt: skip
    assert usage.sums(*recent, ("answers", "calls")) == {
        ("ann", "", "find_tool"): {"answers": 1},
        ("ann", "srv", "read"): {"answers": 8, "calls": 4},
        ("ann", "srv", "shown"): {"answers": 1},
        ("bob", "srv", "read"): {"answers": 0, "calls": 1},
        (odd, "srv", odd): {"answers": 2, "calls": 2},
    }
    assert usage.sums(long_ago, long_ago, ("failed_calls",)) == {("ann", "srv", "read"): {"failed_calls": 1}}


@pytest.mark.parametrize("odd", ['x]calls"*\n', "a*?[b]\\", 'caller","srv","read'])
def test_the_sums_of_some_servers_or_a_tool_leave_out_all_others(usage: Usage, odd: str) -> None:
    used = [("ann", "srv", "read"), ("ann", "srv", "write"), ("bob", "srv2", "read"), (odd, odd, odd)]
    usage.add({RowKey(TODAY, *each): {"answers": 1, "calls": 2} for each in used})

    def sums(**asked: Any) -> list[Use]:
        return sorted(usage.sums(TODAY, TODAY, ("calls",), **asked))

    assert sums(servers=["srv"]) == used[:2]
    assert sums(servers=["srv", "srv2"], tool="read") == [used[0], used[2]]
    assert sums(tool="read") == [used[0], used[2]]
    assert sums(servers=[odd], tool=odd) == sums(servers=[odd]) == sums(tool=odd) == [used[3]]
    assert sums(servers=[]) == sums(servers=["none"]) == []
    assert usage.sums(TODAY, TODAY, ("answers", "calls"), ["srv"], "read") == {used[0]: {"answers": 1, "calls": 2}}


def test_calls_of_a_large_day_are_all_read(usage: Usage) -> None:
    usage.add(summed(call(f"tool{number}") for number in range(3_000)))

    assert usage.sums(TODAY, TODAY, ("calls",)) == {
        ("ann", "srv", f"tool{number}"): {"calls": 1} for number in range(3_000)
    }


def test_tools_beyond_the_limit_of_a_day_are_summed_as_others_by_every_process(
    opened: Callable[[], Usage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_usage, "MAX_COUNTERS_A_DAY", 12)
    opened().add(summed(call(f"tool{number}") for number in range(50)))
    usage = opened()

    usage.add(summed([call("tool0"), call("late"), answer(day=TODAY - timedelta(days=1))]))

    rows = usage.rows(TODAY, TODAY)
    assert len(rows) == 4 + 1
    assert rows[call("tool0")[0]]["calls"] == 2
    assert rows[RowKey(TODAY, OTHERS, OTHERS, OTHERS)]["calls"] == 47
    assert len(usage.rows(TODAY - timedelta(days=1), TODAY)) == 6


def test_callers_beyond_the_limit_are_summed_as_others_for_each_tool_of_ours(
    usage: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_usage, "MAX_COUNTERS_A_DAY", 20)
    usage.add(summed(answer(caller=f"caller{number}") for number in range(50)))
    usage.add(summed([answer(caller="caller0"), answer("tools/list", caller="late")]))

    rows = usage.rows(TODAY, TODAY)

    assert sum(row["answers"] for row in rows.values()) == 52
    assert rows[RowKey(TODAY, "caller0", "", "find_tool")]["answers"] == 2
    assert rows[RowKey(TODAY, OTHERS, "", "find_tool")]["answers"] == 40
    assert rows[RowKey(TODAY, OTHERS, "", "tools/list")]["answers"] == 1


def test_a_restore_of_a_full_day_is_complete_and_a_second_one_changes_nothing(
    usage: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_usage, "MAX_COUNTERS_A_DAY", 12)
    usage.add(summed(call(f"tool{number}") for number in range(4)))
    wanted = summed(call(f"tool{number}") for number in range(2, 6))
    lines = [SavingsLine(**key._asdict(), counts=counts) for key, counts in wanted.items()]
    stores = Stores(Mock(), Mock(), usage, keep_days=30)

    first, rows = restored("savings", lines, stores), usage.rows(TODAY, TODAY)
    second = restored("savings", lines, stores)

    assert (first, second) == (Restored(2, 2), Restored(0, 4))
    assert usage.rows(TODAY, TODAY) == rows == dict(call(f"tool{number}") for number in range(6))
    usage.add(summed([call("late")]))
    assert usage.rows(TODAY, TODAY)[RowKey(TODAY, OTHERS, OTHERS, OTHERS)]["calls"] == 1


def test_a_row_with_very_long_names_is_among_the_others(usage: Usage) -> None:
    usage.add(summed([call("t" * 150), call("t" * 200), call("\x01" * 100)]))

    assert {key.tool: counts["calls"] for key, counts in usage.rows(TODAY, TODAY).items()} == {"t" * 150: 1, OTHERS: 2}


def test_the_last_size_on_a_day_is_the_days(usage: Usage) -> None:
    yesterday = TODAY - timedelta(days=1)
    usage.put_size(yesterday, CatalogueSize(1, 3, 10))
    usage.put_size(TODAY, CatalogueSize(2, 5, 30))

    usage.put_size(TODAY, CatalogueSize(0, 0, 0))

    assert usage.sizes(TODAY - timedelta(days=5), TODAY) == {
        yesterday: CatalogueSize(1, 3, 10),
        TODAY: CatalogueSize(0, 0, 0),
    }
    assert usage.sizes(yesterday, yesterday).keys() == {yesterday}
    assert usage.rows(yesterday, TODAY) == {}
    assert usage.sums(yesterday, TODAY, ("tools", "answers")) == {}


def test_threads_lose_no_count(usage: Usage) -> None:
    def add(number: int) -> None:
        for _ in range(20):
            usage.add(summed([answer(caller=f"caller{number}")]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))  # raises the error of a thread

    assert sum(row["answers"] for row in usage.rows(TODAY, TODAY).values()) == 80


def test_names_of_any_kind_come_back_as_they_were(usage: Usage) -> None:
    odd = 'a"]b:é\n' + OTHERS
    keys = {RowKey(TODAY, odd, "", "find_tool"), RowKey(TODAY, odd, "s/x", odd)}
    usage.add({key: {"answers": 1} for key in keys})

    assert usage.rows(TODAY, TODAY).keys() == keys


def test_queued_events_are_written_at_the_end(usage: Usage) -> None:
    with recording(usage) as recorder:
        for _ in range(500):
            recorder.record([answer()])

    assert usage.rows(TODAY, TODAY)[answer()[0]]["answers"] == 500


class CountingUsage(SqliteUsage):
    """Counts its transactions."""

    added = 0

    def add(self, rows: Rows) -> None:
        super().add(rows)
        self.added += 1


def test_events_share_a_write(tmp_path: Path) -> None:
    with closing(CountingUsage(tmp_path / "savings.sqlite3", keep_days=2)) as usage:
        with recording(usage, every_s=0.01) as recorder:
            recorder.record([answer()])
            eventually(lambda: usage.added == 1)
        with recording(usage, every_s=600) as recorder:
            for _ in range(50):
                recorder.record([answer()])

        assert usage.added <= 1 + 2  # the thread may begin while the events come
        assert usage.rows(TODAY, TODAY)[answer()[0]]["answers"] == 51


def test_an_error_of_any_kind_ends_no_recording() -> None:
    usage = Mock(spec=SqliteUsage, add=Mock(side_effect=[OSError("no space"), HistoryUnavailable("down"), None]))
    with capture_logs() as logs, recording(usage, every_s=0.01) as recorder:
        for written in ("OSError", "HistoryUnavailable", "savings_dropped"):
            recorder.record([answer()])
            eventually(partial(is_in, logs, written), what=written)

    assert [log["event"] for log in logs] == ["savings_write_failed", "savings_write_failed", "savings_dropped"]
    assert logs[-1]["events"] == 2


def test_a_read_waits_for_no_write(tmp_path: Path) -> None:
    path = tmp_path / "savings.sqlite3"
    with closing(SqliteUsage(path, keep_days=2)) as usage, closing(sqlite3.connect(path)) as writer:
        usage.add(summed([answer()]))
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM counters")

        assert usage.rows(TODAY, TODAY)[answer()[0]]["answers"] == 1
        assert usage.sizes(TODAY, TODAY) == {}


def test_an_event_that_cannot_be_counted_is_dropped_alone(usage: Usage) -> None:
    class Panic(BaseException):
        """As tiktoken's Rust side raises it."""

    def uncountable(error: BaseException) -> Iterator[Row]:
        yield answer()
        raise error

    with capture_logs() as logs, recording(usage) as recorder:
        for error in (ValueError("no count"), Panic("index out of range")):
            recorder.record(uncountable(error))
            recorder.record([answer()])

    assert usage.rows(TODAY, TODAY)[answer()[0]]["answers"] == 2
    assert [log["event"] for log in logs].count("savings_event_invalid") == 2


@pytest.mark.usefixtures("noon")
def test_days_beyond_the_retention_are_forgotten_by_the_first_write_of_a_day(tmp_path: Path) -> None:
    now = today()
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", keep_days=2)) as usage:
        usage.add(summed([answer(day=now)]))
        for days in range(4):
            usage.put_size(now - timedelta(days=days), CatalogueSize(1, 1, 10))
            usage.add(summed([answer(day=now - timedelta(days=days))]))
        with time_machine.travel(datetime.combine(now + timedelta(days=1), time(1), UTC)):
            usage.add(summed([answer(day=today())]))

        kept = {key.day for key in usage.rows(now - timedelta(days=9), now + timedelta(days=1))}
        kept_sizes = usage.sizes(now - timedelta(days=9), now).keys()

    assert kept == {now, now + timedelta(days=1)}
    assert kept_sizes == {now}


def is_in(logs: Sequence[Mapping[str, Any]], written: str) -> bool:
    return any(written in (log["event"], log.get("kind")) for log in logs)


class Steps:
    """Counts the steps of SQLite's virtual machine in all connections since their opening."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken, connect_to = 0, sqlite3.connect

        def connect_and_count(*arguments: Any, **options: Any) -> sqlite3.Connection:
            opened: sqlite3.Connection = connect_to(*arguments, **options)
            opened.set_progress_handler(self._count, 1)
            return opened

        monkeypatch.setattr(sqlite3, "connect", connect_and_count)

    def _count(self) -> int:
        self.taken += 1
        return 0

    def of(self, call: Callable[[], object]) -> int:
        """Return the steps that a call takes."""
        before = self.taken
        call()
        return self.taken - before


def test_a_write_and_the_use_of_one_tool_take_no_more_steps_among_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", keep_days=30)) as usage:
        usage.add(summed([answer(), call()]))

        def write() -> int:
            return steps.of(lambda: usage.add(summed([answer(), call()])))

        def of_tool() -> int:
            return steps.of(lambda: usage.sums(TODAY - timedelta(days=29), TODAY, ("calls",), ["srv"], "read"))

        first = write(), of_tool()  # also prepares the statements
        few = write(), of_tool()
        usage.add(summed(call(f"tool{number}", f"caller{number}") for number in range(500)))
        many = write(), of_tool()

    assert all(after <= before + 5 for before, after in zip(few, many, strict=True)), (first, few, many)


def test_rows_of_the_release_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "savings.sqlite3"
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript("""
            CREATE TABLE counters (day TEXT, caller TEXT, server TEXT, tool TEXT, counter TEXT, amount INTEGER NOT NULL,
                PRIMARY KEY (day, caller, server, tool, counter)) STRICT, WITHOUT ROWID;
            CREATE TABLE sizes (day TEXT, server TEXT, tools INTEGER NOT NULL, tokens INTEGER NOT NULL,
                PRIMARY KEY (day, server)) STRICT, WITHOUT ROWID;
        """)
        db.execute("INSERT INTO counters VALUES (?, 'ann', '', 'find_tool', 'answers', 3)", (TODAY.isoformat(),))
        db.execute("INSERT INTO sizes VALUES (?, 'srv', 1, 10)", (TODAY.isoformat(),))

    with closing(SqliteUsage(path, keep_days=2)) as usage:
        usage.add(summed([answer()]))

        assert usage.rows(TODAY, TODAY) == {answer()[0]: {"answers": 4, "tokens": 10}}
        assert usage.sizes(TODAY, TODAY) == {}


def test_the_release_before_reads_the_hash_of_a_day(fake_redis: FakeRedisServer) -> None:
    usage = RedisUsage(fake_redis.client(), 30)
    usage.add(summed([answer(), call()]))
    usage.put_size(TODAY, CatalogueSize(1, 1, 10))

    stored: Any = fake_redis.client().hgetall(PREFIX + TODAY.isoformat())
    fields: dict[str, str] = stored

    rows: dict[RowKey, dict[str, int]] = {}
    for field, amount in fields.items():  # as 0.2.0 does
        names, _, counter = field.rpartition("]")
        rows.setdefault(RowKey(TODAY, *json.loads(names + "]")), {})[counter] = int(amount)
    assert rows == usage.rows(TODAY, TODAY) == dict([answer(), call()])


def test_redis_stores_a_batch_of_several_days_whole_or_not_at_all(fake_redis: FakeRedisServer) -> None:
    usage, tomorrow = RedisUsage(fake_redis.client(), 30), TODAY + timedelta(days=1)
    batch = summed([answer(), answer(day=tomorrow)])
    reader = RedisUsage(fake_redis.client(), 30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "expireat", Mock(side_effect=[None, redis.ConnectionError("cut off")]))
        with pytest.raises(HistoryUnavailable):
            usage.add(batch)

    assert reader.rows(TODAY, tomorrow) == {}
    usage.add(batch)
    assert len(reader.rows(TODAY, tomorrow)) == 2


@pytest.mark.redis
def test_redis_forgets_a_day_by_itself(own_redis_url: str) -> None:
    with connect(own_redis_url) as client:
        usage = RedisUsage(client, keep_days=2)
        usage.add(summed([answer()]))
        usage.put_size(TODAY - timedelta(days=1), CatalogueSize(1, 1, 10))
        keys = PREFIX + TODAY.isoformat(), SIZE_PREFIX + (TODAY - timedelta(days=1)).isoformat()
        left_s = [client.ttl(key) for key in keys]

    assert [isinstance(left, int) and 0 < left <= most * 86_400 for left, most in zip(left_s, (2, 1), strict=True)] == [
        True
    ] * 2


class StuckUsage(SqliteUsage):
    """Usage that adds nothing before `let_go` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep_days=2)
        self.is_adding, self.let_go = threading.Event(), threading.Event()

    def add(self, rows: Rows) -> None:
        self.is_adding.set()
        self.let_go.wait(30)
        super().add(rows)


def test_a_store_that_hangs_drops_events_and_delays_no_answer(tmp_path: Path) -> None:
    with closing(StuckUsage(tmp_path / "savings.sqlite3")) as usage:
        with recording(usage, max_waiting=5, every_s=0.01) as recorder:
            recorder.record([answer()])
            usage.is_adding.wait(30)
            for _ in range(100):
                recorder.record([answer()])  # would wait for ever where it waited for room
            usage.let_go.set()
        counted = usage.rows(TODAY, TODAY)[answer()[0]]["answers"]

    assert counted == 1 + 5


def test_a_store_that_is_down_delays_no_answer() -> None:
    usage = RedisUsage(connect("redis://127.0.0.1:9/0"), keep_days=2)

    with closing(usage), recording(usage, max_waiting=10) as recorder:
        for _ in range(100):
            recorder.record([answer()])
        with pytest.raises(HistoryUnavailable):
            usage.rows(TODAY, TODAY)


def test_a_file_that_cannot_hold_usage_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "savings.sqlite3").write_bytes(b"something else entirely" * 100)

    with pytest.raises(HistoryUnavailable):
        SqliteUsage(tmp_path / "savings.sqlite3", keep_days=2)
