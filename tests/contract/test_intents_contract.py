"""One suite for the intent stores: the embedded file, a fake Redis and a real one."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis

from shared.catalog import DOCKER_SOURCE, KUBERNETES_SOURCE, OPERATOR_SOURCE, PRODUCER_PREFIX
from shared.errors import EventInvalid, IntentsUnavailable, LeaseHeld
from shared.events import ServerEvent
from shared.intents.definitions import ChangedDefinition, Definitions
from shared.intents.intent import CUT_MARK, LETTER_BYTES, Backlog, Intent, MigrationProgress
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.support.builders import changed, down, up, up_stdio
from tests.support.fake_redis import FakeRedisServer
from tests.support.present import present
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

PACE = RetryPolicy(first_s=0.05, longest_s=0.2)
# A busy machine may renew it late.
LEASE_S = 3.0
# No test of the whole suite waits for a lease to expire.
LONG_LEASE_S = 60.0


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Callable[..., Intents]]:
    """Return a function that opens the same store once more, as another process would; resync is off by default."""
    opened: list[Intents] = []
    open_client = _opener(request)

    def open_store(
        resync_s: float = 0.0, first_s: float = 0.05, spacing_s: float = 0.0, stdio_resync_s: float = 0.0
    ) -> Intents:
        pace = RetryPolicy(first_s, 4 * first_s, resync_s, stdio_resync_s, min_interval_s=spacing_s)
        if open_client:
            opened.append(Intents(RedisStorage(open_client(), lease_s=LONG_LEASE_S), pace, dead_letter_limit=3))
        else:
            opened.append(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), pace, dead_letter_limit=3))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def _opener(request: pytest.FixtureRequest) -> Callable[[], redis.Redis] | None:
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client
    return partial(connect, _emptied(request.getfixturevalue("redis_url"))) if request.param == "redis" else None


@pytest.fixture
def spoil(request: pytest.FixtureRequest, reopen: Callable[[], Intents], tmp_path: Path) -> Callable[[str], None]:
    """Return a function that makes a server's intent unreadable."""

    def spoil_one(server_id: str) -> None:
        if "redis" in request.node.name:
            with _looking(request) as client:
                client.set(f"toolscale:intent:{server_id}", "{}")
        else:
            with sqlite3.connect(tmp_path / "intents.sqlite3") as db:
                db.execute("UPDATE intents SET intent = '{}' WHERE server_id = ?", (server_id,))
            db.close()

    return spoil_one


def _looking(request: pytest.FixtureRequest) -> redis.Redis:
    if "fakeredis" in request.node.name:
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return fake.client()
    return connect(request.getfixturevalue("redis_url"))


@pytest.fixture
def store(reopen: Callable[[], Intents]) -> Intents:
    return reopen()


def test_an_intent_is_there_for_the_next_process(reopen: Callable[[], Intents]) -> None:
    reopen().record(up("s", groups=["dev"]), due_in_s=60)

    intent = present(reopen().intent("s"))

    assert (intent.desired, intent.committed, intent.status) == (1, 0, "running")
    assert intent.announcement.groups == {"dev"}


def test_all_who_share_a_store_read_one_clock_in_seconds_since_the_epoch(reopen: Callable[..., Intents]) -> None:
    before = time.time()
    read = [reopen().now(), reopen().now(), reopen().now()]
    after = time.time()

    # both stores are on this machine; Redis tells microseconds, of which a float of that size keeps almost all
    assert [before, *read, after] == sorted([before, *read, after])


def test_every_event_raises_the_desired_generation(store: Intents) -> None:
    store.record(up(), due_in_s=60)
    store.record(changed(), due_in_s=60)
    intent = store.record(down(), due_in_s=60).intent

    assert (intent.desired, intent.status, intent.is_lagging) == (3, "stopped", True)


def test_a_server_that_came_up_again_runs_with_what_was_announced_last(store: Intents) -> None:
    store.record(up(groups=["dev"]), due_in_s=60)
    store.record(down(), due_in_s=60)

    intent = store.record(up(groups=["ops"]), due_in_s=60).intent

    assert (intent.status, intent.announcement.groups) == ("running", frozenset({"ops"}))


