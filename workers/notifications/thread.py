"""The notification listeners in a thread of the process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from shared.service.protection import full_environment
from shared.upstream.config_file import ConfigFile
from shared.upstream.dial import OperatorServers
from shared.upstream.dialler import dialler_for
from workers.intents.store import IntentStore
from workers.notifications.metrics import NotificationMetrics
from workers.sources.announcer import Emit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.settings import Settings
    from workers.notifications.supervisor import SubscriptionPolicy


SOURCE = "toolscale/notifications"


@contextmanager
def listeners_running(
    settings: Settings,
    intents: IntentStore,
    emit: Emit,
    registry: CollectorRegistry,
    *,
    beat: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """Listen to the servers that the settings select, and close all connections when the block ends.

    The metrics are registered in `registry`.
    """
    from workers.notifications.supervisor import ListenerSupervisor  # noqa: PLC0415  # the SDK takes a second to import

    supervisor = ListenerSupervisor(
        SOURCE, intents, emit, _subscription_policy(settings), beat=beat, metrics=NotificationMetrics(registry)
    )
    with start_blocking_portal(name="toolscale notifications") as portal:
        running = portal.start_task_soon(supervisor.run)
        try:
            yield
        finally:
            running.cancel()


def _subscription_policy(settings: Settings) -> SubscriptionPolicy:
    from workers.notifications.supervisor import SubscriptionPolicy  # noqa: PLC0415

    configured: OperatorServers = ConfigFile(settings.mcp_config, full_environment()) if settings.mcp_config else {}
    dialler = dialler_for(settings, full_environment(), configured)
    return SubscriptionPolicy(configured, dialler, settings.subscribe)
