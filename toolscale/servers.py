"""`toolscale servers`: every announced server, as the intents know it, so while others use the index too."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from shared.settings import Settings
from toolscale.console import plain
from workers.intents import open_intents
from workers.intents.contract import Intent


def servers(settings: Settings) -> list[Intent]:
    """Return the intents of all announced servers, by id.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return list(intents.intents())


def state(intent: Intent) -> str:
    """Return in a word or two how far the catalogue is with this server."""
    if intent.status == "stopped":
        return "stopped" if not intent.is_lagging else "stopping"
    if intent.due_at is None and intent.last_error:
        return "given up"
    if intent.parked:
        return "parked"
    if intent.failures:
        return f"failing ({intent.failures})"
    return "waiting" if intent.is_lagging else "listed"


def as_object(intent: Intent) -> dict[str, Any]:
    """Return what the command prints of a server as JSON."""
    return {
        "server_id": intent.server_id,
        "state": state(intent),
        "transport": intent.announcement.transport,
        "url": intent.announcement.url,
        "groups": sorted(intent.announcement.groups),
        "source": intent.source,
        "next_look_at": None if intent.due_at is None else _iso(intent.due_at),
        "last_error": intent.last_error,
    }


def table(intents: list[Intent]) -> Table:
    """Return the servers as a table for people."""
    shown = Table("server", "state", "next look", "listens at", "problem", box=None, header_style="bold")
    for intent in intents:
        where = intent.announcement.url or intent.announcement.transport
        shown.add_row(
            plain(intent.server_id), state(intent), _wait(intent), plain(where), plain(intent.last_error or "")
        )
    return shown


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _wait(intent: Intent) -> str:
    if intent.due_at is None:
        return "when announced"
    return f"in {max(0, round(intent.due_at - time.time()))} s"
