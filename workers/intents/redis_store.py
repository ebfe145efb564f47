"""Intents in Redis, for the scaled composition. Redis must run with AOF and `noeviction`."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError
from redis.exceptions import LockError, RedisError
from redis.lock import Lock
from typing_extensions import override

from shared.errors import IntentsUnavailable, LeaseHeld
from shared.service.redis import DEAD_LETTERS, redis_errors
from shared.service.repeated import repeated
from workers.intents.base import Change, StoredIntents, readable
from workers.intents.dead_letters import DEAD_LETTER_LIMIT, DeadLetter
from workers.intents.definitions import Definitions, DefinitionsChange
from workers.intents.redis_claims import RedisClaims
from workers.intents.redis_definitions import RedisDefinitions
from workers.intents.store import Backlog, Intent, Lease
from workers.intents.transitions import RetryPolicy

if TYPE_CHECKING:
    import redis

SERVERS = "toolscale:servers"
DUE = "toolscale:due"
REVISION = "toolscale:revision"
COMPLETE = "toolscale:complete"
MIGRATION = "toolscale:migration"
CHANGES = "toolscale:changes"
_READ_AT_ONCE = 500
_LOCKS = 64

_redis_errors = partial(redis_errors, IntentsUnavailable)

# The time and an intent in one round trip. All processes use Redis's clock, so they agree on due times.
_READ = "return {redis.call('TIME'), redis.call('GET', KEYS[1])}"

# Replace an intent unless it changed since the read ('': absent), and update the indexes.
# The score of a change is Redis's time in microseconds, so that scores rise, also after Redis lost its data.
_REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
if ARGV[4] == '' then redis.call('ZREM', KEYS[3], ARGV[3]) else redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3]) end
local now, last = redis.call('TIME'), redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
local changed_at = math.max(now[1] * 1000000 + now[2], (tonumber(last) or 0) + 1)
redis.call('ZADD', KEYS[4], string.format('%.0f', changed_at), ARGV[3])
return 1
"""

# Redis's clock, so that revisions of all workers rise, also after Redis lost its data.
_NEXT_REVISION = """
local now = redis.call('TIME')
local revision = math.max(now[1] * 1000000 + now[2], (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', revision))
return revision
"""


