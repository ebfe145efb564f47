"""The choice of a replica for a call, from how the servers answered earlier ones. No I/O here."""

from __future__ import annotations

import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from shared.catalog import ServerRecord

GIVEN_UP_S = 60.0
# A server that fails is avoided for the first of these times, then for twice as long, up to the second.
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0


class ReplicaChoice:
    """Chooses the replica for a call, and counts the calls in flight.

    Avoided servers come last, and before them those that the caller gave up on. Of the others, the order is: not
    stale, the caller's last replica, and fewest calls in flight. Chance decides between equals.
    """

    def __init__(self, last_used: LastReplicas, given_up: GivenUp, breaker: CircuitBreaker) -> None:
        self._last_used = last_used
        self._given_up = given_up
        self._breaker = breaker
        self._in_flight: Counter[str] = Counter()

    def choose(self, replicas: Sequence[ServerRecord], caller: str) -> ServerRecord:
        """Return the best of these replicas; if all are avoided, the one whose time ends first."""
        last = self._last_used.of(caller, replicas)
        ranks = [
            (
                self._avoided(replica),
                self._given_up.has(caller, replica),
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

    def _avoided(self, replica: ServerRecord) -> float:
        avoided_until = self._breaker.avoided_until(replica.server_id)
        return float("-inf") if avoided_until is None else avoided_until


class LastReplicas:
    """The replica that each caller used last, of servers with sessions: the session may hold the caller's state.

    An entry expires `keep_s` seconds after its last use, when the connection may be closed. At most `size` are kept.
    """

    def __init__(self, keep_s: float, size: int = 10_000, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._size = size
        self._clock_s = clock_s
        self._entries: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def of(self, caller: str, replicas: Sequence[ServerRecord]) -> frozenset[str]:
        """Return the servers that the caller used last, for each catalogue of these replicas."""
        now = self._clock_s()
        used = (self._entries.get((caller, digest)) for digest in {replica.catalog_digest for replica in replicas})
        return frozenset(server_id for server_id, until in filter(None, used) if now < until)

    def remember(self, caller: str, replica: ServerRecord) -> None:
        """Note a use; newer protocol versions have no sessions."""
        if replica.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            key = caller, replica.catalog_digest
            self._entries[key] = replica.server_id, self._clock_s() + self._keep_s
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def forget(self, caller: str, replica: ServerRecord) -> None:
        """Forget that the caller used this replica last."""
        server_id, _ = self._entries.get((caller, replica.catalog_digest), (None, 0.0))
        if server_id == replica.server_id:
            del self._entries[caller, replica.catalog_digest]


class GivenUp:
    """The replicas that sent nothing before a caller cancelled its call; only this caller avoids them, for a minute.

    The server may be healthy and slow, so the calls of others do not avoid it. At most `size` are kept.
    """

    def __init__(self, size: int = 10_000, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock_s = clock_s
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def has(self, caller: str, replica: ServerRecord) -> bool:
        """Return whether the caller gave up on the replica lately."""
        return self._clock_s() < self._until.get((caller, replica.server_id), 0.0)

    def add(self, caller: str, replica: ServerRecord) -> None:
        """Note that the caller gave up on the replica."""
        key = caller, replica.server_id
        self._until[key] = self._clock_s() + GIVEN_UP_S
        self._until.move_to_end(key)
        if len(self._until) > self._size:
            self._until.popitem(last=False)


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
