"""What a history promises, held against a file, a fake Redis and a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
import redis

from query.history.periods import today
from query.history.recorder import UsageRecorder
from query.history.redis_store import PREFIX, SIZES_PREFIX, RedisHistory
from query.history.sqlite_store import SqliteHistory
from query.history.store import AnswerEvent, CallEvent, RowKey, SavingsHistory, SearchEvent, ServerSize, UsageEvent
from query.savings.savings import OTHERS
from shared.errors import HistoryUnavailable
from shared.service.redis import connect
from tests.support.fake_redis import FakeRedisServer

TODAY = today()

Opened = Callable[[int], SavingsHistory]


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Opened]:
    """Yield what opens the one history of this test, given how many counters a day it has room for."""
    histories: list[SavingsHistory] = []

    def open_one(max_counters: int) -> SavingsHistory:
        if request.param == "sqlite":
            histories.append(SqliteHistory(tmp_path / "savings.sqlite3", 30, max_counters))
        else:
            histories.append(RedisHistory(_client(request), 30, max_counters))
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


def search(*tools: str, caller: str = "ann", day: date = TODAY) -> AnswerEvent:
    """Return an answer of 10 tokens a tool, of 1,000 tokens in 100 tools."""
    returned = 10 * len(tools)
    searched = SearchEvent(1_000, 100, own_tokens=50, tokens_saved=1_000 - returned)
    return AnswerEvent(day, caller, {("srv", tool): 10 for tool in tools}, returned, searched)


def test_what_answers_gave_is_summed_by_day_caller_and_tool(history: SavingsHistory) -> None:
    history.add([search("read", "write"), search("list")])
    history.add([search("read", caller="bob"), search("read", day=TODAY - timedelta(days=1))])

    assert history.rows(TODAY, TODAY) == {
        RowKey(TODAY, "ann"): {
            "answers": 2,
            "searches": 2,
            "baseline_tokens": 2_000,
            "baseline_tools": 200,
            "own_tokens": 100,
            "returned_tokens": 30,
            "tokens_saved": 1_970,
        },
        RowKey(TODAY, "bob"): {
            "answers": 1,
            "searches": 1,
            "baseline_tokens": 1_000,
            "baseline_tools": 100,
            "own_tokens": 50,
            "returned_tokens": 10,
            "tokens_saved": 990,
        },
        RowKey(TODAY, "ann", "srv", "read"): {"answers": 1, "definition_tokens": 10, "returned_tokens": 10},
        RowKey(TODAY, "ann", "srv", "write"): {"answers": 1, "definition_tokens": 10, "returned_tokens": 10},
        RowKey(TODAY, "ann", "srv", "list"): {"answers": 1, "definition_tokens": 10, "returned_tokens": 10},
        RowKey(TODAY, "bob", "srv", "read"): {"answers": 1, "definition_tokens": 10, "returned_tokens": 10},
    }
    assert {key.day for key in history.rows(TODAY - timedelta(days=6), TODAY)} == {TODAY, TODAY - timedelta(days=1)}


def test_what_servers_saved_is_summed_beside_what_their_tools_cost_as_they_were_shown(history: SavingsHistory) -> None:
    searched = SearchEvent(1_000, 100, 50, tokens_saved=997, saved_by_server={"srv": 300, "big": 690, OTHERS: 7})
    answer = AnswerEvent(TODAY, "ann", {("srv", "read"): 10}, 3, searched, shown_tokens={("srv", "read"): 3})

    history.add([answer, answer])
    history.add([AnswerEvent(TODAY, "ann", {}, 0, searched)])

    rows = history.rows(TODAY, TODAY)
    saved = {key.server: row["tokens_saved"] for key, row in rows.items() if key.server and not key.tool}
    assert saved == {"srv": 600, "big": 1_380, OTHERS: 14}
    assert rows[RowKey(TODAY, "ann")]["tokens_saved"] == sum(saved.values())
    assert rows[RowKey(TODAY, "ann", "srv", "read")] == {"answers": 2, "definition_tokens": 20, "returned_tokens": 6}


def test_a_search_for_what_was_just_given_is_a_repeat_and_another_callers_is_not(history: SavingsHistory) -> None:
    history.add([search("read", "write"), search("write")])
    history.add([search("write", caller="bob"), search("read")])

    rows = history.rows(TODAY, TODAY)

    # the last of ann's follows one that gave only `write`
    assert rows[RowKey(TODAY, "ann")]["repeats"] == 1
    assert rows[RowKey(TODAY, "ann")]["baseline_tokens"] == 2_000
    assert "repeats" not in rows[RowKey(TODAY, "bob")]


def test_a_search_that_found_nothing_saves_nothing(history: SavingsHistory) -> None:
    history.add([search()])

    expected = {"answers": 1, "searches": 1, "found_nothing": 1, "returned_tokens": 0}
    assert history.rows(TODAY, TODAY) == {RowKey(TODAY, "ann"): expected}


def test_calls_are_counted_with_the_length_of_their_results(history: SavingsHistory) -> None:
    history.add(
        [CallEvent(TODAY, "ann", "srv", "read", 100), search("read"), CallEvent(TODAY, "ann", "srv", "write", 5)]
    )
    history.add([CallEvent(TODAY, "ann", "srv", "read", 0, is_failed=True)])

    rows = history.rows(TODAY, TODAY)

    assert rows[RowKey(TODAY, "ann", "srv", "read")] == {
        "answers": 1,
        "definition_tokens": 10,
        "returned_tokens": 10,
        "calls": 2,
        "failed_calls": 1,
        "response_bytes": 100,
    }
    assert rows[RowKey(TODAY, "ann", "srv", "write")] == {"answers": 0, "calls": 1, "response_bytes": 5}
    assert rows[RowKey(TODAY, "ann")]["answers"] == 1


def test_tools_that_are_only_called_are_bounded_too(opened: Opened) -> None:
    history = opened(12)

    history.add([CallEvent(TODAY, "ann", "srv", f"tool{number}", 1) for number in range(50)])
    history.add([CallEvent(TODAY, "ann", "srv", "tool0", 1)])

    rows = history.rows(TODAY, TODAY)
    assert len(rows) < 12
    assert sum(row["calls"] for row in rows.values()) == 51
    assert rows[RowKey(TODAY, "ann", "srv", "tool0")]["calls"] == 2


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
    assert history.rows(yesterday, TODAY) == {}


def test_callers_and_tools_beyond_the_bound_are_summed_as_others(opened: Opened) -> None:
    history = opened(20)
    history.add([search(f"tool{number}", caller=f"caller{number}") for number in range(50)])
    history.add([search("tool0", caller="caller0")])

    rows = history.rows(TODAY, TODAY)

    assert len(rows) < 20
    assert sum(counters.get("searches", 0) for counters in rows.values()) == 51
    assert rows[RowKey(TODAY, "caller0")]["searches"] == 2
    assert rows[RowKey(TODAY, OTHERS)]["searches"] > 30
    assert sum(row["answers"] for key, row in rows.items() if key.tool) == 51


def test_threads_lose_no_count(history: SavingsHistory) -> None:
    def add() -> None:
        for _ in range(20):
            history.add([search("read", caller=threading.current_thread().name)])

    threads = [threading.Thread(target=add, name=f"caller{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    rows = history.rows(TODAY, TODAY)
    assert sum(counters.get("searches", 0) for counters in rows.values()) == 80


def test_names_of_any_kind_come_back_as_they_were(history: SavingsHistory) -> None:
    odd = 'a"]b:é\n' + OTHERS
    history.add([AnswerEvent(TODAY, odd, {("s/x", odd): 3}, 3)])

    assert history.rows(TODAY, TODAY).keys() == {RowKey(TODAY, odd), RowKey(TODAY, odd, "s/x", odd)}


def test_what_waits_is_written_at_the_end(history: SavingsHistory) -> None:
    with closing(UsageRecorder(history)) as recorder:
        for _ in range(500):
            recorder.record(search("read"))

    assert history.rows(TODAY, TODAY)[RowKey(TODAY, "ann")]["searches"] == 500


def test_days_beyond_the_retention_are_forgotten(tmp_path: Path) -> None:
    with closing(SqliteHistory(tmp_path / "savings.sqlite3", keep_days=2)) as history:
        history.add([search("read", day=TODAY - timedelta(days=days)) for days in range(4)])
        history.add([search("read")])

        kept = {key.day for key in history.rows(TODAY - timedelta(days=9), TODAY)}
        for days in (3, 2, 1, 0):
            history.store_sizes(TODAY - timedelta(days=days), {"a": ServerSize(1, 10)})
        kept_sizes = history.sizes(TODAY - timedelta(days=9), TODAY).keys()

    assert kept == kept_sizes == {TODAY, TODAY - timedelta(days=1)}


@pytest.mark.redis
def test_redis_forgets_a_day_by_itself(own_redis_url: str) -> None:
    with connect(own_redis_url) as client:
        history = RedisHistory(client, keep_days=2)
        history.add([search("read")])
        history.store_sizes(TODAY, {"a": ServerSize(1, 10)})
        left_s = [client.ttl(prefix + TODAY.isoformat()) for prefix in (PREFIX, SIZES_PREFIX)]

    assert [isinstance(seconds, int) and 0 < seconds <= 2 * 86_400 for seconds in left_s] == [True, True]


class StuckHistory(SqliteHistory):
    """A history that counts nothing until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep_days=2)
        self.let_go = threading.Event()

    def add(self, events: Sequence[UsageEvent]) -> None:
        self.let_go.wait(30)
        super().add(events)


def test_a_history_that_hangs_costs_notes_and_no_answer(tmp_path: Path) -> None:
    with closing(StuckHistory(tmp_path / "savings.sqlite3")) as history:
        with closing(UsageRecorder(history, max_waiting=5)) as recorder:
            for _ in range(100):
                recorder.record(search("read"))  # would wait for ever where it waited for room
            history.let_go.set()
        counted = history.rows(TODAY, TODAY)[RowKey(TODAY, "ann")]["searches"]

    assert 5 <= counted <= 6


def test_a_history_that_is_down_holds_up_no_answer() -> None:
    history = RedisHistory(connect("redis://127.0.0.1:9/0"), keep_days=2)

    with closing(history), closing(UsageRecorder(history, max_waiting=10)) as recorder:
        for _ in range(100):
            recorder.record(search("read"))
        with pytest.raises(HistoryUnavailable):
            history.rows(TODAY, TODAY)


def test_a_file_that_cannot_be_a_history_is_said(tmp_path: Path) -> None:
    (tmp_path / "savings.sqlite3").write_bytes(b"something else entirely" * 100)

    with pytest.raises(HistoryUnavailable):
        SqliteHistory(tmp_path / "savings.sqlite3", keep_days=2)
