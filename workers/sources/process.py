"""A process that says what it knows of servers, and no more: a watcher, or who listens to them."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.observability.tracing import configure_tracing
from workers.emit import Emitter, message_time_s
from workers.enqueue import broker_enqueue, enqueue_in_background
from workers.intents import open_intents
from workers.metrics import WorkerMetrics
from workers.monitoring.checks import Deadline
from workers.monitoring.server import metrics_port

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.events import ServerEvent
    from shared.settings import Settings
    from workers.emit import Enqueue
    from workers.intents.store import Intent, IntentStore


@dataclass(frozen=True, slots=True)
class SourceProcess:
    """What such a process works with: the intents, a way to the broker, and what it shows of itself."""

    settings: Settings
    intents: IntentStore
    enqueue: Enqueue
    metrics: WorkerMetrics
    deadlines: Mapping[str, Deadline]

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
        return Emitter(self.intents, self.enqueue, message_time_s(self.settings), self.metrics).emit(event)

    def beat(self, part: str) -> None:
        """Note that this part has done its work. Safe to call from any thread."""
        self.deadlines[part].touch()


@contextmanager
def source_process(settings: Settings, parts: Collection[str], within_s: float) -> Generator[SourceProcess]:
    """Open all that the process works with until the block ends.

    It is ready while each of its `parts` has called `beat` in the last `within_s` seconds.

    Raises:
        IntentsUnavailable: the intents cannot be opened.
    """
    configure_tracing("toolscale-source", os.environ)
    metrics = WorkerMetrics()
    deadlines = {part: Deadline(within_s) for part in parts}
    with (
        closing(open_intents(settings)) as intents,
        enqueue_in_background(broker_enqueue(settings)) as enqueue,
        metrics_port(settings, metrics.registry, {part: deadline.problem for part, deadline in deadlines.items()}),
    ):
        yield SourceProcess(settings, intents, enqueue, metrics, deadlines)
