"""The events API as a process: it records events in the intent store and sends messages to workers."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from shared.intents.intents import open_intents
from shared.service.http import HttpConfig, bind
from shared.service.logging import configure_logging
from shared.service.process import full_environment
from shared.service.routes import liveness_route, registry_with
from shared.service.tracing import configure_tracing
from workers.emit import Emitter, message_time_s
from workers.events_api.producers import Producers, required_producers
from workers.events_api.recorder import EventRecorder
from workers.events_api.routes import EVENTS_PATH, MAX_BODY_BYTES, events_route, metrics_route
from workers.metrics import BacklogGauges
from workers.monitoring.index import warn_if_index_unreachable
from workers.producers.enqueue import broker_enqueue, enqueue_in_background

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from shared.settings import Settings

# Seconds that running requests have at shutdown.
GRACE_S = 5

_log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Accept events until a signal.

    Raises:
        ConfigInvalid: no token is set, a file is invalid, or the address cannot be bound.
        IntentsUnavailable: the intents cannot be opened.
    """
    configure_logging(settings.log_level)
    configure_tracing("toolscale-events-api", full_environment())
    producers = required_producers(settings)
    warn_if_index_unreachable(settings)
    with (
        bind(settings.events_host, settings.events_port, "events_host and events_port") as listener,
        closing(open_intents(settings)) as intents,
        # messages are sent in the background, so that the broker cannot delay a producer
        enqueue_in_background(broker_enqueue(settings)) as enqueue,
        closing(EventRecorder(Emitter(intents, enqueue, message_time_s(settings)))) as recorder,
    ):
        registry = registry_with(BacklogGauges(intents.backlog))
        app = events_api_app(recorder, producers, registry, metrics_public=settings.metrics_public)
        _log.info("events_api_started", url=_url(listener))
        try:
            uvicorn.Server(HttpConfig(app, grace_s=GRACE_S)).run(sockets=[listener])
        finally:
            _log.info("events_api_stopped")


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
    return Starlette(routes=[events, scraped, liveness_route(), Route("/readyz", readyz)])


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{EVENTS_PATH}"
