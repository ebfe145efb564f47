"""Intents in Redis, for the scaled composition. Redis must run with AOF and `noeviction`."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from shared.errors import IntentsUnavailable, LeaseHeld
from workers.intents.base import Change, StoredIntents, readable
from workers.intents.redis_claims import RedisClaims
from workers.intents.store import DEAD_LETTER_LIMIT, LETTER_CHARACTERS, Backlog, DeadLetter, Intent, Lease
from workers.intents.transitions import RetryPolicy

SERVERS = "toolscale:servers"
DUE = "toolscale:due"
DEAD_LETTERS = "toolscale:dead-letters"
REVISION = "toolscale:revision"
COMPLETE = "toolscale:complete"
MIGRATION = "toolscale:migration"
_READ_AT_ONCE = 500
_LOCKS = 64

# The time and an intent in one round trip; the time is Redis's own, so that workers and producers whose clocks differ
# agree on what is due.
_READ = "return {redis.call('TIME'), redis.call('GET', KEYS[1])}"

# Replace an intent where it still is what was read ('': there was none), and keep what is found by it in step.
_REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
if ARGV[4] == '' then redis.call('ZREM', KEYS[3], ARGV[3]) else redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3]) end
return 1
"""

# Redis's own clock, so that workers whose clocks differ still number upwards, and a wiped Redis starts above the past.
_NEXT_REVISION = """
local now = redis.call('TIME')
local revision = math.max(now[1] * 1000000 + now[2], (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', revision))
return revision
"""


