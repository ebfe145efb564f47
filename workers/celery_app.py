"""The configuration of the workers' Celery app.

The workers rely on intents, not on delivery (see `workers/intents`). These settings make lost messages rare and
redelivery quick; the sweep repairs the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from celery import Celery, signals
from celery.concurrency.thread import TaskPool as ThreadsPool
from kombu.exceptions import OperationalError

from shared.errors import IndexUnavailable
from shared.observability.logging import configure_logging
from shared.observability.tracing import configure_tracing, flush_spans
from shared.service.protection import full_environment
from shared.service.redis import parse_redis_url
from shared.settings import Settings
from shared.upstream.config_file import ConfigFile
from shared.upstream.followed_config import followed_config_store
from workers.broker.hangup import IgnoresHangup
from workers.dependencies import Dependencies, open_dependencies
from workers.emit import Emitter
from workers.fetch.interrupt import interrupt_fetches_after
from workers.intents import open_intents
from workers.intents.store import IntentStore
from workers.maintenance.rebuild import rebuild_if_lost
from workers.metrics import BacklogGauges, WorkerMetrics
from workers.monitoring.beat import show_ticks
from workers.monitoring.index import warn_if_index_unreachable
from workers.monitoring.queue import QUEUE
from workers.monitoring.server import STUCK_AFTER_S
from workers.monitoring.worker import monitored, record_wait, stamp, warn_of_uncounted_reconciles
from workers.sources.mcp_json import ConfigFollower, config_followed
from workers.sources.metrics import SourceMetrics
from workers.tasks import SWEEP_INTENTS, TICK_EXPIRES_S, Tasks, send_reconcile

# An in-memory broker is polled; kombu's default of one second would make four tasks a second.
MEMORY_POLLING_S = 0.01

# Time of a reconciliation after the listing, to count and embed the tools of a large server. Celery enforces it in
# processes (`--pool processes`); in threads, only the listing has a time limit.
WORK_LIMIT_S = 240
HARD_LIMIT_AFTER_S = 15

# A dead worker's message returns after the longest reconciliation and this time, checked at this interval.
VISIBLE_AFTER_S = 30
RESTORE_INTERVAL_S = 5


class LazyDependencies:
    """Opens the dependencies once, on first use in this process, and closes them at its end."""

    def __init__(self, settings: Settings, metrics: WorkerMetrics, overrides: Dependencies | None = None) -> None:
        self._settings = settings
        self._metrics = metrics
        self._opened = overrides
        self._intents: IntentStore | None = overrides.intents if overrides else None
        self._opening = threading.RLock()
        # a separate lock: opening the index may wait for a server that does not answer
        self._opening_intents = threading.Lock()

    def intents(self) -> IntentStore:
        """Return the intent store, without opening the index: events are recorded when the index does not answer."""
        with self._opening_intents:
            if self._intents is None:
                self._intents = open_intents(self._settings)
            return self._intents

    def dependencies(self) -> Dependencies:
        """Return the opened dependencies; the first call requests the model of the settings."""
        with self._opening:
            if self._opened is None:
                self._opened = open_dependencies(self._settings, self.intents(), self._metrics)
                with suppress(IndexUnavailable):  # as the sweep does; before any reconciliation, fewer are needed
                    if self._opened.versions:
                        rebuild_if_lost(self._opened.versions, self._opened.intents)
            opened = self._opened
        if opened.rollout:
            opened.rollout.request_once()
        return opened

    def touch_index(self) -> None:
        """Write a point without readers.

        Raises:
            IndexUnavailable: the index accepts no writes.
        """
        versions = self.dependencies().versions
        if versions:
            versions.store.check_writable()

    def close(self) -> None:
        """Close the opened stores in reverse order."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None
        with self._opening_intents:
            if self._intents is not None:
                self._intents.close()
            self._intents = None


def build_app(
    settings: Settings, overrides: Dependencies | None = None, *, stuck_after_s: float = STUCK_AFTER_S
) -> Celery:
    """Return the app for these settings; tasks use `overrides` if given, and the caller closes them.

    A worker whose tasks stand still for `stuck_after_s` seconds asks for a restart.
    """
    broker_url, _ = _broker(settings)
    app = Celery("toolscale", broker=broker_url)
    metrics = overrides.metrics if overrides else WorkerMetrics()
    lazy = LazyDependencies(settings, metrics, overrides)
    app.conf.update(_delivery_options(settings), **_schedule(settings), **_worker_options(settings))
    tasks = Tasks(app, lazy.intents, lazy.dependencies, settings.redeliver_after_s, metrics, settings.sweep_interval_s)
    tasks.register()
    if overrides is None:
        app.steps["worker"].add(IgnoresHangup)
        _connect_signals(app, settings, lazy, metrics, stuck_after_s)
    return app


def _broker(settings: Settings) -> tuple[str, dict[str, Any]]:
    """Return the broker's URL and the transport options that belong to it."""
    return parse_redis_url(settings.redis_url).broker() if settings.redis_url else ("memory://localhost/", {})