@pytest.mark.parametrize("event", [down("unknown"), changed("unknown")])
def test_an_event_for_a_server_that_was_never_announced_is_refused(store: Intents, event: object) -> None:
    with pytest.raises(EventInvalid, match=r"data\.server_id: no server 'unknown' was ever announced"):
        store.record(event, due_in_s=60)  # type: ignore[arg-type]

    assert store.intent("unknown") is None
    assert list(store.intents()) == []


def test_a_reconciliation_of_a_server_that_the_store_lost_is_not_committed(store: Intents) -> None:
    with pytest.raises(IntentsUnavailable, match=r"^gone: "):
        store.commit("gone", 1)

    assert store.intent("gone") is None


def test_a_commit_never_lowers_the_generation(store: Intents) -> None:
    for _ in range(3):
        store.record(up(), due_in_s=60)

    store.commit("s", 3)
    intent = store.commit("s", 1)

    assert (intent.committed, intent.is_lagging) == (3, False)


def test_unfinished_reconciliations_are_counted_and_postponed_further(store: Intents) -> None:
    store.record(up(), due_in_s=0)

    first, second = store.begin("s"), store.begin("s")
    after = store.commit("s", 1)

    assert first is not None
    assert second is not None
    assert (first.attempts, second.attempts, after.attempts) == (1, 2, 0)
    assert _due_at(second) > _due_at(first)


def test_a_suspect_is_reconciled_when_a_sweep_requests_it_and_not_sooner(store: Intents) -> None:
    store.record(up(), due_in_s=0)
    for _ in range(2):
        assert store.begin("s")

    delivered_again = store.begin("s")
    announced_again = store.record(up(), due_in_s=0).needs_message

    assert (delivered_again, announced_again) == (None, False)
    eventually(lambda: store.claim_due(10) == ["s"])
    assert store.begin("s")


def test_a_parked_server_is_retried_after_the_longest_wait_until_a_reconciliation_ends(
    reopen: Callable[..., Intents],
) -> None:
    store = reopen(first_s=0.5)
    store.record(up(), due_in_s=0)
    for _ in range(2):
        store.begin("s")

    parked = store.park("s", 1, "kills its workers")

    assert (parked.parked, parked.is_lagging, parked.last_error) == (True, False, "kills its workers")
    assert store.claim_due(10) == []
    eventually(lambda: store.claim_due(10) == ["s"])
    tried = present(store.begin("s"))
    assert (tried.parked, store.commit("s", tried.desired).parked) == (True, False)


def test_failures_are_counted_until_a_reconciliation_succeeds(store: Intents) -> None:
    store.record(up(), due_in_s=0)

    failures = [store.fail("s", 1).failures for _ in range(3)]

    assert failures == [1, 2, 3]
    assert store.commit("s", 1).failures == 0


def test_only_the_first_event_before_a_reconciliation_needs_a_message(store: Intents) -> None:
    needs_message = [store.record(event, due_in_s=60).needs_message for event in (up(), changed(), down(), up())]
    store.begin("s")
    during_the_run = [store.record(changed(), due_in_s=60).needs_message for _ in range(3)]

    assert needs_message == [True, False, False, False]
    assert during_the_run == [True, False, False]


def test_a_storm_of_events_does_not_put_the_sweep_off(store: Intents) -> None:
    store.record(up(), due_in_s=0)
    for _ in range(5):
        store.record(changed(), due_in_s=60)

    assert store.claim_due(10) == ["s"]


def test_two_reconciliations_follow_at_once_and_a_third_waits(reopen: Callable[..., Intents]) -> None:
    store = reopen(spacing_s=3)
    reconcile_after(store, up("s"))
    first = reconcile_after(store, changed("s"))

    assert store.record(changed("s"), due_in_s=60).needs_message
    assert store.begin("s") is None
    assert not store.record(changed("s"), due_in_s=60).needs_message
    assert store.claim_due(10) == []

    eventually(lambda: store.claim_due(10) == ["s"])
    again = present(store.begin("s"))
    assert again.desired == first.desired + 2


