"""The effects of Celery's signals on a worker: its start, its monitoring and its end."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery, bootsteps, signals
from celery.concurrency.thread import TaskPool as ThreadsPool
from kombu.exceptions import OperationalError
from typing_extensions import override

from shared.service.logging import configure_logging
from shared.service.process import full_environment
from shared.service.tracing import configure_tracing, flush_spans
from shared.upstream.followed_config import followed_config_store
from shared.upstream.mcp_json import ConfigFile
from workers.emit import Emitter
from workers.fetch.interrupt import interrupt_fetches_after
from workers.metrics import BacklogGauges
from workers.monitoring.beat import show_ticks
from workers.monitoring.index import warn_if_index_unreachable
from workers.monitoring.worker import monitored, record_wait, stamp
from workers.sources.mcp_json import ConfigFollower, config_followed
from workers.tasks import SWEEP_INTENTS, send_reconcile

if TYPE_CHECKING:
    from pathlib import Path

    from shared.settings import Settings
    from workers.dependencies import LazyDependencies


class WorkerSignals:
    """Handlers of the signals of one app; what starts when the worker is ready ends at its shutdown."""

    def __init__(self, app: Celery, settings: Settings, lazy: LazyDependencies, stuck_after_s: float) -> None:
        self._app, self._settings, self._lazy, self._stuck_after_s = app, settings, lazy, stuck_after_s
        self._running = ExitStack()
        self._follower: ConfigFollower | None = None

    def connect(self) -> None:
        """Connect all handlers."""
        from workers.broker import keep_refused_messages  # noqa: PLC0415  # loads the Redis client

        for celery_signal, handler in (
            (signals.worker_init, _configure_tracing),
            (signals.celeryd_after_setup, self._check_index),
            (signals.worker_ready, self._on_ready),
            (signals.beat_init, show_ticks(self._settings)),
            (signals.worker_shutting_down, self._on_shutting_down),
            (signals.worker_shutdown, self._on_shutdown),
            (signals.worker_process_shutdown, _send_spans),
            (signals.worker_process_shutdown, self._on_shutdown),
            (signals.setup_logging, self._configure_logging),
            (signals.task_prerun, record_wait),
            (signals.before_task_publish, stamp),
        ):
            celery_signal.connect(handler, weak=False)
        keep_refused_messages(self._lazy.intents)

    def _on_ready(self, sender: Any = None, **_: Any) -> None:
        _sweep_at_start(self._app)
        self._monitor(sender.pool)
        if self._settings.mcp_config:
            self._follower = self._running.enter_context(self._config_followed(self._settings.mcp_config))
        gc.freeze()  # a collection of all objects that the start made delays every reconciliation by 100 ms

    def _monitor(self, pool: Any) -> None:
        monitor = monitored(
            self._settings,
            [BacklogGauges(self._lazy.intents().backlog)],
            pool.limit,
            # the parent of processes opens no index, since its children would share it
            self._lazy.touch_index if isinstance(pool, ThreadsPool) else None,
            stuck_after_s=self._stuck_after_s,
            followed_config=lambda: self._follower.state if self._follower else None,
        )
        self._running.enter_context(monitor)

    @contextmanager
    def _config_followed(self, path: Path) -> Generator[ConfigFollower]:
        redeliver_after_s, send = self._settings.redeliver_after_s, partial(send_reconcile, self._app)
        emitter = Emitter(self._lazy.intents(), send, redeliver_after_s)
        with closing(followed_config_store(self._settings)) as store:
            file = ConfigFile(path, full_environment())
            follower = ConfigFollower(file, emitter.intents, emitter.emit, store)
            with config_followed(follower):
                yield follower

    def _check_index(self, **_: Any) -> None:
        warn_if_index_unreachable(self._settings)

    def _on_shutting_down(self, **_: Any) -> None:
        interrupt_fetches_after(self._settings.shutdown_grace_s)

    def _on_shutdown(self, **_: Any) -> None:
        self._running.close()
        self._lazy.close()

    def _configure_logging(self, **_: Any) -> None:
        configure_logging(self._settings.log_level)


def _configure_tracing(**_: Any) -> None:
    configure_tracing("toolscale-worker", full_environment())


def _send_spans(**_: Any) -> None:
    flush_spans()


def _sweep_at_start(app: Celery) -> None:
    """Send one sweep, so that lost or due work does not wait for beat."""
    try:
        app.send_task(SWEEP_INTENTS)
    except OperationalError as error:
        structlog.get_logger().warning("sweep_failed", reason=str(error))  # beat sends the next


class IgnoresHangup(bootsteps.StartStopStep):
    """Replaces the handler of SIGHUP, by which a worker without a terminal would start again without its secrets."""

    @override
    def start(self, parent: object) -> None:
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            # a handler, since child processes would inherit SIG_IGN
            signal.signal(signal.SIGHUP, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
