"""What the store of cursors promises, held against memory, a fake Redis and a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress

import pytest
import redis

from query.kept import CALLERS_SHARE, KEPT_S, OVERHEAD_BYTES, PREFIX, UNKNOWN_CURSOR, Kept, RedisEntries, new_name
from shared.errors import CursorInvalid, CursorsUnavailable
from shared.service.redis import connect
from tests.support.fake_redis import FakeRedisServer

pytestmark = pytest.mark.process

SHARE_BYTES = 4_000
MAX_BYTES = CALLERS_SHARE * SHARE_BYTES
SIXTH = SHARE_BYTES // 6 - OVERHEAD_BYTES - 16
"""The bytes of an entry of which six fill the share of a caller."""
ANN, BOB = ("ann", "find_tool", "time"), ("bob", "find_tool", "time")

Opened = Callable[[], Kept]


@pytest.fixture(params=["memory", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def opened(request: pytest.FixtureRequest) -> Generator[Opened]:
    """Yield what opens the store as one more process does; in memory, there is one process."""
    if request.param == "memory":
        kept = Kept(max_bytes=MAX_BYTES)
        yield lambda: kept
        return
    with _client(request) as client:
        yield lambda: Kept(RedisEntries(client), MAX_BYTES)


def _client(request: pytest.FixtureRequest) -> redis.Redis:
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client(decode_responses=False)
    return connect(request.getfixturevalue("own_redis_url"), decode=False)


@pytest.fixture
def kept(opened: Opened) -> Kept:
    return opened()


def is_kept(kept: Kept, name: str, *bound_to: str) -> bool:
    try:
        kept.get(name, *bound_to)
    except CursorInvalid:
        return False
    return True


def test_an_entry_can_be_read_any_number_of_times_in_any_process(opened: Opened) -> None:
    name = opened().put(b"\x00\xff text \r\n", *ANN)

    assert len(name) == 22
    assert [opened().get(name, *ANN) for _ in range(2)] == [b"\x00\xff text \r\n"] * 2


@pytest.mark.parametrize("bound_to", [BOB, ("ann", "call_tool", "time"), ("ann", "find_tool", "mail"), ANN[:2]])
def test_another_caller_tool_or_question_gets_the_error_of_an_unknown_name(kept: Kept, bound_to: tuple[str]) -> None:
    name = kept.put(b"entry", *ANN)

    for unknown, binding in ((name, bound_to), (new_name(), ANN)):
        for read in (kept.get, kept.take):
            with pytest.raises(CursorInvalid) as refused:
                read(unknown, *binding)
            assert str(refused.value) == UNKNOWN_CURSOR
    assert kept.take(name, *ANN) == b"entry"


def test_of_many_threads_one_takes_an_entry(kept: Kept) -> None:
    name, taken = kept.put(b"entry", *ANN), list[bytes]()

    def take() -> None:
        with suppress(CursorInvalid):
            taken.append(kept.take(name, *ANN))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert taken == [b"entry"]
    assert not is_kept(kept, name, *ANN)


def test_an_entry_under_a_given_name_replaces_the_one_before(kept: Kept) -> None:
    name = new_name()

    assert [kept.put(b"first", *ANN, name=name), kept.put(b"second", *ANN, name=name)] == [name, name]

    assert kept.get(name, *ANN) == b"second"


def test_a_caller_that_keeps_much_loses_its_own_oldest_entries(kept: Kept) -> None:
    others = [kept.put(b"x" * SIXTH, *BOB) for _ in range(3)]
    names = [kept.put(b"x" * SIXTH, *ANN) for _ in range(20)]

    assert [is_kept(kept, name, *ANN) for name in names] == [False] * 14 + [True] * 6
    assert all(is_kept(kept, name, *BOB) for name in others)


def test_beyond_the_bound_of_all_the_largest_caller_loses_entries(kept: Kept) -> None:
    quiet = kept.put(b"x" * SIXTH, *BOB)
    names = {
        caller: [kept.put(b"x" * SIXTH, caller, "call_tool") for _ in range(6)] for caller in ("c1", "c2", "c3", "c4")
    }

    of_all = [is_kept(kept, name, caller, "call_tool") for caller, entries in names.items() for name in entries]
    assert of_all.count(True) == 23
    assert is_kept(kept, quiet, *BOB)


def test_an_entry_that_was_read_last_stays_longest(kept: Kept) -> None:
    names = [kept.put(b"x" * SIXTH, *ANN) for _ in range(6)]
    kept.get(names[0], *ANN)

    kept.put(b"x" * SIXTH, *ANN)

    assert [is_kept(kept, name, *ANN) for name in names[:3]] == [True, False, True]


def test_taken_entries_leave_their_space(kept: Kept) -> None:
    names = [kept.put(b"x" * SIXTH, *ANN) for _ in range(6)]
    kept.take(names[5], *ANN)

    kept.put(b"x" * SIXTH, *ANN)

    assert [is_kept(kept, name, *ANN) for name in names] == [True] * 5 + [False]


def test_more_than_the_share_of_a_caller_is_refused_and_removes_nothing(kept: Kept) -> None:
    name = kept.put(b"entry", *ANN)

    with pytest.raises(CursorsUnavailable):
        kept.put(b"x" * SHARE_BYTES, *ANN)

    assert kept.get(name, *ANN) == b"entry"


def test_an_entry_expires_and_leaves_its_space(kept: Kept) -> None:
    name = kept.put(b"x" * (SHARE_BYTES // 2), *ANN, ttl_s=0.2)

    threading.Event().wait(0.3)  # the time itself is what is tested

    assert not is_kept(kept, name, *ANN)
    names = [kept.put(b"x" * SIXTH, *ANN) for _ in range(6)]
    assert all(is_kept(kept, name, *ANN) for name in names)


def test_a_read_renews_the_expiry(kept: Kept) -> None:
    name = kept.put(b"entry", *ANN, ttl_s=1.0)
    kept.get(name, *ANN)

    threading.Event().wait(1.1)  # the time itself is what is tested

    assert is_kept(kept, name, *ANN)


def test_many_threads_keep_and_read_without_disturbing_each_other(kept: Kept) -> None:
    wrong: list[bytes] = []

    def keep_and_read(number: int) -> None:
        for _ in range(20):
            text = bytes([number]) * 10
            if (found := kept.get(kept.put(text, f"caller {number % 3}"), f"caller {number % 3}")) != text:
                wrong.append(found)

    threads = [threading.Thread(target=keep_and_read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_in_memory_an_entry_expires_after_its_last_use() -> None:
    now_s = 0.0
    kept = Kept(clock_s=lambda: now_s)
    read, unread = kept.put(b"read", *ANN), kept.put(b"unread", *ANN)

    now_s = KEPT_S - 1
    kept.get(read, *ANN)
    now_s = KEPT_S

    assert is_kept(kept, read, *ANN)
    assert not is_kept(kept, unread, *ANN)


@pytest.mark.redis
def test_in_redis_each_entry_has_an_expiry_and_those_that_give_way_are_deleted(own_redis_url: str) -> None:
    with connect(own_redis_url, decode=False) as client:
        first, second = (Kept(RedisEntries(client), MAX_BYTES) for _ in range(2))

        names = [first.put(b"x" * SIXTH, *ANN) for _ in range(8)]
        second.get(names[-1], *ANN)

        keys = {PREFIX + name for name in names[2:]}
        assert client.exists(*keys) == len(keys)
        assert client.exists(*(PREFIX + name for name in names[:2])) == 0
        assert all(0 < client.pttl(key) <= KEPT_S * 1000 for key in keys)


@pytest.mark.redis
def test_a_process_counts_the_entries_of_others_that_it_renews(own_redis_url: str) -> None:
    with connect(own_redis_url, decode=False) as client:
        first, second = (Kept(RedisEntries(client), MAX_BYTES) for _ in range(2))
        names = [first.put(b"x" * SIXTH, *ANN) for _ in range(6)]

        for name in names:
            second.get(name, *ANN)
        second.put(b"x" * SIXTH, *ANN)

        assert [is_kept(first, name, *ANN) for name in names] == [False] + [True] * 5


def test_a_redis_that_refuses_connections_is_an_error_that_says_so() -> None:
    kept = Kept(RedisEntries(connect("redis://127.0.0.1:1/0", decode=False)))

    for ask in (lambda: kept.put(b"entry", *ANN), lambda: kept.get(new_name(), *ANN)):
        with pytest.raises(CursorsUnavailable, match="REDIS_URL"):
            ask()


def test_of_many_requests_to_a_silent_redis_one_waits_and_the_others_fail_at_once() -> None:
    now_s = 0.0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        kept = Kept(RedisEntries(connect(url, decode=False, timeout_s=0.3), lambda: now_s))
        waited_s: list[float] = []
        for moment_s in (0.0, 1.0, 1.9, 2.1):
            now_s = moment_s
            started_s = time.monotonic()
            with pytest.raises(CursorsUnavailable, match="REDIS_URL"):
                kept.put(b"entry", *ANN)
            waited_s.append(time.monotonic() - started_s)

    assert [waited >= 0.3 for waited in waited_s] == [True, False, False, True]