@pytest.mark.parametrize("news", [down("s"), up("s", groups=["new"])], ids=["down", "new groups"])
def test_what_is_new_of_a_server_waits_for_no_distance(reopen: Callable[..., Intents], news: ServerEvent) -> None:
    store = reopen(spacing_s=60)
    reconcile_after(store, up("s"))
    reconcile_after(store, changed("s"))
    store.record(changed("s"), due_in_s=60)
    assert store.begin("s") is None

    assert store.record(news, due_in_s=60).needs_message
    assert store.begin("s") is not None


def reconcile_after(store: Intents, event: ServerEvent) -> Intent:
    store.record(event, due_in_s=60)
    intent = present(store.begin("s"))
    return store.commit("s", intent.desired)


def test_a_message_that_died_with_its_process_is_sent_again(store: Intents) -> None:
    store.record(up(), due_in_s=60)

    store.clear_pending_messages()

    assert store.record(changed(), due_in_s=60).needs_message


def test_a_server_is_due_only_after_its_time_and_for_one_sweep(reopen: Callable[..., Intents]) -> None:
    store = reopen(first_s=1.0)
    store.record(up("later"), due_in_s=60)
    store.record(up("now"), due_in_s=0)
    store.record(up("done"), due_in_s=0)
    store.commit("done", 1)

    assert store.claim_due(10) == ["now"]
    assert store.claim_due(10) == []
    eventually(lambda: store.claim_due(10) == ["now"])


def test_a_running_server_is_reconciled_again_after_the_resync_interval(
    reopen: Callable[[float], Intents],
) -> None:
    store = reopen(0.1)
    store.record(up("running"), due_in_s=60)
    store.commit("running", 1)
    store.record(up("stopped"), due_in_s=60)
    store.record(down("stopped"), due_in_s=60)
    store.commit("stopped", 2)

    eventually(lambda: store.claim_due(10) == ["running"])
    intent = present(store.intent("running"))

    assert (intent.desired, intent.is_lagging) == (2, True)


def test_a_stdio_server_has_its_own_resync_interval(reopen: Callable[..., Intents]) -> None:
    store = reopen(resync_s=1_000.0, stdio_resync_s=100_000.0)
    for event in (up("http"), up_stdio("child")):
        store.record(event, due_in_s=60)
        store.commit(event.data.server_id, 1)

    waits = {intent.server_id: (intent.due_at or 0) - store.now() for intent in store.intents()}

    assert 700 < waits["http"] <= 1_000
    assert 70_000 < waits["child"] <= 100_000


def test_a_server_at_rest_is_left_alone_until_an_event(reopen: Callable[[float], Intents]) -> None:
    store = reopen(0.01)
    store.record(up(), due_in_s=0)

    store.stop_retrying("s", 1)

    assert store.claim_due(10) == []
    assert store.record(changed(), due_in_s=0).needs_message
    assert store.claim_due(10) == ["s"]


def test_an_event_that_came_while_a_server_was_given_up_is_not_lost(store: Intents) -> None:
    store.record(up(), due_in_s=60)
    store.begin("s")
    store.record(up(groups=["mended"]), due_in_s=60)

    intent = store.stop_retrying("s", 1)

    assert (intent.is_lagging, intent.message_pending) == (True, True)
    eventually(lambda: store.claim_due(10) == ["s"])


def test_an_event_during_a_failing_reconciliation_does_not_wait_for_the_backoff(store: Intents) -> None:
    store.record(up(), due_in_s=60)
    for _ in range(3):
        store.fail("s", 1)
    store.record(changed(), due_in_s=60)

    asked_again, not_asked = store.fail("s", 1), store.fail("s", 2)

    assert (asked_again.message_pending, not_asked.message_pending) == (True, False)
    assert _due_at(not_asked) - _due_at(asked_again) > 0.1


