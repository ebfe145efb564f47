"""The health of Celery's beat, which sends the sweeps."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import signals
from prometheus_client import CollectorRegistry

from shared.observability.metrics import Metric, counter, gauge
from workers.monitoring.checks import Deadline
from workers.monitoring.queue import broker_checked
from workers.monitoring.server import metrics_port
from workers.tasks import SWEEP_INTENTS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

    from shared.settings import Settings

BEAT_TICKS = Metric("toolscale_beat_ticks_total", "counter", "ticks", "Sweeps that this beat sent to workers.")
LAST_BEAT_TICK = Metric(
    "toolscale_beat_last_tick_seconds",
    "gauge",
    "seconds",
    "Seconds since this beat last sent a sweep, or since its start.",
)
METRICS = (BEAT_TICKS, LAST_BEAT_TICK)

# Added to two intervals: Redis may be away for so long without an alert.
LATE_AT_MOST_S = 15.0


class _BeatTicks:
    """Counts the sweeps that beat sends, and collects the seconds since the last."""

    def __init__(self, interval_s: float) -> None:
        self.registry = CollectorRegistry()
        self._ticks = counter(BEAT_TICKS, self.registry)
        self._last = Deadline(2 * interval_s + LATE_AT_MOST_S)
        self.registry.register(self)

    def on_published(self, sender: str | None = None, **_: Any) -> None:
        """Count a message that the broker accepted: a receiver of Celery's `after_task_publish`."""
        if sender == SWEEP_INTENTS:
            self._ticks.inc()
            self._last.touch()

    def problem(self) -> str | None:
        """Return a problem if the last sweep is too long ago, else None."""
        return self._last.problem()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds since the last tick."""
        yield gauge(LAST_BEAT_TICK, self._last.age_s())


def show_ticks(settings: Settings) -> Callable[..., None]:
    """Return a receiver of Celery's `beat_init`, which opens the metrics port until the process ends."""

    def on_init(**_: Any) -> None:
        ticks = _BeatTicks(settings.sweep_interval_s)
        signals.after_task_publish.connect(ticks.on_published, weak=False)
        opened = ExitStack()
        atexit.register(opened.close)
        checks = {"broker": opened.enter_context(broker_checked(settings)), "ticks": ticks.problem}
        opened.enter_context(metrics_port(settings, ticks.registry, checks, work=ticks.problem))

    return on_init
