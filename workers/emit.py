"""Announces a server to the workers: records the intent first, then sends the message for a reconciliation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import Counter

from shared.catalog import owner_of
from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import ServerEvent, parse_event
from shared.intents import times
from shared.intents.intent import Intent, Recorded
from shared.intents.intents import Intents
from shared.service.tracing import SpanKind, span, traceparent

if TYPE_CHECKING:
    from shared.settings import Settings

EVENTS = Counter("toolscale_events_total", "Events at this process by outcome.", ["outcome"])
for _outcome in ("recorded", "refused", "not_recorded"):
    EVENTS.labels(_outcome)  # at 0 from the start, so that an alert sees the first increase

Enqueue = Callable[[str], None]
"""Send a message for this server's reconciliation. It may fail or be lost: the sweep finds the recorded event."""


Result = Recorded | EventInvalid | IntentsUnavailable
"""The result of an event before its message is sent."""

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
    return 0.0 if settings.is_embedded else times.REDELIVER_AFTER_S


@dataclass(frozen=True, slots=True)
class Emitter:
    """Records events, counts them and sends messages.

    The sweep sends another message for an event after `due_in_s` seconds.
    """

    intents: Intents
    enqueue: Enqueue
    due_in_s: float

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event durably, then send a message for it; returns the intent after the event.

        The source of the event must be that of its sender, since a server's owner is known by it.

        Raises:
            EventInvalid: its server was never announced, or belongs to another sender.
            IntentsUnavailable: nothing was recorded; a store that was wiped and not yet restored raises it too.
        """
        (result,) = self.emit_all([event])
        if isinstance(result, Intent):
            return result
        raise result

    def emit_all(self, events: Sequence[ServerEvent]) -> Iterator[Intent | EventInvalid | IntentsUnavailable]:
        """Record these events together, then yield the result of each after its message was sent.

        Raises:
            IntentsUnavailable: nothing was recorded.
        """
        return (self._sent(event, result) for event, result in self._recorded(events))

    def accept(self, raw: str | bytes | dict[str, Any], sender: Sender = ANYONE) -> Intent:
        """Emit an event from outside as its sender may send it; a rejected one is stored as a dead letter.

        The letter has the source of a sender with rights of its own, so no other sender can send it again.

        Raises:
            EventInvalid: the event violates the contract, or its sender may not send it; the message names the field.
            IntentsUnavailable: as for `emit`.
        """
        (result,) = self.accept_all([raw], sender)
        if isinstance(result, Intent):
            return result
        raise result

    def accept_all(
        self, raws: Sequence[str | bytes | dict[str, Any]], sender: Sender = ANYONE
    ) -> Iterator[Intent | EventInvalid | IntentsUnavailable]:
        """Yield the result of each event from outside, in order; valid ones are recorded together, and so are letters.

        Raises:
            IntentsUnavailable: nothing was recorded.
        """
        parsed = [self._parsed(raw, sender.admit) for raw in raws]
        recorded = iter(self._recorded([each for each in parsed if not isinstance(each, EventInvalid)]))
        results = [each if isinstance(each, EventInvalid) else next(recorded) for each in parsed]
        letters: list[tuple[str, str]] = []
        for raw, each in zip(raws, results, strict=True):
            result = each if isinstance(each, EventInvalid) else each[1]
            if isinstance(result, EventInvalid):
                text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
                if isinstance(text, dict):  # can be corrected and sent again with `toolscale emit event`
                    text = json.dumps(text | ({"source": sender.source} if sender.source else {}), default=str)
                letters.append((str(result), text))
                structlog.get_logger().warning(
                    "event_refused", field=result.field, reason=result.reason, sender=sender.source
                )
        if letters:
            self.intents.add_dead_letters(letters)
        return (each if isinstance(each, EventInvalid) else self._sent(*each) for each in results)

    def _recorded(self, events: Sequence[ServerEvent]) -> list[tuple[ServerEvent, Result]]:
        """Record these events together; return each with its trace and its result, before any message is sent."""
        traced: list[ServerEvent] = []
        for event in events:
            server_id = event.data.server_id
            with span("record event", event.traceparent, SpanKind.PRODUCER, server=server_id, type=event.type):
                # the trace continues in the reconciliation
                traced.append(event.model_copy(update={"traceparent": traceparent()}))
        try:
            results = self.intents.record_all(traced, due_in_s=self.due_in_s)
        except IntentsUnavailable:
            EVENTS.labels("not_recorded").inc(len(events))
            raise
        return list(zip(traced, self._recorded_again(traced, results), strict=True))

    def _parsed(self, raw: str | bytes | dict[str, Any], admit: Admit) -> ServerEvent | EventInvalid:
        try:
            return admit(parse_event(raw))
        except EventInvalid as error:
            EVENTS.labels("refused").inc()
            return error

    def _sent(self, event: ServerEvent, result: Result) -> Intent | EventInvalid | IntentsUnavailable:
        """Count and log the result of an event, and send its message."""
        if isinstance(result, Exception):
            EVENTS.labels("refused" if isinstance(result, EventInvalid) else "not_recorded").inc()
            return result
        EVENTS.labels("recorded").inc()
        intent = result.intent
        structlog.get_logger().info(
            "event_recorded", server=intent.server_id, type=event.type, event_id=event.id, generation=intent.desired
        )
        if result.needs_message:
            self.enqueue(intent.server_id)
        return intent

    def _recorded_again(
        self, events: Sequence[ServerEvent], results: Sequence[Recorded | EventInvalid]
    ) -> Sequence[Result]:
        """Reject an unknown server only if the store is complete, and a worker has not restored the server since.

        An event before that of the same server which was recorded stays rejected: it would undo the later one.
        """
        final: list[Result] = list(results)
        recorded = {result.intent.server_id for result in results if not isinstance(result, EventInvalid)}
        refused = [number for number, result in enumerate(results) if isinstance(result, EventInvalid)]
        if not refused:
            return final
        try:
            known = self.intents.existing(list({events[number].data.server_id for number in refused}))
            is_complete = self.intents.is_complete()
            again: list[int] = []
            for number in refused:
                server_id = events[number].data.server_id
                if not is_complete and (server_id not in known or server_id in recorded):
                    reason = f"{results[number]}; the store is new or lost its data, and no worker has restored it yet"
                    final[number] = IntentsUnavailable(reason)
                elif server_id in known and server_id not in recorded:
                    again.append(number)
            repeated = self.intents.record_all([events[number] for number in again], due_in_s=self.due_in_s)
            for number, result in zip(again, repeated, strict=True):
                final[number] = result
        except IntentsUnavailable as error:
            for number in refused:
                final[number] = error
        return final
