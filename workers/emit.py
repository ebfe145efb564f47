"""Announces a server to the workers: records the intent first, then sends the message for a reconciliation."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from shared.catalog import owner_of
from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import TYPE_PREFIX, ServerEvent, parse_event
from shared.intents.intent import Intent, Recorded
from shared.intents.intents import Intents
from shared.observability.tracing import SpanKind, span, traceparent
from workers.metrics import WorkerMetrics

if TYPE_CHECKING:
    from shared.settings import Settings

Enqueue = Callable[[str], None]
"""Send a message for this server's reconciliation. It may fail or be lost: the sweep finds the recorded event."""


Admit = Callable[[ServerEvent], ServerEvent]
"""Returns an event from outside with the source of its sender; raises EventInvalid if the sender may not send it."""


def without_rights(event: ServerEvent) -> ServerEvent:
    """Return the event of a sender without rights of its own.

    Raises:
        EventInvalid: the source names a sender with rights of its own.
    """
    if owner_of(event.source) is not None:
        raise EventInvalid("source", f"{event.source!r} is reserved, since it names the owner of servers")
    return event


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender of events from outside; `source` is that of its events, or None if they name their own."""

    admit: Admit = without_rights
    source: str | None = None


ANYONE = Sender()
"""A sender without rights of its own."""


def message_time_s(settings: Settings) -> float:
    """Return the seconds that a message has until the sweep sends another one.

    Without a broker that another process reads, there is no message: the event is due at once for the sweep.
    """
    return 0.0 if settings.is_embedded else settings.redeliver_after_s


@dataclass(frozen=True, slots=True)
class Emitter:
    """Records events, counts them in `metrics` and sends messages.

    The sweep sends another message for an event after `due_in_s` seconds.
    """

    intents: Intents
    enqueue: Enqueue
    due_in_s: float
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event durably, then send a message for it; returns the intent after the event.

        The source of the event must be that of its sender, since a server's owner is known by it.

        Raises:
            EventInvalid: its server was never announced, or belongs to another sender.
            IntentsUnavailable: nothing was recorded; a store that was wiped and not yet restored raises it too.
        """
        with span("record event", event.traceparent, SpanKind.PRODUCER, server=event.data.server_id, type=event.type):
            with self._counted(event.type.removeprefix(f"{TYPE_PREFIX}.")):
                # the recorded trace continues in the reconciliation
                recorded = self._record(event.model_copy(update={"traceparent": traceparent()}))
            intent = recorded.intent
            structlog.get_logger().info(
                "event_recorded", server=intent.server_id, type=event.type, event_id=event.id, generation=intent.desired
            )
            if recorded.needs_message:
                self.enqueue(intent.server_id)
        return intent

    def accept(self, raw: str | bytes | dict[str, Any], sender: Sender = ANYONE) -> Intent:
        """Emit an event from outside as its sender may send it; a rejected one is stored as a dead letter.

        The letter has the source of a sender with rights of its own, so no other sender can send it again.

        Raises:
            EventInvalid: the event violates the contract, or its sender may not send it; the message names the field.
            IntentsUnavailable: as for `emit`.
        """
        try:
            return self.emit(self._parsed(raw, sender.admit))
        except EventInvalid as error:
            self.intents.add_dead_letter(str(error), _text(raw, sender.source))
            structlog.get_logger().warning(
                "event_refused", field=error.field, reason=error.reason, sender=sender.source
            )
            raise

    def _parsed(self, raw: str | bytes | dict[str, Any], admit: Admit) -> ServerEvent:
        try:
            return admit(parse_event(raw))
        except EventInvalid:
            self.metrics.event("unknown", "refused")
            raise

    @contextmanager
    def _counted(self, kind: str) -> Generator[None]:
        """Count an event by the outcome of its recording."""
        try:
            yield
        except EventInvalid:
            self.metrics.event(kind, "refused")
            raise
        except IntentsUnavailable:
            self.metrics.event(kind, "not_recorded")
            raise
        self.metrics.event(kind, "recorded")

    def _record(self, event: ServerEvent) -> Recorded:
        """Record an event; reject an unknown server only if the store is complete."""
        try:
            return self.intents.record(event, due_in_s=self.due_in_s)
        except EventInvalid as error:
            if self.intents.intent(event.data.server_id) is None and not self.intents.is_complete():
                reason = f"{error}; the store is new or lost its data, and no worker has restored it yet"
                raise IntentsUnavailable(reason) from error
        return self.intents.record(event, due_in_s=self.due_in_s)  # a worker may have restored the server since


def _text(raw: str | bytes | dict[str, Any], source: str | None) -> str:
    if isinstance(raw, dict):
        signed = raw | {"source": source} if source else raw
        return json.dumps(signed, default=str)  # can be corrected and sent again with `toolscale emit event`
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
