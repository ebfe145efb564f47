"""`POST /events`: authentication, content types, and the response for each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.errors import AuthenticationFailed
from shared.service.routes import metrics_response
from shared.service.tracing import use_parent_trace
from workers.events_api.cloudevents import BATCH, MEDIA_TYPES, BatchTooLong, documents, media_type
from workers.events_api.recorder import NOT_RECORDED, RECORDED, REFUSED, RecordOutcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from workers.emit import Sender
    from workers.events_api.producers import Producers
    from workers.events_api.recorder import EventRecorder

EVENTS_PATH = "/events"
# More would delay the events of other producers.
MAX_BODY_BYTES = 1 << 20

MIXED = 207


def events_route(recorder: EventRecorder, *, producers: Producers, max_body_bytes: int = MAX_BODY_BYTES) -> Route:
    """Return the route that records events of these producers."""

    async def events(request: Request) -> JSONResponse:
        try:
            with use_parent_trace(request.headers.get("traceparent")):
                return await record(request)
        except HTTPException as error:
            return _error_response(error)

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
        return _batch_response(outcomes) if sent_as == BATCH else _event_response(outcomes[0])

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


def _batch_response(outcomes: Sequence[RecordOutcome]) -> JSONResponse:
    return _json(overall(outcomes), {"events": [outcome.model_dump(exclude_none=True) for outcome in outcomes]})


def _event_response(outcome: RecordOutcome) -> JSONResponse:
    return _json(outcome.status, outcome.model_dump(exclude_none=True))


def _error_response(error: HTTPException) -> JSONResponse:
    content = {"status": error.status_code, "reason": error.detail}
    return JSONResponse(content, error.status_code, error.headers)


def _json(status: int, content: dict[str, Any]) -> JSONResponse:
    return JSONResponse(content, status, {"Retry-After": "1"} if status == NOT_RECORDED else None)


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