@pytest.mark.parametrize("outcome", ["commit", "fail", "stop_retrying"])
def test_an_event_after_a_reconciliation_is_sent_although_a_sweep_came_during_it(store: Intents, outcome: str) -> None:
    store.record(up(), due_in_s=0)
    store.begin("s")
    eventually(lambda: store.claim_due(10) == ["s"])

    getattr(store, outcome)("s", 1)

    assert store.record(changed(), due_in_s=60).needs_message


def test_a_reconciliation_from_before_a_loss_of_the_store_commits_no_later_generation(store: Intents) -> None:
    store.record(up(), due_in_s=60)

    store.commit("s", 37)

    assert store.record(changed(), due_in_s=60).intent.is_lagging


def test_one_intent_that_cannot_be_read_does_not_hold_up_the_others(
    store: Intents, spoil: Callable[[str], None]
) -> None:
    store.record(up("spoiled"), due_in_s=0)
    store.record(up("good"), due_in_s=0)
    spoil("spoiled")

    assert store.claim_due(10) == ["good"]
    eventually(lambda: store.claim_due(10) == ["good"])


def test_an_intent_that_cannot_be_read_is_replaced_when_its_server_is_announced(
    store: Intents, spoil: Callable[[str], None]
) -> None:
    store.record(up("spoiled"), due_in_s=0)
    store.record(up("good"), due_in_s=0)
    spoil("spoiled")

    with pytest.raises(EventInvalid):
        store.record(down("spoiled"), due_in_s=0)
    readable = [intent.server_id for intent in store.intents()]
    announced = store.record(up("spoiled", groups=["dev"]), due_in_s=0)

    assert readable == ["good"]
    assert announced.needs_message
    assert store.intent("spoiled") == announced.intent


def test_two_sweeps_at_the_same_time_never_get_the_same_server(reopen: Callable[..., Intents]) -> None:
    stores = [reopen(first_s=60.0), reopen(first_s=60.0)]
    for number in range(20):
        stores[0].record(up(f"s{number}"), due_in_s=0)
    claimed: list[str] = []

    def claim(store: Intents) -> None:
        claimed.extend(store.claim_due(20))

    _in_threads([partial(claim, store) for store in stores])

    assert sorted(claimed) == sorted(f"s{number}" for number in range(20))


def test_what_is_adopted_never_replaces_what_was_announced(store: Intents) -> None:
    announced = store.record(up("announced", groups=["new"]), due_in_s=60).intent
    missing = announced.model_copy(update={"server_id": "missing", "desired": 8, "committed": 7, "due_at": 0.0})

    assert store.insert_if_absent(missing)
    assert not store.insert_if_absent(announced.model_copy(update={"desired": 8}))

    assert store.intent("announced") == announced
    assert store.claim_due(10) == ["missing"]


def test_how_far_a_migration_is_can_be_read_by_other_processes_until_there_is_none(
    reopen: Callable[[], Intents],
) -> None:
    progress = MigrationProgress(model="new", servers=10, done=3, at=1.5)

    before = reopen().migration()
    reopen().note_migration(progress)
    under_way = reopen().migration()
    reopen().note_migration(None)

    assert (before, under_way, reopen().migration()) == (None, progress, None)


def test_a_store_keeps_its_mark_until_it_is_lost(reopen: Callable[[], Intents]) -> None:
    was_new = not reopen().is_complete()
    reopen().mark_complete()

    assert was_new
    assert reopen().is_complete()


def test_a_lease_lets_one_run_in_and_the_next_when_it_ends(store: Intents) -> None:
    with store.lease("s") as lease:
        lease.assert_held()
        with pytest.raises(LeaseHeld, match=r"^s: another run"), store.lease("s"):
            pass
        with store.lease("other"):
            pass

    with store.lease("s"):
        pass


def test_revisions_rise_without_gaps_in_order_over_processes_and_threads(reopen: Callable[[], Intents]) -> None:
    stores = [reopen(), reopen()]
    drawn: list[int] = []
    before_us = time.time() * 1_000_000

    def draw(store: Intents) -> None:
        drawn.extend(store.next_revision() for _ in range(50))

    _in_threads([partial(draw, store) for store in stores])

    assert len(set(drawn)) == 100
    assert min(drawn) >= before_us - 1_000_000
    assert stores[1].next_revision() > max(drawn)


