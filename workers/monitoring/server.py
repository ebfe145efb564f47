"""The port for the health and metrics of one process."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog

from shared.errors import ConfigInvalid
from shared.service.sockets import bind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.settings import Settings
    from workers.monitoring.checks import HealthCheck

_log = structlog.get_logger()


@contextmanager
def metrics_port(settings: Settings, registry: CollectorRegistry, checks: Mapping[str, HealthCheck]) -> Generator[None]:
    """Serve these metrics and checks until the block ends; do nothing without a port, or if it is in use."""
    if settings.metrics_port is None:
        yield
        return
    from workers.monitoring.routes import monitor_app, served  # noqa: PLC0415  # a process that only sends tasks has none

    try:
        listener = bind(settings.metrics_host, settings.metrics_port, "metrics_host and metrics_port")
    except ConfigInvalid as error:  # the process must work without its metrics
        _log.error("metrics_port_failed", reason=str(error))  # the reason is complete
        yield
        return
    with closing(listener), served(monitor_app(registry, checks), listener):
        _log.info("metrics_port_opened", port=listener.getsockname()[1])
        yield
