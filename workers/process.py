"""The common parts of a process that only emits events: a watcher, the notification listeners, or the events API."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from shared.intents.intents import open_intents
from shared.service.process import full_environment, raise_open_files
from shared.service.tracing import configure_tracing
from shared.settings import warn_of_removed_settings
from workers.emit import Emitter, Enqueue, message_time_s
from workers.monitoring.checks import Deadline, broker_checked, first_problem
from workers.monitoring.port import metrics_port

if TYPE_CHECKING:
    from shared.events import ServerEvent
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents
    from shared.settings import Settings

# Beyond this limit a message is dropped; the sweep finds every recorded event.
WAITING_LIMIT = 1_000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _SourceProcess:
    """The intents, the queue of messages, and the health checks of such a process."""

    settings: Settings
    intents: Intents
    enqueue: Enqueue
    deadlines: Mapping[str, Deadline]

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event durably, count it, and send a message to a worker.

        Raises:
            EventInvalid: the event refers to a server that was never announced.
            IntentsUnavailable: the event was not recorded.
        """
        return Emitter(self.intents, self.enqueue, message_time_s(self.settings)).emit(event)

    def beat(self, part: str) -> None:
        """Restart the deadline of this part. Safe to call from any thread."""
        self.deadlines[part].touch()


@contextmanager
def source_process(settings: Settings, parts: Collection[str], within_s: float) -> Generator[_SourceProcess]:
    """Open the parts of the process until the block ends.

    The process is ready while Redis answers and each of its `parts` has called `beat` in the last `within_s` seconds.

    Raises:
        IntentsUnavailable: the intents cannot be opened.
    """
    raise_open_files()
    warn_of_removed_settings(full_environment())
    configure_tracing("toolscale-source", full_environment())
    deadlines = {part: Deadline(within_s) for part in parts}
    checks = {part: deadline.problem for part, deadline in deadlines.items()}
    with (
        closing(open_intents(settings)) as intents,
        enqueue_in_background(broker_enqueue(settings)) as enqueue,
        broker_checked(settings) as broker,
        metrics_port(settings, {"broker": broker, **checks}, work=first_problem(checks.values())),
    ):
        yield _SourceProcess(settings, intents, enqueue, deadlines)


@contextmanager
def enqueue_in_background(enqueue: Enqueue) -> Generator[Enqueue]:
    """Yield a function that enqueues at once and never fails; the sweep replaces messages left at the end.

    A thread sends the messages, so a hanging broker does not delay a producer.
    """
    waiting: queue.Queue[str | None] = queue.Queue(WAITING_LIMIT)
    stopped = threading.Event()

    def put(server_id: str) -> None:
        try:
            waiting.put_nowait(server_id)
        except queue.Full:
            _log.warning("enqueue_failed", server=server_id, reason=f"{WAITING_LIMIT} messages wait for the broker")

    def send() -> None:
        while (server_id := waiting.get()) is not None and not stopped.is_set():
            try:
                enqueue(server_id)
            except Exception as error:  # noqa: BLE001  # brokers raise many errors, and the thread must survive all
                _log.warning("enqueue_failed", server=server_id, reason=repr(error))

    # a daemon: a hanging broker must not block the exit
    threading.Thread(target=send, name="toolscale enqueue", daemon=True).start()
    try:
        yield put
    finally:
        stopped.set()
        if waiting.empty():
            waiting.put_nowait(None)


def broker_enqueue(settings: Settings) -> Enqueue:
    """Return the function that sends a message; without a shared broker it does nothing."""
    if settings.is_embedded:
        return lambda _: None
    # loads Celery, which recording does not need
    from workers.celery_app import build_app, send_reconcile  # noqa: PLC0415

    return partial(send_reconcile, build_app(settings))