def test_the_latest_dead_letters_are_kept_newest_first(store: Intents) -> None:
    for number in range(5):
        store.add_dead_letter(f"reason {number}", "\ud800" + "x" * 20_000)

    letters = store.dead_letters(10)

    assert [letter.reason for letter in letters] == ["reason 4", "reason 3", "reason 2"]
    assert LETTER_BYTES - 10 < len(letters[0].model_dump_json().encode()) <= LETTER_BYTES
    assert letters[0].body.endswith(CUT_MARK)
    assert len(store.dead_letters(1)) == 1


@pytest.mark.redis
def test_a_dead_letter_that_cannot_be_read_is_left_out(redis_url: str) -> None:
    client = connect(_emptied(redis_url))
    with closing(Intents(RedisStorage(client), PACE)) as store:
        store.add_dead_letter("a reason", "{}")
        client.lpush("toolscale:dead-letters", '{"at": "of another release"}')

        assert [letter.reason for letter in store.dead_letters(10)] == ["a reason"]


def test_the_backlog_counts_due_reconciliations_and_dead_letters(reopen: Callable[..., Intents]) -> None:
    store = reopen(first_s=30.0)
    assert store.backlog() == Backlog(servers=0, due=0, overdue_s=0.0, dead_letters=0)
    store.record(up("later"), due_in_s=60)
    store.add_dead_letter("refused", "{}")
    store.record(up("now"), due_in_s=0)

    found = store.backlog()

    assert (found.servers, found.due, found.dead_letters) == (2, 1, 1)
    eventually(lambda: store.backlog().overdue_s > found.overdue_s)
    assert store.claim_due(10) == ["now"]
    assert (store.backlog().due, store.backlog().overdue_s) == (0, 0.0)


def test_events_recorded_at_the_same_time_are_all_counted(reopen: Callable[[], Intents]) -> None:
    stores = [reopen(), reopen()]

    def record(store: Intents) -> None:
        for _ in range(25):
            store.record(up(), due_in_s=60)

    _in_threads([partial(record, store) for store in stores])

    intent = present(stores[0].intent("s"))
    assert intent.desired == 50


@pytest.mark.redis
def test_a_lease_on_redis_is_renewed_beyond_its_first_term_and_expires_with_its_process(redis_url: str) -> None:
    client = connect(_emptied(redis_url))
    store = Intents(RedisStorage(client, lease_s=LEASE_S), PACE)
    with store.lease("s") as lease:
        client.pexpire("toolscale:lease:s", 2_100)
        eventually(lambda: client.pttl("toolscale:lease:s") > 2_400, what="a renewal")
        lease.assert_held()
        client.set("toolscale:lease:s", "another run's token", px=1000)
        with pytest.raises(LeaseHeld):
            lease.assert_held()
    eventually(lambda: not client.exists("toolscale:lease:s"))
    store.close()


@pytest.mark.redis
def test_revisions_stay_above_the_past_when_redis_is_wiped(redis_url: str) -> None:
    client = connect(_emptied(redis_url))
    store = Intents(RedisStorage(client), PACE)
    before = store.next_revision()

    client.flushall()

    assert store.next_revision() > before
    store.close()


def _due_at(intent: Intent) -> float:
    assert intent.due_at is not None
    return intent.due_at


def _emptied(url: str) -> str:
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url


def _in_threads(work: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=action) for action in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_the_catalogue_id_is_kept_until_a_listing_replaces_it(store: Intents) -> None:
    store.record(up(), due_in_s=60)
    listed = store.commit("s", 1, "1f files")
    store.record(up(url="http://127.0.0.1:2/mcp"), due_in_s=60)
    failed = store.fail("s", 2, "s: no answer")
    store.record(down(), due_in_s=60)
    stopped = store.commit("s", 3)

    assert [intent.catalogue_id for intent in (listed, failed, stopped)] == ["1f files"] * 3
    assert store.commit("s", 3, "2e files").catalogue_id == "2e files"


