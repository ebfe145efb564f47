"""What is counted of the connections on which servers tell that their tools changed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from shared.errors import NotificationsUnsupported, ServerError
from shared.observability.metrics import Metric, counter, gauge

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

SERVERS = Metric(
    "toolscale_subscription_servers",
    "gauge",
    "servers",
    "Servers to connect to for notifications, `wanted`, and those with an open connection, `connected`.",
    ("state",),
)
CONNECTIONS = Metric(
    "toolscale_subscription_connections_total",
    "counter",
    "connections",
    "Connections for notifications: `opened`; `lost` after that; `failed` before; `unsupported`: the server does "
    "not support notifications.",
    ("outcome",),
)
NOTIFICATIONS = Metric(
    "toolscale_subscription_notifications_total",
    "counter",
    "notices",
    "Notifications of changed tools; several of one server request one reconciliation.",
)
METRICS = (SERVERS, CONNECTIONS, NOTIFICATIONS)


class NotificationMetrics:
    """Counts what one fleet of listeners hears; used from its event loop alone, and read from any thread."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Begin at 0, in a registry of its own where none is given."""
        registry = CollectorRegistry() if registry is None else registry
        self._connections = counter(CONNECTIONS, registry)
        self._notifications = counter(NOTIFICATIONS, registry)
        self._wanted = self._connected = 0
        registry.register(self)

    def set_wanted(self, servers: int) -> None:
        """Note how many servers are to be heard."""
        self._wanted = servers

    def count_notification(self) -> None:
        """Count what a server told."""
        self._notifications.inc()

    @contextmanager
    def connection(self) -> Generator[Callable[[], None]]:
        """Count a connection by how it ends, and show it while it is open: from when what is yielded is called."""
        is_open = False

        def opened() -> None:
            nonlocal is_open
            is_open = True
            self._connected += 1
            self._connections.labels("opened").inc()

        try:
            yield opened
        except NotificationsUnsupported:
            self._connections.labels("unsupported").inc()
            raise
        except ServerError:
            self._connections.labels("lost" if is_open else "failed").inc()
            raise
        finally:
            self._connected -= is_open

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield how many servers are to be heard now, and how many are."""
        yield gauge(SERVERS, {"wanted": float(self._wanted), "connected": float(self._connected)})
