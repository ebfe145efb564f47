"""A worker in a thread of this process, as the embedded composition has it: does it do what waits for it?"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from shared.settings import Settings
from workers.metrics import WorkerMetrics
from workers.monitoring.checks import Check
from workers.monitoring.progress import Consumption
from workers.monitoring.queue import QUEUE
from workers.monitoring.server import Trouble
from workers.monitoring.worker import LOOK_EVERY_S, seen


@contextmanager
def consumption_checked(
    app: Celery, worker: threading.Thread, settings: Settings, metrics: WorkerMetrics
) -> Generator[Trouble]:
    """Watch this worker until the block ends; yields what says whether something is wrong, and what."""
    consumption = Consumption(settings.listing_timeout_s)
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel  # the stubs know of no queues

        def look() -> str | None:
            if not worker.is_alive():
                return "the worker's thread has ended"
            waiting = channel.queue_declare(QUEUE).message_count
            consumption.saw(seen(waiting, settings.worker_concurrency, metrics))
            return consumption.trouble()

        check = Check(look, LOOK_EVERY_S)
        check.start()
        try:
            yield check.trouble
        finally:
            check.stop()
