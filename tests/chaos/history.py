"""When a fleet offered what: the truth that answers are held to which were given while things broke."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection

Offer = tuple[str, str, str]
"""A server, one of its tools, and the tool's description."""


class History:
    """The tools offered, and the end time of tools no longer offered. Safe to call from several threads.

    Times are seconds of one monotonic clock. `agreed_at` is the last time at which the catalogue followed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.agreed_at = -math.inf
        self._clock = clock
        self._offered: dict[str, frozenset[Offer]] = {}
        self._gone_at: dict[Offer, float] = {}
        self._changing = threading.Lock()

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def note(self, server_id: str, offered: Collection[Offer]) -> None:
        """Note that the server offers these tools from now on, and no others."""
        with self._changing:
            gone = self._offered.get(server_id, frozenset()).difference(offered)
            self._gone_at |= dict.fromkeys(gone, self._clock())
            self._offered[server_id] = frozenset(offered)

    def agree(self) -> None:
        """Note that the catalogue holds now what is offered, and nothing else of it."""
        self.agreed_at = self._clock()

    def gone_for_s(self, offer: Offer) -> float | None:
        """Return how long this has not been offered any more, 0 when it is; None: it never was."""
        with self._changing:
            if offer in self._offered.get(offer[0], ()):
                return 0.0
            gone_at = self._gone_at.get(offer)
        return None if gone_at is None else self._clock() - gone_at
