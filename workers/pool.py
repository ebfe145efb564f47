"""Threads that reconcile servers in one process, in place of Celery's workers and messages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from shared.errors import ServerError
from shared.service.logging import FailureLog
from workers.fetch.interrupt import FetchInterrupted, interrupt_fetches
from workers.metrics import Stages
from workers.monitoring.checks import CHECK_EVERY_S, HealthCheck, PeriodicCheck
from workers.monitoring.progress import WorkerProgress, WorkerSample

_INTERRUPT_EVERY_S = 0.05


class ReconcilePool:
    """At most `size` reconciliations at a time; the others wait in the order of their requests."""

    def __init__(self, size: int, reconcile: Callable[[str], object]) -> None:
        self._size = size
        self._reconcile = reconcile
        self._threads = ThreadPoolExecutor(size, "reconcile")
        self._requested = set[Future[None]]()
        self._ended = 0
        self._failures = FailureLog("task_failed")

    def wake(self, server_id: str) -> None:
        """Reconcile this server as soon as a thread is free; safe to call from any thread."""
        try:
            requested = self._threads.submit(self._run, server_id)
        except RuntimeError:
            return  # the process ends; its next start reconciles the server
        self._requested.add(requested)
        requested.add_done_callback(self._requested.discard)

    def waiting(self) -> int:
        """Return how many requests wait for a thread."""
        return sum(not requested.running() for requested in self._requested.copy())

    def close(self) -> None:
        """Drop the waiting requests, and interrupt the listings of the others until all have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while wait(self._requested.copy(), _INTERRUPT_EVERY_S).not_done:
            interrupt_fetches()

    @contextmanager
    def progress_checked(self, listing_s: float) -> Generator[HealthCheck]:
        """Yield a check until the block ends: it has a problem while requests wait and nothing ends.

        A listing may take `listing_s` seconds.
        """
        progress = WorkerProgress(listing_s)

        def sample() -> str | None:
            waiting = self.waiting()
            is_full = len(self._requested) - waiting >= self._size
            progress.add_sample(WorkerSample(waiting, self._ended + Stages.ended, is_full))
            return progress.problem()

        with PeriodicCheck(sample, CHECK_EVERY_S).running() as check:
            yield check

    def _run(self, server_id: str) -> None:
        try:
            self._reconcile(server_id)
        except (ServerError, FetchInterrupted):
            pass  # the log has a line for each server
        except Exception as error:  # noqa: BLE001  # the sweep requests the reconciliation again
            self._failures.log(error, task="reconcile")
        finally:
            self._ended += 1
