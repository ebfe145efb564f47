"""The port for the health and metrics of one process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog

from shared.errors import ConfigInvalid
from workers.monitoring.checks import CHECK_EVERY_S, PeriodicCheck, Prolonged

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig
    from workers.monitoring.checks import HealthCheck

STUCK_AFTER_S = 180.0
"""Seconds of a problem after which a restart is the only cure left."""

_log = structlog.get_logger()


@contextmanager
def metrics_port(
    settings: Settings,
    checks: Mapping[str, HealthCheck],
    *,
    work: HealthCheck,
    gauges: Iterable[Collector] = (),
    stuck_after_s: float = STUCK_AFTER_S,
    followed_config: Callable[[], FollowedConfig | None] = lambda: None,
) -> Generator[None]:
    """Serve the metrics of this process and of `gauges`, and these checks, until the block ends.

    Do nothing without a port, or if it is in use.

    `/healthz` fails after `stuck_after_s` seconds in which `work` had a problem and the check `broker` had none.
    """
    if settings.metrics_port is None:
        yield
        return
    # a process that only sends tasks has no port
    from shared.service.http import bind  # noqa: PLC0415
    from shared.service.routes import registry_with  # noqa: PLC0415
    from workers.monitoring.routes import monitor_app, served  # noqa: PLC0415

    try:
        listener = bind(settings.metrics_host, settings.metrics_port, "metrics_host and metrics_port")
    except ConfigInvalid as error:  # the process must work without its metrics
        _log.error("metrics_port_failed", reason=str(error))  # the reason is complete
        yield
        return
    prolonged = Prolonged(work, checks["broker"], stuck_after_s)
    with (
        PeriodicCheck(prolonged.problem, CHECK_EVERY_S).running() as stuck,
        closing(listener),
        served(monitor_app(registry_with(*gauges), checks, stuck, followed_config), listener),
    ):
        _log.info("metrics_port_opened", port=listener.getsockname()[1])
        yield
