"""A process that says what it knows of servers, and no more: a watcher, or who listens to them."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.observability.tracing import configure_tracing
from workers.emit import emit
from workers.intents import open_intents
from workers.metrics import WorkerMetrics
from workers.monitoring.checks import Freshness
from workers.monitoring.server import port_opened
from workers.wake import broker_wake, waking_in_background

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.events import ServerEvent
    from shared.settings import Settings
    from workers.emit import Wake
    from workers.intents.store import Intent, IntentStore


@dataclass(frozen=True, slots=True)
class SourceProcess:
    """What such a process works with: the intents, a way to the broker, and what it shows of itself."""

    settings: Settings
    intents: IntentStore
    wake: Wake
    metrics: WorkerMetrics
    fresh: Mapping[str, Freshness]

    @property
    def registry(self) -> CollectorRegistry:
        """Return what is shown."""
        return self.metrics.registry

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event durably, count it, and wake a worker.

        Raises:
            EventInvalid: it speaks of a server that was never announced.
            IntentsUnavailable: nothing was recorded.
        """
        # without a broker that another process reads, an event is due at once for that process's sweep
        due_in_s = 0.0 if self.settings.is_embedded else self.settings.retry_after_s
        return emit(event, self.intents, self.wake, due_in_s=due_in_s, count=self.metrics.event)

    def beat(self, part: str) -> None:
        """Note that this part has done its work. Safe to call from any thread."""
        self.fresh[part].note()


@contextmanager
def source_process(settings: Settings, parts: Collection[str], within_s: float) -> Generator[SourceProcess]:
    """Open all that the process works with until the block ends.

    It is ready while each of its `parts` has called `beat` in the last `within_s` seconds.

    Raises:
        IntentsUnavailable: the intents cannot be opened.
    """
    configure_tracing("toolscale-source", os.environ)
    metrics = WorkerMetrics()
    fresh = {part: Freshness(within_s) for part in parts}
    with (
        closing(open_intents(settings)) as intents,
        waking_in_background(broker_wake(settings)) as wake,
        port_opened(settings, metrics.registry, {part: each.trouble for part, each in fresh.items()}),
    ):
        yield SourceProcess(settings, intents, wake, metrics, fresh)
