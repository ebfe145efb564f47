"""The Celery tasks. Any producer can send `toolscale.accept_event` by name, with one CloudEvent object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery import Celery, current_task

from shared.errors import Retryable, ServerError
from shared.service.logging import FailureLog
from shared.service.tracing import use_parent_trace
from workers.fetch.interrupt import FetchInterrupted

if TYPE_CHECKING:
    from workers.work import Work

ACCEPT_EVENT = "toolscale.accept_event"
RECONCILE_SERVER = "toolscale.reconcile_server"
SWEEP_INTENTS = "toolscale.sweep_intents"

# A tick that waited longer is obsolete. Longer than the difference between two machines' clocks, and than the
# reconciliations that were sent before it.
TICK_EXPIRES_S = 600


def register_tasks(app: Celery, work: Work) -> None:
    """Register the tasks that do this work under their public names."""
    failures = FailureLog("task_failed")

    def accept_event(*args: Any, **kwargs: Any) -> None:
        # continues the trace of its message, as instrumented producers send it
        with use_parent_trace(current_task.request.get("traceparent") if current_task else None):
            work.accept(_only_object(args, kwargs))

    def sweep_intents() -> None:
        work.sweep()
        work.maintain()

    def log_failure(failed: Any, error: Exception, *_: Any) -> None:
        if not isinstance(error, ServerError | FetchInterrupted):  # those have a line for each server
            failures.log(error, task=failed.name)

    # not shared: another app in this process has other tasks under these names;
    # no typing: Celery would ask the caller for `self`
    task: Callable[..., Any] = partial(app.task, shared=False, typing=False, on_failure=log_failure)
    # an event that cannot be recorded now is retried until it can
    retried: dict[str, Any] = {"autoretry_for": (Retryable,), "retry_backoff": 2, "retry_backoff_max": 60}
    # no Celery events of these two: they would be most of those; the log and the reconciliations show the outcome
    task(name=ACCEPT_EVENT, max_retries=None, send_events=False, **retried)(accept_event)
    task(name=SWEEP_INTENTS, send_events=False)(sweep_intents)
    task(name=RECONCILE_SERVER, throws=(ServerError, FetchInterrupted))(work.reconcile)


def _only_object(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | str:
    """Return the single object of a valid message, otherwise the arguments as text, which is no valid event."""
    if len(args) == 1 and not kwargs and isinstance(args[0], dict):
        return cast("dict[str, Any]", args[0])
    return repr((args, kwargs))


def send_reconcile(app: Celery, server_id: str) -> None:
    """Send a message for this server's reconciliation; its id is the only argument, so Flower shows it."""
    app.send_task(RECONCILE_SERVER, args=[server_id])


def waiting(app: Celery) -> int:
    """Return the number of messages in the queue."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel  # the stubs have no methods of it
        # not passive: Redis has no empty list, so kombu would not find an empty queue
        return int(channel.queue_declare(app.conf.task_default_queue).message_count)
