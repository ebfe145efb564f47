"""What workers do, whatever wakes them: Celery's messages, or in `toolscale serve` the threads of one process.

event ─▶ accept ─▶ intent ─▶ wake ─▶ reconcile
sweep: due intents ─▶ wake; lost intents and a lost index are restored; a model change goes on; sums are audited
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from shared.errors import EventInvalid, IndexUnavailable, IntentsUnavailable, LeaseHeld, ServerError
from shared.index.versions import IndexVersions
from shared.intents.intents import Intents
from shared.service.logging import FailureLog
from shared.settings import Settings
from shared.upstream.target import STDIO_START_TIMEOUT_S
from workers.dependencies import Dependencies
from workers.emit import Emitter
from workers.fetch.turns import FetchInterrupted, interrupt_fetches
from workers.ingest import reconcile
from workers.monitoring.checks import CHECK_EVERY_S, HealthCheck, PeriodicCheck, WorkerProgress, WorkerSample
from workers.monitoring.metrics import Stages, counted_reconcile
from workers.upkeep.audit import AuditRounds
from workers.upkeep.migrate import Released, migrate, request_missed
from workers.upkeep.recover import rebuild_if_lost, restore_if_lost

SWEEP_LIMIT = 500
# Waiting reconciliations at which a sweep requests no further ones: the workers are behind, and Redis has a limit of
# memory.
QUEUE_LIMIT = 10_000
# Seconds for which a previous index version stays: by then every query service has switched.
RETIRED_AFTER_S = 600.0
_INTERRUPT_EVERY_S = 0.05


class Work:
    """The work of one process. `intents` and `dependencies` open the stores on first use, after any fork.

    `wake` has a server reconciled soon, by any worker; `waiting` returns how many reconciliations wait. The sweep
    requests an event's reconciliation again after `message_time_s` seconds.
    """

    def __init__(
        self,
        intents: Callable[[], Intents],
        dependencies: Callable[[], Dependencies],
        wake: Callable[[str], None],
        waiting: Callable[[], int],
        *,
        message_time_s: float,
        sweep_interval_s: float,
    ) -> None:
        self._intents = intents
        self._dependencies = dependencies
        self._wake = wake
        self._waiting = waiting
        self._message_time_s = message_time_s
        self._audits = AuditRounds(sweep_interval_s)
        self._maintaining = threading.Lock()

    def accept(self, event: dict[str, Any] | str) -> None:
        """Record a CloudEvent and wake a worker; a rejected event becomes a dead letter.

        The event is recorded before any call of the index, which may take long to answer.
        """
        with suppress(EventInvalid):  # the dead letters and the log show it
            try:
                self._accept(event)
            except IntentsUnavailable:  # the store may have lost the server
                self._restore_if_lost()
                self._accept(event)
        with suppress(IndexUnavailable):  # the event is recorded; a sweep restores the other servers later
            self._restore_if_lost()

    def reconcile(self, server_id: str) -> str:
        """Make the index equal to the tools that one server offers now; return the outcome in a few words."""
        try:
            with counted_reconcile() as done:
                done(ingested := reconcile(server_id, self._dependencies()))
        except LeaseHeld:
            return "another run has the lease"  # it wakes a worker when it ends
        except ServerError:
            self._reconcile_again_if_due(server_id)
            raise
        self._reconcile_again_if_due(server_id)
        return ingested.outcome if ingested else "not due"

    def sweep(self) -> None:
        """Wake workers for every due reconciliation, after restoring lost intents."""
        with suppress(IndexUnavailable):
            self._restore_if_lost()
        due = self._intents().claim_due(SWEEP_LIMIT) if self._waiting() < QUEUE_LIMIT else []
        for server_id in due:
            self._wake(server_id)
        if due:
            structlog.get_logger().info("intents_swept", servers=len(due))

    def maintain(self) -> None:
        """Restore a lost index, continue a model change for some seconds, and audit the next servers.

        Returns at once while another thread of this process does so.
        """
        with suppress(IndexUnavailable):
            deps = self._dependencies()
            if deps.versions and self._maintaining.acquire(blocking=False):
                try:
                    maintain_index(deps.versions, deps.intents, self._audits, self._reconcile_again_if_due)
                finally:
                    self._maintaining.release()

    def _accept(self, event: dict[str, Any] | str) -> None:
        Emitter(self._intents(), self._wake, self._message_time_s).accept(event)

    def _restore_if_lost(self) -> None:
        if not self._intents().is_complete():
            restore_if_lost(self._intents(), self._dependencies().index)

    def _reconcile_again_if_due(self, server_id: str) -> None:
        """Wake a worker for a reconciliation that met another one; a sweep does so for one that has to wait."""
        intent = self._intents().intent(server_id)
        if intent and intent.message_pending and not intent.is_throttled:
            self._wake(server_id)


def maintain_index(versions: IndexVersions, intents: Intents, audits: AuditRounds, released: Released) -> None:
    """Rebuild a lost index, continue a migration, delete retired index versions, and audit the next servers.

    No server is audited during a migration, since the next index version is a copy of the active one, nor while
    reconciliations are due, which come first.

    Raises:
        IndexUnavailable: the index does not answer.
        IntentsUnavailable: the intent store does not answer.
    """
    rebuild_if_lost(versions, intents)
    if not versions.store.is_filled():
        # filled once every server that an earlier index had is listed, or cannot be listed now
        awaited = sum(record.is_listed_before for record in versions.current()[0].index.servers())
        if not awaited:
            versions.store.mark_complete(is_filled=True)
        structlog.get_logger().info("index_filled" if not awaited else "index_filling", awaited=awaited)
    stored = versions.store.versions()
    if stored.next_version:
        migrate(versions, intents, released)
        return
    if stored.active:
        request_missed(versions.store, intents, stored.active)
    if intents.migration():
        intents.note_migration(None)  # abandoned, or the active version was requested again
    for name in versions.store.drop_retired(RETIRED_AFTER_S):
        structlog.get_logger().info("index_version_deleted", collection=name)
    if stored.active and not intents.backlog().due:
        audits.continue_round(versions.store.index(stored.active), intents)


def longest_listing_s(settings: Settings) -> float:
    """Return the seconds that one listing may take; only the operator's file has servers that must be installed."""
    return settings.listing_timeout_s + (STDIO_START_TIMEOUT_S if settings.mcp_config else 0.0)


class ReconcilePool:
    """Threads that reconcile servers in one process, in place of Celery's workers and messages.

    At most `size` reconciliations run at a time; the others wait in the order of their requests.
    """

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
