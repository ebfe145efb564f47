"""Sampling of the catalogue's size while the service runs, stored by day."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from typing import TYPE_CHECKING

import structlog

from query.history.periods import today
from query.history.store import SavingsHistory, ServerSize
from shared.catalog import Encoding, Scope
from shared.errors import HistoryUnavailable, IndexUnavailable
from shared.service.every import every

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.records import Ledger

SAMPLE_EVERY_S = 10.0
_NOTHING: Mapping[str, ServerSize] = {}

_log = structlog.get_logger()


class CatalogueSampler:
    """Stores the day's cost of every server to a context; a server without tools that can be found has the size 0.

    A sample writes the sizes that changed since the last one, and all of them once a day. Replicas read the same
    records, so their order of writing does not matter.
    """

    def __init__(self, ledger: Ledger, history: SavingsHistory, encoding: Encoding) -> None:
        self._ledger, self._history = ledger, history
        self._encoding: Encoding = encoding
        self._day: date | None = None
        self._kept = _NOTHING

    def sample(self) -> None:
        """Store the current sizes.

        Raises:
            IndexUnavailable, HistoryUnavailable: the next sample stores them instead.
        """
        day, sizes = today(), self._sizes()
        kept = self._kept if day == self._day else _NOTHING
        changed = {server: size for server, size in sizes.items() if kept.get(server) != size}
        if changed:
            self._history.store_sizes(day, changed)
        self._day, self._kept = day, sizes

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
    sampler = CatalogueSampler(catalogue.ledger, catalogue.recorder.history, catalogue.encoding)
    with every(every_s, sampler.sample, "catalogue_size_not_stored"):
        yield
    with suppress(IndexUnavailable, HistoryUnavailable):
        sampler.sample()
