"""The metrics of the write side, and the gauges of its backlog."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from prometheus_client import CollectorRegistry

from shared.errors import IntentsUnavailable, LeaseHeld, ServerError
from shared.observability.metrics import Metric, counter, gauge, histogram
from shared.observability.tracing import span
from shared.observability.unreadable import UNREADABLE

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

    from shared.intents.intent import Backlog

Stage = Literal["fetch", "count", "embed", "upsert"]
EventResult = Literal["recorded", "refused", "not_recorded"]
AuditResult = Literal["equal", "differs", "skipped"]

EVENTS = Metric(
    "toolscale_events_total",
    "counter",
    "events",
    "Events at this process by type (`up`, `down`, `changed`, `unknown`) and outcome: `recorded`, `refused`, or "
    "`not_recorded` since the intent store did not answer.",
    ("type", "outcome"),
)
EVENTS_API_REQUESTS = Metric(
    "toolscale_events_api_requests_total",
    "counter",
    "requests",
    "Requests at `/events` by status: `202`: all recorded; `207`: some recorded, the others rejected; `400`: all "
    "rejected; `401`: no valid token; `408`, `413`, `415`: unusable; `503`: not recorded, send again.",
    ("status",),
)
RECONCILES = Metric(
    "toolscale_reconciles_total",
    "counter",
    "reconciles",
    "Reconciliations by result: `changed`; `unchanged`, also for a server that is down; `listing_failed`: no complete "
    "list; `not_due`: no change requested, or the server is parked; `held`: another run has the lease; "
    "`failed`: an internal error.",
    ("result",),
)
RECONCILE_SECONDS = Metric(
    "toolscale_reconcile_seconds",
    "histogram",
    "seconds",
    "Duration of reconciliations with result `changed` or `unchanged`.",
)
STAGE_SECONDS = Metric(
    "toolscale_stage_seconds",
    "histogram",
    "seconds",
    "Duration of a stage of a reconciliation: `fetch` is the whole list; `count`, `embed` and `upsert` are up to "
    "64 tools.",
    ("stage",),
)
TOOL_CHANGES = Metric(
    "toolscale_tool_changes_total",
    "counter",
    "tools",
    "Differences between a server's tools and the index: `added`, `changed` or `removed`.",
    ("change",),
)
SWEEPS = Metric("toolscale_sweeps_total", "counter", "sweeps", "Sweeps that this process ran.")
SWEPT = Metric(
    "toolscale_swept_servers_total", "counter", "servers", "Servers for which a sweep sent a reconciliation."
)
AUDITS = Metric(
    "toolscale_audits_total",
    "counter",
    "audits",
    "Comparisons of a server record with the counts of its tools by result: `equal`; `differs`: the tools are counted "
    "again; `skipped`: the tools are being written, or wait for a reconciliation.",
    ("result",),
)
TASK_WAIT_SECONDS = Metric(
    "toolscale_task_wait_seconds",
    "histogram",
    "seconds",
    "Time of tasks between send and start, by the clocks of both machines.",
    ("task",),
)
LAST_RECONCILE = Metric(
    "toolscale_last_reconcile_seconds",
    "gauge",
    "seconds",
    "Seconds since this process last completed a reconciliation without an error; absent before the first.",
)
INTENTS_UP = Metric("toolscale_intents_up", "gauge", "boolean", "1: the intent store answers; 0: it does not.")
SERVERS_ANNOUNCED = Metric("toolscale_servers_announced", "gauge", "servers", "Servers with an intent.")
RECONCILES_DUE = Metric(
    "toolscale_reconciles_due", "gauge", "reconciles", "Reconciliations that are due and that no sweep has sent yet."
)
RECONCILE_OVERDUE = Metric(
    "toolscale_reconcile_overdue_seconds",
    "gauge",
    "seconds",
    "Delay of the first reconciliation that is due and not yet sent.",
)
DEAD_LETTER_COUNT = Metric("toolscale_dead_letters", "gauge", "messages", "Stored rejected events and messages.")

METRICS = (
    *(EVENTS, EVENTS_API_REQUESTS, RECONCILES, RECONCILE_SECONDS, STAGE_SECONDS, TOOL_CHANGES),
    *(SWEEPS, SWEPT, AUDITS, TASK_WAIT_SECONDS, LAST_RECONCILE),
    *(INTENTS_UP, SERVERS_ANNOUNCED, RECONCILES_DUE, RECONCILE_OVERDUE, DEAD_LETTER_COUNT),
)


class _ReconcileCounts(Protocol):
    """The tools that a reconciliation wrote (of those, added) and removed."""

    @property
    def added(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def removed(self) -> int: ...


class WorkerMetrics:
    """The counters and timers of one process of the write side. Safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Start at 0, in a new registry by default."""
        self.registry = CollectorRegistry() if registry is None else registry
        self.last_reconcile_at: float | None = None
        self.steps = 0
        """Ended stages of reconciliations, roughly: monitoring compares it to see that work goes on."""
        self.registry.register(UNREADABLE)
        self._events = counter(EVENTS, self.registry)
        self._events_api_requests = counter(EVENTS_API_REQUESTS, self.registry)
        self._reconciles = counter(RECONCILES, self.registry)
        self._reconcile_seconds = histogram(RECONCILE_SECONDS, self.registry)
        self._stage_seconds = histogram(STAGE_SECONDS, self.registry)
        self._tool_changes = counter(TOOL_CHANGES, self.registry)
        self._sweeps = counter(SWEEPS, self.registry)
        self._swept = counter(SWEPT, self.registry)
        self._audits = counter(AUDITS, self.registry)
        self._audits.labels("differs")  # shown as 0, so that an alert sees the first increase
        self._task_wait_seconds = histogram(TASK_WAIT_SECONDS, self.registry)

    def event(self, kind: str, outcome: EventResult) -> None:
        """Count an event; `kind` is the last part of its type, or `unknown`."""
        self._events.labels(kind, outcome).inc()

    def events_response(self, status: int) -> None:
        """Count a request at the events API by the status of its response."""
        self._events_api_requests.labels(str(status)).inc()

    @contextmanager
    def stage(self, stage: Stage) -> Generator[None]:
        """Time a stage of a reconciliation, also one that fails, and add it to the trace."""
        try:
            with span(stage), self._stage_seconds.labels(stage).time():
                yield
        finally:
            self.steps += 1

    @contextmanager
    def reconcile(self) -> Generator[Callable[[_ReconcileCounts | None], None]]:
        """Count a reconciliation by its result; the block passes its counts, or None if none was due, to `done`."""
        started = time.monotonic()
        results: list[_ReconcileCounts | None] = []
        try:
            yield results.append
        except LeaseHeld:
            self._reconciles.labels("held").inc()
            raise
        except ServerError:
            self._reconciles.labels("listing_failed").inc()
            raise
        except BaseException:  # an interruption counts too
            self._reconciles.labels("failed").inc()
            raise
        for result in results:
            self._count_result(result, time.monotonic() - started)

    def swept(self, servers: int) -> None:
        """Count a sweep, and the reconciliations that it sent."""
        self._sweeps.inc()
        self._swept.inc(servers)

    def audited(self, result: AuditResult) -> None:
        """Count an audit of a server."""
        self._audits.labels(result).inc()

    def waited(self, task: str, seconds: float) -> None:
        """Record the wait of a task; a negative one, from clocks that differ, counts as 0."""
        self._task_wait_seconds.labels(task).observe(max(seconds, 0.0))

    def _count_result(self, result: _ReconcileCounts | None, seconds: float) -> None:
        if result is None:
            self._reconciles.labels("not_due").inc()
            return
        self.last_reconcile_at = time.monotonic()
        self._reconcile_seconds.observe(seconds)
        changes = {"added": result.added, "changed": result.written - result.added, "removed": result.removed}
        self._reconciles.labels("changed" if any(changes.values()) else "unchanged").inc()
        for change, tools in changes.items():
            self._tool_changes.labels(change).inc(tools)


@dataclass(frozen=True, slots=True)
class BacklogGauges:
    """A collector of the backlog in the intent store, read at each scrape."""

    backlog: Callable[[], Backlog]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; if the store does not answer, only `toolscale_intents_up`."""
        try:
            backlog = self.backlog()
        except IntentsUnavailable:
            yield gauge(INTENTS_UP, 0)
            return
        yield gauge(INTENTS_UP, 1)
        yield gauge(SERVERS_ANNOUNCED, backlog.servers)
        yield gauge(RECONCILES_DUE, backlog.due)
        yield gauge(RECONCILE_OVERDUE, backlog.overdue_s)
        yield gauge(DEAD_LETTER_COUNT, backlog.dead_letters)
