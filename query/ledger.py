"""The baseline's hot path: the servers' own token sums, kept in memory and brought up to date on each use.

Every reconcile writes a server's sums to its record together with a revision, in microseconds since the
epoch, which only grows. So a refresh reads what is newer than the highest revision seen: mostly nothing.
What that misses is looked for now and then, beside the answers, since it takes longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from query.records import Records, summed
from query.savings import UNCOUNTED_SHOWN, Baseline
from shared.catalog import Encoding, Scope, ServerRecord, TokenSum
from shared.errors import IndexUnavailable
from shared.index.contract import ToolIndex

# A revision is assigned before its record is written, so a lower one may become visible after a higher one.
OVERLAP_US = 60_000_000
# Reading the overlap costs as much as there were reconciles in it: too much for each call.
OVERLAP_EVERY_S = 1.0
# Finds what was written later than the overlap reaches back, and what a record says without a new revision.
EVERYTHING_EVERY_S = 60.0

Work = Callable[[], None]


def in_a_thread(work: Work) -> None:
    """Do it beside what goes on; the process does not wait for it to end."""
    threading.Thread(target=work, name="toolscale ledger", daemon=True).start()


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

    A record is in the next baseline. One that was overtaken by a higher revision is looked for every OVERLAP_EVERY_S,
    and one that came more than the overlap late every EVERYTHING_EVERY_S, `beside` the baseline that is asked for:
    it is in the one after. Who has not asked for twice that long waits until everything was read.
    """

    def __init__(
        self,
        index: ToolIndex,
        clock_s: Callable[[], float] = time.monotonic,
        beside: Callable[[Work], None] = in_a_thread,
    ) -> None:
        self._index = index
        self._clock_s = clock_s
        self._beside = beside
        self._refreshing = threading.Lock()
        self._records = Records({})
        self._highest = 0
        self._is_looking = False
        self._news_at_s = self._overlap_read_at_s = self._everything_read_at_s = clock_s()

    def baseline(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return what all tools of the scope cost.

        A scope that divides a server's tools is summed by the index, exactly, which takes longer.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self._refresh()
        if scope.is_of_whole_servers:
            return self._records.baseline(scope, encoding)
        return self._summed(scope, encoding)

    def by_server(self, scope: Scope, encoding: Encoding) -> dict[str, Baseline]:
        """Return what each server's tools in the scope cost, by id; the sum of all is the scope's baseline.

        Raises:
            IndexUnavailable: the records, or the sums over a part of a server's tools, could not be read.
        """
        records = [record for record in self.known(scope) if scope.admits(record)]
        return {record.server_id: self._of_server(record, scope, encoding) for record in records}

    def of_server(self, server_id: str, scope: Scope, encoding: Encoding) -> Baseline:
        """Return what one server's tools in the scope cost, as of the last baseline.

        Raises:
            IndexUnavailable: the sums over a part of the server's tools could not be read.
        """
        record = self._records.by_id.get(server_id)
        return self._of_server(record, scope, encoding) if record and scope.admits(record) else Baseline(0, 0)

    def known(self, scope: Scope) -> list[ServerRecord]:
        """Return the records of all servers in the scope, of whatever status, sorted by id.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self._refresh()
        admitted = (each for each in self._records.by_id.values() if replace(scope, status=each.status).admits(each))
        return sorted(admitted, key=lambda each: each.server_id)

    def servers(self, scope: Scope) -> list[str]:
        """Return the ids of the servers whose tools may lie within the scope, sorted, as of the last baseline."""
        return sorted(server_id for server_id, record in self._records.by_id.items() if scope.admits(record))

    def being_listed(self, scope: Scope) -> int:
        """Return how many servers of the scope were announced and have not been listed yet, as of the last baseline."""
        return self._records.being_listed(scope)

    def stale_since(self, server_id: str) -> float | None:
        """Return since when a server's list could not be renewed, in seconds since the epoch; None: it is fresh.

        As of the last baseline.
        """
        record = self._records.by_id.get(server_id)
        return record.stale_since if record else None

    def audit(self, scope: Scope, encoding: Encoding) -> Audit:
        """Compare the baseline with the index's exact sum, which defines it; they agree once writes pause."""
        return Audit(self.baseline(scope, encoding), self._index.token_sum(scope, encoding))

    def _of_server(self, record: ServerRecord, scope: Scope, encoding: Encoding) -> Baseline:
        if scope.is_of_whole_servers:
            return summed([record], encoding)
        return self._summed(replace(scope, servers=frozenset({record.server_id})), encoding)

    def _summed(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return the exact sum over the tools of a scope that divides some servers' tools."""
        summed = self._index.token_sum(scope, encoding)
        names = self._index.uncounted(scope, encoding, UNCOUNTED_SHOWN) if summed.uncounted else []
        return Baseline(summed.tokens, summed.counted + summed.uncounted, tuple(names), summed.uncounted)

    def _refresh(self) -> None:
        with self._refreshing:
            if self._highest == 0:
                self._everything_read_at_s = self._clock_s()
            self._take(self._index.servers(newer_than=self._highest))
            look = self._look_due()
        if look:
            look()

    def _look_due(self) -> Work | None:
        """Return how to look now for the records that a refresh misses; None while it is too early, or under way."""
        now_s = self._clock_s()
        unread_s = now_s - self._everything_read_at_s
        if unread_s >= 2 * EVERYTHING_EVERY_S:
            return self._read_everything
        if self._is_looking:
            return None
        if unread_s >= EVERYTHING_EVERY_S:
            look = self._read_everything
        elif now_s - self._overlap_read_at_s >= OVERLAP_EVERY_S and now_s - self._news_at_s <= OVERLAP_US / 1e6:
            look = self._read_overlap
        else:
            return None
        self._is_looking = True
        return partial(self._beside, partial(self._look, look))

    def _look(self, look: Work) -> None:
        try:
            with suppress(IndexUnavailable):  # whoever asks next hears of it, and has it looked again
                look()
        finally:
            self._is_looking = False

    def _read_overlap(self) -> None:
        self._overlap_read_at_s = self._clock_s()
        revisions = self._index.revisions(newer_than=max(self._highest - OVERLAP_US, 0))
        missed = [server for server, revision in revisions.items() if revision > self._revision(server)]
        found = [record for server in missed if (record := self._index.server(server))]
        with self._refreshing:
            self._take(self._later(found))

    def _read_everything(self) -> None:
        begun_s, before = self._clock_s(), self._records.by_id
        found = {record.server_id: record for record in self._index.servers()}
        with self._refreshing:
            now = self._records.by_id
            gone = [server for server in before.keys() - found.keys() if now.get(server) is before[server]]
            self._take(self._later(found.values()), gone)
            self._everything_read_at_s = self._overlap_read_at_s = begun_s

    def _later(self, records: Iterable[ServerRecord]) -> list[ServerRecord]:
        """Return those that no later record of the same server has come before."""
        return [record for record in records if record.revision >= self._revision(record.server_id)]

    def _revision(self, server_id: str) -> int:
        record = self._records.by_id.get(server_id)
        return record.revision if record else 0

    def _take(self, records: Sequence[ServerRecord], gone: Collection[str] = ()) -> None:
        self._records = self._records.updated(records, gone)
        highest = max((record.revision for record in records), default=0)
        if highest > self._highest:
            self._highest, self._news_at_s = highest, self._clock_s()
