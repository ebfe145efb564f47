"""A clock that goes back postpones no reconciliation beyond the longest wait of the policy, in both storages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import LeaseHeld
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.builders import Clock, changed, down, up, up_stdio
from tests.support.fake_redis import FakeRedisServer
from tests.support.present import present
from tests.support.profiles import examples

POLICY = RetryPolicy(first_s=15.0, longest_s=900.0, resync_s=300.0, stdio_resync_s=7_200.0, min_interval_s=10.0)
LEASE_S = 10.0
SERVERS = ("http", "child")

STEPS: dict[str, Callable[[Intents, str], object]] = {
    "up": lambda intents, server_id: intents.record(
        up_stdio(server_id) if server_id == "child" else up(server_id), due_in_s=15
    ),
    "changed": lambda intents, server_id: intents.record(changed(server_id), due_in_s=15),
    "down": lambda intents, server_id: intents.record(down(server_id), due_in_s=15),
    "begin": lambda intents, server_id: intents.begin(server_id),
    "commit": lambda intents, server_id: intents.commit(server_id, 10),
    "fail": lambda intents, server_id: intents.fail(server_id, 10),
    "retry later": lambda intents, server_id: intents.retry_later(server_id),
    "park": lambda intents, server_id: intents.park(server_id, 10),
    "sweep": lambda intents, _: intents.claim_due(10),
}
steps = st.tuples(st.sampled_from(list(STEPS)), st.sampled_from(SERVERS), st.sampled_from([0.0, 1.0, 20.0, 1_000.0]))
jumps = st.sampled_from([1.0, 120.0, 3_600.0, 86_400.0, 30 * 86_400.0])


@contextmanager
def opened(storage: str, clock: Clock) -> Generator[Intents]:
    """Yield empty intents in a storage that follows this clock."""
    if storage == "sqlite":
        with closing(Intents(SqliteStorage(Path(":memory:"), clock), POLICY)) as intents:
            yield intents
    else:
        time = SimpleNamespace(time=clock)
        with (
            patch("fakeredis.commands_mixins.server_mixin.time", time),
            closing(Intents(RedisStorage(FakeRedisServer().client(), LEASE_S), POLICY)) as intents,
        ):
            yield intents


@pytest.mark.parametrize("storage", ["sqlite", "redis"])
@settings(max_examples=examples(60))
@given(happened=st.lists(steps, max_size=20), jump_s=jumps)
def test_after_a_jump_back_each_server_is_reconciled_within_the_longest_wait(
    storage: str, happened: list[tuple[str, str, float]], jump_s: float
) -> None:
    clock = Clock()
    with opened(storage, clock) as intents:
        for server_id in SERVERS:
            STEPS["up"](intents, server_id)
        for step, server_id, later_s in happened:
            STEPS[step](intents, server_id)
            clock.ahead_s += later_s
        waiting = {intent.server_id for intent in intents.intents() if intent.due_at is not None}

        clock.ahead_s -= jump_s
        postponed_s = [(intent.due_at or 0.0) - intents.now() for intent in intents.intents()]
        due_at_once = intents.backlog().due
        claimed_at_once = intents.claim_due(10)
        begun = [intents.begin(server_id) for server_id in claimed_at_once]
        clock.ahead_s += POLICY.longest_wait_s
        claimed_later = intents.claim_due(10)

        assert all(each <= POLICY.longest_wait_s for each in postponed_s)
        assert due_at_once == len(claimed_at_once)
        assert all(begun)
        assert {*claimed_at_once, *claimed_later} == waiting


@pytest.mark.parametrize("storage", ["sqlite", "redis"])
@settings(max_examples=examples(20))
@given(jump_s=jumps, later_s=st.sampled_from([0.0, 1.0, 5.0, 100.0, 3_600.0]))
def test_after_a_jump_back_a_throttled_server_waits_no_longer_than_the_interval(
    storage: str, jump_s: float, later_s: float
) -> None:
    clock = Clock()
    with opened(storage, clock) as intents:
        for _ in range(2):
            intents.record(up("http"), due_in_s=15)
            begun = present(intents.begin("http"))
            intents.commit("http", begun.desired)
        intents.record(changed("http"), due_in_s=15)
        assert intents.begin("http") is None

        clock.ahead_s -= jump_s
        clock.ahead_s += later_s
        begins_at_once = intents.begin("http")
        clock.ahead_s += POLICY.min_interval_s

        assert begins_at_once or intents.begin("http")


def test_a_lease_of_a_dead_run_expires_although_the_clock_went_back(fake_redis: FakeRedisServer) -> None:
    client = fake_redis.client()
    with closing(Intents(RedisStorage(client, LEASE_S), POLICY)) as intents:
        client.set("toolscale:lease:s", "a dead run's token", px=int(1_000 * (LEASE_S + 3_600)))

        with pytest.raises(LeaseHeld), intents.lease("s"):
            pass

        assert int(client.pttl("toolscale:lease:s")) <= 1_000 * LEASE_S
