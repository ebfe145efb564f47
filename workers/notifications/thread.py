"""Listening in a thread of its own, beside whatever else a process does."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from shared.upstream.config_file import ConfigFile
from shared.upstream.dial import Configured
from shared.upstream.dialler import operators_dialler
from workers.intents.store import IntentStore
from workers.notifications.metrics import ListeningMetrics
from workers.sources.reconcile import Emit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.settings import Settings
    from workers.notifications.supervisor import Reach


SOURCE = "toolscale/listening"


@contextmanager
def listening(
    settings: Settings,
    intents: IntentStore,
    emit: Emit,
    registry: CollectorRegistry,
    *,
    beat: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """Listen to the servers that the settings choose until the block ends; then all connections are closed.

    What is heard is counted in `registry`.
    """
    from workers.notifications.supervisor import Fleet  # noqa: PLC0415  # the SDK takes a second to import

    fleet = Fleet(SOURCE, intents, emit, _reach(settings), beat=beat, metrics=ListeningMetrics(registry))
    with start_blocking_portal(name="toolscale listening") as portal:
        running = portal.start_task_soon(fleet.run)
        try:
            yield
        finally:
            running.cancel()


def _reach(settings: Settings) -> Reach:
    from workers.notifications.supervisor import Reach  # noqa: PLC0415

    configured: Configured = ConfigFile(settings.config, os.environ) if settings.config else {}
    dialler = operators_dialler(settings, os.environ, configured)
    return Reach(configured, dialler, settings.listen, settings.listen_max)
