"""The Celery app of the workers: its configuration, its tasks, and what its signals start, measure and end.

Any producer can send `toolscale.accept_event` by name, with one CloudEvent object.

The workers rely on intents, not on delivery (see `shared/intents`). These settings make lost messages rare and
redelivery quick; the sweep repairs the rest.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import structlog
from celery import Celery, bootsteps, current_task, signals
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.worker import state
from kombu.exceptions import OperationalError
from prometheus_client import Gauge, Histogram
from typing_extensions import override

from shared.errors import ConfigInvalid, Retryable, ServerError
from shared.intents import times
from shared.service.logging import FailureLog, configure_logging
from shared.service.process import full_environment
from shared.service.redis import check_redis, connect, parse_redis_url
from shared.service.tracing import configure_tracing, flush_spans, traceparent, use_parent_trace
from shared.settings import Settings, warn_of_removed_settings
from shared.upstream.followed_config import FollowedConfig, followed_config_store
from shared.upstream.mcp_json import ConfigFile
from workers.dependencies import LazyDependencies
from workers.emit import Emitter
from workers.fetch.turns import FetchInterrupted, interrupt_fetches_after
from workers.monitoring.checks import (
    CHECK_EVERY_S,
    STUCK_AFTER_S,
    Deadline,
    HealthCheck,
    PeriodicCheck,
    WorkerProgress,
    WorkerSample,
    broker_checked,
    warn_if_index_unreachable,
)
from workers.monitoring.metrics import QUEUE, SENT_AT, BacklogGauges, RedisGauges, Stages, read_queue, waited_s
from workers.sources.mcp_json import ConfigFollower, config_followed
from workers.work import Work, longest_listing_s

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

ACCEPT_EVENT = "toolscale.accept_event"
RECONCILE_SERVER = "toolscale.reconcile_server"
SWEEP_INTENTS = "toolscale.sweep_intents"

# A tick that waited longer is obsolete. Longer than the difference between two machines' clocks, and than the
# reconciliations that were sent before it.
TICK_EXPIRES_S = 600

# Time of a reconciliation after the listing, to count and embed the tools of a large server. Celery enforces it in
# processes (`--pool processes`); in threads, only the listing has a time limit.
WORK_LIMIT_S = 240
HARD_LIMIT_AFTER_S = 15

# A dead worker's message returns after the longest reconciliation and this time, checked at this interval.
VISIBLE_AFTER_S = 30
RESTORE_INTERVAL_S = 5

# A stopping worker gives its listings so long; it finishes writes that have begun. Compose and the chart kill it
# later.
SHUTDOWN_GRACE_S = 30.0

WRITE_EVERY_S = 10.0
# Added to two intervals: Redis may be away for so long without an alert.
LATE_AT_MOST_S = 15.0

WAIT_SECONDS = Histogram(
    "toolscale_task_wait_seconds",
    "Time of tasks between send and start, by the clocks of both machines.",
    ["task"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)


def build_app(settings: Settings, *, stuck_after_s: float = STUCK_AFTER_S) -> Celery:
    """Return the app for these settings; a worker whose tasks stand still for so long asks for a restart.

    Raises:
        ConfigInvalid: REDIS_URL is not set.
    """
    if settings.redis_url is None:
        raise ConfigInvalid("REDIS_URL is not set; workers and their messages need it, `toolscale serve` does not")
    broker_url, transport = parse_redis_url(settings.redis_url).broker()
    app = Celery("toolscale", broker=broker_url)
    app.conf.update(_options(settings, transport))
    lazy = LazyDependencies(settings)
    work = Work(
        *(lazy.intents, lazy.dependencies, partial(send_reconcile, app), partial(waiting, app)),
        message_time_s=times.REDELIVER_AFTER_S,
        sweep_interval_s=times.SWEEP_INTERVAL_S,
    )
    register_tasks(app, work)
    app.steps["worker"].add(IgnoresHangup)
    _connect_signals(app, settings, lazy, stuck_after_s)
    return app


def _options(settings: Settings, transport: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the app, with those of the transport that belong to the broker's URL."""
    task_limit_s = longest_listing_s(settings) + WORK_LIMIT_S
    sweep = {
        "task": SWEEP_INTENTS,
        "schedule": times.SWEEP_INTERVAL_S,
        "options": {"expires": TICK_EXPIRES_S},
    }
    transport = transport | {
        "visibility_timeout": task_limit_s + HARD_LIMIT_AFTER_S + VISIBLE_AFTER_S,
        # kombu restores messages of a dead worker every 100 s by default
        "unacked_restore_interval": RESTORE_INTERVAL_S,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "health_check_interval": 10,
    }
    return {
        "beat_schedule": {"sweep": sweep},
        # the task of a dead worker is delivered again, until its server is parked
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,  # a worker reserves no tasks beyond its threads
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        "task_soft_time_limit": task_limit_s,
        "task_time_limit": task_limit_s + HARD_LIMIT_AFTER_S,
        "task_default_queue": QUEUE,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "worker_pool": "threads",  # reconciliations wait for servers; ONNX Runtime and tiktoken release the GIL
        "worker_concurrency": settings.worker_concurrency,
        "worker_soft_shutdown_timeout": SHUTDOWN_GRACE_S,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def register_tasks(app: Celery, work: Work) -> None:
    """Register the tasks that do this work under their public names."""
    failures = FailureLog("task_failed")

    def accept_event(*args: Any, **kwargs: Any) -> None:
        is_object = len(args) == 1 and not kwargs and isinstance(args[0], dict)
        # the text of other arguments is no valid event
        event = cast("dict[str, Any]", args[0]) if is_object else repr((args, kwargs))
        # continues the trace of its message, as instrumented producers send it
        with use_parent_trace(current_task.request.get("traceparent") if current_task else None):
            work.accept(event)

    def sweep_intents() -> None:
        work.sweep()
        work.maintain()

    def log_failure(failed: Any, error: Exception, *_: Any) -> None:
        if not isinstance(error, ServerError | FetchInterrupted):  # those have a line for each server
            failures.log(error, task=failed.name)

    # not shared: another app in this process has other tasks under these names;
    # no typing: Celery would ask the caller for `self`
    task: Callable[..., Any] = partial(app.task, shared=False, typing=False, on_failure=log_failure)
    # an event that cannot be recorded now is retried until it can
    retried: dict[str, Any] = {"autoretry_for": (Retryable,), "retry_backoff": 2, "retry_backoff_max": 60}
    # no Celery events of these two: they would be most of those; the log and the reconciliations show the outcome
    task(name=ACCEPT_EVENT, max_retries=None, send_events=False, **retried)(accept_event)
    task(name=SWEEP_INTENTS, send_events=False)(sweep_intents)
    task(name=RECONCILE_SERVER, throws=(ServerError, FetchInterrupted))(work.reconcile)


def send_reconcile(app: Celery, server_id: str) -> None:
    """Send a message for this server's reconciliation; its id is the only argument, so Flower shows it."""
    app.send_task(RECONCILE_SERVER, args=[server_id])


def waiting(app: Celery) -> int:
    """Return the number of messages in the queue."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel  # the stubs have no methods of it
        # not passive: Redis has no empty list, so kombu would not find an empty queue
        return int(channel.queue_declare(app.conf.task_default_queue).message_count)


def _connect_signals(app: Celery, settings: Settings, lazy: LazyDependencies, stuck_after_s: float) -> None:
    """Connect the handlers of the app's signals; what starts when the worker is ready ends at its shutdown."""
    from workers.broker import keep_refused_messages  # noqa: PLC0415  # loads the Redis client

    running = ExitStack()

    def on_ready(sender: Any = None, **_: Any) -> None:
        try:
            app.send_task(SWEEP_INTENTS)  # lost or due work does not wait for beat
        except OperationalError as error:
            structlog.get_logger().warning("sweep_failed", reason=str(error))  # beat sends the next
        follower: ConfigFollower | None = None
        monitor = monitored(
            settings,
            [BacklogGauges(lazy.intents().backlog)],
            sender.pool.limit,
            # the parent of processes opens no index, since its children would share it
            lazy.touch_index if isinstance(sender.pool, ThreadsPool) else None,
            stuck_after_s=stuck_after_s,
            followed_config=lambda: follower.state if follower else None,
        )
        running.enter_context(monitor)
        if settings.mcp_config:
            emitter = Emitter(lazy.intents(), partial(send_reconcile, app), times.REDELIVER_AFTER_S)
            store = running.enter_context(closing(followed_config_store(settings)))
            file = ConfigFile(settings.mcp_config, full_environment())
            follower = ConfigFollower(file, emitter.intents, emitter.emit, store)
            running.enter_context(config_followed(follower))
        gc.freeze()  # a collection of all objects that the start made delays every reconciliation by 100 ms

    def on_shutdown() -> None:
        running.close()
        lazy.close()

    def receiver(call: Callable[[], object]) -> Callable[..., None]:
        """Return a receiver that ignores the arguments of its signal."""

        def receive(**_: Any) -> None:
            call()

        return receive

    for celery_signal, handler in (
        (signals.celeryd_after_setup, receiver(partial(_check_broker, settings))),
        (signals.beat_init, receiver(partial(_check_broker, settings))),
        (signals.worker_init, receiver(lambda: configure_tracing("toolscale-worker", full_environment()))),
        (signals.celeryd_after_setup, receiver(lambda: warn_if_index_unreachable(settings))),
        (signals.worker_ready, on_ready),
        (signals.beat_init, show_ticks(settings)),
        (signals.worker_shutting_down, receiver(lambda: interrupt_fetches_after(SHUTDOWN_GRACE_S))),
        (signals.worker_shutdown, receiver(on_shutdown)),
        (signals.worker_process_shutdown, receiver(flush_spans)),
        (signals.worker_process_shutdown, receiver(on_shutdown)),
        (signals.setup_logging, receiver(partial(start_log, settings.log_level))),
        (signals.task_prerun, record_wait),
        (signals.before_task_publish, stamp),
    ):
        celery_signal.connect(handler, weak=False)
    keep_refused_messages(lazy.intents)


def _check_broker(settings: Settings) -> None:
    """End the process where Celery would wait forever for what only a person can mend."""
    try:
        check_redis(settings.redis_url or "")
    except ConfigInvalid as error:
        sys.exit(f"error: {error}")


def start_log(level: str) -> None:
    """Configure the log of this process; its first lines name settings that have no effect any more."""
    configure_logging(level)
    warn_of_removed_settings(full_environment())


class IgnoresHangup(bootsteps.StartStopStep):
    """Replaces the handler of SIGHUP, by which a worker without a terminal would start again without its secrets."""

    @override
    def start(self, parent: object) -> None:
        def ignore(number: int, frame: FrameType | None) -> None:
            pass

        if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            # a handler, since child processes would inherit SIG_IGN
            signal.signal(signal.SIGHUP, ignore)


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
        progress = WorkerProgress(longest_listing_s(settings))

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


def show_ticks(settings: Settings) -> Callable[..., None]:
    """Return a receiver of Celery's `beat_init`, which opens the metrics port until the process ends."""

    def on_init(**_: Any) -> None:
        from workers.monitoring.port import metrics_port  # noqa: PLC0415

        # here, since a worker has no ticks to show
        last_tick = Gauge("toolscale_beat_last_tick_timestamp_seconds", "Time of the last sweep that this beat sent.")
        last_tick.set_to_current_time()
        in_time = Deadline(2 * times.SWEEP_INTERVAL_S + LATE_AT_MOST_S)

        def on_published(sender: str | None = None, **_: Any) -> None:
            if sender == SWEEP_INTENTS:  # the broker accepted it
                last_tick.set_to_current_time()
                in_time.touch()

        signals.after_task_publish.connect(on_published, weak=False)
        opened = ExitStack()
        atexit.register(opened.close)
        checks = {"broker": opened.enter_context(broker_checked(settings)), "ticks": in_time.problem}
        opened.enter_context(metrics_port(settings, checks, work=in_time.problem))

    return on_init
