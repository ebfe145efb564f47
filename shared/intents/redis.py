"""Intents in Redis, for the scaled composition. Redis must run with AOF and `noeviction`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from shared.errors import IntentsUnavailable, LeaseHeld
from shared.intents import times
from shared.intents.intent import Backlog, DeadLetter
from shared.intents.storage import Kind, Lease, NoteName, Replacement
from shared.service.every import every
from shared.service.redis import redis_errors

if TYPE_CHECKING:
    import redis

SERVERS = "toolscale:servers"
DUE = "toolscale:due"
REVISION = "toolscale:revision"
CHANGES = "toolscale:changes"
DEAD_LETTERS = "toolscale:dead-letters"

_redis_errors = partial(redis_errors, IntentsUnavailable)

# The time and the documents in one round trip. All processes use Redis's clock, so they agree on due times.
_GET = """
local now = redis.call('TIME')
return {now[1], now[2], unpack(redis.call('MGET', unpack(KEYS)))}
"""

# Replace a document unless it changed since the read ('': absent), and update the indexes of an intent.
# The score of a change is Redis's time in microseconds, so that scores rise, also after Redis lost its data.
_REPLACE = """
local document, servers, due, changes = unpack(KEYS)
local before, after, server, due_at = unpack(ARGV)
if (redis.call('GET', document) or '') ~= before then return 0 end
if after ~= before then redis.call('SET', document, after) end
if not servers then return 1 end
if due_at == '' then redis.call('ZREM', due, server) else redis.call('ZADD', due, due_at, server) end
if after == before then return 1 end
redis.call('SADD', servers, server)
local now, last = redis.call('TIME'), redis.call('ZREVRANGE', changes, 0, 0, 'WITHSCORES')[2]
local changed_at = math.max(now[1] * 1000000 + now[2], (tonumber(last) or 0) + 1)
redis.call('ZADD', changes, string.format('%.0f', changed_at), server)
return 1
"""

# Redis's clock, so that revisions of all workers rise, also after Redis lost its data.
_NEXT_REVISION = """
local now = redis.call('TIME')
local revision = math.max(now[1] * 1000000 + now[2], (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', revision))
return revision
"""


class RedisStorage:
    """A Storage shared by any number of producers and workers."""

    def __init__(self, client: redis.Redis, lease_s: float = times.LEASE_S) -> None:
        self._redis = client
        self._lease_s = lease_s
        self._get = client.register_script(_GET)
        self._replace = client.register_script(_REPLACE)
        self._next_revision = client.register_script(_NEXT_REVISION)

    def get(self, kind: Kind, server_ids: Sequence[str]) -> tuple[float, list[str | None]]:
        """Return the time and the documents, in one round trip."""
        with _redis_errors():
            seconds, microseconds, *stored = self._get(keys=[_key(kind, server_id) for server_id in server_ids])
        return _seconds((seconds, microseconds)), stored

    def replace(self, kind: Kind, replacements: Sequence[Replacement]) -> list[bool]:
        """Replace each document whose text is still `before`, all in one round trip."""
        indexes = [SERVERS, DUE, CHANGES] if kind == "intent" else []
        calls = list[tuple[list[str], list[str]]]()
        for each in replacements:
            due_at = "" if each.due_at is None else repr(each.due_at)
            args = [each.before or "", each.after or "", each.server_id, due_at]
            calls.append(([_key(kind, each.server_id), *indexes], args))
        with _redis_errors():
            if len(calls) == 1:
                return [bool(self._replace(*calls[0]))]
            with self._redis.pipeline(transaction=False) as pipe:
                # the first call brings the text of the script, and the others its digest
                for number, (keys, args) in enumerate(calls):
                    run, script = (pipe.evalsha, self._replace.sha) if number else (pipe.eval, _REPLACE)
                    run(script, len(keys), *keys, *args)
                return [bool(reply) for reply in pipe.execute()]

    def server_ids(self) -> list[str]:
        """Return the servers with an intent, in order."""
        with _redis_errors():
            return sorted(str(member) for member in self._redis.smembers(SERVERS))

    def due(self, limit: int, longest_wait_s: float) -> list[str]:
        """Return servers that are due, the longest waiting first, and then those with a time too far ahead."""
        now = self.now()
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipe:
            pipe.zrangebyscore(DUE, "-inf", now, start=0, num=limit)
            pipe.zrangebyscore(DUE, f"({now + longest_wait_s!r}", "inf", start=0, num=limit)
            due, ahead = pipe.execute()
        return [str(server_id) for server_id in (*due, *ahead)][:limit]

    def changed(self, since: str) -> tuple[str, list[str] | None]:
        """Return the changes in `toolscale:changes`, unless the mark or the last change went: Redis lost data."""
        mark_before, _, changed_at = since.rpartition("/")
        with _redis_errors(), self._redis.pipeline() as pipe:
            pipe.get(_note("complete"))
            pipe.zrange(CHANGES, 0, 0, desc=True, withscores=True)
            pipe.zrangebyscore(CHANGES, f"({changed_at or 'inf'}", "inf")
            mark, last, changed = pipe.execute()
        last_at = int(last[0][1]) if last else 0
        position = f"{mark or ''}/{last_at}"
        is_known = bool(since) and mark_before == (mark or "") and last_at >= int(changed_at)
        return position, [str(server_id) for server_id in changed] if is_known else None

    def note(self, name: NoteName) -> str | None:
        """Return a note, None when there is none."""
        with _redis_errors():
            stored = self._redis.get(_note(name))
        return stored if isinstance(stored, str) else None

    def set_note(self, name: NoteName, text: str | None) -> None:
        """Replace a note; None removes it."""
        with _redis_errors():
            if text is None:
                self._redis.delete(_note(name))
            else:
                self._redis.set(_note(name), text)

    def add_letters(self, letters: Sequence[DeadLetter], limit: int) -> None:
        """Add dead letters, and delete the oldest beyond the limit."""
        with _redis_errors(), self._redis.pipeline() as pipe:
            pipe.lpush(DEAD_LETTERS, *(letter.model_dump_json() for letter in letters))
            pipe.ltrim(DEAD_LETTERS, 0, limit - 1)
            pipe.execute()

    def letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest dead letters, newest first."""
        with _redis_errors():
            rows = self._redis.lrange(DEAD_LETTERS, 0, limit - 1)
        return [letter for row in rows if (letter := _letter(str(row)))]

    def backlog(self, longest_wait_s: float) -> Backlog:
        """Return the backlog as of now."""
        now = self.now()
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipe:
            pipe.scard(SERVERS)
            pipe.zcount(DUE, "-inf", now)
            pipe.zcount(DUE, f"({now + longest_wait_s!r}", "inf")
            pipe.zrange(DUE, 0, 0, withscores=True)
            pipe.llen(DEAD_LETTERS)
            servers, due, ahead, first, letters = pipe.execute()
        return Backlog(servers, due + ahead, max(0.0, now - first[0][1]) if first else 0.0, letters)

    @contextmanager
    def lease(self, name: str) -> Generator[Lease]:
        """Hold the lease of this name, which a thread renews, until the block ends."""
        lock = Lock(self._redis, f"toolscale:lease:{name}", timeout=self._lease_s, thread_local=False)
        with _redis_errors():
            if not lock.acquire(blocking=False):
                self._bound_expiry(f"toolscale:lease:{name}")
                raise LeaseHeld(name, "another run holds the lease")
        try:
            with every(third_s := self._lease_s / 3, partial(_renew, lock), "lease_not_renewed", first_after_s=third_s):
                yield _RenewedLease(name, lock)
        finally:
            with suppress(LockError, RedisError):  # the lease expired, or expires
                lock.release()

    def _bound_expiry(self, lease: str) -> None:
        """Let another run's lease expire after its length at the latest, also when Redis's clock went back.

        A live holder renews it before that.
        """
        lease_ms = int(self._lease_s * 1000)
        if int(self._redis.pttl(lease)) > lease_ms:
            self._redis.pexpire(lease, lease_ms)

    def now(self) -> float:
        """Return seconds since the epoch by Redis's clock."""
        with _redis_errors():
            return _seconds(self._redis.time())

    def next_revision(self) -> int:
        """Return the next revision by Redis's clock."""
        with _redis_errors():
            return int(self._next_revision(keys=[REVISION]))

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


class _RenewedLease:
    """A Redis lock that a thread renews."""

    def __init__(self, name: str, lock: Lock) -> None:
        self._name = name
        self._lock = lock

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease expired and another run may hold it."""
        with _redis_errors():
            if not self._lock.owned():
                raise LeaseHeld(self._name, "the lease was lost: this run was suspended for too long")


def _renew(lock: Lock) -> None:
    # a lost lease is another run's, and Redis may answer again before the lease expires
    with suppress(LockError, RedisError):
        lock.reacquire()


def _key(kind: Kind, server_id: str) -> str:
    return f"toolscale:{kind}:{server_id}"


def _note(name: NoteName) -> str:
    return f"toolscale:{name}"


def _letter(row: str) -> DeadLetter | None:
    try:
        letter = DeadLetter.model_validate_json(row, extra="ignore")
    except ValidationError:
        return None  # of another release; removing all letters deletes it too
    return letter.model_copy(update={"key": row})


def _seconds(time: Sequence[str | int]) -> float:
    """Return seconds since the epoch from the reply of TIME: seconds and microseconds."""
    return int(time[0]) + int(time[1]) / 1_000_000
