"""The store of states that do not fit into a cursor: its contract, and an implementation in memory."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

from query.cursors.sealing import EXPIRED
from shared.errors import CursorInvalid, CursorsUnavailable

KEY_BYTES = 12


class CursorStore(Protocol):
    """Stores bytes under random keys. Safe to call from several threads.

    An entry expires `ttl_s` seconds after its last use, or earlier if newer entries need the space: the store never
    exceeds its `max_bytes`.
    """

    def put(self, kept: bytes, key: bytes | None = None) -> bytes:
        """Store these bytes, evict the oldest if necessary, and return their key of KEY_BYTES: this one, or a new one.

        An entry with this key stays as it is.

        Raises:
            CursorsUnavailable: the store does not answer, or the bytes exceed its size.
        """
        ...

    def get(self, key: bytes) -> bytes:
        """Return the bytes of a key, and renew their expiry.

        Raises:
            CursorInvalid: the entry has expired.
            CursorsUnavailable: the store does not answer.
        """
        ...

    def take(self, key: bytes) -> bytes:
        """Remove a key, and return its bytes. Of several calls with the same key, one succeeds.

        Raises:
            CursorInvalid: the entry has expired, or was taken.
            CursorsUnavailable: the store does not answer.
        """
        ...


class MemoryStore(CursorStore):
    """A CursorStore in this process, for a composition without Redis."""

    def __init__(self, ttl_s: float, max_bytes: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()  # with the expiry, the earliest first
        self._size = 0

    @override
    def put(self, kept: bytes, key: bytes | None = None) -> bytes:
        check_size(kept, self._max_bytes)
        key = key or new_key()
        with self._lock:
            self._drop_expired()
            if key not in self._kept:
                self._keep(key, kept)
            while self._size > self._max_bytes:
                self._drop(next(iter(self._kept)))
        return key

    @override
    def get(self, key: bytes) -> bytes:
        with self._lock:
            kept = self._taken(key)
            self._keep(key, kept)
            return kept

    @override
    def take(self, key: bytes) -> bytes:
        with self._lock:
            return self._taken(key)

    def _taken(self, key: bytes) -> bytes:
        self._drop_expired()
        if key not in self._kept:
            raise CursorInvalid(EXPIRED)
        return self._drop(key)

    def _drop_expired(self) -> None:
        while self._first_is_expired():
            self._drop(next(iter(self._kept)))

    def _first_is_expired(self) -> bool:
        first = next(iter(self._kept.values()), None)
        return first is not None and first[0] <= self._clock_s()

    def _keep(self, key: bytes, kept: bytes) -> None:
        self._kept[key] = (self._clock_s() + self._ttl_s, kept)
        self._size += len(kept)

    def _drop(self, key: bytes) -> bytes:
        _, kept = self._kept.pop(key)
        self._size -= len(kept)
        return kept


def new_key() -> bytes:
    """Return a new random key, too long to guess."""
    return secrets.token_bytes(KEY_BYTES)


def check_size(kept: bytes, max_bytes: int) -> None:
    """Raise CursorsUnavailable if these bytes exceed the size of the store."""
    if len(kept) > max_bytes:
        raise CursorsUnavailable(f"{len(kept)} bytes are more than the {max_bytes} that may be kept")
