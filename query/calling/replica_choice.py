"""The choice of a replica for a call. No I/O here."""

from __future__ import annotations

import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from query.calling.breaker import CircuitBreaker
from shared.catalog import ServerRecord

GIVEN_UP_S = 60.0


class ReplicaChoice:
    """Chooses the replica for a call, and counts the calls in flight. Not safe for other threads.

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