def connect(url: str) -> redis.Redis:
    """Return a client that gives up on a silent Redis within seconds instead of hanging."""
    return redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=5, socket_connect_timeout=3, health_check_interval=10
    )


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
        self._updating = tuple(threading.Lock() for _ in range(_LOCKS))

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when it was never announced."""
        with translated():
            stored = self._redis.get(_key(server_id))
        return _parse(server_id, stored)

    def intents(self) -> Iterator[Intent]:
        """Return the intents of all announced servers."""
        with translated():
            server_ids = sorted(str(member) for member in self._redis.smembers(SERVERS))
        for start in range(0, len(server_ids), _READ_AT_ONCE):
            batch = server_ids[start : start + _READ_AT_ONCE]
            with translated():
                stored = self._redis.mget([_key(server_id) for server_id in batch])
            parsed = (_parse(server_id, fields) for server_id, fields in zip(batch, stored, strict=True))
            yield from (intent for intent in parsed if intent)

    @contextmanager
    def lease(self, server_id: str) -> Generator[Lease]:
        """Hold the server for this run, renewing it in the background; it expires when the process dies."""
        lock = Lock(self._redis, f"toolscale:lease:{server_id}", timeout=self._lease_s, thread_local=False)
        with translated():
            if not lock.acquire(blocking=False):
                raise LeaseHeld(server_id, "another run is looking at it")
        held = _RenewedLease(server_id, lock, self._lease_s / 3)
        try:
            yield held
        finally:
            held.release()

    def claim(self, keys: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        """Hold those of these keys that nobody holds, renewing them in the background."""
        return self._claims.held(keys)

    def is_complete(self) -> bool:
        """Return whether Redis still has the mark, so that it was not wiped since."""
        with translated():
            return bool(self._redis.exists(COMPLETE))

    def mark_complete(self) -> None:
        """Mark this Redis as one that holds all servers there are."""
        with translated():
            self._redis.set(COMPLETE, int(time.time()))

    def now(self) -> float:
        """Return seconds since the epoch by Redis's clock."""
        with translated():
            return _seconds(self._redis.time())

    def next_revision(self) -> int:
        """Return microseconds since the epoch, always more than any revision before."""
        with translated():
            return int(self._next_revision(keys=[REVISION]))

    def add_dead_letter(self, reason: str, body: str) -> None:
        """Keep a refused message for people to see; the oldest beyond the limit go."""
        body = body[:LETTER_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
        reason = reason.encode("utf-8", "replace").decode("utf-8")
        letter = DeadLetter(at=time.time(), reason=reason, body=body)
        with translated(), self._redis.pipeline() as pipe:
            pipe.lpush(DEAD_LETTERS, letter.model_dump_json())
            pipe.ltrim(DEAD_LETTERS, 0, self._dead_letter_limit - 1)
            pipe.execute()

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest refused messages, newest first."""
        with translated():
            rows = self._redis.lrange(DEAD_LETTERS, 0, limit - 1)
        return [DeadLetter.model_validate_json(row) for row in rows]

    def backlog(self) -> Backlog:
        """Return what is to be done now, by Redis's clock."""
        with translated():
            now = _seconds(self._redis.time())
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.scard(SERVERS)
                pipe.zcount(DUE, "-inf", now)
                pipe.zrange(DUE, 0, 0, withscores=True)
                pipe.llen(DEAD_LETTERS)
                servers, due, first, letters = pipe.execute()
        return Backlog(servers, due, max(0.0, now - first[0][1]) if first else 0.0, letters)

    def close(self) -> None:
        """Release the connections."""
        self._redis.close()

    def _put_migration(self, note: str | None) -> None:
        with translated():
            if note is None:
                self._redis.delete(MIGRATION)
            else:
                self._redis.set(MIGRATION, note)

    def _get_migration(self) -> str | None:
        with translated():
            stored = self._redis.get(MIGRATION)
        return stored if isinstance(stored, str) else None

    def _drop_due(self, server_id: str) -> None:
        with translated():
            self._redis.zrem(DUE, server_id)

    def _due(self, limit: int) -> list[str]:
        with translated():
            now = _seconds(self._redis.time())
            return [str(server_id) for server_id in self._redis.zrangebyscore(DUE, "-inf", now, start=0, num=limit)]

    def _update(self, server_id: str, change: Change) -> Intent:
        """Do it again when another process came between; a storm's threads take turns here instead."""
        with self._updating[hash(server_id) % _LOCKS], translated():
            while True:
                now, stored = self._read(keys=[_key(server_id)])
                after = change(_parse(server_id, stored), _seconds(now))
                if self._replaced(stored, after):
                    return after

    def _replaced(self, stored: str | None, after: Intent) -> bool:
        due_at = "" if after.due_at is None else repr(after.due_at)
        return bool(
            self._replace(
                keys=[_key(after.server_id), SERVERS, DUE],
                args=[stored or "", after.model_dump_json(), after.server_id, due_at],
            )
        )


class _RenewedLease:
    """A Redis lock that a thread renews until it is released or found lost."""

    def __init__(self, server_id: str, lock: Lock, interval_s: float) -> None:
        self._server_id = server_id
        self._lock = lock
        self._interval_s = interval_s
        self._released = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name=f"lease {server_id}", daemon=True)
        self._renewer.start()

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease expired and may be another's."""
        with translated():
            if not self._lock.owned():
                raise LeaseHeld(self._server_id, "the lease was lost: this run was suspended for too long")

    def release(self) -> None:
        """Stop renewing and let the next run in; a lease that was lost is left to its new holder."""
        self._released.set()
        self._renewer.join()
        try:
            self._lock.release()
        except (LockError, RedisError):
            return  # it expires by itself

    def _renew(self) -> None:
        while not self._released.wait(self._interval_s):
            try:
                self._lock.reacquire()
            except LockError:
                return  # lost; assert_held tells the run
            except RedisError:
                continue  # Redis may be back before the lease expires


def _key(server_id: str) -> str:
    return f"toolscale:intent:{server_id}"


def _parse(server_id: str, stored: object) -> Intent | None:
    return readable(server_id, stored) if isinstance(stored, str) else None


def _seconds(time: Sequence[str | int]) -> float:
    """Return seconds since the epoch from what Redis's TIME answers: seconds and microseconds."""
    return int(time[0]) + int(time[1]) / 1_000_000


@contextmanager
def translated() -> Generator[None]:
    """Raise IntentsUnavailable in the place of whatever Redis's client raises."""
    try:
        yield
    except RedisError as error:
        raise IntentsUnavailable(f"Redis at REDIS_URL: {error}") from error
