"""The common parts of a process that only emits events: a watcher, or the notification listeners."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.intents.intents import open_intents
from shared.service.process import full_environment, raise_open_files
from shared.service.tracing import configure_tracing
from workers.emit import Emitter, message_time_s
from workers.monitoring.checks import Deadline, first_problem
from workers.monitoring.queue import broker_checked
from workers.monitoring.server import metrics_port
from workers.producers.enqueue import broker_enqueue, enqueue_in_background

if TYPE_CHECKING:
    from shared.events import ServerEvent
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents
    from shared.settings import Settings
    from workers.emit import Enqueue


@dataclass(frozen=True, slots=True)
class _SourceProcess:
    """The intents, the queue of messages, and the health checks of such a process."""

    settings: Settings
    intents: Intents
    enqueue: Enqueue
    deadlines: Mapping[str, Deadline]

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event durably, count it, and send a message to a worker.

        Raises:
            EventInvalid: the event refers to a server that was never announced.
            IntentsUnavailable: the event was not recorded.
        """
        return Emitter(self.intents, self.enqueue, message_time_s(self.settings)).emit(event)

    def beat(self, part: str) -> None:
        """Restart the deadline of this part. Safe to call from any thread."""
        self.deadlines[part].touch()


@contextmanager
def source_process(settings: Settings, parts: Collection[str], within_s: float) -> Generator[_SourceProcess]:
    """Open the parts of the process until the block ends.

    The process is ready while Redis answers and each of its `parts` has called `beat` in the last `within_s` seconds.

    Raises:
        IntentsUnavailable: the intents cannot be opened.
    """
    raise_open_files()
    configure_tracing("toolscale-source", full_environment())
    deadlines = {part: Deadline(within_s) for part in parts}
    checks = {part: deadline.problem for part, deadline in deadlines.items()}
    with (
        closing(open_intents(settings)) as intents,
        enqueue_in_background(broker_enqueue(settings)) as enqueue,
        broker_checked(settings) as broker,
        metrics_port(settings, {"broker": broker, **checks}, work=first_problem(checks.values())),
    ):
        yield _SourceProcess(settings, intents, enqueue, deadlines)
