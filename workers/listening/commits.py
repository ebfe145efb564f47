"""Which servers were listed a moment ago, as far as this process has seen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from workers.intents.contract import Intent

RECENT_S = 30.0


class Commits:
    """When each server's committed generation was seen to rise. Safe to ask while it is brought up to date."""

    def __init__(self, recent_s: float = RECENT_S) -> None:
        self._recent_s = recent_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._coming: frozenset[str] = frozenset()
        self._unknown_at = -math.inf  # of what is there at the first time, nobody knows since when

    def note(self, intents: Iterable[Intent]) -> None:
        """Compare all intents with those of the last time."""
        now, seen = time.monotonic(), dict[str, tuple[int, float]]()
        coming: set[str] = set()
        for intent in intents:
            committed, at = self._seen.get(intent.server_id, (intent.committed, self._unknown_at))
            seen[intent.server_id] = (intent.committed, at if committed == intent.committed else now)
            if intent.is_lagging:
                coming.add(intent.server_id)
        self._seen, self._coming, self._unknown_at = seen, frozenset(coming), now

    def is_recent(self, server_id: str) -> bool:
        """Return whether the server was listed just now, or is about to be."""
        _, at = self._seen.get(server_id, (0, -math.inf))
        return server_id in self._coming or time.monotonic() - at < self._recent_s
