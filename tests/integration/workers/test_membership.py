"""The notification processes that share the servers, on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import partial
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
from tests.support.metrics import scraped
from tests.support.notifying import notifying_server
from tests.support.ports import free_port
from tests.support.processes import SHORT_LEASE, Composition, Running
from tests.support.waiting import eventually
from workers.notifications.membership import MEMBERS, RedisMembership, SoleMember
from workers.notifications.rendezvous import owner
from workers.notifications.running_servers import RunningServers

pytestmark = pytest.mark.redis

PACE = RetryPolicy(first_s=30.0, longest_s=60.0)
SERVERS = [f"server-{number}" for number in range(30)]


@pytest.fixture
def client(own_redis_url: str) -> Generator[redis.Redis]:
    with closing(connect(own_redis_url)) as opened:
        yield opened


@pytest.fixture
def intents(own_redis_url: str) -> Generator[Intents]:
    with closing(Intents(RedisStorage(connect(own_redis_url)), PACE)) as store:
        yield store


def test_members_see_each_other_until_they_leave_or_their_heartbeat_ends(client: redis.Redis) -> None:
    first, second = RedisMembership(client), RedisMembership(client)
    crashed = RedisMembership(client, expiry_s=0.2)

    assert set(first.heartbeat()) == {first.member}
    assert set(second.heartbeat()) == {first.member, second.member}
    assert set(crashed.heartbeat()) == {first.member, second.member, crashed.member}
    eventually(lambda: set(first.heartbeat()) == {first.member, second.member})
    second.leave()
    assert set(first.heartbeat()) == {first.member}


def test_a_member_returns_after_redis_lost_its_data(client: redis.Redis) -> None:
    member = RedisMembership(client)
    member.heartbeat()

    client.flushdb()

    assert set(member.heartbeat()) == {member.member}


def test_a_redis_that_does_not_answer_is_an_unavailable_store() -> None:
    member = RedisMembership(connect(f"redis://127.0.0.1:{free_port()}"))

    with pytest.raises(IntentsUnavailable):
        member.heartbeat()


def test_without_redis_a_process_owns_all_servers() -> None:
    alone = SoleMember()

    assert owner("s", alone.heartbeat()) == alone.member


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


class Listeners:
    """A notifications process, and the port of its metrics."""

    def __init__(self, composition: Composition, name: str, stack: ExitStack) -> None:
        self.port = free_port()
        environment = {"TOOLSCALE_METRICS_PORT": str(self.port)}
        self.running: Running = stack.enter_context(composition.run(name, "-m", "workers.notifications", **environment))

    def connected(self) -> int:
        """Return the number of open connections; 0 while the process starts."""
        try:
            found = scraped(f"http://127.0.0.1:{self.port}/metrics")
        except OSError:
            return 0
        return int(found.get('toolscale_subscription_servers{state="connected"}', 0))

    def servers(self) -> set[str]:
        """Return the servers of the connections that were opened since the start."""
        lines = [line for line in self.running.output().splitlines() if '"event": "subscription_opened"' in line]
        return {json.loads(line)["server"] for line in lines}


def test_processes_divide_the_servers_and_take_over_those_of_a_killed_one(
    intents: Intents, client: redis.Redis, own_redis_url: str, tmp_path: Path
) -> None:
    environment = {**SHORT_LEASE, "TOOLSCALE_LOG_LEVEL": "DEBUG", "QDRANT_URL": ""}
    composition = Composition(own_redis_url, tmp_path, environment)
    with notifying_server("http", tmp_path / "tools", "one") as server, ExitStack() as stack:
        for server_id in SERVERS:
            intents.record(up(server_id, url=server.target.url), due_in_s=600)
            intents.commit(server_id, 1)
        first = Listeners(composition, "first", stack)
        eventually(lambda: first.connected() == len(SERVERS), what=first.running.output())

        second = Listeners(composition, "second", stack)
        eventually(second.connected)
        eventually(lambda: first.connected() + second.connected() == len(SERVERS))
        shares = _shares(client)
        eventually(lambda: {first.connected(), second.connected()} == {len(share) for share in shares.values()})
        assert second.servers() in shares.values()

        second.running.kill()
        desired = {server_id: _desired(intents, server_id) for server_id in second.servers()}

        eventually(lambda: first.connected() == len(SERVERS))
        # a change while no process listened is found: each new connection requests a reconciliation
        for server_id, before in desired.items():
            eventually(partial(_was_requested, intents, server_id, before))
        assert first.running.stop() == 0
        assert client.zcard(MEMBERS) == 0


def _shares(client: redis.Redis) -> dict[str, set[str]]:
    members = [str(member) for member in client.zrange(MEMBERS, 0, -1)]
    assert len(members) == 2
    return {member: {server for server in SERVERS if owner(server, members) == member} for member in members}


def _desired(intents: Intents, server_id: str) -> int:
    intent = intents.intent(server_id)
    assert intent is not None
    return intent.desired


def _was_requested(intents: Intents, server_id: str, before: int) -> bool:
    return _desired(intents, server_id) > before
