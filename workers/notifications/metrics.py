"""Metrics of the notification connections."""

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
    """Metrics of one supervisor. Only its event loop may call the methods; any thread may collect."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register the metrics in `registry`, by default a new one."""
        registry = CollectorRegistry() if registry is None else registry
        self._connections = counter(CONNECTIONS, registry)
        self._notifications = counter(NOTIFICATIONS, registry)
        self._wanted = self._connected = 0
        registry.register(self)

    def set_wanted(self, servers: int) -> None:
        """Set the number of servers that need a connection."""
        self._wanted = servers

    def count_notification(self) -> None:
        """Count a notification."""
        self._notifications.inc()

    @contextmanager
    def connection(self) -> Generator[Callable[[], None]]:
        """Count a connection by its outcome; it counts as open once the yielded function was called."""
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
        """Yield the numbers of wanted and of connected servers."""
        yield gauge(SERVERS, {"wanted": float(self._wanted), "connected": float(self._connected)})
