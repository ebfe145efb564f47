"""A watcher in a thread, with intents that a test can read."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from shared.intents.intents import Intents
from workers.emit import Emitter
from workers.sources.announcer import SourceAnnouncer
from workers.sources.metrics import SourceMetrics
from workers.sources.watcher import Source, Watcher


@contextmanager
def watching(
    source: Source,
    intents: Intents,
    *,
    relist_s: float = 60.0,
    debounce_s: float = 0.0,
    metrics: SourceMetrics | None = None,
) -> Generator[Watcher]:
    """Watch until the block ends, with waits short enough for a test."""
    announcer = SourceAnnouncer(source.name, intents, Emitter(intents, lambda _: None, 5.0).emit)
    watcher = Watcher(source, announcer, metrics=metrics, relist_s=relist_s, debounce_s=debounce_s, backoff_s=0.05)
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        yield watcher
    finally:
        watcher.stop()
        thread.join(60)


def running(intents: Intents) -> dict[str, str | None]:
    """Return the URL of each server that should run."""
    return {intent.server_id: intent.announcement.url for intent in intents.intents() if intent.status == "running"}


def generation(intents: Intents, server_id: str) -> int:
    """Return how many events were recorded for a server."""
    intent = intents.intent(server_id)
    return intent.desired if intent else 0
