"""Restores lost intents from the server records of the index.

An event without a reconciliation is lost with the intent store, until the server is announced again.
"""

from __future__ import annotations

import structlog

from shared.catalog import ServerRecord
from shared.events import ServerAnnouncement
from shared.index.tools import ToolIndex
from shared.intents.intent import Intent
from shared.intents.intents import Intents

SOURCE = "toolscale/restore"
"""Source of an intent whose record names none."""

# In the past by any clock.
DUE_AT_ONCE = 0.0


def restore_if_lost(intents: Intents, index: ToolIndex) -> None:
    """Insert an intent for every server of the index into a store that is new or lost its data; else do nothing.

    Safe to repeat and to interrupt: existing intents stay, and the store is marked complete last.
    """
    if intents.is_complete():
        return
    restored = sum(intents.insert_if_absent(_intent(record)) for record in index.servers())
    intents.mark_complete()
    if restored:
        structlog.get_logger().warning("intents_restored", servers=restored)


def _intent(record: ServerRecord) -> Intent:
    """Return an intent with a due reconciliation, above every generation in the index."""
    is_down = record.status == "stopped"
    return Intent(
        server_id=record.server_id,
        status="stopped" if is_down else "running",
        announcement=_announcement(record),
        source=record.source or SOURCE,
        desired=record.generation if is_down else record.generation + 1,
        committed=record.generation,
        failures=record.failures,
        listed_at=record.last_listed_at,
        catalogue_id=record.catalogue_id,
        due_at=None if is_down else DUE_AT_ONCE,
    )


def restored_intent(stored: Intent, now: float) -> Intent:
    """Return the intent of a backup as of now: with a due reconciliation, unless the server is stopped."""
    is_down = stored.status == "stopped"
    return Intent(
        server_id=stored.server_id,
        status=stored.status,
        announcement=stored.announcement,
        source=stored.source,
        desired=stored.desired if is_down else stored.desired + 1,
        committed=stored.desired,
        announced_at=now,
        due_at=None if is_down else DUE_AT_ONCE,
    )


def _announcement(record: ServerRecord) -> ServerAnnouncement:
    return ServerAnnouncement(
        server_id=record.server_id,
        groups=record.groups,
        labels=record.labels,
        **record.endpoint.model_dump(),
    )