def test_when_a_server_was_listed_is_kept_until_it_is_listed_again(store: Intents) -> None:
    store.record(up(), due_in_s=60)
    store.fail("s", 1, "s: no answer")
    before = present(store.intent("s"))
    listed = store.commit("s", 1)
    store.record(up(url="http://127.0.0.1:2/mcp"), due_in_s=60)
    failed = store.fail("s", 2, "s: no answer")
    store.record(down(), due_in_s=60)
    stopped = store.commit("s", 3)

    assert before.listed_at is None
    assert listed.listed_at is not None
    assert {failed.listed_at, stopped.listed_at} == {listed.listed_at}


def test_only_the_intents_written_since_a_position_are_read(reopen: Callable[[], Intents]) -> None:
    store, other = reopen(), reopen()
    for server_id in ("a", "b", "c"):
        store.record(up(server_id), due_in_s=60)
    first = store.changes()
    unchanged = store.changes(first.position)

    other.record(down("c"), due_in_s=60)
    other.commit("a", 1)
    other.commit("a", 1)
    after = store.changes(first.position)

    assert (set(first.intents), first.is_complete) == ({"a", "b", "c"}, True)
    assert (unchanged.intents, unchanged.is_complete, unchanged.position) == ({}, False, first.position)
    assert after.intents == {"a": store.intent("a"), "c": store.intent("c")}
    assert not after.is_complete
    assert store.changes(after.position).intents == {}


def test_a_position_of_an_empty_store_finds_its_first_intent(store: Intents) -> None:
    empty = store.changes()

    store.record(up("a"), due_in_s=60)

    assert set(store.changes(empty.position).intents) == {"a"}


def test_an_invalid_intent_is_a_change_without_an_intent(store: Intents, spoil: Callable[[str], None]) -> None:
    before = store.changes()
    store.record(up("bad"), due_in_s=60)
    store.record(up("good"), due_in_s=60)
    spoil("bad")

    assert store.changes(before.position).intents == {"bad": None, "good": store.intent("good")}


@pytest.mark.redis
def test_a_wiped_redis_causes_a_complete_read(redis_url: str) -> None:
    client = connect(_emptied(redis_url))
    with closing(Intents(RedisStorage(client), PACE)) as store:
        store.mark_complete()
        store.record(up("gone"), due_in_s=60)
        before = store.changes()

        client.flushdb()
        wiped = store.changes(before.position)
        store.record(up("new"), due_in_s=60)
        after = store.changes(before.position)

    assert (wiped.intents, wiped.is_complete) == ({}, True)
    assert (set(after.intents), after.is_complete) == ({"new"}, True)


@pytest.mark.redis
def test_a_redis_that_lost_its_last_writes_causes_a_complete_read(redis_url: str) -> None:
    client = connect(_emptied(redis_url))
    with closing(Intents(RedisStorage(client), PACE)) as store:
        store.record(up("a"), due_in_s=60)
        store.record(up("b"), due_in_s=60)
        before = store.changes()

        client.zrem("toolscale:changes", "b")

        assert store.changes(before.position).is_complete


def test_a_file_of_the_release_before_the_changes_is_read_and_written_by_both(tmp_path: Path) -> None:
    path = tmp_path / "intents.sqlite3"
    with closing(Intents(SqliteStorage(path), PACE)) as new:
        new.record(up("a"), due_in_s=60)
        before = new.changes()
        with sqlite3.connect(path) as db:  # the statement of the earlier release
            (stored,) = db.execute("SELECT intent FROM intents").fetchone()
            db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?, ?)", ("a", None, stored))
        db.close()

        assert set(new.changes(before.position).intents) == {"a"}


FILE, CI, WEB = OPERATOR_SOURCE, f"{PRODUCER_PREFIX}ci", f"{PRODUCER_PREFIX}web"
UNNAMED = "my-platform"


def of(source: str, event: ServerEvent) -> ServerEvent:
    return event.model_copy(update={"source": source})


