"""The queue of tasks in Redis: how many messages wait, and for how long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from shared.errors import IntentsUnavailable
from shared.observability.metrics import Metric, gauge
from workers.intents.redis_store import translated

if TYPE_CHECKING:
    import redis
    from prometheus_client.metrics_core import GaugeMetricFamily

QUEUE = "toolscale"
# Where kombu keeps what a worker took and did not acknowledge yet.
UNACKED = "unacked"
# A header of every message of ours: when it was sent, in seconds since the epoch by the sender's clock.
SENT_AT = "sent_at"

MESSAGES = Metric(
    "toolscale_queue_messages",
    "gauge",
    "messages",
    "Messages of the broker for all workers: `waiting`, or `taken` by a worker and not done.",
    ("state",),
)
OLDEST = Metric(
    "toolscale_queue_oldest_seconds",
    "gauge",
    "seconds",
    "Age of the first message, by the clocks of sender and reader; 0 for an empty queue.",
)
METRICS = (MESSAGES, OLDEST)


@dataclass(frozen=True, slots=True)
class QueueState:
    """Messages that wait and that are being worked on, and how long the first has waited, in seconds."""

    waiting: int
    taken: int
    oldest_s: float


def read_queue(client: redis.Redis) -> QueueState:
    """Return the state of the queue now.

    Raises:
        IntentsUnavailable: Redis does not answer.
    """
    with translated(), client.pipeline(transaction=False) as pipe:
        pipe.llen(QUEUE)
        pipe.hlen(UNACKED)
        pipe.lindex(QUEUE, -1)  # workers take from this end
        waiting, taken, first = pipe.execute()
    return QueueState(waiting, taken, waited_s(sent_at(first)) if first else 0.0)


def waited_s(since: float | None) -> float:
    """Return the seconds since a message was sent; 0 where nobody knows, or where clocks differ."""
    return 0.0 if since is None else max(0.0, time.time() - since)


def sent_at(message: str) -> float | None:
    """Return when a message was sent, None where it does not say so."""
    try:
        document: Any = json.loads(message)
    except (ValueError, RecursionError):
        return None
    headers: Any = cast("dict[str, Any]", document).get("headers") if isinstance(document, dict) else None
    sent: Any = cast("dict[str, Any]", headers).get(SENT_AT) if isinstance(headers, dict) else None
    return float(sent) if isinstance(sent, int | float) else None


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """A collector of the queue's state, read each time that it is asked."""

    read: Callable[[], QueueState]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges as of now; nothing where Redis does not answer."""
        try:
            state = self.read()
        except IntentsUnavailable:
            return
        yield gauge(MESSAGES, {"waiting": state.waiting, "taken": state.taken})
        yield gauge(OLDEST, state.oldest_s)
