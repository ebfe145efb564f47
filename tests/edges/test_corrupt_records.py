"""A record that cannot be read is named and passed over: the others are read, and the next write replaces it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import cast

import pytest
import redis
import structlog
from mcp_types import InitializeResult

from query.calling.kept_sessions import KeptSessions
from query.kept import Kept
from query.kept import RedisEntries as KeptEntries
from query.usage.store_redis import PREFIX, SIZE_PREFIX, RedisUsage
from query.usage.usage import CatalogueSize, RowKey
from shared.intents.definitions import Definitions
from shared.intents.intents import Intents
from shared.intents.redis import CHANGES, DEAD_LETTERS, DUE, SERVERS, RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.upstream.followed_config import FollowedConfig, RedisFollowedConfig
from shared.upstream.sign_ins import PREFIX as SIGN_INS
from shared.upstream.sign_ins import RedisEntries, SecretKey, SignIn, SignIns
from shared.upstream.target import HttpTarget
from tests.support.builders import up

pytestmark = [pytest.mark.process, pytest.mark.redis]

POLICY = RetryPolicy(1.0, 4.0)
Broken = Callable[[bytes], bytes]
BROKEN: dict[str, Broken] = {
    "a byte": lambda whole: whole[:9] + b"\xff" + whole[9:],
    "its first byte": lambda whole: b"\xfe" + whole,
    "half": lambda whole: whole[: len(whole) // 2],
    "nothing": lambda _: b"",
    "bytes": lambda _: b"\x80\x04\x95\x00",
    "other JSON": lambda _: b'{"a": [1]}',
    "a number": lambda _: b"7",
    "a surrogate": lambda whole: whole.replace(b'"s', b'"\\udc80s'),
    "in UTF-16": lambda whole: whole.decode("latin-1").encode("utf-16"),
}


@pytest.fixture
def raw(own_redis_url: str) -> Iterator[redis.Redis]:
    """A client of the Redis of this test that reads and writes bytes."""
    with closing(connect(own_redis_url, decode=False)) as client:
        yield client


@pytest.fixture
def intents(own_redis_url: str) -> Iterator[Intents]:
    with closing(Intents(RedisStorage(connect(own_redis_url)), POLICY)) as opened:
        yield opened


def keys_of(client: redis.Redis) -> list[str]:
    """Return all keys of ours."""
    return [key.decode() for key in cast("list[bytes]", client.keys("toolscale:*"))]


def spoil(client: redis.Redis, key: str, change: Broken) -> None:
    stored = client.get(key)
    assert isinstance(stored, bytes)
    client.set(key, change(stored))


@pytest.mark.parametrize("kind", BROKEN)
def test_a_sweep_passes_over_a_broken_intent_and_the_next_event_replaces_it(
    kind: str, raw: redis.Redis, intents: Intents
) -> None:
    for name in ("s1", "s2", "s3"):
        intents.record(up(name), due_in_s=0)
    spoil(raw, "toolscale:intent:s2", BROKEN[kind])

    with structlog.testing.capture_logs() as logged:
        claimed = intents.claim_due(10)
        known = {intent.server_id for intent in intents.intents()}
        changed = intents.changes().intents

    assert {"s1", "s3"} <= set(claimed)
    assert {"s1", "s3"} <= known
    assert {"s1", "s3"} <= changed.keys()
    if "s2" not in known:
        assert {line["server"] for line in logged if line["log_level"] == "error"} == {"s2"}
        assert "s2" not in intents.claim_due(10)
    intents.record(up("s2"), due_in_s=0)
    assert intents.intent("s2")


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_definitions_are_passed_over_and_replaced(kind: str, raw: redis.Redis, intents: Intents) -> None:
    intents.update_definitions("s1", lambda _: Definitions(server_id="s1", accepted={"a": "1"}))
    spoil(raw, "toolscale:definitions:s1", BROKEN[kind])

    intents.definitions("s1")
    _, after = intents.update_definitions("s1", lambda _: Definitions(server_id="s1", accepted={"a": "2"}))

    assert intents.definitions("s1") == after


@pytest.mark.parametrize("name", [b"s\xff", b"\xfe\xfe", "s\u00e9".encode("latin-1"), b""])
def test_a_broken_name_in_the_indexes_stops_nothing(name: bytes, raw: redis.Redis, intents: Intents) -> None:
    intents.record(up("s1"), due_in_s=0)
    raw.sadd(SERVERS, name)
    raw.zadd(DUE, {name: 1.0})
    raw.zadd(CHANGES, {name: 1.0})

    assert intents.claim_due(10) == ["s1"]
    assert [intent.server_id for intent in intents.intents()] == ["s1"]
    assert intents.changes("/0").intents.get("s1")
    assert intents.backlog().servers == 2
    assert not raw.zscore(DUE, name)


@pytest.mark.parametrize("kind", BROKEN)
def test_other_letters_and_notes_are_read(kind: str, raw: redis.Redis, intents: Intents, own_redis_url: str) -> None:
    intents.add_dead_letter("refused", "{}")
    raw.lpush(DEAD_LETTERS, BROKEN[kind](b'{"at": 1.0, "reason": "s", "body": "sss"}'))
    raw.set("toolscale:migration", BROKEN[kind](b'{"model": "sss", "servers": 1, "done": 1, "at": 1.0}'))
    raw.set("toolscale:complete", BROKEN[kind](b"17000000000000"))
    with closing(RedisFollowedConfig(connect(own_redis_url))) as store:
        store.put(FollowedConfig(path="/sss", servers=1))
        (key,) = [key for key in keys_of(raw) if "mcp" in key or "config" in key]
        spoil(raw, key, BROKEN[kind])

        store.get()

    assert "refused" in [letter.reason for letter in intents.dead_letters(10)]
    intents.migration()
    intents.is_complete()


@pytest.mark.parametrize("kind", BROKEN)
def test_other_sign_ins_are_read(kind: str, raw: redis.Redis) -> None:
    sign_ins = SignIns(RedisEntries(raw), SecretKey("k" * 32, None))
    for server in ("s1", "s2", "s3"):
        document = {"server_id": server, "caller": "ann", "url": "http://h", "client": CLIENT, "tokens": TOKENS}
        sign_ins.put(SignIn.model_validate(document))
    spoil(raw, f'{SIGN_INS}["s2","ann"]', BROKEN[kind])
    for name in (b"\xff", b'["s1"]', b'["s1","\xff"]', b"7", b"{}"):
        raw.set(SIGN_INS.encode() + name, b"x")

    assert {"s1", "s3"} <= {sign_in.server_id for sign_in in sign_ins.all()}
    assert sign_ins.end("s2", "ann")


CLIENT = {"client_id": "c", "redirect_uris": ["http://127.0.0.1/callback"]}
TOKENS = {"access_token": "a", "token_type": "Bearer"}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.anyio
async def test_a_broken_session_is_a_new_one(kind: str, raw: redis.Redis) -> None:
    sessions = KeptSessions(Kept(KeptEntries(raw)), lambda work: work.close(), "here")
    before, after = (sessions.of("srv", "ann", HttpTarget("http://h")) for _ in range(2))
    await before.keep("sss", InitializeResult.model_validate(INITIALIZED))
    assert await after.find()
    await sessions.note_replica("ann", "d", "srv")
    for key in keys_of(raw):
        spoil(raw, key, BROKEN[kind])

    assert await after.find() is None
    await sessions.last_replica("ann", "d")


INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
DAY = date(2026, 1, 1)


@pytest.mark.parametrize(
    "field", [b"\xff", b'["a","b","c"]', b'["a","b"]calls', b'["a","b","\xff"]calls', b"]calls", b"[1,2,3]calls"]
)
def test_other_usage_is_read(field: bytes, raw: redis.Redis, own_redis_url: str) -> None:
    with closing(RedisUsage(connect(own_redis_url), 400)) as usage:
        usage.add({RowKey(DAY, "ann", "s1", "read"): {"calls": 3}})
        usage.put_size(DAY, CatalogueSize(1, 2, 3))
        raw.hset(PREFIX + DAY.isoformat(), field, b"x" if field.endswith(b"]") else b"7")
        raw.set(f"{SIZE_PREFIX}2026-01-02", field)

        rows, sizes = usage.rows(DAY, DAY), usage.sizes(DAY, date(2026, 1, 2))
        sums = usage.sums(DAY, DAY, ["calls"])

    assert rows[RowKey(DAY, "ann", "s1", "read")]["calls"] == 3
    assert sizes == {DAY: CatalogueSize(1, 2, 3)}
    assert ("ann", "s1", "read") in sums


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_intent_in_a_file_is_passed_over(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "intents.sqlite3"
    with closing(Intents(SqliteStorage(path), POLICY)) as intents:
        for name in ("s1", "s2", "s3"):
            intents.record(up(name), due_in_s=0)
        with closing(sqlite3.connect(path)) as db:
            (stored,) = db.execute("SELECT CAST(intent AS BLOB) FROM intents WHERE server_id = 's2'").fetchone()
            broken = BROKEN[kind](stored)
            db.execute("UPDATE intents SET intent = CAST(? AS TEXT) WHERE server_id = 's2'", (broken,))
            db.commit()

        assert {"s1", "s3"} <= set(intents.claim_due(10))
        assert {"s1", "s3"} <= {intent.server_id for intent in intents.intents()}
        intents.record(up("s2"), due_in_s=0)
        assert intents.intent("s2")
