"""What a store of cursors promises, held against memory, a fake Redis and a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress

import pytest
import redis

from query.cursors.redis_store import INDEX, SIZE, RedisStore
from query.cursors.store import KEY_BYTES, CursorStore, MemoryStore
from shared.errors import CursorInvalid, CursorsUnavailable
from shared.service.redis import connect
from tests.support.fake_redis import FakeRedisServer
from tests.support.waiting import eventually

MAX_BYTES = 1_000

Opened = Callable[[float], CursorStore]


@pytest.fixture(params=["memory", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def opened(request: pytest.FixtureRequest) -> Generator[Opened]:
    """Yield what opens an empty store of MAX_BYTES, given its seconds."""
    if request.param == "memory":
        yield lambda ttl_s: MemoryStore(ttl_s, MAX_BYTES)
        return
    with _client(request) as client:
        yield lambda ttl_s: RedisStore(client, ttl_s, MAX_BYTES, overhead_bytes=0)


def _client(request: pytest.FixtureRequest) -> redis.Redis:
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client(decode_responses=False)
    return connect(request.getfixturevalue("own_redis_url"), decode=False)


@pytest.fixture
def store(opened: Opened) -> CursorStore:
    return opened(60)


def is_kept(store: CursorStore, key: bytes) -> bool:
    try:
        store.get(key)
    except CursorInvalid:
        return False
    return True


def test_what_was_kept_can_be_read_any_number_of_times(store: CursorStore) -> None:
    key = store.put(b"\x00\xff text \r\n")

    assert len(key) == KEY_BYTES
    assert [store.get(key), store.get(key)] == [b"\x00\xff text \r\n"] * 2


def test_a_key_that_was_never_given_out_is_refused(store: CursorStore) -> None:
    store.put(b"kept")

    with pytest.raises(CursorInvalid):
        store.get(bytes(KEY_BYTES))


def test_of_many_threads_one_takes_a_key_and_its_room_is_free(store: CursorStore) -> None:
    key, taken = store.put(b"x" * MAX_BYTES), list[bytes]()

    def take() -> None:
        with suppress(CursorInvalid):
            taken.append(store.take(key))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert taken == [b"x" * MAX_BYTES]
    assert not is_kept(store, key)
    keys = [store.put(b"x" * (MAX_BYTES // 2)) for _ in range(2)]
    assert [is_kept(store, key) for key in keys] == [True, True]


def test_of_two_values_under_one_key_the_first_stays(store: CursorStore) -> None:
    key = bytes(range(KEY_BYTES))

    assert [store.put(b"x" * (MAX_BYTES // 2), key), store.put(b"second", key)] == [key, key]

    assert is_kept(store, store.put(b"x" * (MAX_BYTES // 2)))
    assert store.take(key) == b"x" * (MAX_BYTES // 2)
    store.put(b"third", key)
    assert store.take(key) == b"third"


def test_the_oldest_make_room_and_the_bound_holds(store: CursorStore) -> None:
    keys = [store.put(b"x" * 300) for _ in range(5)]

    assert [is_kept(store, key) for key in keys] == [False, False, True, True, True]


def test_what_was_read_last_stays_longest(store: CursorStore) -> None:
    keys = [store.put(b"x" * 400) for _ in range(2)]
    eventually(lambda: store.get(keys[0]) == b"x" * 400)

    store.put(b"x" * 400)

    assert [is_kept(store, key) for key in keys] == [True, False]


def test_more_than_the_bound_is_refused_and_drops_nothing(store: CursorStore) -> None:
    key = store.put(b"kept")

    with pytest.raises(CursorsUnavailable):
        store.put(b"x" * (MAX_BYTES + 1))

    assert store.get(key) == b"kept"


def test_what_nobody_reads_is_gone_after_its_time_and_leaves_its_room(opened: Opened) -> None:
    store = opened(1.0)
    key = store.put(b"x" * MAX_BYTES)

    gone = threading.Event()
    gone.wait(1.2)  # the time itself is what is tested

    assert not is_kept(store, key)
    keys = [store.put(b"x" * (MAX_BYTES // 2)) for _ in range(2)]
    assert [is_kept(store, key) for key in keys] == [True, True]


def test_many_threads_keep_and_read_without_disturbing_each_other(store: CursorStore) -> None:
    wrong: list[bytes] = []

    def keep_and_read(number: int) -> None:
        for _ in range(MAX_BYTES // 8 // 10):  # all of them fit, so that no thread evicts the value of another
            text = bytes([number]) * 10
            if (found := store.get(store.put(text))) != text:
                wrong.append(found)

    threads = [threading.Thread(target=keep_and_read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.redis
def test_in_redis_another_replica_reads_what_one_has_kept_and_the_sizes_add_up(own_redis_url: str) -> None:
    looking = redis.Redis.from_url(own_redis_url, decode_responses=True)
    with connect(own_redis_url, decode=False) as client, connect(own_redis_url, decode=False) as other, looking:
        first, second = (RedisStore(connection, 60, MAX_BYTES, overhead_bytes=0) for connection in (client, other))

        keys = [first.put(b"x" * size) for size in (200, 300, 400, 250)]

        assert second.get(keys[-1]) == b"x" * 250
        sizes = [int(str(member).split(":")[1]) for member in looking.zrange(INDEX, 0, -1)]
        assert sizes == [300, 400, 250]
        assert int(str(looking.get(SIZE))) == sum(sizes)
        second.take(keys[2])
        assert int(str(looking.get(SIZE))) == sum(sizes) - 400
        assert all(looking.pttl(f"{INDEX}:{key.hex()}") > 0 for key in (keys[1], keys[3]))


def test_a_redis_that_is_not_there_is_an_error_that_says_so() -> None:
    store = RedisStore(connect("redis://127.0.0.1:1/0", decode=False), 60, MAX_BYTES)

    with pytest.raises(CursorsUnavailable, match="REDIS_URL"):
        store.put(b"kept")
    with pytest.raises(CursorsUnavailable, match="REDIS_URL"):
        store.get(bytes(KEY_BYTES))
