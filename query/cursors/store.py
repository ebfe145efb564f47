"""What does not fit into a cursor is kept for a time, and the cursor names it: a contract, and one in memory."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from query.cursors.sealing import EXPIRED
from shared.errors import CursorInvalid, CursorsUnavailable

KEY_BYTES = 12


class CursorStore(Protocol):
    """Keeps bytes under random keys that nobody can guess. Safe to call from several threads.

    What is kept can be read until nobody has read it for the store's `ttl_s` seconds, or until newer bytes need the
    room: the store never holds more than its `max_bytes`.
    """

    def put(self, kept: bytes) -> bytes:
        """Keep these bytes and return their key, of KEY_BYTES.

        Raises:
            CursorsUnavailable: the store does not answer, or the bytes are more than it may hold.
        """
        ...

    def get(self, key: bytes) -> bytes:
        """Return what is kept under a key.

        Raises:
            CursorInvalid: it is no longer kept.
            CursorsUnavailable: the store does not answer.
        """
        ...


class MemoryStore:
    """A CursorStore of one process, for a composition without Redis: what it keeps ends with the process."""

    def __init__(self, ttl_s: float, max_bytes: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()  # with the expiry, the next one first
        self._size = 0

    def put(self, kept: bytes) -> bytes:
        """Keep these bytes, in the place of the oldest where there is no room."""
        check_size(kept, self._max_bytes)
        key = new_key()
        with self._lock:
            self._keep(key, kept)
            while self._size > self._max_bytes or self._first_is_expired():
                self._drop(next(iter(self._kept)))
        return key

    def get(self, key: bytes) -> bytes:
        """Return what is kept under a key, and keep it for longer."""
        with self._lock:
            while self._first_is_expired():
                self._drop(next(iter(self._kept)))
            if key not in self._kept:
                raise CursorInvalid(EXPIRED)
            kept = self._drop(key)
            self._keep(key, kept)
            return kept

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
    """Return a key that was never used and that nobody can guess."""
    return secrets.token_bytes(KEY_BYTES)


def check_size(kept: bytes, max_bytes: int) -> None:
    """Raise CursorsUnavailable where a store of this size can never hold these bytes."""
    if len(kept) > max_bytes:
        raise CursorsUnavailable(f"{len(kept)} bytes are more than the {max_bytes} that may be kept")
