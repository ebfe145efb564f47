"""The door as a process of its own: it records in the intent store and wakes workers through the broker."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from shared.errors import ConfigInvalid
from shared.observability.logging import configure_logging
from shared.observability.tracing import configure_tracing
from workers.emit import Emitter, message_time_s
from workers.enqueue import broker_enqueue, enqueue_in_background
from workers.events_api.recorder import EventRecorder
from workers.events_api.routes import EVENTS_PATH, events_route, metrics_route
from workers.intents import open_intents
from workers.metrics import BacklogGauges, WorkerMetrics

if TYPE_CHECKING:
    from starlette.requests import Request

    from shared.settings import Settings

# Requests that are still running at shutdown get this long.
GRACE_S = 5

_log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Take events until a signal.

    Raises:
        ConfigInvalid: there is no token, or the address cannot be bound.
        IntentsUnavailable: the intents cannot be opened.
    """
    configure_logging(settings.log_level)
    configure_tracing("toolscale-events-api", os.environ)
    token, metrics = required_token(settings), WorkerMetrics()
    with (
        _bind(settings.events_host, settings.events_port) as listener,
        recording(settings, metrics) as recorder,
    ):
        limit, is_open = settings.events_max_body_bytes, settings.metrics_public
        config = uvicorn.Config(
            events_api_app(recorder, token, limit, metrics, metrics_public=is_open),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        _log.info("events_api_started", url=_url(listener))
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            _log.info("events_api_stopped")


def required_token(settings: Settings) -> str:
    """Return the token that producers show.

    Raises:
        ConfigInvalid: there is none, and without one the door stays shut.
    """
    if settings.events_token is None:
        raise ConfigInvalid("setting events_token: the door for events does not open without TOOLSCALE_EVENTS_TOKEN")
    return settings.events_token


def events_api_app(
    recorder: EventRecorder, token: str, max_body_bytes: int, metrics: WorkerMetrics, *, metrics_public: bool = False
) -> Starlette:
    """Return `/events` with `/healthz`, `/readyz` that tells whether the intent store answers, and `/metrics`.

    The last needs the token as well, unless it is open.
    """

    async def readyz(_: Request) -> JSONResponse:
        if await recorder.is_ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "intents unavailable"}, status_code=503)

    events = events_route(recorder, token=token, max_body_bytes=max_body_bytes, on_response=metrics.events_response)
    shown = metrics_route(metrics.registry, token=None if metrics_public else token)
    return Starlette(routes=[events, shown, Route("/healthz", _healthz), Route("/readyz", readyz)])


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "alive"})


@contextmanager
def recording(settings: Settings, metrics: WorkerMetrics) -> Generator[EventRecorder]:
    """Open the intents, and a way to the broker that cannot hold up a producer; events are counted in `metrics`."""
    with (
        closing(open_intents(settings)) as intents,
        enqueue_in_background(broker_enqueue(settings)) as enqueue,
        closing(EventRecorder(Emitter(intents, enqueue, message_time_s(settings), metrics))) as recorder,
    ):
        metrics.registry.register(BacklogGauges(intents.backlog))
        yield recorder


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigInvalid(
            f"settings events_host and events_port: cannot listen on {host}:{port}: {error.strerror}"
        ) from error
    # connections inherit it; without it the end of each answer waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{EVENTS_PATH}"
