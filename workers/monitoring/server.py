"""The port of its own on which a process of the write side says how it is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog

from shared.errors import ConfigInvalid

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.settings import Settings

HealthCheck = Callable[[], str | None]
"""Returns what is wrong, in words, or None; at once."""

_log = structlog.get_logger()


@contextmanager
def metrics_port(settings: Settings, registry: CollectorRegistry, checks: Mapping[str, HealthCheck]) -> Generator[None]:
    """Serve these metrics and checks until the block ends; where no port is set, or it is in use, do nothing."""
    if settings.metrics_port is None:
        yield
        return
    from workers.monitoring.routes import monitor_app, served  # noqa: PLC0415  # who only sends tasks serves nothing

    try:
        listener = bind(settings.metrics_host, settings.metrics_port)
    except ConfigInvalid as error:  # a process is worth more than what it says of itself
        _log.error("metrics_port_failed", reason=str(error))  # the reason is the whole story
        yield
        return
    with closing(listener), served(monitor_app(registry, checks), listener):
        _log.info("metrics_port_opened", port=listener.getsockname()[1])
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigInvalid(
            f"settings metrics_host and metrics_port: cannot listen on {host}:{port}: {error.strerror}"
        ) from error
