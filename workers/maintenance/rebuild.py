"""Rebuilds a lost index from the intents, which also have every server."""

from __future__ import annotations

import structlog

from shared.errors import LeaseHeld
from shared.index.tools import ToolIndex
from shared.index.versions import IndexVersions
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.text.embedding import known_models
from workers.indexing.records import unlisted_record
from workers.maintenance.audit import AuditRounds
from workers.maintenance.migrate import Released, migrate, request_missed

SOURCE = "toolscale/rebuild"
# Not a valid server id, because of the space.
REBUILD_LEASE = "the rebuilding"
# Seconds for which the previous version stays: by then every query service has switched.
RETIRED_AFTER_S = 600.0


def rebuild_if_lost(versions: IndexVersions, intents: Intents) -> None:
    """Create the lost parts of the index, and request a reconciliation of every known server; else do nothing.

    A server that was never listed has lost nothing. Safe to repeat and to interrupt: the index is marked complete
    last. Of several processes that call it, one works and the others return.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    if versions.store.is_complete():
        return
    try:
        # a second rebuild could overwrite the records of reconciliations that the first one requested
        with intents.lease(REBUILD_LEASE):
            _rebuild(versions, intents)
    except LeaseHeld:
        return


def maintain_index(versions: IndexVersions, intents: Intents, audits: AuditRounds, released: Released) -> None:
    """Rebuild a lost index, continue a migration, delete retired index versions, and audit the next servers.

    No server is audited during a migration, since the next index version is a copy of the active one, nor while
    reconciliations are due, which come first.

    Raises:
        IndexUnavailable: the index does not answer.
        IntentsUnavailable: the intent store does not answer.
    """
    rebuild_if_lost(versions, intents)
    _note_if_filled(versions)
    stored = versions.store.versions()
    if stored.next_version:
        migrate(versions, intents, released)
        return
    if stored.active:
        request_missed(versions.store, intents, stored.active)
    if intents.migration():
        intents.note_migration(None)  # abandoned, or the active version was requested again
    for name in versions.store.drop_retired(RETIRED_AFTER_S):
        structlog.get_logger().info("index_version_deleted", collection=name)
    if stored.active and not intents.backlog().due:
        audits.continue_round(versions.store.index(stored.active), intents)


def _note_if_filled(versions: IndexVersions) -> None:
    """Mark the index as filled once every server that an earlier one had is listed, or cannot be listed now."""
    if versions.store.is_filled():
        return
    awaited = sum(record.is_listed_before for record in versions.current()[0].index.servers())
    if not awaited:
        versions.store.mark_complete(is_filled=True)
    structlog.get_logger().info("index_filled" if not awaited else "index_filling", awaited=awaited)


def _rebuild(versions: IndexVersions, intents: Intents) -> None:
    if versions.store.is_complete():
        return  # another process rebuilt it before this one had the lease
    versions.store.repair(versions.own, known_models)
    index = versions.current()[0].index
    _unlist(index, intents)
    known = list(intents.intents())
    for intent in known:
        _restore_record(intent, index, intents)
    servers = [intent.server_id for intent in known if intent.committed]
    for server_id in servers:
        # of a stopped server this restores the record only; its status may have changed since the intent was read
        intents.request(server_id, SOURCE)
    versions.store.mark_complete(is_filled=not servers)
    if servers:
        structlog.get_logger().warning("index_rebuilding", servers=len(servers))


def _unlist(index: ToolIndex, intents: Intents) -> None:
    """Mark the records of servers whose tools are lost as not listed, so that responses report them as pending."""
    servers_with_tools = index.servers_with_tools()
    for record in index.servers():
        if record.server_id in servers_with_tools or not record.is_listed:
            continue
        unlisted = {"features_version": "", "catalog_digest": "", "revision": intents.next_revision()}
        index.put_server(record.model_copy(update=unlisted))


def _restore_record(intent: Intent, index: ToolIndex, intents: Intents) -> None:
    """Write a missing record, so that both stores have the server before its next reconciliation."""
    if index.server(intent.server_id) is None:
        record = unlisted_record(intent, intents.next_revision())
        index.put_server(record.model_copy(update={"status": intent.status}))
