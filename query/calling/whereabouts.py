"""Where a connection leads, and whether that is still where its server is."""

from __future__ import annotations

import anyio

from shared.upstream.dial import HttpTarget, Target

MOVED_AFTER_S = 60.0
"""Name servers that know many addresses name a few of them, others each time; gone is one that is not named so long."""


class Whereabouts:
    """The target of a connection, as it is confirmed or not by those that are found later."""

    def __init__(self, target: Target, moved_after_s: float = MOVED_AFTER_S) -> None:
        self.target = target
        self._moved_after_s = moved_after_s
        self._confirmed_at = anyio.current_time()

    def are_still(self, found: Target) -> bool:
        """Return whether what was found now leads to the same place in the same way, some other addresses apart."""
        if not (isinstance(self.target, HttpTarget) and isinstance(found, HttpTarget)):
            return self.target == found
        if _way(self.target) != _way(found):
            return False
        if self.target.addresses == found.addresses or set(self.target.addresses) & set(found.addresses):
            self._confirmed_at = anyio.current_time()
        return anyio.current_time() < self._confirmed_at + self._moved_after_s


def _way(target: HttpTarget) -> object:
    return target.url, target.transport, dict(target.headers)
