"""The embedded composition of a measurement: its settings, and waiting for what was asked of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throughput.fleet import FleetServer
from shared.events import ServerAnnouncement, ServerEvent, ServerUp
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.settings import Settings, load_settings
from tests.support.qdrant_server import qdrant_url

PATIENCE_S = 300.0
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Producer:
    """Sends events into a composition, and the store in which one sees what became of them."""

    emit: Callable[[ServerEvent], Intent]
    intents: Intents


def embedded_settings(directory: Path) -> Settings:
    """Return the defaults on this directory, wherever the environment's Redis and Qdrant are."""
    settings = load_settings(data_dir=directory, port=0)
    return settings.model_copy(update={"redis_url": None, "qdrant_url": None, "host": "127.0.0.1"})


def index_settings(directory: Path) -> Settings:
    """Return the same, but with the index on the Qdrant server at QDRANT_URL, if that is set."""
    return embedded_settings(directory).model_copy(update={"qdrant_url": qdrant_url()})


def up(server: FleetServer) -> ServerUp:
    """Return the event that announces a server of the fleet."""
    return ServerUp(data=ServerAnnouncement(server_id=server.server_id, url=server.url))


def wait_until_committed(intents: Intents, server_ids: Iterable[str], within_s: float = PATIENCE_S) -> None:
    """Return when the index reflects all that was recorded of these servers, seen within 5 ms.

    Raises:
        TimeoutError: it did not come to that.
    """
    pending = list(server_ids)
    deadline = time.monotonic() + within_s
    while pending:
        if not _is_lagging(intents, pending[-1]):
            pending.pop()
            continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(pending)} servers not committed within {within_s:g} s, {pending[-1]} among them")
        time.sleep(POLL_S)


def _is_lagging(intents: Intents, server_id: str) -> bool:
    intent = intents.intent(server_id)
    return intent is None or intent.is_lagging
