"""The events API as a process, for the scaled composition: `python -m workers.events_api`."""

from __future__ import annotations

import sys
from contextlib import closing

import structlog
import uvicorn

from shared.errors import ToolscaleError
from shared.intents.intents import open_intents
from shared.service.http import HttpConfig, bind
from shared.service.logging import configure_logging
from shared.service.process import full_environment, interrupt_once
from shared.service.routes import registry_with
from shared.service.tracing import configure_tracing
from shared.settings import Settings, load_service_settings, warn_of_removed_settings
from workers.emit import Emitter, message_time_s
from workers.events_api.api import EVENTS_PATH, EventRecorder, events_api_app
from workers.events_api.producers import required_producers
from workers.monitoring.checks import warn_if_index_unreachable
from workers.monitoring.metrics import BacklogGauges
from workers.process import broker_enqueue, enqueue_in_background

# Seconds that running requests have at shutdown.
GRACE_S = 5

_log = structlog.get_logger()


def main() -> int:
    """Serve until a signal; return the exit code, 1 when the API could not start."""
    configure_logging("INFO")
    interrupt_once()
    try:
        serve(load_service_settings())
    except ToolscaleError as error:
        _log.error("events_api_failed", kind=type(error).__name__, reason=str(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def serve(settings: Settings) -> None:
    """Accept events until a signal.

    Raises:
        ConfigInvalid: no token is set, a file is invalid, or the address cannot be bound.
        IntentsUnavailable: the intents cannot be opened.
    """
    configure_logging(settings.log_level)
    warn_of_removed_settings(full_environment())
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
        host, port = listener.getsockname()[:2]
        _log.info("events_api_started", url=f"http://{f'[{host}]' if ':' in host else host}:{port}{EVENTS_PATH}")
        try:
            uvicorn.Server(HttpConfig(app, grace_s=GRACE_S)).run(sockets=[listener])
        finally:
            _log.info("events_api_stopped")


if __name__ == "__main__":
    sys.exit(main())
