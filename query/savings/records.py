"""The server records of one moment, and what their tools cost together. No I/O here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from heapq import nlargest
from itertools import islice

from query.savings.savings import LARGEST, UNCOUNTED_SHOWN, Baseline
from shared.catalog import Encoding, Scope, ServerRecord

# Callers share a few scopes; one that narrows its own at will only has others summed again.
SCOPES_REMEMBERED = 256


class Records:
    """Server records by id. They never change, so each scope is summed once. Safe to ask from several threads."""

    def __init__(self, by_id: Mapping[str, ServerRecord]) -> None:
        self.by_id = by_id
        remembered = lru_cache(SCOPES_REMEMBERED)
        self._baseline = remembered(partial(_baseline, by_id))
        self._being_listed = remembered(partial(_being_listed, by_id))

    def baseline(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return what all tools of the admitted servers cost."""
        return self._baseline(scope, encoding)

    def being_listed(self, scope: Scope) -> int:
        """Return how many admitted servers were announced and have not been listed yet."""
        return self._being_listed(scope)

    def updated(self, records: Iterable[ServerRecord], gone: Collection[str] = ()) -> Records:
        """Return these records, and of other servers those that were here and are not gone; itself, if that is all."""
        changed = {record.server_id: record for record in records if record != self.by_id.get(record.server_id)}
        if not changed and not gone:
            return self
        kept = {server: record for server, record in self.by_id.items() if server not in gone} if gone else self.by_id
        return Records({**kept, **changed})


def summed(records: Iterable[ServerRecord], encoding: Encoding) -> Baseline:
    """Return what the tools of these servers cost; of a server that was never listed, none are known."""
    listed = [record for record in records if record.is_listed]
    uncounted = [record for record in listed if record.uncounted.get(encoding)]
    names = (f"{record.server_id}:{name}" for record in uncounted for name in record.uncounted[encoding])
    return Baseline(
        tokens=sum(record.tokens.get(encoding, 0) for record in listed),
        tools=sum(record.tool_count for record in listed),
        uncounted=tuple(islice(names, UNCOUNTED_SHOWN)),
        uncounted_total=sum(len(record.uncounted[encoding]) for record in uncounted),
        largest={record.server_id: record.tokens.get(encoding, 0) for record in _largest(listed, encoding)},
    )


def _largest(records: Iterable[ServerRecord], encoding: Encoding) -> list[ServerRecord]:
    return nlargest(LARGEST, records, key=lambda record: record.tokens.get(encoding, 0))


def _baseline(by_id: Mapping[str, ServerRecord], scope: Scope, encoding: Encoding) -> Baseline:
    return summed((record for record in by_id.values() if scope.admits(record)), encoding)


def _being_listed(by_id: Mapping[str, ServerRecord], scope: Scope) -> int:
    awaited = [record for record in by_id.values() if not record.is_listed and record.stale_since is None]
    return sum(scope.admits(record) for record in awaited)
