"""The metrics and health checks of a Celery worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.worker import state
from prometheus_client import Histogram

from shared.service.redis import connect
from shared.service.tracing import traceparent
from workers.metrics import Stages
from workers.monitoring.checks import CHECK_EVERY_S, HealthCheck, PeriodicCheck
from workers.monitoring.progress import WorkerProgress, WorkerSample
from workers.monitoring.queue import SENT_AT, RedisGauges, read_queue, waited_s
from workers.monitoring.server import metrics_port

if TYPE_CHECKING:
    import redis
    from prometheus_client.registry import Collector

    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig

WRITE_EVERY_S = 10.0

WAIT_SECONDS = Histogram(
    "toolscale_task_wait_seconds",
    "Time of tasks between send and start, by the clocks of both machines.",
    ["task"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)


@contextmanager
def monitored(
    settings: Settings,
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
        sample = partial(_sample, progress, client, concurrency)
        checks = _checks(sample, progress, write_index)
        problems = {name: opened.enter_context(check.running()) for name, check in checks.items()}
        port = metrics_port(
            settings,
            problems,
            work=problems["tasks"],
            gauges=(RedisGauges(client), *gauges),
            stuck_after_s=stuck_after_s,
            followed_config=followed_config,
        )
        opened.enter_context(port)
        yield


def record_wait(task: Any = None, **_: Any) -> None:
    """Record the waiting time of a task with a send time: a receiver of Celery's `task_prerun`."""
    sent = task.request.get(SENT_AT)
    if isinstance(sent, int | float):
        WAIT_SECONDS.labels(task.name).observe(waited_s(sent))


def stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Add the send time and the trace to a message: a receiver of Celery's `before_task_publish`."""
    if headers is not None:
        headers[SENT_AT] = time.time()
        if parent := traceparent():
            headers["traceparent"] = parent


def _sample(progress: WorkerProgress, client: redis.Redis, concurrency: int) -> None:
    begun, received = len(state.active_requests), len(state.reserved_requests)
    # a received task that has not begun, for example in a frozen pool, also waits
    waiting = read_queue(client).waiting + max(0, received - begun)
    # the first of many large reconciliations may take long; their ended stages also count as progress
    ended = state.all_total_count[0] - begun + Stages.ended
    progress.add_sample(WorkerSample(waiting, ended, is_full=begun >= concurrency))


def _checks(
    sample: HealthCheck, progress: WorkerProgress, write_index: HealthCheck | None
) -> Mapping[str, PeriodicCheck]:
    checks = {"broker": PeriodicCheck(sample, CHECK_EVERY_S), "tasks": PeriodicCheck(progress.problem, CHECK_EVERY_S)}
    return checks if write_index is None else {**checks, "index": PeriodicCheck(write_index, WRITE_EVERY_S)}
