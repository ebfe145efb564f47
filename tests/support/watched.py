"""A watcher whose lists a test makes, with intents that it can read."""

from __future__ import annotations

from collections.abc import Callable

from shared.intents.intents import Intents
from workers.emit import Emitter
from workers.sources.announcer import Source, SourceAnnouncer, Watcher


def watcher(source: Source, intents: Intents, beat: Callable[[], None] = lambda: None) -> Watcher:
    """Return a watcher of this source, which lists when the test calls `announce`."""
    announcer = SourceAnnouncer(source.name, intents, Emitter(intents, lambda _: None, 5.0).emit)
    return Watcher(source, announcer, beat=beat)


def running(intents: Intents) -> dict[str, str | None]:
    """Return the URL of each server that should run."""
    return {intent.server_id: intent.announcement.url for intent in intents.intents() if intent.status == "running"}


def generation(intents: Intents, server_id: str) -> int:
    """Return how many events were recorded for a server."""
    intent = intents.intent(server_id)
    return intent.desired if intent else 0
