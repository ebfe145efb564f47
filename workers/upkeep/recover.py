"""Recovers what a store has lost: the index from the intents, and the intents from the index; each has every server.

An event without a reconciliation is lost with the intent store, until the server is announced again.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from shared.errors import LeaseHeld
from shared.events import ServerAnnouncement
from shared.index.tools import ToolIndex
from shared.index.versions import IndexVersions
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.text.embedding import known_models
from workers.indexing.records import unlisted_record

REBUILD_SOURCE = "toolscale/rebuild"
RESTORE_SOURCE = "toolscale/restore"
"""Source of an intent whose record names none."""

# Not a valid server id, because of the space.
REBUILD_LEASE = "the rebuilding"
# More events than a run that began before the loss can know of: its commit must not confirm what is restored.
EVENTS_SINCE_LISTED = 1_000
# In the past by any clock.
DUE_AT_ONCE = 0.0


def rebuild_if_lost(versions: IndexVersions, intents: Intents) -> None:
    """Create the lost parts of the index, and request a reconciliation of every known server; else do nothing.

    A server that was never listed has lost nothing. Safe to repeat and to interrupt: the index is marked complete
    last. Of several processes that call it, one works and the others return.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    if versions.store.is_complete():
        return
    # a second rebuild could overwrite the records of reconciliations that the first one requested
    with suppress(LeaseHeld), intents.lease(REBUILD_LEASE):
        if versions.store.is_complete():
            return  # another process rebuilt it before this one had the lease
        versions.store.repair(versions.own, known_models)
        index = versions.current()[0].index
        _unlist(index, intents)
        known = list(intents.intents())
        for intent in known:
            # both stores have the server before its next reconciliation
            if index.server(intent.server_id) is None:
                record = unlisted_record(intent, intents.next_revision())
                index.put_server(record.model_copy(update={"status": intent.status}))
        servers = [intent.server_id for intent in known if intent.committed]
        for server_id in servers:
            # of a stopped server this restores the record only; its status may have changed since the intent was read
            intents.request(server_id, REBUILD_SOURCE)
        versions.store.mark_complete(is_filled=not servers)
        if servers:
            structlog.get_logger().warning("index_rebuilding", servers=len(servers))


def _unlist(index: ToolIndex, intents: Intents) -> None:
    """Mark the records of servers whose tools are lost as not listed, so that responses report them as pending."""
    servers_with_tools = index.servers_with_tools()
    for record in index.servers():
        if record.is_listed and record.server_id not in servers_with_tools:
            unlisted = {"features_version": "", "catalog_digest": "", "revision": intents.next_revision()}
            index.put_server(record.model_copy(update=unlisted))


def restore_if_lost(intents: Intents, index: ToolIndex) -> None:
    """Insert an intent for every server of the index into a store that is new or lost its data; else do nothing.

    Safe to repeat and to interrupt: existing intents stay, and the store is marked complete last. Stopped servers are
    reconciled once too, without a listing: a run from before the loss may have written that they run.
    """
    if intents.is_complete():
        return
    restored = 0
    for record in index.servers():
        intent = Intent(
            server_id=record.server_id,
            status="stopped" if record.status == "stopped" else "running",
            announcement=ServerAnnouncement(
                server_id=record.server_id, groups=record.groups, labels=record.labels, **record.endpoint.model_dump()
            ),
            source=record.source or RESTORE_SOURCE,
            desired=record.generation + EVENTS_SINCE_LISTED,
            committed=record.generation,
            failures=record.failures,
            listed_at=record.last_listed_at,
            catalogue_id=record.catalogue_id,
            due_at=DUE_AT_ONCE,
        )
        restored += intents.insert_if_absent(intent)
    intents.mark_complete()
    if restored:
        structlog.get_logger().warning("intents_restored", servers=restored)