@pytest.mark.parametrize(
    ("owner", "sender", "event"),
    [
        (FILE, UNNAMED, up(groups=["everyone"])),
        (FILE, UNNAMED, up(url="http://127.0.0.1:6/mcp")),
        (FILE, UNNAMED, up()),
        (FILE, UNNAMED, down()),
        (FILE, CI, up()),
        (FILE, CI, down()),
        (CI, WEB, up()),
        (CI, WEB, down()),
        (CI, UNNAMED, up()),
        (UNNAMED, CI, up()),
        (UNNAMED, DOCKER_SOURCE, up()),
        (DOCKER_SOURCE, f"{DOCKER_SOURCE}/other", up()),
        (DOCKER_SOURCE, KUBERNETES_SOURCE, down()),
        (KUBERNETES_SOURCE, UNNAMED, up()),
        (UNNAMED, CI, down()),
    ],
)
def test_an_event_of_another_sender_changes_nothing_of_a_running_server(
    store: Intents, owner: str, sender: str, event: ServerEvent
) -> None:
    store.record(of(owner, up(groups=["dev"])), due_in_s=60)
    before = present(store.intent("s"))

    with pytest.raises(EventInvalid, match=r"data\.server_id: .* names the server|belongs to another producer"):
        store.record(of(sender, event), due_in_s=60)

    after = store.intent("s")
    assert after == before.model_copy(update={"conflict": after.conflict if after else None})


