"""Tell the workers about a server: write the intent down first, then send the message that wakes one up."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import structlog

from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import TYPE_PREFIX, ServerEvent, parse_event
from shared.observability.tracing import SpanKind, span, traceparent
from workers.intents.store import Intent, IntentStore, Recorded
from workers.metrics import EventResult

Enqueue = Callable[[str], None]
"""Ask a worker to look at this server. May fail or be lost: the sweep looks at what was recorded."""

Count = Callable[[str, EventResult], None]
"""Told of each event: `up`, `down`, `changed` or `unknown`, and what became of it."""


def uncounted(kind: str, outcome: EventResult) -> None:
    """Count nothing: for a process that shows no metrics."""


def emit(
    event: ServerEvent, intents: IntentStore, enqueue: Enqueue, *, due_in_s: float, count: Count = uncounted
) -> Intent:
    """Record what the event asks, durably, then wake a worker; returns the intent after it.

    `due_in_s` is how long the sweep leaves the message time to be acted upon.

    Raises:
        EventInvalid: it speaks of a server that was never announced.
        IntentsUnavailable: nothing was recorded; among others because the store was wiped and is not restored yet.
    """
    with span("record event", event.traceparent, SpanKind.PRODUCER, server=event.data.server_id, type=event.type):
        with _counted(event.type.removeprefix(f"{TYPE_PREFIX}."), count):
            recorded = _record(_traced(event), intents, due_in_s)
        intent = recorded.intent
        structlog.get_logger().info(
            "event_recorded", server=intent.server_id, type=event.type, event_id=event.id, generation=intent.desired
        )
        if recorded.needs_message:
            enqueue(intent.server_id)
    return intent


def accept(
    raw: str | bytes | dict[str, Any],
    intents: IntentStore,
    enqueue: Enqueue,
    *,
    due_in_s: float,
    count: Count = uncounted,
) -> Intent:
    """Emit an event that came from outside; one that is refused is kept among the dead letters.

    Raises:
        EventInvalid: it does not follow the contract; the message names the field.
        IntentsUnavailable: as for `emit`.
    """
    try:
        event = _parsed(raw, count)
        return emit(event, intents, enqueue, due_in_s=due_in_s, count=count)
    except EventInvalid as error:
        intents.add_dead_letter(str(error), _text(raw))
        structlog.get_logger().warning("event_refused", field=error.field, reason=error.reason)
        raise


def _parsed(raw: str | bytes | dict[str, Any], count: Count) -> ServerEvent:
    try:
        return parse_event(raw)
    except EventInvalid:
        count("unknown", "refused")
        raise


def _traced(event: ServerEvent) -> ServerEvent:
    """Return the event with the trace that is recorded now, so that the look becomes a part of it."""
    return event.model_copy(update={"traceparent": traceparent()})


@contextmanager
def _counted(kind: str, count: Count) -> Generator[None]:
    """Count an event by how its recording ends."""
    try:
        yield
    except EventInvalid:
        count(kind, "refused")
        raise
    except IntentsUnavailable:
        count(kind, "not_recorded")
        raise
    count(kind, "recorded")


def _record(event: ServerEvent, intents: IntentStore, due_in_s: float) -> Recorded:
    """Record it; a server that is unknown is refused only by a store that holds all servers there are."""
    try:
        return intents.record(event, due_in_s=due_in_s)
    except EventInvalid as error:
        if not intents.is_complete():
            reason = f"{error}, as far as is known: the store is new or lost its data, and no worker has restored it"
            raise IntentsUnavailable(reason) from error
    return intents.record(event, due_in_s=due_in_s)  # the server may have been restored in between


def _text(raw: str | bytes | dict[str, Any]) -> str:
    if isinstance(raw, dict):
        return json.dumps(raw, default=str)  # as it can be mended and sent again with `toolscale emit event`
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
