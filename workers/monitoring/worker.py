"""A Celery worker that is watched: what it counts, what waits for it, and whether it does that."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from celery.concurrency.base import BasePool
from celery.worker import state
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from shared.observability.metrics import gauge
from shared.observability.tracing import traceparent
from workers.intents.redis_store import connect
from workers.metrics import LAST_RECONCILE, WorkerMetrics
from workers.monitoring.checks import PeriodicCheck, Probe
from workers.monitoring.progress import WorkerProgress, WorkerSample
from workers.monitoring.queue import SENT_AT, QueueGauges, read_queue, waited_s
from workers.monitoring.server import metrics_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    from shared.settings import Settings


SAMPLE_EVERY_S = 2.0
WRITE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class LastReconcile:
    """A collector of when this process last ended a look well."""

    metrics: WorkerMetrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds since then; nothing before the first."""
        if self.metrics.last_reconcile_at is not None:
            yield gauge(LAST_RECONCILE, time.monotonic() - self.metrics.last_reconcile_at)


@contextmanager
def monitored(
    settings: Settings,
    metrics: WorkerMetrics,
    gauges: Iterable[Collector],
    concurrency: int,
    write_index: Probe | None,
    environ: Mapping[str, str],
) -> Generator[None]:
    """Serve what this worker says of itself until the block ends; without a port, do nothing.

    `gauges` are shown beside its metrics and the queue. `concurrency` is how many tasks it works on at a time.
    `write_index` is a probe that writes something small to the index, where looks run in this process; where they run
    in others, `environ` says where those keep their counters.
    """
    if settings.metrics_port is None or settings.redis_url is None:
        yield
        return
    with ExitStack() as opened:
        client = opened.enter_context(connect(settings.redis_url))
        progress = WorkerProgress(settings.listing_timeout_s)
        sample = partial(_sample, progress, client, concurrency, metrics)
        checks = _checks(sample, progress, write_index)
        for check in checks.values():
            check.start()
            opened.callback(check.stop)
        registry = of_all_processes(metrics.registry, environ)
        shown: list[Collector] = [QueueGauges(lambda: read_queue(client)), LastReconcile(metrics), *gauges]
        for collector in shown:
            registry.register(collector)
        problems = {name: check.problem for name, check in checks.items()}
        opened.enter_context(metrics_port(settings, registry, problems))
        yield


def record_wait(metrics: WorkerMetrics) -> Callable[..., None]:
    """Return a receiver of Celery's `task_prerun` that notes how long each task waited, where its message says when."""

    def on_prerun(task: Any = None, **_: Any) -> None:
        sent = task.request.get(SENT_AT)
        if isinstance(sent, int | float):
            metrics.waited(task.name, waited_s(sent))

    return on_prerun


def stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Write into a message when it is sent: a receiver of Celery's `before_task_publish`."""
    if headers is not None:
        headers[SENT_AT] = time.time()
        if parent := traceparent():
            headers["traceparent"] = parent


def sample_worker(in_queue: int, concurrency: int, metrics: WorkerMetrics) -> WorkerSample:
    """Return this process's worker as Celery sees it.

    What was received and not begun, as by a pool that is frozen, waits too.
    """
    begun, received = len(state.active_requests), len(state.reserved_requests)
    # many large looks side by side may take long until the first ends; their stages tell that they move
    ended = state.all_total_count[0] - begun + metrics.steps
    return WorkerSample(in_queue + max(0, received - begun), ended, is_full=begun >= concurrency)


def _sample(progress: WorkerProgress, client: redis.Redis, concurrency: int, metrics: WorkerMetrics) -> None:
    progress.add_sample(sample_worker(read_queue(client).waiting, concurrency, metrics))


def _checks(sample: Probe, progress: WorkerProgress, write_index: Probe | None) -> Mapping[str, PeriodicCheck]:
    checks = {"broker": PeriodicCheck(sample, SAMPLE_EVERY_S), "tasks": PeriodicCheck(progress.problem, SAMPLE_EVERY_S)}
    return checks if write_index is None else {**checks, "index": PeriodicCheck(write_index, WRITE_EVERY_S)}


# Read by prometheus_client itself, when it is imported: counters and histograms are then kept in files there.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def of_all_processes(own: CollectorRegistry, environ: Mapping[str, str]) -> CollectorRegistry:
    """Return what a worker shows: all that it and its processes counted, where files are kept of it; else its own."""
    directory = environ.get(DIRECTORY)
    if not directory:
        return own
    together = CollectorRegistry()
    MultiProcessCollector(together, directory)  # type: ignore[no-untyped-call]  # the package leaves its types out
    return together


def warn_of_uncounted_reconciles(pool: BasePool, environ: Mapping[str, str]) -> None:
    """Say so where looks run in processes whose counters nobody will read."""
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415  # who runs threads needs none of it

    if isinstance(pool, TaskPool) and not environ.get(DIRECTORY):
        structlog.get_logger().warning("multiprocess_metrics_disabled", needed=DIRECTORY)
