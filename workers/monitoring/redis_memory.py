"""The memory of Redis, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.observability.metrics import Metric, gauge

if TYPE_CHECKING:
    import redis
    from prometheus_client.metrics_core import GaugeMetricFamily

MEMORY = Metric("toolscale_redis_memory_bytes", "gauge", "bytes", "Memory that Redis uses (`used_memory`).")
MEMORY_LIMIT = Metric(
    "toolscale_redis_memory_limit_bytes",
    "gauge",
    "bytes",
    "Memory at which Redis rejects writes (`maxmemory`); absent without a limit.",
)
METRICS = (MEMORY, MEMORY_LIMIT)


@dataclass(frozen=True, slots=True)
class RedisMemoryGauges:
    """A collector that reads the memory of Redis on each scrape."""

    client: redis.Redis

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; none if Redis does not report them."""
        from redis.exceptions import RedisError  # noqa: PLC0415  # a process without Redis does not need it

        try:
            memory = self.client.info("memory")
        except RedisError:
            return
        yield gauge(MEMORY, memory["used_memory"])
        if memory["maxmemory"]:
            yield gauge(MEMORY_LIMIT, memory["maxmemory"])
