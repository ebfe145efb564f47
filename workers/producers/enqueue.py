"""Send messages to workers from a background thread, so that a hanging broker does not delay producers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from workers.emit import Enqueue

if TYPE_CHECKING:
    from shared.settings import Settings

# Beyond this limit a message is dropped; the sweep finds every recorded event.
WAITING_LIMIT = 1_000

_log = structlog.get_logger()


@contextmanager
def enqueue_in_background(enqueue: Enqueue) -> Generator[Enqueue]:
    """Yield a function that enqueues at once and never fails; the sweep replaces messages left at the end."""
    waiting: queue.Queue[str | None] = queue.Queue(WAITING_LIMIT)
    stopped = threading.Event()

    def put(server_id: str) -> None:
        try:
            waiting.put_nowait(server_id)
        except queue.Full:
            _log.warning("enqueue_failed", server=server_id, reason=f"{WAITING_LIMIT} messages wait for the broker")

    def send() -> None:
        while (server_id := waiting.get()) is not None and not stopped.is_set():
            _enqueue_or_log(enqueue, server_id)

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
    from workers.celery_app import build_app  # noqa: PLC0415  # loads Celery, which recording does not need
    from workers.tasks import send_reconcile  # noqa: PLC0415

    return partial(send_reconcile, build_app(settings))


def _enqueue_or_log(enqueue: Enqueue, server_id: str) -> None:
    try:
        enqueue(server_id)
    except Exception as error:  # noqa: BLE001  # brokers raise many errors, and the thread must survive all of them
        _log.warning("enqueue_failed", server=server_id, reason=repr(error))
