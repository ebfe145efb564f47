"""The baseline's hot path: the servers' own token sums, kept in memory and brought up to date on each use.

Every reconcile writes a server's sums to its record together with a revision, in microseconds since the
epoch, which only grows. So a refresh reads what is newer than the highest revision seen: mostly nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from query.savings import UNCOUNTED_SHOWN, Baseline
from shared.catalog import Encoding, Scope, ServerRecord, TokenSum
from shared.index.contract import ToolIndex

# A revision is assigned before its record is written, so a lower one may become visible after a higher one.
OVERLAP_US = 60_000_000
# Reading the overlap costs as much as there were reconciles in it: too much for each call.
OVERLAP_EVERY_S = 1.0
# Finds what was written later than the overlap reaches back.
EVERYTHING_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Audit:
    """The ledger's baseline beside the exact sum over the tools themselves, for one scope and encoding."""

    ledger: Baseline
    index: TokenSum

    @property
    def agrees(self) -> bool:
        """Return whether both know the same tokens and as many tools without a count."""
        return (self.ledger.tokens, self.ledger.uncounted_total) == (self.index.tokens, self.index.uncounted)


class Ledger:
    """The server records of an index, as sums for any scope. Safe to call from several threads.

    A record is in the next baseline; one that was overtaken by a higher revision, within OVERLAP_EVERY_S;
    one that came more than the overlap late, within EVERYTHING_EVERY_S.
    """

    def __init__(self, index: ToolIndex, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._index = index
        self._clock_s = clock_s
        self._refreshing = threading.Lock()
        self._records: Mapping[str, ServerRecord] = {}
        self._highest = 0
        self._overlap_read_at_s = self._everything_read_at_s = -math.inf

    def baseline(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return what all tools of the scope cost.

        A scope that divides a server's tools is summed by the index, exactly, which takes longer.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self._refresh()
        if scope.is_of_whole_servers:
            return _baseline([record for record in self._records.values() if scope.admits(record)], encoding)
        return self._summed(scope, encoding)

    def by_server(self, scope: Scope, encoding: Encoding) -> dict[str, Baseline]:
        """Return what each server's tools in the scope cost, by id; the sum of all is the scope's baseline.

        Raises:
            IndexUnavailable: the records, or the sums over a part of a server's tools, could not be read.
        """
        records = [record for record in self.known(scope) if scope.admits(record)]
        return {record.server_id: self._of_server(record, scope, encoding) for record in records}

    def known(self, scope: Scope) -> list[ServerRecord]:
        """Return the records of all servers in the scope, of whatever status, sorted by id.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self._refresh()
        admitted = (each for each in self._records.values() if replace(scope, status=each.status).admits(each))
        return sorted(admitted, key=lambda each: each.server_id)

    def servers(self, scope: Scope) -> list[str]:
        """Return the ids of the servers whose tools may lie within the scope, sorted, as of the last baseline."""
        return sorted(server_id for server_id, record in self._records.items() if scope.admits(record))

    def being_listed(self, scope: Scope) -> int:
        """Return how many servers of the scope were announced and have not been listed yet, as of the last baseline."""
        records = [record for record in self._records.values() if scope.admits(record)]
        return sum(not record.is_listed and record.stale_since is None for record in records)

    def stale_since(self, server_id: str) -> float | None:
        """Return since when a server's list could not be renewed, in seconds since the epoch; None: it is fresh.

        As of the last baseline.
        """
        record = self._records.get(server_id)
        return record.stale_since if record else None

    def audit(self, scope: Scope, encoding: Encoding) -> Audit:
        """Compare the baseline with the index's exact sum, which defines it; they agree once writes pause."""
        return Audit(self.baseline(scope, encoding), self._index.token_sum(scope, encoding))

    def _of_server(self, record: ServerRecord, scope: Scope, encoding: Encoding) -> Baseline:
        if scope.is_of_whole_servers:
            return _baseline([record], encoding)
        return self._summed(replace(scope, servers=frozenset({record.server_id})), encoding)

    def _summed(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return the exact sum over the tools of a scope that divides some servers' tools."""
        summed = self._index.token_sum(scope, encoding)
        names = self._index.uncounted(scope, encoding, UNCOUNTED_SHOWN) if summed.uncounted else []
        return Baseline(summed.tokens, summed.counted + summed.uncounted, tuple(names), summed.uncounted)

    def _refresh(self) -> None:
        with self._refreshing:
            now_s = self._clock_s()
            if now_s - self._everything_read_at_s >= EVERYTHING_EVERY_S:
                self._read(newer_than=0, known={})
                self._everything_read_at_s = self._overlap_read_at_s = now_s
            elif now_s - self._overlap_read_at_s >= OVERLAP_EVERY_S:
                self._read(newer_than=max(self._highest - OVERLAP_US, 0), known=self._records)
                self._overlap_read_at_s = now_s
            else:
                self._read(newer_than=self._highest, known=self._records)

    def _read(self, newer_than: int, known: Mapping[str, ServerRecord]) -> None:
        fresh = {record.server_id: record for record in self._index.servers(newer_than=newer_than)}
        if fresh or not known:
            # replaced, never changed in place: another thread may be summing it
            self._records = {**known, **fresh}
            self._highest = max((self._highest, *(record.revision for record in fresh.values())))


def _baseline(records: Sequence[ServerRecord], encoding: Encoding) -> Baseline:
    records = [record for record in records if record.is_listed]
    names = (f"{record.server_id}:{name}" for record in records for name in record.uncounted.get(encoding, ()))
    return Baseline(
        tokens=sum(record.tokens.get(encoding, 0) for record in records),
        tools=sum(record.tool_count for record in records),
        uncounted=tuple(islice(names, UNCOUNTED_SHOWN)),
        uncounted_total=sum(len(record.uncounted.get(encoding, ())) for record in records),
    )
