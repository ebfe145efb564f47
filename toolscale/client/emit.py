"""`toolscale emit` and `resync`: record an intent durably, then send a message to a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import structlog
from kombu.exceptions import OperationalError
from pydantic import BaseModel, ConfigDict, Field

from shared.errors import ServerNotRunning
from shared.events import ServerChanged, ServerRef
from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.service.tracing import configure_tracing
from shared.settings import Settings
from toolscale.client.server_names import unknown
from workers.emit import Emitter, message_time_s

SOURCE = "toolscale/cli"


class EmitResult(BaseModel):
    """A recorded event; `message_sent`: a worker received a message at once.

    `failures`, `attempts` and `parked` are copies from the intent at that moment.
    """

    model_config = ConfigDict(frozen=True)

    server_id: str
    status: str
    generation: int
    message_sent: bool
    failures: int = Field(default=0, exclude=True)
    attempts: int = Field(default=0, exclude=True)
    parked: bool = Field(default=False, exclude=True)

    @property
    def sentence(self) -> str:
        """Return the outcome as a sentence."""
        wait = "a message was sent" if self.message_sent else "the next sweep of a worker or `toolscale serve` takes it"
        return f"{self.server_id}: recorded as generation {self.generation} ({self.status}); {wait}."


def emit_raw(raw: str | dict[str, Any], settings: Settings) -> EmitResult:
    """Accept a CloudEvent, given as JSON text or as an object.

    Raises:
        EventInvalid: it was rejected and added to the dead letters.
        IntentsUnavailable: nothing was recorded.
    """
    configure_tracing("toolscale", os.environ)
    notified: list[str] = []
    with closing(open_intents(settings)) as intents:
        intent = Emitter(intents, partial(enqueue, settings, notified), message_time_s(settings)).accept(raw)
    return emit_result(intent, message_sent=bool(notified))


def resync(settings: Settings, servers: Sequence[str]) -> Iterator[EmitResult]:
    """Request a reconciliation of these servers, or of all that should run; yield each recorded intent.

    Raises:
        ServerUnknown: a server was never announced; nothing is recorded.
        ServerNotRunning: a server is stopped; nothing is recorded.
        IntentsUnavailable: the store stopped answering; earlier servers are recorded.
    """
    with closing(open_intents(settings)) as intents:
        known = {intent.server_id: intent for intent in intents.intents()}
        wanted = list(map(partial(_running, known), servers))
        notified: list[str] = []
        emitter = Emitter(intents, partial(enqueue, settings, notified), message_time_s(settings))
        for server in wanted or [server_id for server_id in known if known[server_id].status == "running"]:
            event = ServerChanged(source=SOURCE, data=ServerRef(server_id=server))
            yield emit_result(emitter.emit(event), message_sent=server in notified)


def _running(known: Mapping[str, Intent], server: str) -> str:
    if server not in known:
        raise unknown(server, known)
    if known[server].status != "running":
        raise ServerNotRunning(server, "it is stopped; announce it with `toolscale emit up`, or in the mcp.json")
    return server


def emit_result(intent: Intent, *, message_sent: bool) -> EmitResult:
    """Return the result that this intent records."""
    return EmitResult(
        server_id=intent.server_id,
        status=intent.status,
        generation=intent.desired,
        message_sent=message_sent,
        failures=intent.failures,
        attempts=intent.attempts,
        parked=intent.parked,
    )


def enqueue(settings: Settings, notified: list[str], server_id: str) -> None:
    """Send a message for this server, and add it to `notified`; without a broker, or if that fails, do nothing."""
    if settings.is_embedded:
        return
    from workers.app import app  # noqa: PLC0415  # reads the environment, and loads Celery
    from workers.celery_app import send_reconcile  # noqa: PLC0415

    try:
        send_reconcile(app, server_id)
        notified.append(server_id)
    except OperationalError as error:
        structlog.get_logger().warning("enqueue_failed", server=server_id, reason=str(error))
