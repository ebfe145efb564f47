"""The health of Celery's beat, which sends the sweeps."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import signals
from prometheus_client import Gauge

from workers.monitoring.checks import Deadline
from workers.monitoring.queue import broker_checked
from workers.monitoring.server import metrics_port
from workers.tasks import SWEEP_INTENTS

if TYPE_CHECKING:
    from shared.settings import Settings

# Added to two intervals: Redis may be away for so long without an alert.
LATE_AT_MOST_S = 15.0


def show_ticks(settings: Settings) -> Callable[..., None]:
    """Return a receiver of Celery's `beat_init`, which opens the metrics port until the process ends."""

    def on_init(**_: Any) -> None:
        # here, since a worker has no ticks to show
        last_tick = Gauge("toolscale_beat_last_tick_timestamp_seconds", "Time of the last sweep that this beat sent.")
        last_tick.set_to_current_time()
        in_time = Deadline(2 * settings.sweep_interval_s + LATE_AT_MOST_S)

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
