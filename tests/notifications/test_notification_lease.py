"""The notification processes on a real Redis: one listens, and another takes over."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from shared.catalog import Endpoint
from shared.errors import IntentsUnavailable
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.support.builders import down, up
from tests.support.notifying import notifying_server
from tests.support.ports import free_port
from tests.support.present import present
from tests.support.processes import SHORT_LEASE, Composition
from tests.support.waiting import eventually
from workers.notifications.supervisor import ListeningLease, RunningServers

pytestmark = [pytest.mark.process, pytest.mark.redis]

PACE = RetryPolicy(first_s=30.0, longest_s=60.0)


@pytest.fixture
def client(own_redis_url: str) -> Generator[redis.Redis]:
    with closing(connect(own_redis_url)) as opened:
        yield opened


@pytest.fixture
def intents(own_redis_url: str) -> Generator[Intents]:
    with closing(Intents(RedisStorage(connect(own_redis_url)), PACE)) as store:
        yield store


def test_one_process_has_the_lease_until_it_ends(intents: Intents) -> None:
    with ListeningLease(intents) as second:
        with ListeningLease(intents) as first:
            assert [first.is_held(), second.is_held(), first.is_held()] == [True, False, True]

        assert second.is_held()


def test_a_process_that_lost_the_lease_waits_for_it_again(intents: Intents, client: redis.Redis) -> None:
    with ListeningLease(intents) as suspended, ListeningLease(intents) as standby:
        assert suspended.is_held()

        client.flushdb()  # as if it had expired
        assert standby.is_held()

        assert not suspended.is_held()
        assert standby.is_held()


def test_a_lease_of_intents_that_do_not_answer_is_unknown() -> None:
    unreachable = Intents(RedisStorage(connect(f"redis://127.0.0.1:{free_port()}")), PACE)

    with ListeningLease(unreachable) as lease, pytest.raises(IntentsUnavailable):
        lease.is_held()


def test_the_copy_of_the_servers_follows_their_changes(intents: Intents) -> None:
    servers = RunningServers(intents)
    assert not servers.refresh()

    intents.record(up("a"), due_in_s=60)
    intents.record(up("b"), due_in_s=60)
    assert servers.refresh()
    assert {server_id: server.is_listed for server_id, server in servers.items()} == {"a": False, "b": False}

    intents.commit("a", 1)
    assert servers.refresh()
    assert dict(servers.items())["a"].is_listed

    intents.commit("a", 1)  # as after the resync of an unchanged server
    assert not servers.refresh()

    intents.record(up("a", url="http://127.0.0.1:2/mcp"), due_in_s=60)
    assert servers.refresh()
    assert dict(servers.items())["a"].endpoint == Endpoint(url="http://127.0.0.1:2/mcp")

    intents.record(down("a"), due_in_s=60)
    assert servers.refresh()
    assert set(dict(servers.items())) == {"b"}


def test_the_copy_of_the_servers_follows_a_wipe_of_redis(intents: Intents, client: redis.Redis) -> None:
    servers = RunningServers(intents)
    intents.record(up("gone"), due_in_s=60)
    servers.refresh()

    client.flushdb()

    assert servers.refresh()
    assert not servers.items()


def test_an_intent_of_an_earlier_release_is_found_by_a_complete_read(intents: Intents, client: redis.Redis) -> None:
    seldom, always = RunningServers(intents), RunningServers(intents, reread_s=0.0)
    intents.record(up("a"), due_in_s=60)
    seldom.refresh()
    always.refresh()
    stored = json.loads(str(client.get("toolscale:intent:a")))

    client.set("toolscale:intent:a", json.dumps(stored | {"status": "stopped"}))

    assert not seldom.refresh()
    assert always.refresh()
    assert not always.items()


def test_one_process_listens_and_a_standby_takes_over_after_its_crash(
    intents: Intents, own_redis_url: str, tmp_path: Path
) -> None:
    environment = {"TOOLSCALE_LOG_LEVEL": "DEBUG", "QDRANT_URL": ""}
    composition = Composition(own_redis_url, tmp_path, environment, SHORT_LEASE)

    def desired() -> int:
        intent = present(intents.intent("s"))
        return intent.desired

    with (
        notifying_server("http", tmp_path / "tools", "one") as server,
        composition.run("active", "-m", "workers.notifications") as active,
    ):
        intents.record(up("s", url=server.target.url), due_in_s=600)
        intents.commit("s", 1)
        eventually(lambda: desired() == 2, what="the reconciliation after the first connection")
        with composition.run("standby", "-m", "workers.notifications") as standby:
            standby.wait_for('"event": "notifications_standby"')

            server.offer("one", "two")
            eventually(lambda: desired() == 3, what="the reconciliation after the change")
            assert "subscription_opened" not in standby.output()

            active.kill()
            standby.wait_for('"event": "subscription_opened"')
            # a change while no process listened is found: the new connection requests a reconciliation
            eventually(lambda: desired() == 4)

            server.offer("one", "two", "three")
            eventually(lambda: desired() == 5)
            assert standby.stop() == 0
        assert desired() == 5  # one event for each change, and one for each new connection