def test_events_recorded_together_have_the_results_that_they_have_one_by_one(
    store: Intents, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, written = Mock(wraps=store.storage.get), Mock(wraps=store.storage.replace)
    monkeypatch.setattr(store.storage, "get", read)
    monkeypatch.setattr(store.storage, "replace", written)
    refusable = of(CI, up("a", groups=["ops"]))
    events: list[ServerEvent] = [up("a"), up("b"), down("unknown"), changed("a"), refusable, down("b"), up("c")]

    results = store.record_all(events, due_in_s=60)

    refused = [number for number, result in enumerate(results) if isinstance(result, EventInvalid)]
    recorded = [result for result in results if not isinstance(result, EventInvalid)]
    assert refused == [2, 4]
    assert [(each.intent.server_id, each.intent.desired, each.needs_message) for each in recorded] == [
        ("a", 1, True),
        ("b", 1, True),
        ("a", 2, False),
        ("b", 2, False),
        ("c", 1, True),
    ]
    assert (read.call_count, written.call_count) == (1, 1)
    assert {each.server_id: (each.desired, each.status) for each in store.intents()} == {
        "a": (2, "running"),
        "b": (2, "stopped"),
        "c": (1, "running"),
    }


def test_batches_recorded_at_the_same_time_count_every_event(reopen: Callable[[], Intents]) -> None:
    stores = [reopen(), reopen()]

    def record(store: Intents) -> None:
        for _ in range(10):
            store.record_all([up("a"), up("b"), up("a")], due_in_s=60)

    _in_threads([partial(record, store) for store in stores])

    assert {each.server_id: each.desired for each in stores[0].intents()} == {"a": 40, "b": 20}


def test_the_owner_sees_the_announcement_of_another_one_until_the_server_stops(store: Intents) -> None:
    store.record(of(DOCKER_SOURCE, up()), due_in_s=60)
    for _ in range(2):
        with pytest.raises(EventInvalid):
            store.record(of(KUBERNETES_SOURCE, up()), due_in_s=60)
    position = store.changes().position
    with pytest.raises(EventInvalid):
        store.record(of(KUBERNETES_SOURCE, up()), due_in_s=60)
    refused = present(store.intent("s"))

    assert "an announcement by toolscale/kubernetes was refused" in (refused.conflict or "")
    assert store.changes(position).intents == {}
    assert store.record(of(DOCKER_SOURCE, up()), due_in_s=60).intent.conflict == refused.conflict
    assert store.record(of(DOCKER_SOURCE, down()), due_in_s=60).intent.conflict is None
    assert store.record(of(KUBERNETES_SOURCE, up()), due_in_s=60).intent.source == KUBERNETES_SOURCE


@pytest.mark.parametrize(
    ("owner", "sender", "event"),
    [
        (FILE, UNNAMED, changed()),
        (FILE, FILE, up(groups=["ops"])),
        (FILE, FILE, down()),
        (UNNAMED, FILE, up()),
        (CI, FILE, up()),
        (CI, FILE, down()),
        (CI, CI, up(groups=["ops"])),
        (CI, CI, down()),
        (CI, WEB, changed()),
        (CI, UNNAMED, down()),
        (DOCKER_SOURCE, UNNAMED, down()),
        (DOCKER_SOURCE, FILE, up()),
        (UNNAMED, "another-platform", up()),
    ],
)
def test_the_owner_the_file_and_a_changed_event_are_accepted(
    store: Intents, owner: str, sender: str, event: ServerEvent
) -> None:
    store.record(of(owner, up(groups=["dev"])), due_in_s=60)

    assert store.record(of(sender, event), due_in_s=60).intent.desired == 2


@pytest.mark.parametrize("owner", [FILE, CI, UNNAMED])
def test_a_stopped_server_belongs_to_the_next_sender_that_announces_it(store: Intents, owner: str) -> None:
    store.record(of(owner, up()), due_in_s=60)
    store.record(of(owner, down()), due_in_s=60)

    assert store.record(of(WEB, up()), due_in_s=60).intent.source == WEB


def test_a_changed_event_does_not_change_the_owner(store: Intents) -> None:
    store.record(of(FILE, up()), due_in_s=60)
    store.record(of(CI, changed()), due_in_s=60)

    with pytest.raises(EventInvalid):
        store.record(of(CI, down()), due_in_s=60)


# --- accepted and changed definitions ---

CHANGE = ChangedDefinition(digest="d" * 32, since=1.5, accepted='{"name":"a"}', current='{"name":"a","x":"é"}')


def test_definitions_are_there_for_the_next_process(reopen: Callable[[], Intents]) -> None:
    document = Definitions(server_id="s", accepted={"a": "1", "b\U0001f600": "2"}, changed={"a": CHANGE}, held=True)

    result = reopen().update_definitions("s", lambda before: before or document)

    assert result == (None, document)
    assert reopen().definitions("s") == document
    assert reopen().definitions("other") is None


def test_changes_of_definitions_at_the_same_time_are_all_kept(reopen: Callable[[], Intents]) -> None:
    stores = [reopen() for _ in range(4)]

    def accept(number: int) -> None:
        def accepted(before: Definitions | None) -> Definitions:
            known = before or Definitions(server_id="s")
            return known.model_copy(update={"accepted": {**known.accepted, str(number): "x"}})

        stores[number % 4].update_definitions("s", accepted)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(accept, range(40)))

    found = present(stores[0].definitions("s"))
    assert found.accepted.keys() == {str(number) for number in range(40)}


def test_definitions_that_cannot_be_read_are_replaced(
    request: pytest.FixtureRequest, store: Intents, tmp_path: Path
) -> None:
    store.update_definitions("s", lambda _: Definitions(server_id="s"))
    if "redis" in request.node.name:
        with _looking(request) as client:
            client.set("toolscale:definitions:s", "{")
    else:
        with sqlite3.connect(tmp_path / "intents.sqlite3") as db:
            db.execute("UPDATE definitions SET document = '{'")
        db.close()
    newer = Definitions(server_id="s", accepted={"a": "1"})

    assert store.definitions("s") is None
    assert store.update_definitions("s", lambda before: before or newer) == (None, newer)
    assert store.definitions("s") == newer


def test_the_number_of_changes_is_kept_until_a_listing_replaces_it(store: Intents) -> None:
    store.record(up(), due_in_s=0)
    store.commit("s", 1, "catalogue", 3)
    store.record(changed(), due_in_s=0)
    stopped = store.commit("s", 2)
    store.record(up(), due_in_s=0)

    assert stopped.unaccepted == 3
    assert store.commit("s", 3, "catalogue", 0).unaccepted == 0
