"""What is kept for a while: what a cursor, a link or a confirmation names, and recent answers.

A name is 16 random bytes, and its entry is bound to a caller, a tool and a question. So a client can neither guess nor
change one, and its text costs some 15 tokens. With Redis, any replica of the query service finds each entry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from typing_extensions import override

from shared.errors import CursorInvalid, CursorsUnavailable
from shared.service.redis import RedisPause, connect

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings

KEPT_S = 900.0
"""Seconds from the last use of an entry to its expiry."""
# Redis evicts nothing here and also stores the intents; a rest has about 100 KiB, so some hundred fit.
MAX_BYTES = 64 << 20
OVERHEAD_BYTES = 160
"""Of an entry, for its name and its expiry."""
# A caller that asks much displaces its own entries first.
CALLERS_SHARE = 4
PREFIX = "toolscale:kept:"
UNKNOWN_CURSOR = (
    "cursor: expected the nextCursor of an answer to the same question by the same caller, unchanged and not expired; "
    "ask again without it"
)
LONGEST_NAME = "Q0" * 11
"""No name has more tokens: stands in for one while an answer is measured."""

# The last of 22 characters has four bits of the name's 128.
_NAME = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
_DIGEST_BYTES = 16

# Values that a `Recent` holds.
MOST_RECENT = 512
# A repair of the index may change tools without the record of their server; a cursor expires much later.
RECENT_S = 30.0

T = TypeVar("T")


class Entries(Protocol):
    """Bytes under names, each until its expiry. Safe to call from several threads.

    Each method raises CursorsUnavailable if the store does not answer.
    """

    def set(self, name: str, stored: bytes, ttl_s: float) -> None:
        """Store an entry, in place of one with this name."""
        ...

    def get(self, name: str, renewed_s: float | None = None) -> bytes | None:
        """Return an entry, and let it expire `renewed_s` from now; None where there is none."""
        ...

    def take(self, name: str) -> bytes | None:
        """Remove an entry and return it: to one of several calls, None to the others."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Remove these entries, if they are there."""
        ...


