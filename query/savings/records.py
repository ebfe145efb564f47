"""The server records of one moment, and the token sums of their tools. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice

from query.replicas.sets import ReplicaSets, replica_sets
from query.savings.savings import UNCOUNTED_SHOWN, Baseline
from shared.catalog import Encoding, Scope, ServerRecord

# Callers share a few scopes; a caller with many private scopes only evicts others from the cache.
CACHED_SCOPES = 256


class Records:
    """Server records by id. They never change, so the sums of a scope are cached. Safe to use from several threads.

    `sum_of` returns the cost of all tools of the admitted servers. `costs_in` returns that of each server.
    `being_listed` returns how many of the admitted servers are not listed yet, and of how many. `are_running` returns
    whether there are servers, and all run. `revisions_of` returns the revisions of the admitted servers.
    `replica_sets_of` returns their replica sets, without servers that changed after a revision.
    """

    def __init__(self, by_id: Mapping[str, ServerRecord]) -> None:
        self.by_id = by_id
        self.sum_of: Callable[[Scope, Encoding], Baseline] = lru_cache(CACHED_SCOPES)(partial(_sum_of, by_id))
        self.costs_in: Callable[[Encoding], Mapping[str, Baseline]] = lru_cache(partial(_costs_in, by_id))
        self.being_listed: Callable[[Scope], tuple[int, int]] = lru_cache(CACHED_SCOPES)(partial(_being_listed, by_id))
        self.are_running: Callable[[], bool] = lru_cache(partial(_are_running, by_id))
        self.revisions_of: Callable[[Scope], tuple[int, ...]] = lru_cache(CACHED_SCOPES)(partial(_revisions, by_id))
        self.replica_sets_of: Callable[[Scope, int | None], ReplicaSets] = lru_cache(CACHED_SCOPES)(
            partial(_replica_sets, by_id)
        )

    def updated(self, records: Iterable[ServerRecord], gone: Collection[str] = ()) -> Records:
        """Return these records with `records` replaced and `gone` removed; itself, if nothing differs."""
        changed = {record.server_id: record for record in records if record != self.by_id.get(record.server_id)}
        if not changed and not gone:
            return self
        kept = {server: record for server, record in self.by_id.items() if server not in gone} if gone else self.by_id
        return Records({**kept, **changed})


def summed(records: Iterable[ServerRecord], encoding: Encoding) -> Baseline:
    """Return the cost of these servers' tools; a server that was never listed adds nothing."""
    listed = [record for record in records if record.is_listed]
    uncounted = [record for record in listed if record.uncounted.get(encoding)]
    names = (f"{record.server_id}:{name}" for record in uncounted for name in record.uncounted[encoding])
    return Baseline(
        tokens=sum(record.tokens.get(encoding, 0) for record in listed),
        tools=sum(record.tool_count for record in listed),
        uncounted=tuple(islice(names, UNCOUNTED_SHOWN)),
        model_tokens=sum(record.model_tokens.get(encoding, 0) for record in listed),
        uncounted_total=sum(len(record.uncounted[encoding]) for record in uncounted),
    )


def _sum_of(by_id: Mapping[str, ServerRecord], scope: Scope, encoding: Encoding) -> Baseline:
    return summed((record for record in by_id.values() if scope.admits(record)), encoding)


def _costs_in(by_id: Mapping[str, ServerRecord], encoding: Encoding) -> Mapping[str, Baseline]:
    return {server_id: summed([record], encoding) for server_id, record in by_id.items()}


def _being_listed(by_id: Mapping[str, ServerRecord], scope: Scope) -> tuple[int, int]:
    admitted = [record for record in by_id.values() if scope.admits(record)]
    return sum(not record.is_listed and record.stale_since is None for record in admitted), len(admitted)


def _are_running(by_id: Mapping[str, ServerRecord]) -> bool:
    return bool(by_id) and all(record.status == "running" for record in by_id.values())


def _revisions(by_id: Mapping[str, ServerRecord], scope: Scope) -> tuple[int, ...]:
    return tuple(sorted(record.revision for record in by_id.values() if scope.admits(record)))


def _replica_sets(by_id: Mapping[str, ServerRecord], scope: Scope, until: int | None) -> ReplicaSets:
    return replica_sets(by_id.values(), scope, until)
