"""The metrics of reconciliations, of their backlog, and of the task queue in Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

from shared.errors import IntentsUnavailable, LeaseHeld, ServerError
from shared.service.redis import redis_errors
from shared.service.tracing import span

if TYPE_CHECKING:
    import redis

    from shared.intents.intent import Backlog

QUEUE = "toolscale"
# The hash in which kombu keeps messages that a worker took and did not acknowledge.
UNACKED = "unacked"
# A header of our messages: the send time, in seconds since the epoch by the sender's clock.
SENT_AT = "sent_at"

RECONCILES = Counter("toolscale_reconciles_total", "Reconciliations by result.", ["result"])
for _result in ("changed", "unchanged", "listing_failed", "not_due", "held", "failed"):
    RECONCILES.labels(_result)  # at 0 from the start, so that an alert sees the first increase
RECONCILE_SECONDS = Histogram(
    "toolscale_reconcile_seconds",
    "Duration of reconciliations with the result changed or unchanged.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class _Counts(Protocol):
    """The tools that a reconciliation wrote and removed."""

    @property
    def written(self) -> int: ...
    @property
    def removed(self) -> int: ...


@contextmanager
def counted_reconcile() -> Generator[Callable[[_Counts | None], None]]:
    """Count a reconciliation by its result; the block passes its counts, or None if none was due, to `done`."""
    started_s, result = time.monotonic(), "failed"  # an interruption too

    def done(counts: _Counts | None) -> None:
        nonlocal result
        if counts is None:
            result = "not_due"
            return
        result = "changed" if counts.written or counts.removed else "unchanged"
        RECONCILE_SECONDS.observe(time.monotonic() - started_s)

    try:
        yield done
    except LeaseHeld:
        result = "held"
        raise
    except ServerError:
        result = "listing_failed"
        raise
    finally:
        RECONCILES.labels(result).inc()


class Stages:
    """The number of stages of reconciliations that ended in this process, roughly: it grows while work goes on."""

    ended = 0


@contextmanager
def stage(name: Literal["fetch", "count", "embed", "upsert"]) -> Generator[None]:
    """Add a stage of a reconciliation to the trace, and count its end, also where it fails."""
    try:
        with span(name):
            yield
    finally:
        Stages.ended += 1


@dataclass(frozen=True, slots=True)
class BacklogGauges:
    """A collector of the backlog in the intent store, read at each scrape."""

    backlog: Callable[[], Backlog]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; if the store does not answer, only `toolscale_intents_up`."""
        name, description = "toolscale_intents_up", "1: the intent store answers; 0: it does not."
        try:
            backlog = self.backlog()
        except IntentsUnavailable:
            yield GaugeMetricFamily(name, description, 0)
            return
        yield GaugeMetricFamily(name, description, 1)
        yield GaugeMetricFamily("toolscale_reconciles_due", "Reconciliations that are due and not sent.", backlog.due)
        yield GaugeMetricFamily("toolscale_reconcile_overdue_seconds", "Delay of the first of them.", backlog.overdue_s)
        yield GaugeMetricFamily("toolscale_dead_letters", "Stored rejected events and messages.", backlog.dead_letters)


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
