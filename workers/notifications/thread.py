"""The notification listeners in a thread of the process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from shared.intents.intents import Intents
from shared.service.protection import full_environment
from shared.upstream.config_file import ConfigFile
from shared.upstream.dialler import dialler_for
from workers.notifications.metrics import NotificationMetrics
from workers.notifications.open_files import connection_limit
from workers.sources.announcer import Emit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.settings import Settings
    from workers.notifications.supervisor import SubscriptionPolicy


SOURCE = "toolscale/notifications"


@contextmanager
def listeners_running(
    settings: Settings,
    intents: Intents,
    emit: Emit,
    registry: CollectorRegistry,
    *,
    may_listen: Callable[[], bool] = lambda: True,
    beat: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """Listen to the servers that the settings select, and close all connections when the block ends.

    The metrics are registered in `registry`; for `may_listen` and `beat` see `ListenerSupervisor`.
    """
    from workers.notifications.supervisor import ListenerSupervisor  # noqa: PLC0415  # the SDK takes a second to import

    supervisor = ListenerSupervisor(
        *(SOURCE, intents, emit, _subscription_policy(settings)),
        may_listen=may_listen,
        beat=beat,
        metrics=NotificationMetrics(registry),
    )
    with start_blocking_portal(name="toolscale notifications") as portal:
        running = portal.start_task_soon(supervisor.run)
        try:
            yield
        finally:
            running.cancel()


def _subscription_policy(settings: Settings) -> SubscriptionPolicy:
    from workers.notifications.supervisor import SubscriptionPolicy  # noqa: PLC0415

    file = ConfigFile(settings.mcp_config, full_environment()) if settings.mcp_config else None
    dialler = dialler_for(settings, full_environment(), file)
    return SubscriptionPolicy(file.targets if file else dict, dialler, settings.subscribe, connection_limit())
