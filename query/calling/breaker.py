"""The circuit breaker: servers whose connections failed lately, which calls of replicas avoid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0


@dataclass(slots=True)
class _Failing:
    """A server that failed. It is avoided after `until` as well, until a probe succeeds."""

    wait_s: float
    until: float
    is_avoided: bool = True
    is_probed: bool = False


class CircuitBreaker:
    """The servers to avoid, each for a time that doubles with each failure. No I/O here.

    A probe ends the avoidance, and a successful call also forgets the failures. Not safe for other threads.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failing: dict[str, _Failing] = {}

    def avoided_until(self, server_id: str) -> float | None:
        """Return when a probe of an avoided server is due, by the breaker's clock; None: it is not avoided."""
        failing = self._failing.get(server_id)
        return failing.until if failing and failing.is_avoided else None

    def failed(self, server_id: str) -> None:
        """Avoid a server after a failure; several failures within the time of one count once."""
        now, failing = self._clock_s(), self._failing.get(server_id)
        if failing is None:
            self._forget_old(now)
            self._failing[server_id] = _Failing(FIRST_WAIT_S, now + FIRST_WAIT_S)
        elif now >= failing.until or not failing.is_avoided:
            wait_s = min(2 * failing.wait_s, LONGEST_WAIT_S)
            self._failing[server_id] = _Failing(wait_s, now + wait_s, is_probed=failing.is_probed)

    def succeeded(self, server_id: str) -> None:
        """Forget the failures of a server that answered a call."""
        self._failing.pop(server_id, None)

    def begin_probe(self, server_ids: Iterable[str]) -> str | None:
        """Return one of these servers whose probe is due and not running; it counts as running from now on."""
        if not self._failing:
            return None
        now = self._clock_s()
        for server_id in server_ids:
            failing = self._failing.get(server_id)
            if failing and failing.is_avoided and not failing.is_probed and now >= failing.until:
                failing.is_probed = True
                return server_id
        return None

    def end_probe(self, server_id: str, *, is_open: bool | None) -> None:
        """End a probe: the connection opened, it did not, or neither is certain (None)."""
        failing = self._failing.get(server_id)
        if failing is None:
            return
        failing.is_probed = False
        if is_open:
            failing.is_avoided = False
        elif is_open is False:
            self.failed(server_id)

    def _forget_old(self, now: float) -> None:
        """Forget servers that no call probed for a long time, such as servers that were stopped."""
        old = [server_id for server_id, failing in self._failing.items() if now > failing.until + 2 * LONGEST_WAIT_S]
        for server_id in old:
            del self._failing[server_id]
