"""A Celery worker that is watched: what it counts, what waits for it, and whether it does that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from celery.worker import state

from shared.errors import ConfigInvalid
from shared.metrics import gauge
from shared.tracing import traceparent
from workers.intents.redis_store import connect
from workers.metrics import LAST_LOOK, BacklogGauges, WorkerMetrics
from workers.monitoring.checks import Check, Probe
from workers.monitoring.consumption import Consumption, Seen
from workers.monitoring.queue import SENT_AT, QueueGauges, read_queue, waited_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from prometheus_client.metrics_core import GaugeMetricFamily

    from shared.settings import Settings
    from workers.intents.contract import IntentStore

LOOK_EVERY_S = 2.0
WRITE_EVERY_S = 10.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LastLook:
    """A collector of when this process last ended a look well."""

    metrics: WorkerMetrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds since then; nothing before the first."""
        if self.metrics.last_look_at is not None:
            yield gauge(LAST_LOOK, time.monotonic() - self.metrics.last_look_at)


@contextmanager
def monitored(
    settings: Settings, metrics: WorkerMetrics, intents: IntentStore, concurrency: int, write_index: Probe | None
) -> Generator[None]:
    """Serve what this worker says of itself until the block ends; without a port, do nothing.

    `concurrency` is how many tasks it works on at a time. `write_index` is a probe that writes something small to the
    index, where looks run in this process.
    """
    if settings.monitor_port is None or settings.redis_url is None:
        yield
        return
    from workers.monitoring.http import monitor_app, served  # noqa: PLC0415  # who only sends tasks serves nothing

    try:
        listener = bind(settings.monitor_host, settings.monitor_port)
    except ConfigInvalid as error:  # a worker is worth more than what it says of itself
        _log.error("monitor_not_opened", reason=str(error))  # the reason is the whole story
        yield
        return
    with ExitStack() as opened:
        opened.enter_context(closing(listener))
        client = opened.enter_context(connect(settings.redis_url))
        checks = _checks(settings.listing_timeout_s, concurrency, client, write_index)
        for check in checks.values():
            check.start()
            opened.callback(check.stop)
        metrics.registry.register(QueueGauges(lambda: read_queue(client)))
        metrics.registry.register(BacklogGauges(intents.backlog))
        metrics.registry.register(LastLook(metrics))
        app = monitor_app(metrics.registry, {name: check.trouble for name, check in checks.items()})
        opened.enter_context(served(app, listener))
        _log.info("monitor_opened", port=listener.getsockname()[1])
        yield


def note_wait(metrics: WorkerMetrics) -> Callable[..., None]:
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


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigInvalid(
            f"settings monitor_host and monitor_port: cannot listen on {host}:{port}: {error.strerror}"
        ) from error


def _checks(look_s: float, concurrency: int, client: redis.Redis, write_index: Probe | None) -> Mapping[str, Check]:
    consumption = Consumption(look_s)

    def look() -> None:
        consumption.saw(_seen(read_queue(client).waiting, concurrency))

    checks = {"broker": Check(look, LOOK_EVERY_S), "tasks": Check(consumption.trouble, LOOK_EVERY_S)}
    return checks if write_index is None else {**checks, "index": Check(write_index, WRITE_EVERY_S)}


def _seen(in_queue: int, concurrency: int) -> Seen:
    """Return this worker as Celery sees it: what was received and not begun, as by a pool that is frozen, waits too."""
    begun, received = len(state.active_requests), len(state.reserved_requests)
    ended = state.all_total_count[0] - begun
    return Seen(in_queue + max(0, received - begun), ended, is_full=begun >= concurrency)
