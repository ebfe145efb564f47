"""The Celery tasks. Any producer can send `toolscale.accept_event` by name, with one CloudEvent object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, cast

import structlog
from celery import Celery, current_task

from shared.errors import EventInvalid, IndexUnavailable, IntentsUnavailable, LeaseHeld, Retryable, ServerError
from shared.observability.tracing import use_parent_trace
from workers.dependencies import Dependencies
from workers.emit import Emitter
from workers.fetch.interrupt import FetchInterrupted
from workers.ingest import reconcile
from workers.intents.store import IntentStore
from workers.maintenance.migrate import migrate
from workers.maintenance.rebuild import maintain_index
from workers.maintenance.restore import restore_if_lost
from workers.metrics import WorkerMetrics

ACCEPT_EVENT = "toolscale.accept_event"
RECONCILE_SERVER = "toolscale.reconcile_server"
SWEEP_INTENTS = "toolscale.sweep_intents"
MIGRATE_TOOLS = "toolscale.migrate_tools"

SWEEP_LIMIT = 500

# A tick of the sweep that nobody took for so long is worth nothing, nor is what it asks of the migration. Longer than
# the clocks of two machines differ, and than the looks take that were sent before it.
TICK_EXPIRES_S = 600


class Tasks:
    """What the workers do; `intents` and `dependencies` open what they work with on first use, after any fork.

    `message_time_s` is how long the sweep leaves a message before it asks again.
    """

    def __init__(
        self,
        app: Celery,
        intents: Callable[[], IntentStore],
        dependencies: Callable[[], Dependencies],
        message_time_s: float,
        metrics: WorkerMetrics,
    ) -> None:
        self._app = app
        self._intents = intents
        self._dependencies = dependencies
        self._message_time_s = message_time_s
        self._metrics = metrics

    def register(self) -> None:
        """Make the app offer these tasks under their public names."""
        # not shared: another app in this process has tasks of its own under these names;
        # no typing: Celery would ask the caller for `self`
        task = partial(self._app.task, shared=False, typing=False)
        # an event that cannot be recorded now must not be lost: it is sent again until it can
        retried: dict[str, Any] = {"autoretry_for": (Retryable,), "retry_backoff": 2, "retry_backoff_max": 60}
        # no events of Celery's own: a storm would be mostly these; what came of an event is in the log and the looks
        task(name=ACCEPT_EVENT, max_retries=None, send_events=False, **retried)(_in_trace_of_message(self.accept_event))
        task(name=RECONCILE_SERVER, throws=(ServerError, FetchInterrupted))(self.reconcile_server)
        task(name=SWEEP_INTENTS)(self.sweep_intents)
        task(name=MIGRATE_TOOLS)(self.migrate_tools)

    def accept_event(self, *args: Any, **kwargs: Any) -> None:
        """Record a CloudEvent and wake a worker; one that is refused becomes a dead letter, not a failure.

        Recorded before the index is asked for anything, which may take long to answer.
        """
        event = _only_object(args, kwargs)
        with suppress(EventInvalid):  # told where people look: the dead letters and the log
            try:
                self._accept(event)
            except IntentsUnavailable:  # perhaps for want of what the store lost
                self._restore_if_lost()
                self._accept(event)
        with suppress(IndexUnavailable):  # the event is recorded all the same; a sweep restores the others later
            self._restore_if_lost()

    def reconcile_server(self, server_id: str) -> None:
        """Look at one server and make the index equal to what it offers."""
        try:
            with self._metrics.reconcile() as done:
                done(reconcile(server_id, self._dependencies()))
        except LeaseHeld:
            return  # the run that holds it looks again when it ends
        except ServerError:
            self._reconcile_again_if_due(server_id)
            raise
        self._reconcile_again_if_due(server_id)

    def sweep_intents(self) -> None:
        """Wake a worker for every server whose time for a look has come; intents that were lost come back first."""
        with suppress(IndexUnavailable):
            self._restore_if_lost()
        due = self._intents().claim_due(SWEEP_LIMIT)
        for server_id in due:
            send_reconcile(self._app, server_id)
        self._metrics.swept(len(due))
        if due:
            structlog.get_logger().info("intents_swept", servers=len(due))
        with suppress(IndexUnavailable):
            deps = self._dependencies()
            if deps.versions:
                maintain_index(deps.versions, deps.intents, partial(send_migrate, self._app))

    def migrate_tools(self) -> None:
        """Work for some seconds on the edition that is to take over; without one there is nothing to do."""
        deps = self._dependencies()
        if deps.versions:
            migrate(deps.versions, deps.intents, self._reconcile_again_if_due)

    def _accept(self, event: dict[str, Any] | str) -> None:
        Emitter(self._intents(), partial(send_reconcile, self._app), self._message_time_s, self._metrics).accept(event)

    def _restore_if_lost(self) -> None:
        if not self._intents().is_complete():
            restore_if_lost(self._intents(), self._dependencies().index)

    def _reconcile_again_if_due(self, server_id: str) -> None:
        """Send the message again that came too soon, or while a look was under way and found its lease held."""
        intent = self._intents().intent(server_id)
        if intent and intent.is_throttled:
            send_reconcile(self._app, server_id, in_s=max(0.0, intent.not_before - self._intents().now()))
        elif intent and intent.message_pending:
            send_reconcile(self._app, server_id)


def _in_trace_of_message(run: Callable[..., None]) -> Callable[..., None]:
    """Return a task that goes on with the trace that its message carries, as those of instrumented producers do."""

    @wraps(run)
    def traced(*args: Any, **kwargs: Any) -> None:
        with use_parent_trace(current_task.request.get("traceparent") if current_task else None):
            run(*args, **kwargs)

    return traced


def _only_object(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | str:
    """Return the one object a producer should have sent, or a text of what it sent, which no event is."""
    if len(args) == 1 and not kwargs and isinstance(args[0], dict):
        return cast("dict[str, Any]", args[0])
    return repr((args, kwargs))


def send_reconcile(app: Celery, server_id: str, in_s: float = 0.0) -> None:
    """Ask a worker to look at this server; its id is the only argument, so Flower shows it."""
    app.send_task(RECONCILE_SERVER, args=[server_id], countdown=in_s or None)


def send_migrate(app: Celery) -> None:
    """Ask a worker to go on with the migration; every sweep does, and a worker that finds it under way leaves it."""
    app.send_task(MIGRATE_TOOLS, expires=TICK_EXPIRES_S)
