"""The Celery tasks. Any producer can send `toolscale.accept_event` by name, with one CloudEvent object."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, cast

import structlog
from celery import Celery, current_task

from shared.errors import EventInvalid, IndexUnavailable, IntentsUnavailable, LeaseHeld, Retryable, ServerError
from shared.index.records import SHARES
from shared.intents.intents import Intents
from shared.observability.failures import FailureLog
from shared.observability.tracing import use_parent_trace
from workers.dependencies import Dependencies
from workers.emit import Emitter
from workers.fetch.interrupt import FetchInterrupted
from workers.ingest import reconcile
from workers.maintenance.audit import AuditRounds
from workers.maintenance.migrate import migrate
from workers.maintenance.rebuild import maintain_index
from workers.maintenance.restore import restore_if_lost
from workers.metrics import counted_reconcile

ACCEPT_EVENT = "toolscale.accept_event"
RECONCILE_SERVER = "toolscale.reconcile_server"
SWEEP_INTENTS = "toolscale.sweep_intents"
MIGRATE_TOOLS = "toolscale.migrate_tools"

SWEEP_LIMIT = 500
# Messages in the queue at which a sweep sends no further ones: the workers are behind, and Redis has a limit of memory.
QUEUE_LIMIT = 10_000

# A tick that waited longer is obsolete, and so is its message for the migration. Longer than the difference between two
# machines' clocks, and than the reconciliations that were sent before it.
TICK_EXPIRES_S = 600


class Tasks:
    """The tasks of the workers; `intents` and `dependencies` open the stores on first use, after any fork.

    The sweep sends another message for an event after `message_time_s` seconds.
    """

    def __init__(
        self,
        app: Celery,
        intents: Callable[[], Intents],
        dependencies: Callable[[], Dependencies],
        message_time_s: float,
        sweep_interval_s: float,
    ) -> None:
        self._app = app
        self._intents = intents
        self._dependencies = dependencies
        self._message_time_s = message_time_s
        self._audits = AuditRounds(sweep_interval_s)
        self._migrating = threading.Lock()
        self._failures = FailureLog("task_failed")

    def register(self) -> None:
        """Register the tasks under their public names."""
        # not shared: another app in this process has other tasks under these names;
        # no typing: Celery would ask the caller for `self`
        task = partial(self._app.task, shared=False, typing=False, on_failure=self._log_failure)
        # an event that cannot be recorded now is retried until it can
        retried: dict[str, Any] = {"autoretry_for": (Retryable,), "retry_backoff": 2, "retry_backoff_max": 60}
        # no Celery events of these three: they would be most of those; the log and the reconciliations show the outcome
        task(name=ACCEPT_EVENT, max_retries=None, send_events=False, **retried)(_in_trace_of_message(self.accept_event))
        task(name=RECONCILE_SERVER, throws=(ServerError, FetchInterrupted))(self.reconcile_server)
        task(name=SWEEP_INTENTS, send_events=False)(self.sweep_intents)
        task(name=MIGRATE_TOOLS, send_events=False)(self.migrate_tools)

    def accept_event(self, *args: Any, **kwargs: Any) -> None:
        """Record a CloudEvent and send its message; a rejected one becomes a dead letter, not a failed task.

        The event is recorded before any call of the index, which may take long to answer.
        """
        event = _only_object(args, kwargs)
        with suppress(EventInvalid):  # the dead letters and the log show it
            try:
                self._accept(event)
            except IntentsUnavailable:  # the store may have lost the server
                self._restore_if_lost()
                self._accept(event)
        with suppress(IndexUnavailable):  # the event is recorded; a sweep restores the other servers later
            self._restore_if_lost()

    def reconcile_server(self, server_id: str) -> str:
        """Make the index equal to the tools that one server offers now; return the outcome for Flower."""
        try:
            with counted_reconcile() as done:
                done(ingested := reconcile(server_id, self._dependencies()))
        except LeaseHeld:
            return "another run has the lease"  # it sends another message when it ends
        except ServerError:
            self._reconcile_again_if_due(server_id)
            raise
        self._reconcile_again_if_due(server_id)
        return ingested.outcome if ingested else "not due"

    def sweep_intents(self) -> None:
        """Send a message for every due reconciliation, after restoring lost intents, and maintain the index."""
        with suppress(IndexUnavailable):
            self._restore_if_lost()
        due = self._intents().claim_due(SWEEP_LIMIT) if _waiting(self._app) < QUEUE_LIMIT else []
        for server_id in due:
            send_reconcile(self._app, server_id)
        if due:
            structlog.get_logger().info("intents_swept", servers=len(due))
        with suppress(IndexUnavailable):
            deps = self._dependencies()
            if deps.versions:
                maintain_index(deps.versions, deps.intents, partial(send_migrate, self._app), self._audits)

    def migrate_tools(self) -> None:
        """Continue a model change for some seconds; return at once if there is none, or this process works on it."""
        deps = self._dependencies()
        if deps.versions and self._migrating.acquire(blocking=False):
            try:
                migrate(deps.versions, deps.intents, self._reconcile_again_if_due)
            finally:
                self._migrating.release()

    def _log_failure(self, error: Exception, *_: Any) -> None:
        if not isinstance(error, ServerError | FetchInterrupted):  # those have a line for each server
            self._failures.log(error, task=current_task.name)

    def _accept(self, event: dict[str, Any] | str) -> None:
        Emitter(self._intents(), partial(send_reconcile, self._app), self._message_time_s).accept(event)

    def _restore_if_lost(self) -> None:
        if not self._intents().is_complete():
            restore_if_lost(self._intents(), self._dependencies().index)

    def _reconcile_again_if_due(self, server_id: str) -> None:
        """Send a message again that was throttled, or that met a running reconciliation."""
        intent = self._intents().intent(server_id)
        if intent and intent.is_throttled:
            send_reconcile(self._app, server_id, in_s=max(0.0, intent.not_before - self._intents().now()))
        elif intent and intent.message_pending:
            send_reconcile(self._app, server_id)


def _in_trace_of_message(run: Callable[..., None]) -> Callable[..., None]:
    """Return a task that continues the trace of its message, as instrumented producers send it."""

    @wraps(run)
    def traced(*args: Any, **kwargs: Any) -> None:
        with use_parent_trace(current_task.request.get("traceparent") if current_task else None):
            run(*args, **kwargs)

    return traced


def _only_object(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | str:
    """Return the single object of a valid message, otherwise the arguments as text, which is no valid event."""
    if len(args) == 1 and not kwargs and isinstance(args[0], dict):
        return cast("dict[str, Any]", args[0])
    return repr((args, kwargs))


def send_reconcile(app: Celery, server_id: str, in_s: float = 0.0) -> None:
    """Send a message for this server's reconciliation; its id is the only argument, so Flower shows it."""
    app.send_task(RECONCILE_SERVER, args=[server_id], countdown=in_s or None)


def _waiting(app: Celery) -> int:
    """Return the number of messages in the queue."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel  # the stubs have no methods of it
        # not passive: Redis has no empty list, so kombu would not find an empty queue
        return int(channel.queue_declare(app.conf.task_default_queue).message_count)


def send_migrate(app: Celery) -> None:
    """Send a message for each share of the migration, so that every worker gets one; a busy worker returns at once."""
    for _ in range(SHARES):
        app.send_task(MIGRATE_TOOLS, expires=TICK_EXPIRES_S)
