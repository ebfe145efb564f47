"""The task queue in Redis: its number of messages, the age of the oldest, and the memory of Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from prometheus_client.metrics_core import GaugeMetricFamily

from shared.errors import IntentsUnavailable
from shared.service.redis import connect, redis_errors
from workers.monitoring.checks import CHECK_EVERY_S, PeriodicCheck

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings
    from workers.monitoring.checks import HealthCheck

QUEUE = "toolscale"
# The hash in which kombu keeps messages that a worker took and did not acknowledge.
UNACKED = "unacked"
# A header of our messages: the send time, in seconds since the epoch by the sender's clock.
SENT_AT = "sent_at"


@dataclass(frozen=True, slots=True)
class _QueueState:
    """Numbers of waiting and of taken messages, and the age of the oldest waiting one in seconds."""

    waiting: int
    taken: int
    oldest_s: float


def read_queue(client: redis.Redis) -> _QueueState:
    """Return the current state of the queue.

    Raises:
        IntentsUnavailable: Redis does not answer.
    """
    with redis_errors(IntentsUnavailable), client.pipeline(transaction=False) as pipe:
        pipe.llen(QUEUE)
        pipe.hlen(UNACKED)
        pipe.lindex(QUEUE, -1)  # the end from which workers take
        waiting, taken, first = pipe.execute()
    return _QueueState(waiting, taken, waited_s(sent_at(first)) if first else 0.0)


@contextmanager
def broker_checked(settings: Settings) -> Generator[HealthCheck]:
    """Check until the block ends that Redis answers, and yield the check; without Redis it finds no problem."""
    if settings.redis_url is None:
        yield lambda: None
        return
    with connect(settings.redis_url) as client:

        def answers() -> None:
            read_queue(client)

        with PeriodicCheck(answers, CHECK_EVERY_S).running() as problem:
            yield problem


def waited_s(since: float | None) -> float:
    """Return the seconds since a message was sent; 0 if the time is unknown or in the future."""
    return 0.0 if since is None else max(0.0, time.time() - since)


def sent_at(message: str) -> float | None:
    """Return the send time of a message, None if it has none."""
    try:
        document: Any = json.loads(message)
    except (ValueError, RecursionError):
        return None
    headers: Any = cast("dict[str, Any]", document).get("headers") if isinstance(document, dict) else None
    sent: Any = cast("dict[str, Any]", headers).get(SENT_AT) if isinstance(headers, dict) else None
    return float(sent) if isinstance(sent, int | float) else None


@dataclass(frozen=True, slots=True)
class RedisGauges:
    """A collector that reads the queue and the memory of Redis at each scrape."""

    client: redis.Redis

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges, as far as Redis answers."""
        try:
            queue = read_queue(self.client)
            messages = GaugeMetricFamily("toolscale_queue_messages", "Messages for workers.", labels=["state"])
            messages.add_metric(["waiting"], queue.waiting)
            messages.add_metric(["taken"], queue.taken)
            yield messages
            yield GaugeMetricFamily("toolscale_queue_oldest_seconds", "Age of the first message.", queue.oldest_s)
            with redis_errors(IntentsUnavailable):
                memory = self.client.info("memory")
        except IntentsUnavailable:
            return
        yield GaugeMetricFamily("toolscale_redis_memory_bytes", "Memory that Redis uses.", memory["used_memory"])
        if limit := memory["maxmemory"]:
            yield GaugeMetricFamily("toolscale_redis_memory_limit_bytes", "Memory at which it rejects writes.", limit)
