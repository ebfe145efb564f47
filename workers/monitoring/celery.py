"""The metrics and health checks of Celery's processes: its workers, and its beat, which sends the sweeps."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker import state
from prometheus_client import Gauge, Histogram

from shared.observability.tracing import traceparent
from shared.service.redis import connect
from workers.monitoring.checks import (
    CHECK_EVERY_S,
    Deadline,
    HealthCheck,
    PeriodicCheck,
    WorkerProgress,
    WorkerSample,
    broker_checked,
)
from workers.monitoring.metrics import SENT_AT, RedisGauges, Stages, read_queue, waited_s

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig

WRITE_EVERY_S = 10.0
# Added to two intervals: Redis may be away for so long without an alert.
LATE_AT_MOST_S = 15.0

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
    from workers.monitoring.port import metrics_port  # noqa: PLC0415  # loads uvicorn; a sender of tasks has no port

    with ExitStack() as opened:
        client = opened.enter_context(connect(settings.redis_url))
        progress = WorkerProgress(settings.longest_listing_s)

        def sample() -> None:
            begun, received = len(state.active_requests), len(state.reserved_requests)
            # a received task that has not begun, for example in a frozen pool, also waits
            waiting = read_queue(client).waiting + max(0, received - begun)
            # the first of many large reconciliations may take long; their ended stages also count as progress
            ended = state.all_total_count[0] - begun + Stages.ended
            progress.add_sample(WorkerSample(waiting, ended, is_full=begun >= concurrency))

        checks = {
            "broker": PeriodicCheck(sample, CHECK_EVERY_S),
            "tasks": PeriodicCheck(progress.problem, CHECK_EVERY_S),
        }
        if write_index:
            checks["index"] = PeriodicCheck(write_index, WRITE_EVERY_S)
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


def show_ticks(settings: Settings, sweep: str) -> Callable[..., None]:
    """Return a receiver of Celery's `beat_init`, which opens the metrics port until the process ends.

    A tick is a message for the task `sweep`.
    """

    def on_init(**_: Any) -> None:
        from workers.monitoring.port import metrics_port  # noqa: PLC0415

        # here, since a worker has no ticks to show
        last_tick = Gauge("toolscale_beat_last_tick_timestamp_seconds", "Time of the last sweep that this beat sent.")
        last_tick.set_to_current_time()
        in_time = Deadline(2 * settings.sweep_interval_s + LATE_AT_MOST_S)

        def on_published(sender: str | None = None, **_: Any) -> None:
            if sender == sweep:  # the broker accepted it
                last_tick.set_to_current_time()
                in_time.touch()

        signals.after_task_publish.connect(on_published, weak=False)
        opened = ExitStack()
        atexit.register(opened.close)
        checks = {"broker": opened.enter_context(broker_checked(settings)), "ticks": in_time.problem}
        opened.enter_context(metrics_port(settings, checks, work=in_time.problem))

    return on_init