class Kept:
    """Entries behind random names, in this process or, for all replicas, in Redis. Safe to call from several threads.

    An entry expires KEPT_S after its last use, or earlier if the space is needed: a process removes the oldest of its
    entries beyond `max_bytes`, and those of a caller beyond a quarter of it.
    """

    def __init__(
        self,
        entries: Entries | None = None,
        max_bytes: int = MAX_BYTES,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries or MemoryEntries(clock_s)
        self._account = _Account(max_bytes, clock_s)

    def put(self, entry: bytes, *bound_to: str, name: str | None = None, ttl_s: float = KEPT_S) -> str:
        """Store an entry and return its name; reading it requires the same `bound_to`: caller, tool, question.

        `name` comes from `new_name` or `name_of`, for an answer that contains it before its entry is complete.

        Raises:
            CursorsUnavailable: the store does not answer, or the entry exceeds the space of a caller.
        """
        name, stored = name or new_name(), _digest(bound_to) + entry
        self._account.check(len(stored))
        self._entries.set(name, stored, ttl_s)
        self._entries.delete(self._account.add(name, bound_to[0], len(stored), ttl_s))
        return name

    def get(self, name: str, *bound_to: str) -> bytes:
        """Return an entry, and renew its expiry.

        Raises:
            CursorInvalid: no entry has this name, or it is bound to something else.
            CursorsUnavailable: the store does not answer.
        """
        entry = _entry(self._entries.get(_checked(name), KEPT_S), bound_to)
        # of another replica's entry too, since that one no longer counts it once it has expired there
        self._entries.delete(self._account.add(name, bound_to[0], _DIGEST_BYTES + len(entry), KEPT_S))
        return entry

    def take(self, name: str, *bound_to: str) -> bytes:
        """Remove an entry and return it. Of several calls with the same name, one succeeds.

        Raises:
            CursorInvalid: no entry has this name, it is bound to something else, or it was taken.
            CursorsUnavailable: the store does not answer.
        """
        # before it is taken, so that a wrong call uses nothing up
        _entry(self._entries.get(_checked(name)), bound_to)
        entry = _entry(self._entries.take(name), bound_to)
        self._account.remove(name)
        return entry


class MemoryEntries(Entries):
    """Entries in this process."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # with the expiry; the last used at the end

    @override
    def set(self, name: str, stored: bytes, ttl_s: float) -> None:
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[1] <= self._clock_s():
                self._kept.popitem(last=False)
            self._kept[name] = stored, self._clock_s() + ttl_s
            self._kept.move_to_end(name)

    @override
    def get(self, name: str, renewed_s: float | None = None) -> bytes | None:
        with self._lock:
            now_s = self._clock_s()
            stored, until_s = self._kept.get(name, (None, 0.0))
            if stored is None or now_s >= until_s:
                return None
            if renewed_s is not None:
                self._kept[name] = stored, now_s + renewed_s
                self._kept.move_to_end(name)
            return stored

    @override
    def take(self, name: str) -> bytes | None:
        with self._lock:
            stored, until_s = self._kept.pop(name, (None, 0.0))
            return stored if self._clock_s() < until_s else None

    @override
    def delete(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._kept.pop(name, None)


class RedisEntries(Entries):
    """Entries in Redis, for all replicas of the query service."""

    def __init__(self, client: redis.Redis, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Use a client that does not decode responses."""
        self._client = client
        self._errors = RedisPause(CursorsUnavailable, clock_s).errors

    @override
    def set(self, name: str, stored: bytes, ttl_s: float) -> None:
        with self._errors():
            self._client.set(PREFIX + name, stored, px=int(ttl_s * 1000))

    @override
    def get(self, name: str, renewed_s: float | None = None) -> bytes | None:
        with self._errors():
            renewed_ms = None if renewed_s is None else int(renewed_s * 1000)
            return cast("bytes | None", self._client.getex(PREFIX + name, px=renewed_ms))

    @override
    def take(self, name: str) -> bytes | None:
        with self._errors():
            return cast("bytes | None", self._client.getdel(PREFIX + name))

    @override
    def delete(self, names: Sequence[str]) -> None:
        if names:
            with self._errors():
                self._client.delete(*(PREFIX + name for name in names))


class _Account:
    """The entries that this process has stored or read, the last used at the end, and their bytes by caller."""

    def __init__(self, max_bytes: int, clock_s: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[str, int, float]] = OrderedDict()  # caller, bytes, expiry
        self._of_caller: dict[str, OrderedDict[str, None]] = {}
        self._bytes: Counter[str] = Counter()

    def check(self, size_bytes: int) -> None:
        """Raise CursorsUnavailable if an entry of this size exceeds the share of a caller."""
        share = self._max_bytes // CALLERS_SHARE
        if size_bytes + OVERHEAD_BYTES > share:
            raise CursorsUnavailable(f"{size_bytes} bytes are more than the {share} that a caller may have")

    def add(self, name: str, caller: str, size_bytes: int, ttl_s: float) -> list[str]:
        """Count an entry as the last used; return the names of those to remove, which no longer count."""
        with self._lock:
            self._remove(name)
            while self._entries and next(iter(self._entries.values()))[2] <= self._clock_s():
                self._remove(next(iter(self._entries)))
            self._entries[name] = caller, size_bytes + OVERHEAD_BYTES, self._clock_s() + ttl_s
            self._of_caller.setdefault(caller, OrderedDict())[name] = None
            self._bytes[caller] += size_bytes + OVERHEAD_BYTES
            removed: list[str] = []
            while self._bytes[caller] > self._max_bytes // CALLERS_SHARE:
                removed.append(self._remove_oldest(caller))
            while self._bytes.total() > self._max_bytes:
                removed.append(self._remove_oldest(max(self._bytes, key=self._bytes.__getitem__)))
            return removed

    def remove(self, name: str) -> None:
        """Count an entry no longer."""
        with self._lock:
            self._remove(name)

    def _remove_oldest(self, caller: str) -> str:
        name = next(iter(self._of_caller[caller]))
        self._remove(name)
        return name

    def _remove(self, name: str) -> None:
        if name not in self._entries:
            return
        caller, size_bytes, _ = self._entries.pop(name)
        del self._of_caller[caller][name]
        self._bytes[caller] -= size_bytes
        if not self._of_caller[caller]:
            del self._of_caller[caller], self._bytes[caller]


def open_kept(settings: Settings) -> Kept:
    """Return the entries in Redis if REDIS_URL is set, else those of this process."""
    if settings.redis_url is None:
        return Kept()
    return Kept(RedisEntries(connect(settings.redis_url, decode=False)))


def new_name() -> str:
    """Return a random name, too long to guess."""
    return _name(secrets.token_bytes(16))


def name_of(*texts: str) -> str:
    """Return the name that belongs to these texts."""
    return _name(_digest(texts))


def _name(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _digest(texts: Sequence[str]) -> bytes:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=_DIGEST_BYTES).digest()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CursorInvalid(UNKNOWN_CURSOR)
    return name


def _entry(stored: bytes | None, bound_to: Sequence[str]) -> bytes:
    """Return the entry without the digest of its binding, which must be this one."""
    if stored is None or not hmac.compare_digest(stored[:_DIGEST_BYTES], _digest(bound_to)):
        raise CursorInvalid(UNKNOWN_CURSOR)
    return stored[_DIGEST_BYTES:]


class Recent(Generic[T]):
    """Values that this process returns again while no server has changed: the last ones, each for RECENT_S at most.

    Another state of the catalogue clears them. Safe to use from several threads.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, most: int = MOST_RECENT) -> None:
        self._clock_s, self._most = clock_s, most
        self._state: object = None
        self._kept: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: object) -> T | None:
        """Return the value of this key if it was kept in the same state of the catalogue."""
        with self._lock:
            self._enter(state)
            value, until_s = self._kept.get(key, (None, 0.0))
            if self._clock_s() >= until_s:
                self._kept.pop(key, None)
                return None
            self._kept.move_to_end(key)
            return value

    def keep(self, key: Hashable, state: object, value: T) -> None:
        """Keep a value; `state` is that of before it was read."""
        with self._lock:
            self._enter(state)
            self._kept[key] = value, self._clock_s() + RECENT_S
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def get_or_read(self, key: Hashable, state: object, read: Callable[[], T]) -> T:
        """Return the value of this key that was kept in the same state, or read and keep it."""
        value = self.get(key, state)
        if value is None:
            value = read()
            self.keep(key, state, value)
        return value

    def _enter(self, state: object) -> None:
        """Forget the values of another state, so that no earlier state stays in memory."""
        if state is not self._state:
            self._kept.clear()
            self._state = state
