"""Record events within a bounded time, even when the intent store hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.errors import EventInvalid, IntentsUnavailable
from shared.intents.intent import Intent
from workers.emit import ANYONE, Emitter, Sender
from workers.events_api.cloudevents import Document

# Requests that are recorded at the same time; the others queue, within their own time limit.
THREADS = 8
# A producer gets a response within 2 s; the difference is for the HTTP layer.
WITHIN_S = 1.5

RECORDED, REFUSED, NOT_RECORDED = 202, 400, 503


class RecordOutcome(BaseModel):
    """The result of one event.

    `status` 202: recorded durably, as this `generation` of its server. 400: rejected for this `field`, and stored as
    a dead letter. 503: probably not recorded; the producer should send it again.
    """

    model_config = ConfigDict(frozen=True)

    status: int
    id: str | None = None
    server_id: str | None = None
    generation: int | None = None
    field: str | None = None
    reason: str | None = None


class EventRecorder:
    """Records events in at most THREADS threads, each request within `within_s` seconds."""

    def __init__(self, emitter: Emitter, *, within_s: float = WITHIN_S) -> None:
        self._emitter = emitter
        self._within_s = within_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="toolscale events")

    async def record(self, documents: Sequence[Document], sender: Sender = ANYONE) -> list[RecordOutcome]:
        """Return the result of each event as its sender may send it, in order.

        An event that was unfinished at the time limit may still be recorded; sending it again is safe.
        """
        outcomes = [_not_recorded(document, "the intent store did not answer in time") for document in documents]
        until = time.monotonic() + self._within_s

        def record_all() -> None:
            answered = 0
            try:
                for answered, result in enumerate(self._emitter.accept_all(documents, sender), start=1):
                    outcomes[answered - 1] = _outcome(documents[answered - 1], result)
                    if time.monotonic() >= until:
                        return
            except IntentsUnavailable as error:
                outcomes[answered:] = [_not_recorded(document, str(error)) for document in documents[answered:]]

        await self._in_time(record_all)
        return list(outcomes)

    async def is_ready(self) -> bool:
        """Return whether the intent store answers in time."""
        try:
            return await self._in_time(lambda: self._emitter.intents.intent("readiness"))
        except IntentsUnavailable:
            return False

    def close(self) -> None:
        """Start no further request, and do not wait for those that hang in the store."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_time(self, call: Callable[[], Any]) -> bool:
        """Return whether the call ended in time; a call that has not begun by then is cancelled."""
        future = self._threads.submit(copy_context().run, call)  # with the trace of the request
        try:
            await asyncio.wait_for(asyncio.wrap_future(future), self._within_s)
        except TimeoutError:
            return False
        return True


def _outcome(document: Document, result: Intent | EventInvalid | IntentsUnavailable) -> RecordOutcome:
    if isinstance(result, EventInvalid):
        return RecordOutcome(status=REFUSED, id=_id(document), field=result.field, reason=result.reason)
    if isinstance(result, IntentsUnavailable):
        return _not_recorded(document, str(result))
    return RecordOutcome(status=RECORDED, id=_id(document), server_id=result.server_id, generation=result.desired)


def _not_recorded(document: Document, reason: str) -> RecordOutcome:
    return RecordOutcome(status=NOT_RECORDED, id=_id(document), reason=reason)


def _id(document: Document) -> str | None:
    event_id = document.get("id") if isinstance(document, dict) else None
    return event_id[:200] if isinstance(event_id, str) else None