def _delivery_options(settings: Settings) -> dict[str, Any]:
    transport: dict[str, Any] = {"polling_interval": MEMORY_POLLING_S}
    if settings.redis_url:
        transport = _broker(settings)[1] | {
            "visibility_timeout": _task_limit_s(settings) + HARD_LIMIT_AFTER_S + VISIBLE_AFTER_S,
            # kombu restores messages of a dead worker every 100 s by default
            "unacked_restore_interval": RESTORE_INTERVAL_S,
            "unacked_restore_throttle": 1,
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "health_check_interval": 10,
        }
    return {
        # the task of a dead worker is delivered again, until its server is parked
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,  # a worker reserves no tasks beyond its threads
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        "task_soft_time_limit": _task_limit_s(settings),
        "task_time_limit": _task_limit_s(settings) + HARD_LIMIT_AFTER_S,
    }


def _task_limit_s(settings: Settings) -> float:
    return settings.longest_listing_s + WORK_LIMIT_S


def _schedule(settings: Settings) -> dict[str, Any]:
    return {
        "beat_schedule": {
            "sweep": {
                "task": SWEEP_INTENTS,
                "schedule": settings.sweep_interval_s,
                "options": {"expires": TICK_EXPIRES_S},
            }
        }
    }


def _worker_options(settings: Settings) -> dict[str, Any]:
    return {
        "task_default_queue": QUEUE,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "worker_pool": "threads",  # reconciliations wait for servers; ONNX Runtime and tiktoken release the GIL
        "worker_concurrency": settings.worker_concurrency,
        "worker_soft_shutdown_timeout": settings.shutdown_grace_s,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _connect_signals(
    app: Celery, settings: Settings, lazy: LazyDependencies, metrics: WorkerMetrics, stuck_after_s: float
) -> None:
    running = ExitStack()
    sources = SourceMetrics(metrics.registry)

    def on_ready(sender: Any = None, **_: Any) -> None:
        _sweep_at_start(app)
        # the parent of processes opens no index, since its children would share it
        touch_index = lazy.touch_index if isinstance(sender.pool, ThreadsPool) else None
        gauges, limit = (BacklogGauges(lazy.intents().backlog), sources), sender.pool.limit
        follower: ConfigFollower | None = None
        monitor = monitored(
            settings,
            metrics,
            gauges,
            limit,
            touch_index,
            os.environ,
            stuck_after_s=stuck_after_s,
            followed_config=lambda: follower.state if follower else None,
        )
        running.enter_context(monitor)
        if settings.metrics_port is not None:
            warn_of_uncounted_reconciles(sender.pool, os.environ)
        if settings.mcp_config:
            emitter = Emitter(lazy.intents(), partial(send_reconcile, app), settings.redeliver_after_s, metrics)
            follower = running.enter_context(_config_followed(settings.mcp_config, settings, emitter, sources))

    def on_init(**_: Any) -> None:
        configure_tracing("toolscale-worker", full_environment())

    def on_shutting_down(**_: Any) -> None:
        interrupt_fetches_after(settings.shutdown_grace_s)

    def on_shutdown(**_: Any) -> None:
        running.close()
        lazy.close()

    def on_logging(**_: Any) -> None:
        configure_logging(settings.log_level)

    signals.worker_init.connect(on_init, weak=False)
    signals.celeryd_after_setup.connect(_index_check(settings), weak=False)
    signals.worker_ready.connect(on_ready, weak=False)
    signals.beat_init.connect(show_ticks(settings), weak=False)
    signals.worker_shutting_down.connect(on_shutting_down, weak=False)
    signals.worker_shutdown.connect(on_shutdown, weak=False)
    signals.worker_process_shutdown.connect(_send_spans, weak=False)
    signals.worker_process_shutdown.connect(on_shutdown, weak=False)
    signals.setup_logging.connect(on_logging, weak=False)
    signals.task_prerun.connect(record_wait(metrics), weak=False)
    signals.before_task_publish.connect(stamp, weak=False)
    _keep_refused_messages(lazy)


@contextmanager
def _config_followed(
    path: Path, settings: Settings, emitter: Emitter, sources: SourceMetrics
) -> Generator[ConfigFollower]:
    with closing(followed_config_store(settings)) as store:
        file = ConfigFile(path, full_environment())
        follower = ConfigFollower(file, emitter.intents, emitter.emit, store, sources)
        with config_followed(follower):
            yield follower


def _keep_refused_messages(lazy: LazyDependencies) -> None:
    from workers.broker.dead_letters import keep_refused_messages  # noqa: PLC0415  # loads the Redis client

    keep_refused_messages(lazy.intents)


def _index_check(settings: Settings) -> Callable[..., None]:
    def on_setup(**_: Any) -> None:
        warn_if_index_unreachable(settings)

    return on_setup


def _send_spans(**_: Any) -> None:
    flush_spans()


def _sweep_at_start(app: Celery) -> None:
    """Send one sweep, so that lost or due work does not wait for beat."""
    try:
        app.send_task(SWEEP_INTENTS)
    except OperationalError as error:
        structlog.get_logger().warning("sweep_failed", reason=str(error))  # beat sends the next
