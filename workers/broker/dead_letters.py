"""Messages that Celery rejects, stored as dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from celery import signals

from shared.errors import ToolscaleError
from shared.intents.intents import Intents
from workers.broker.transport import guard_transport

_REASON_CHARACTERS = 500


def keep_refused_messages(intents: Callable[[], Intents]) -> None:
    """Store invalid messages, invalid tasks and unknown tasks of this worker process as dead letters."""

    def add_dead_letter(reason: str, body: str) -> None:
        reason = reason[:_REASON_CHARACTERS].encode(errors="replace").decode()  # the reason may quote half a character
        try:
            intents().add_dead_letter(reason, body)
        except ToolscaleError as error:
            structlog.get_logger().error("dead_letter_lost", reason=reason, error=str(error))
        else:
            structlog.get_logger().warning("message_refused", reason=reason)

    def on_unknown(name: str = "", message: Any = None, **_: Any) -> None:
        add_dead_letter(f"task: no task is named {name!r}", str(getattr(message, "body", "")))

    def on_rejected(message: Any = None, exc: object = None, **_: Any) -> None:
        add_dead_letter(f"message: {exc or 'not a Celery task message'}", str(getattr(message, "body", "")))

    guard_transport(add_dead_letter)
    signals.task_unknown.connect(on_unknown, weak=False)
    signals.task_rejected.connect(on_rejected, weak=False)
