"""`POST /events` by the HTTP binding of CloudEvents 1.0: authentication, content modes, and a response for each event.

Events are recorded within a bounded time, even when the intent store hangs.
"""

from __future__ import annotations

import asyncio
import json
import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.errors import AuthenticationFailed, EventInvalid, IntentsUnavailable
from shared.intents.intent import Intent
from shared.quoting import encodable
from shared.service.routes import application, liveness_route, metrics_response
from shared.service.tracing import use_parent_trace
from workers.emit import ANYONE, Emitter, Sender
from workers.events_api.producers import Producers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request


EVENTS_PATH = "/events"
# More would delay the events of other producers.
MAX_BODY_BYTES = 1 << 20
MAX_BATCH = 1_000
"""Events of one request; the response has a line for each of them."""

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
BINARY = "application/json"
MEDIA_TYPES = (STRUCTURED, BATCH, BINARY)

# Requests that are recorded at the same time; the others queue, within their own time limit.
THREADS = 8
# A producer gets a response within 2 s; the difference is for the HTTP layer.
WITHIN_S = 1.5

RECORDED, MIXED, REFUSED, NOT_RECORDED = 202, 207, 400, 503

Document = dict[str, Any] | str
"""An unvalidated event: a JSON object, or the text of the request if it is none."""


def events_api_app(
    recorder: EventRecorder,
    producers: Producers,
    registry: CollectorRegistry,
    *,
    metrics_public: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Starlette:
    """Return `/events`, `/healthz`, `/readyz`, which checks the intent store, and `/metrics`.

    `/metrics` also requires a token, unless it is public.
    """

    async def readyz(_: Request) -> JSONResponse:
        if await recorder.is_ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "intents unavailable"}, status_code=503)

    events = events_route(recorder, producers=producers, max_body_bytes=max_body_bytes)
    scraped = metrics_route(registry, None if metrics_public else producers)
    return application([events, scraped, liveness_route(), Route("/readyz", readyz)])


def events_route(recorder: EventRecorder, *, producers: Producers, max_body_bytes: int = MAX_BODY_BYTES) -> Route:
    """Return the route that records events of these producers."""

    async def record(request: Request) -> JSONResponse:
        sender = _authenticate(request, producers)
        sent_as = media_type(request.headers.get("content-type", ""))
        if sent_as not in MEDIA_TYPES:
            raise HTTPException(415, f"expected a content-type of {', '.join(MEDIA_TYPES)}")
        body = await _body(request, max_body_bytes)
        try:
            outcomes = await recorder.record(documents(request.headers, body), sender)
        except BatchTooLong as error:
            raise HTTPException(413, str(error)) from error
        shown = [outcome.model_dump(exclude_none=True) for outcome in outcomes]
        status, content = (overall(outcomes), {"events": shown}) if sent_as == BATCH else (outcomes[0].status, shown[0])
        return JSONResponse(content, status, {"Retry-After": "1"} if status == NOT_RECORDED else None)

    async def events(request: Request) -> JSONResponse:
        try:
            with use_parent_trace(request.headers.get("traceparent")):
                return await record(request)
        except HTTPException as error:
            return _error_response(error)

    return Route(EVENTS_PATH, events, methods=["POST"])


def metrics_route(registry: CollectorRegistry, producers: Producers | None) -> Route:
    """Return `/metrics`, which requires the token of a producer if producers are given."""

    async def metrics(request: Request) -> Response:
        try:
            if producers is not None:
                _authenticate(request, producers)
        except HTTPException as error:
            return _error_response(error)
        return await metrics_response(request, registry)

    return Route("/metrics", metrics, methods=["GET"])


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


def overall(outcomes: Sequence[RecordOutcome]) -> int:
    """Return the status of a whole batch.

    202: all are recorded. 503: some are not; sending the batch again is safe for the recorded ones.
    400: all are rejected. 207: some are recorded, the others rejected; sending the batch again is useless.
    """
    statuses = {outcome.status for outcome in outcomes}
    if NOT_RECORDED in statuses:
        return NOT_RECORDED
    if statuses == {REFUSED}:
        return REFUSED
    return MIXED if REFUSED in statuses else RECORDED


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


class BatchTooLong(ValueError):
    """A batch has too many events."""


def media_type(content_type: str) -> str:
    """Return the type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def documents(headers: Mapping[str, str], body: bytes) -> list[Document]:
    """Return the documents of a request of one of MEDIA_TYPES, in order: one, or those of a batch.

    The recorder validates them, and stores invalid ones as dead letters. `headers` have lower-case names.

    Raises:
        BatchTooLong: the batch has more than `MAX_BATCH` events.
    """
    content_mode = media_type(headers.get("content-type", ""))
    if content_mode == BINARY:
        # the binding escapes characters outside printable ASCII as %XX
        attributes = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
        return [attributes | {"datacontenttype": BINARY, "data": _parsed(body)}]
    parsed: object = _parsed(body)
    if content_mode == BATCH and isinstance(parsed, list):
        batch = cast("list[object]", parsed)
        if len(batch) > MAX_BATCH:
            raise BatchTooLong(f"expected at most {MAX_BATCH} events, got {len(batch)}")
        return [_document(item) for item in batch]
    return [_document(parsed)]


def _error_response(error: HTTPException) -> JSONResponse:
    content = {"status": error.status_code, "reason": error.detail}
    return JSONResponse(content, error.status_code, error.headers)


def _authenticate(request: Request, producers: Producers) -> Sender:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    try:
        return producers.authenticate(given.strip() if scheme.lower() == "bearer" else "")
    except AuthenticationFailed as error:
        raise HTTPException(401, str(error), {"WWW-Authenticate": "Bearer"}) from error


async def _body(request: Request, limit: int) -> bytes:
    """Return the whole body; read at most the limit."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"expected at most {limit} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended before its body did") from error
    return bytes(body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
    except RecursionError:  # the prefix prevents another attempt to parse it
        return "nested too deeply: " + body.decode("utf-8", "replace")


def _document(parsed: Any) -> Document:
    """Return an object unchanged, and any other value as text."""
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return parsed if isinstance(parsed, str) else reprlib.repr(parsed)


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
    return encodable(event_id[:200]) if isinstance(event_id, str) else None
