"""Write the intents down again when their store lost them, from what the index remembers of each server.

Restored is what the index reflects. An event that was recorded and not yet acted upon is lost with the store,
and comes back when it is announced again.
"""

from __future__ import annotations

import structlog

from shared.catalog import ServerRecord
from shared.events import ServerAnnouncement
from workers.dependencies import Dependencies
from workers.intents.store import Intent

SOURCE = "toolscale/restore"
"""Said to have announced a server whose record does not tell who did."""

# Long ago by any clock.
DUE_AT_ONCE = 0.0


def restore_if_lost(deps: Dependencies) -> None:
    """Make a store that lost its intents, or is new, know every server of the index; one that did not is left alone.

    Safe to repeat and to interrupt: what events have said since stays, and the store is marked last.
    """
    if deps.intents.is_complete():
        return
    records = deps.index.servers()
    restored = sum(deps.intents.insert_if_absent(_intent(record)) for record in records)
    deps.intents.mark_complete()
    if restored:
        structlog.get_logger().warning("intents_restored", servers=restored)


def _intent(record: ServerRecord) -> Intent:
    """Return an intent whose next look is due, above every generation that the index has seen."""
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
        due_at=None if is_down else DUE_AT_ONCE,
    )


def _announcement(record: ServerRecord) -> ServerAnnouncement:
    return ServerAnnouncement(
        server_id=record.server_id,
        groups=record.groups,
        labels=record.labels,
        **record.endpoint.model_dump(),
    )
