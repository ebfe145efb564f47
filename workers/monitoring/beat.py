"""Celery's beat, watched: does it still send what has the intents swept?"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import signals
from prometheus_client import CollectorRegistry

from shared.observability.metrics import Metric, counter, gauge
from workers.monitoring.checks import Deadline
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

# Beyond two intervals: what Redis may take to come back without anybody having to hear of it.
LATE_AT_MOST_S = 15.0


class BeatTicks:
    """Counts the sweeps that beat asks for, and knows when it last did; a collector of the latter."""

    def __init__(self, interval_s: float) -> None:
        self.registry = CollectorRegistry()
        self._ticks = counter(BEAT_TICKS, self.registry)
        self._last = Deadline(2 * interval_s + LATE_AT_MOST_S)
        self.registry.register(self)

    def on_published(self, sender: str | None = None, **_: Any) -> None:
        """Note a message that the broker took: a receiver of Celery's `after_task_publish`."""
        if sender == SWEEP_INTENTS:
            self._ticks.inc()
            self._last.touch()

    def problem(self) -> str | None:
        """Return what is wrong, in words; None while beat ticks."""
        return self._last.problem()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds since the last tick."""
        yield gauge(LAST_BEAT_TICK, self._last.age_s())


def show_ticks(settings: Settings) -> Callable[..., None]:
    """Return a receiver of Celery's `beat_init`: beat then says how it is until its process ends."""

    def on_init(**_: Any) -> None:
        ticks = BeatTicks(settings.sweep_interval_s)
        signals.after_task_publish.connect(ticks.on_published, weak=False)
        opened = ExitStack()
        atexit.register(opened.close)
        opened.enter_context(metrics_port(settings, ticks.registry, {"ticks": ticks.problem}))

    return on_init
