"""A clock that jumps by a day, of all processes or of one: nothing waits for the day to pass."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import time_machine

from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.upstream.auth import Challenge
from shared.upstream.followed_config import KEPT_S, FileFollowedConfig, FollowedConfig
from shared.upstream.sign_ins import SignIns
from shared.upstream.tokens import AccessTokens
from tests.sign_in.test_tokens import agreed, oauth, people, server, shared_sign_ins
from tests.support.builders import changed, up
from tests.support.oauth_server import People, ProtectedServer
from tests.support.present import present
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

__all__ = ["people", "server", "shared_sign_ins"]  # fixtures

DAY_S = 86_400.0
REFUSED = Challenge(401, "Bearer")
POLICY = RetryPolicy(first_s=1.0, longest_s=4.0, resync_s=4.0, stdio_resync_s=4.0)


@pytest.mark.anyio
@pytest.mark.parametrize("jump_s", [-DAY_S, -3_600.0, -61.0, 61.0, DAY_S])
async def test_a_refused_token_is_replaced_after_a_jump(
    server: ProtectedServer, people: People, shared_sign_ins: SignIns, jump_s: float
) -> None:
    sign_in = await agreed(server, "ann", "ann")
    shared_sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - jump_s}))
    people.access.clear()  # expired meanwhile, by the clock of the authorization server
    tokens = AccessTokens(shared_sign_ins, oauth(server), "ann")

    old = await tokens.current()
    new = old if old in people.access else await tokens.after_refusal(old, REFUSED)

    assert new in people.access
    assert people.refreshes["ann"] == 1
    assert await tokens.after_refusal(new, REFUSED) is None


@pytest.mark.anyio
@pytest.mark.parametrize("apart_s", [-DAY_S, -2.0, 2.0, DAY_S])
async def test_two_replicas_with_different_clocks_do_not_refresh_for_each_other(
    server: ProtectedServer, people: People, shared_sign_ins: SignIns, apart_s: float
) -> None:
    shared_sign_ins.put(await agreed(server, "ann", "ann"))
    here, there = (AccessTokens(shared_sign_ins, oauth(server), "ann") for _ in range(2))
    old = await here.current()
    with time_machine.travel(time.time() + apart_s):
        refreshed = await there.current()
    people.refreshes.clear()

    for _ in range(5):
        assert await here.current() == refreshed

    assert people.refreshes["ann"] <= 1
    assert old


@contextmanager
def opened(storage: str, directory: Path, url: str) -> Generator[Intents]:
    stores = RedisStorage(connect(url)) if storage == "redis" else SqliteStorage(directory / "intents.sqlite3")
    with closing(Intents(stores, POLICY)) as intents:
        yield intents


both = pytest.mark.parametrize("storage", ["redis", "sqlite"])
jumps = pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])


@pytest.mark.redis
@both
@jumps
def test_a_process_that_starts_after_a_jump_finds_the_work(
    storage: str, jump_s: float, tmp_path: Path, own_redis_url: str
) -> None:
    with time_machine.travel(time.time() - jump_s), opened(storage, tmp_path, own_redis_url) as before:
        before.record(up("s"), due_in_s=0)
        begun = present(before.begin("s"))
        before.commit("s", begun.desired)
        before.record(changed("s"), due_in_s=0)
        revision = before.next_revision()

    with opened(storage, tmp_path, own_redis_url) as after:
        assert after.claim_due(10) == ["s"]
        assert after.begin("s")
        assert after.next_revision() > revision
        assert after.backlog().overdue_s <= abs(jump_s) + 60


@pytest.mark.redis
@both
@jumps
def test_a_jump_during_a_reconciliation_loses_neither_it_nor_the_next(
    storage: str, jump_s: float, tmp_path: Path, own_redis_url: str
) -> None:
    with opened(storage, tmp_path, own_redis_url) as intents:
        intents.record(up("s"), due_in_s=0)
        with intents.held("s"):
            begun = present(intents.begin("s"))
            with time_machine.travel(time.time() + jump_s):
                intents.record(changed("s"), due_in_s=0)
                intents.commit("s", begun.desired)

        eventually(lambda: intents.claim_due(10) == ["s"], what="the next reconciliation")
        assert intents.begin("s")


@pytest.mark.parametrize("jump_s", [-DAY_S, -2 * KEPT_S, 2 * KEPT_S, DAY_S])
def test_the_state_of_a_dead_process_is_not_that_of_a_living_one(jump_s: float, tmp_path: Path) -> None:
    store = FileFollowedConfig(tmp_path / "state.json")
    store.put(FollowedConfig(path="/mcp.json", servers=1))
    assert store.get()

    with time_machine.travel(time.time() + jump_s):
        assert store.get() is None
        store.put(FollowedConfig(path="/mcp.json", servers=2))
        assert store.get()
