"""The metrics of reconciliations and of their backlog."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

from shared.errors import IntentsUnavailable, LeaseHeld, ServerError
from shared.service.tracing import span

if TYPE_CHECKING:
    from shared.intents.intent import Backlog

RECONCILES = Counter("toolscale_reconciles_total", "Reconciliations by result.", ["result"])
for _result in ("changed", "unchanged", "listing_failed", "not_due", "held", "failed"):
    RECONCILES.labels(_result)  # at 0 from the start, so that an alert sees the first increase
RECONCILE_SECONDS = Histogram(
    "toolscale_reconcile_seconds",
    "Duration of reconciliations with the result changed or unchanged.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class _Counts(Protocol):
    """The tools that a reconciliation wrote and removed."""

    @property
    def written(self) -> int: ...
    @property
    def removed(self) -> int: ...


@contextmanager
def counted_reconcile() -> Generator[Callable[[_Counts | None], None]]:
    """Count a reconciliation by its result; the block passes its counts, or None if none was due, to `done`."""
    started_s, result = time.monotonic(), "failed"  # an interruption too

    def done(counts: _Counts | None) -> None:
        nonlocal result
        if counts is None:
            result = "not_due"
            return
        result = "changed" if counts.written or counts.removed else "unchanged"
        RECONCILE_SECONDS.observe(time.monotonic() - started_s)

    try:
        yield done
    except LeaseHeld:
        result = "held"
        raise
    except ServerError:
        result = "listing_failed"
        raise
    finally:
        RECONCILES.labels(result).inc()


class Stages:
    """The number of stages of reconciliations that ended in this process, roughly: it grows while work goes on."""

    ended = 0


@contextmanager
def stage(name: Literal["fetch", "count", "embed", "upsert"]) -> Generator[None]:
    """Add a stage of a reconciliation to the trace, and count its end, also where it fails."""
    try:
        with span(name):
            yield
    finally:
        Stages.ended += 1


@dataclass(frozen=True, slots=True)
class BacklogGauges:
    """A collector of the backlog in the intent store, read at each scrape."""

    backlog: Callable[[], Backlog]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; if the store does not answer, only `toolscale_intents_up`."""
        name, description = "toolscale_intents_up", "1: the intent store answers; 0: it does not."
        try:
            backlog = self.backlog()
        except IntentsUnavailable:
            yield GaugeMetricFamily(name, description, 0)
            return
        yield GaugeMetricFamily(name, description, 1)
        yield GaugeMetricFamily("toolscale_reconciles_due", "Reconciliations that are due and not sent.", backlog.due)
        yield GaugeMetricFamily("toolscale_reconcile_overdue_seconds", "Delay of the first of them.", backlog.overdue_s)
        yield GaugeMetricFamily("toolscale_dead_letters", "Stored rejected events and messages.", backlog.dead_letters)
