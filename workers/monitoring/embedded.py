"""The health of a worker that runs in a thread of this process, as in the embedded composition."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from shared.settings import Settings
from workers.monitoring.checks import CHECK_EVERY_S, HealthCheck, PeriodicCheck
from workers.monitoring.progress import WorkerProgress
from workers.monitoring.queue import QUEUE
from workers.monitoring.worker import sample_worker


@contextmanager
def progress_checked(app: Celery, worker: threading.Thread, settings: Settings) -> Generator[HealthCheck]:
    """Sample this worker until the block ends, and yield the check of its progress."""
    progress = WorkerProgress(settings.longest_listing_s)
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel  # the stubs have no queues

        def sample() -> str | None:
            if not worker.is_alive():
                return "the worker's thread has ended"
            waiting = channel.queue_declare(QUEUE).message_count
            progress.add_sample(sample_worker(waiting, settings.worker_concurrency))
            return progress.problem()

        with PeriodicCheck(sample, CHECK_EVERY_S).running() as check:
            yield check
