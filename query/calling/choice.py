"""The choice of a replica for a call, from how the servers answered earlier ones. No I/O here."""

from __future__ import annotations

import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from shared.catalog import ServerRecord

GIVEN_UP_S = 60.0
# A server that fails is avoided for the first of these times, then for twice as long, up to the second.
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
# For processes that share what is remembered.
NOTED_LATELY_S = 30.0

T = TypeVar("T")


class ReplicaChoice:
    """Chooses the replica for a call; counts the calls in flight and remembers the callers' last replicas.

    Avoided servers come last, and before them those that the caller gave up on. Of the others, the order is: not
    stale, the caller's last replica, and fewest calls in flight. Chance decides between equals.
    """

    def __init__(
        self,
        breaker: CircuitBreaker,
        keep_s: float,
        size: int = 10_000,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep last replicas for `keep_s` seconds after their last use, when the connection may be closed.

        At most `size` of them are kept, and as many replicas that a caller gave up on.
        """
        self._breaker, self._keep_s, self._size, self._clock_s = breaker, keep_s, size, clock_s
        self._in_flight: Counter[str] = Counter()
        # The server that a caller used last, by the caller and the digest of its catalogue, and when that expires.
        self._last_used: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        # By caller and server, until when the caller avoids it.
        self._given_up: OrderedDict[tuple[str, str], float] = OrderedDict()

    def choose(self, replicas: Sequence[ServerRecord], caller: str) -> ServerRecord:
        """Return the best of these replicas; if all are avoided, the one whose time ends first."""
        now, last = self._clock_s(), self._last(caller, replicas)
        ranks = [
            (
                self._breaker.avoided_until(replica.server_id) or float("-inf"),
                now < self._given_up.get((caller, replica.server_id), 0.0),
                replica.stale_since is not None,
                replica.server_id not in last,
                self._in_flight[replica.server_id],
            )
            for replica in replicas
        ]
        best = min(ranks)
        equal = [replica for replica, rank in zip(replicas, ranks, strict=True) if rank == best]
        return random.choice(equal)  # noqa: S311  # no secret

    @contextmanager
    def count_call(self, server_id: str) -> Generator[None]:
        """Count the block as a call in flight."""
        self._in_flight[server_id] += 1
        try:
            yield
        finally:
            self._in_flight[server_id] -= 1
            if not self._in_flight[server_id]:
                del self._in_flight[server_id]

    def remembers(self, caller: str, replicas: Sequence[ServerRecord]) -> bool:
        """Return whether it is known which of these replicas the caller used last."""
        return bool(self._last(caller, replicas))

    def remember(self, caller: str, replica: ServerRecord) -> bool:
        """Note that the caller used this replica last: its session may hold the caller's state.

        Return whether that was not noted lately.
        """
        if replica.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:  # newer versions have no sessions
            return False
        now, key = self._clock_s(), (caller, replica.catalog_digest)
        before, expiry_s = self._last_used.get(key, ("", 0.0))
        _put(self._last_used, key, (replica.server_id, now + self._keep_s), self._size)
        return before != replica.server_id or expiry_s < now + self._keep_s - NOTED_LATELY_S

    def _last(self, caller: str, replicas: Sequence[ServerRecord]) -> set[str]:
        now = self._clock_s()
        used = (self._last_used.get((caller, digest)) for digest in {each.catalog_digest for each in replicas})
        return {server_id for server_id, until in filter(None, used) if now < until}

    def give_up(self, caller: str, replica: ServerRecord) -> None:
        """Note that the caller cancelled a call before this replica sent anything; it avoids it for GIVEN_UP_S.

        The server may be healthy and slow, so the calls of others do not avoid it.
        """
        _put(self._given_up, (caller, replica.server_id), self._clock_s() + GIVEN_UP_S, self._size)
        key = caller, replica.catalog_digest
        if key in self._last_used and self._last_used[key][0] == replica.server_id:
            del self._last_used[key]


def _put(entries: OrderedDict[tuple[str, str], T], key: tuple[str, str], value: T, size: int) -> None:
    """Put an entry behind all others; beyond the size, the first one goes."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > size:
        entries.popitem(last=False)


@dataclass(slots=True)
class _Failing:
    """A server that failed. It is avoided after `until` as well, until a probe succeeds."""

    wait_s: float
    until: float
    is_avoided: bool = True
    is_probed: bool = False


class CircuitBreaker:
    """The servers whose connections failed lately, each avoided for a time that doubles with each failure.

    A probe ends the avoidance, and a successful call also forgets the failures.
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
