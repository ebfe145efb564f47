"""Sampling of the catalogue's size while the service runs, stored by day."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime
from typing import TYPE_CHECKING

import structlog

from query.history.periods import day_of, this_hour
from query.history.store import ALL, SavingsHistory, ServerSize
from shared.catalog import Encoding, Scope
from shared.errors import HistoryUnavailable, IndexUnavailable
from shared.service.every import every

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.savings.ledger import Ledger

SAMPLE_EVERY_S = 10.0
_NOTHING: Mapping[str, ServerSize] = {}

_log = structlog.get_logger()


class CatalogueSampler:
    """Stores the day's cost of every server to a context; a server without tools that can be found has the size 0.

    A sample writes the sizes that changed since the last one, and all of them once a day; their sum goes to the history
    of hours. Replicas read the same records, so their order of writing does not matter.
    """

    def __init__(
        self, ledger: Ledger, history: SavingsHistory, encoding: Encoding, hours: SavingsHistory | None = None
    ) -> None:
        self._ledger, self._history, self._hours = ledger, history, hours
        self._encoding: Encoding = encoding
        self._day: date | None = None
        self._kept = _NOTHING
        self._kept_total: tuple[datetime, ServerSize] | None = None

    def sample(self) -> None:
        """Store the current sizes.

        Raises:
            IndexUnavailable, HistoryUnavailable: the next sample stores them instead.
        """
        hour, sizes = this_hour(), self._sizes()
        day = day_of(hour)
        kept = self._kept if day == self._day else _NOTHING
        changed = {server: size for server, size in sizes.items() if kept.get(server) != size}
        if changed:
            self._history.store_sizes(day, changed)
        self._day, self._kept = day, sizes
        self._sample_hour(hour, sizes.values())

    def _sample_hour(self, hour: datetime, sizes: Collection[ServerSize]) -> None:
        """Store the size of all servers in the history of hours, if it is not there yet."""
        total = ServerSize(sum(size.tools for size in sizes), sum(size.tokens for size in sizes))
        if self._hours and (hour, total) != self._kept_total:
            self._hours.store_sizes(hour, {ALL: total})
            self._kept_total = hour, total

    def _sizes(self) -> dict[str, ServerSize]:
        costs = self._ledger.by_server(Scope(), self._encoding)
        nothing = dict.fromkeys((record.server_id for record in self._ledger.records(Scope())), ServerSize(0, 0))
        return nothing | {server: ServerSize(cost.tools, cost.model_tokens) for server, cost in costs.items()}


@contextmanager
def sampling(catalogue: Catalogue, every_s: float = SAMPLE_EVERY_S) -> Generator[None]:
    """Sample the catalogue's size in a thread until the block ends, and once at the end.

    A catalogue without a recorder is not sampled.
    """
    if catalogue.recorder is None:
        yield
        return
    recorder = catalogue.recorder
    sampler = CatalogueSampler(catalogue.ledger, recorder.history, catalogue.encoding, recorder.hours)
    with every(every_s, sampler.sample, "catalogue_size_not_stored"):
        yield
    with suppress(IndexUnavailable, HistoryUnavailable):
        sampler.sample()
