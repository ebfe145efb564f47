"""A worker in a thread of this process, as the embedded composition has it: does it do what waits for it?"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from shared.settings import Settings
from workers.metrics import WorkerMetrics
from workers.monitoring.checks import PeriodicCheck
from workers.monitoring.progress import WorkerProgress
from workers.monitoring.queue import QUEUE
from workers.monitoring.server import HealthCheck
from workers.monitoring.worker import SAMPLE_EVERY_S, sample_worker


@contextmanager
def progress_checked(
    app: Celery, worker: threading.Thread, settings: Settings, metrics: WorkerMetrics
) -> Generator[HealthCheck]:
    """Watch this worker until the block ends; yields what says whether something is wrong, and what."""
    progress = WorkerProgress(settings.listing_timeout_s)
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel  # the stubs know of no queues

        def sample() -> str | None:
            if not worker.is_alive():
                return "the worker's thread has ended"
            waiting = channel.queue_declare(QUEUE).message_count
            progress.add_sample(sample_worker(waiting, settings.worker_concurrency, metrics))
            return progress.problem()

        check = PeriodicCheck(sample, SAMPLE_EVERY_S)
        check.start()
        try:
            yield check.problem
        finally:
            check.stop()
