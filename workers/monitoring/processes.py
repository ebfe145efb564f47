"""The metrics of a worker whose looks run in processes of their own, by prometheus_client's multiprocess mode."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from celery.concurrency.base import BasePool
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

# Read by prometheus_client itself, when it is imported: counters and histograms are then kept in files there.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def of_all_processes(own: CollectorRegistry, environ: Mapping[str, str]) -> CollectorRegistry:
    """Return what a worker shows: all that it and its processes counted, where files are kept of it; else its own."""
    directory = environ.get(DIRECTORY)
    if not directory:
        return own
    together = CollectorRegistry()
    MultiProcessCollector(together, directory)  # type: ignore[no-untyped-call]  # the package leaves its types out
    return together


def warn_of_uncounted_looks(pool: BasePool, environ: Mapping[str, str]) -> None:
    """Say so where looks run in processes whose counters nobody will read."""
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415  # who runs threads needs none of it

    if isinstance(pool, TaskPool) and not environ.get(DIRECTORY):
        structlog.get_logger().warning("looks_not_counted", needed=DIRECTORY)
