"""The metrics and health checks of a Celery worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.worker import state

from shared.observability.metrics import gauge
from shared.observability.tracing import traceparent
from shared.service.redis import connect
from workers.metrics import LAST_RECONCILE, WorkerMetrics
from workers.monitoring.checks import CHECK_EVERY_S, HealthCheck, PeriodicCheck
from workers.monitoring.progress import WorkerProgress, WorkerSample
from workers.monitoring.queue import SENT_AT, QueueGauges, read_queue, waited_s
from workers.monitoring.redis_memory import RedisMemoryGauges
from workers.monitoring.server import metrics_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig

WRITE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class _LastReconcile:
    """A collector of the time since the last successful reconciliation of this process."""

    metrics: WorkerMetrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds; nothing before the first."""
        if self.metrics.last_reconcile_at is not None:
            yield gauge(LAST_RECONCILE, time.monotonic() - self.metrics.last_reconcile_at)


@contextmanager
def monitored(
    settings: Settings,
    metrics: WorkerMetrics,
    gauges: Iterable[Collector],
    concurrency: int,
    write_index: HealthCheck | None,
    *,
    stuck_after_s: float,
    followed_config: Callable[[], FollowedConfig | None],
) -> Generator[None]:
    """Serve the metrics and checks of this worker until the block ends; without a port, do nothing.

    `gauges` are added to its metrics and those of Redis. `concurrency` is its number of parallel tasks.
    `write_index` writes a small value to the index; it is None if child processes run the reconciliations.
    `stuck_after_s` and `followed_config` are those of `metrics_port`.
    """
    if settings.metrics_port is None or settings.redis_url is None:
        yield
        return
    with ExitStack() as opened:
        client = opened.enter_context(connect(settings.redis_url))
        progress = WorkerProgress(settings.longest_listing_s)
        sample = partial(_sample, progress, client, concurrency, metrics)
        checks = _checks(sample, progress, write_index)
        problems = {name: opened.enter_context(check.running()) for name, check in checks.items()}
        shown: list[Collector] = [QueueGauges(lambda: read_queue(client)), RedisMemoryGauges(client)]
        for collector in (*shown, _LastReconcile(metrics), *gauges):
            metrics.registry.register(collector)
        port = metrics_port(
            settings,
            metrics.registry,
            problems,
            work=problems["tasks"],
            stuck_after_s=stuck_after_s,
            followed_config=followed_config,
        )
        opened.enter_context(port)
        yield


def record_wait(metrics: WorkerMetrics) -> Callable[..., None]:
    """Return a receiver of Celery's `task_prerun` that records the waiting time of each task with a send time."""

    def on_prerun(task: Any = None, **_: Any) -> None:
        sent = task.request.get(SENT_AT)
        if isinstance(sent, int | float):
            metrics.waited(task.name, waited_s(sent))

    return on_prerun


def stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Add the send time and the trace to a message: a receiver of Celery's `before_task_publish`."""
    if headers is not None:
        headers[SENT_AT] = time.time()
        if parent := traceparent():
            headers["traceparent"] = parent


def sample_worker(in_queue: int, concurrency: int, metrics: WorkerMetrics) -> WorkerSample:
    """Return a sample of this process's worker from Celery's state.

    A received task that has not begun, for example in a frozen pool, also counts as waiting.
    """
    begun, received = len(state.active_requests), len(state.reserved_requests)
    # the first of many large reconciliations may take long; their ended stages also count as progress
    ended = state.all_total_count[0] - begun + metrics.steps
    return WorkerSample(in_queue + max(0, received - begun), ended, is_full=begun >= concurrency)


def _sample(progress: WorkerProgress, client: redis.Redis, concurrency: int, metrics: WorkerMetrics) -> None:
    progress.add_sample(sample_worker(read_queue(client).waiting, concurrency, metrics))


def _checks(
    sample: HealthCheck, progress: WorkerProgress, write_index: HealthCheck | None
) -> Mapping[str, PeriodicCheck]:
    checks = {"broker": PeriodicCheck(sample, CHECK_EVERY_S), "tasks": PeriodicCheck(progress.problem, CHECK_EVERY_S)}
    return checks if write_index is None else {**checks, "index": PeriodicCheck(write_index, WRITE_EVERY_S)}
