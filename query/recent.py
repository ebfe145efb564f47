"""Values that a process returns again while no server has changed."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

MOST = 512
# A repair of the index may change tools without the record of their server; a cursor expires much later.
KEEP_S = 30.0

T = TypeVar("T")


class Recent(Generic[T]):
    """The last values in the present state of the catalogue, each for KEEP_S at most.

    Another state clears them. Safe to use from several threads.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, most: int = MOST) -> None:
        self._clock_s, self._most = clock_s, most
        self._state: object = None
        self._kept: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()
        self._lock = Lock()

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
            self._kept[key] = value, self._clock_s() + KEEP_S
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