class RedisIntents(StoredIntents):
    """An IntentStore shared by any number of producers and workers."""

    def __init__(
        self,
        client: redis.Redis,
        policy: RetryPolicy,
        lease_s: float = 10.0,
        dead_letter_limit: int = DEAD_LETTER_LIMIT,
    ) -> None:
        super().__init__(policy)
        self._redis = client
        self._lease_s = lease_s
        self._dead_letter_limit = dead_letter_limit
        self._claims = RedisClaims(client, lease_s)
        self._next_revision = client.register_script(_NEXT_REVISION)
        self._read = client.register_script(_READ)
        self._replace = client.register_script(_REPLACE)
        self._definitions = RedisDefinitions(client)
        self._updating = tuple(threading.Lock() for _ in range(_LOCKS))

    @override
    def intent(self, server_id: str) -> Intent | None:
        with _redis_errors():
            stored = self._redis.get(_key(server_id))
        return _parse(server_id, stored)

    @override
    def intents(self) -> Iterator[Intent]:
        with _redis_errors():
            server_ids = sorted(str(member) for member in self._redis.smembers(SERVERS))
        yield from (intent for _, intent in self._read_intents(server_ids) if intent)

    @override
    @contextmanager
    def lease(self, server_id: str) -> Generator[Lease]:
        lock = Lock(self._redis, f"toolscale:lease:{server_id}", timeout=self._lease_s, thread_local=False)
        with _redis_errors():
            if not lock.acquire(blocking=False):
                raise LeaseHeld(server_id, "another run holds the lease")
        try:
            with repeated(partial(_renew, lock), self._lease_s / 3, f"lease {server_id}"):
                yield _RenewedLease(server_id, lock)
        finally:
            with suppress(LockError, RedisError):  # the lease expired, or expires
                lock.release()

    @override
    def claim(self, keys: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        return self._claims.held(keys)

    @override
    def is_complete(self) -> bool:
        with _redis_errors():
            return bool(self._redis.exists(COMPLETE))

    @override
    def mark_complete(self) -> None:
        with _redis_errors():
            self._redis.set(COMPLETE, int(time.time()))

    @override
    def now(self) -> float:
        with _redis_errors():
            return _seconds(self._redis.time())

    @override
    def next_revision(self) -> int:
        with _redis_errors():
            return int(self._next_revision(keys=[REVISION]))

    @override
    def add_dead_letter(self, reason: str, body: str) -> None:
        letter = DeadLetter.of(time.time(), reason, body)
        with _redis_errors(), self._redis.pipeline() as pipe:
            pipe.lpush(DEAD_LETTERS, letter.model_dump_json())
            pipe.ltrim(DEAD_LETTERS, 0, self._dead_letter_limit - 1)
            pipe.execute()

    @override
    def dead_letters(self, limit: int) -> list[DeadLetter]:
        with _redis_errors():
            rows = self._redis.lrange(DEAD_LETTERS, 0, limit - 1)
        return [letter for row in rows if (letter := _letter(str(row)))]

    @override
    def remove_dead_letter(self, letter: DeadLetter) -> None:
        with _redis_errors():
            self._redis.lrem(DEAD_LETTERS, 1, letter.key)

    @override
    def clear_dead_letters(self) -> int:
        with _redis_errors(), self._redis.pipeline() as pipe:
            pipe.llen(DEAD_LETTERS)
            pipe.delete(DEAD_LETTERS)
            letters, _ = pipe.execute()
        return int(letters)

    @override
    def backlog(self) -> Backlog:
        with _redis_errors():
            now = _seconds(self._redis.time())
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.scard(SERVERS)
                pipe.zcount(DUE, "-inf", now)
                pipe.zrange(DUE, 0, 0, withscores=True)
                pipe.llen(DEAD_LETTERS)
                servers, due, first, letters = pipe.execute()
        return Backlog(servers, due, max(0.0, now - first[0][1]) if first else 0.0, letters)

    @override
    def definitions(self, server_id: str) -> Definitions | None:
        return self._definitions.read(server_id)

    @override
    def update_definitions(self, server_id: str, change: DefinitionsChange) -> tuple[Definitions | None, Definitions]:
        return self._definitions.update(server_id, change)

    @override
    def close(self) -> None:
        self._redis.close()

    @override
    def _changed(self, since: str) -> tuple[str, list[str] | None]:
        """Return the changes in `toolscale:changes`, unless the mark or the last change went: Redis lost data."""
        mark_before, _, changed_at = since.rpartition("/")
        with _redis_errors(), self._redis.pipeline() as pipe:
            pipe.get(COMPLETE)
            pipe.zrange(CHANGES, 0, 0, desc=True, withscores=True)
            pipe.zrangebyscore(CHANGES, f"({changed_at or 'inf'}", "inf")
            mark, last, changed = pipe.execute()
        last_at = int(last[0][1]) if last else 0
        position = f"{mark or ''}/{last_at}"
        is_known = bool(since) and mark_before == (mark or "") and last_at >= int(changed_at)
        return position, [str(server_id) for server_id in changed] if is_known else None

    @override
    def _read_intents(self, server_ids: Sequence[str]) -> Iterator[tuple[str, Intent | None]]:
        for start in range(0, len(server_ids), _READ_AT_ONCE):
            batch = server_ids[start : start + _READ_AT_ONCE]
            with _redis_errors():
                stored = self._redis.mget([_key(server_id) for server_id in batch])
            yield from ((server_id, _parse(server_id, text)) for server_id, text in zip(batch, stored, strict=True))

    @override
    def _put_migration(self, note: str | None) -> None:
        with _redis_errors():
            if note is None:
                self._redis.delete(MIGRATION)
            else:
                self._redis.set(MIGRATION, note)

    @override
    def _get_migration(self) -> str | None:
        with _redis_errors():
            stored = self._redis.get(MIGRATION)
        return stored if isinstance(stored, str) else None

    @override
    def _drop_due(self, server_id: str) -> None:
        with _redis_errors():
            self._redis.zrem(DUE, server_id)

    @override
    def _due(self, limit: int) -> list[str]:
        with _redis_errors():
            now = _seconds(self._redis.time())
            return [str(server_id) for server_id in self._redis.zrangebyscore(DUE, "-inf", now, start=0, num=limit)]

    @override
    def _update(self, server_id: str, change: Change) -> tuple[Intent | None, Intent]:
        # the lock serialises the threads of this process; the loop retries after a write of another process
        with self._updating[hash(server_id) % _LOCKS], _redis_errors():
            while True:
                now, stored = self._read(keys=[_key(server_id)])
                before = _parse(server_id, stored)
                after = change(before, _seconds(now))
                if self._replaced(stored, after):
                    return before, after

    def _replaced(self, stored: str | None, after: Intent) -> bool:
        due_at = "" if after.due_at is None else repr(after.due_at)
        return bool(
            self._replace(
                keys=[_key(after.server_id), SERVERS, DUE, CHANGES],
                args=[stored or "", after.model_dump_json(), after.server_id, due_at],
            )
        )


class _RenewedLease:
    """A Redis lock that a thread renews."""

    def __init__(self, server_id: str, lock: Lock) -> None:
        self._server_id = server_id
        self._lock = lock

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease expired and another run may hold it."""
        with _redis_errors():
            if not self._lock.owned():
                raise LeaseHeld(self._server_id, "the lease was lost: this run was suspended for too long")


def _renew(lock: Lock) -> None:
    # a lost lease is another run's, and Redis may answer again before the lease expires
    with suppress(LockError, RedisError):
        lock.reacquire()


def _key(server_id: str) -> str:
    return f"toolscale:intent:{server_id}"


def _letter(row: str) -> DeadLetter | None:
    try:
        letter = DeadLetter.model_validate_json(row, extra="ignore")
    except ValidationError:
        return None  # of another release; `clear` deletes it too
    return letter.model_copy(update={"key": row})


def _parse(server_id: str, stored: object) -> Intent | None:
    return readable(server_id, stored) if isinstance(stored, str) else None


def _seconds(time: Sequence[str | int]) -> float:
    """Return seconds since the epoch from the reply of TIME: seconds and microseconds."""
    return int(time[0]) + int(time[1]) / 1_000_000
