"""Fill the index again when it was lost, from the intents: the other place where every server is known."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from shared.errors import LeaseHeld
from shared.events import ServerChanged, ServerRef
from shared.index.open_versions import IndexVersions
from shared.text.embedding import known_models
from workers.dependencies import Dependencies
from workers.indexing.records import unlisted_record
from workers.intents.store import Intent

SOURCE = "toolscale/rebuild"
# No server's id, which has no spaces.
REBUILD_LEASE = "the rebuilding"


def rebuild_if_lost(deps: Dependencies) -> None:
    """Make what is gone of the index again, and ask for a look at every server that is known; else do nothing.

    One that was never listed has nothing to lose, and its look is on its way. Safe to repeat, to interrupt and to call
    from several processes, of which one does it: the index is marked last.

    Raises:
        IndexUnavailable: it does not answer.
    """
    if deps.versions is None or deps.versions.store.is_complete():
        return
    try:
        # a second one, from what it had read, could write over the records of looks that the first has asked for
        with deps.intents.lease(REBUILD_LEASE):
            _rebuild(deps, deps.versions)
    except LeaseHeld:
        return


def _rebuild(deps: Dependencies, versions: IndexVersions) -> None:
    store = versions.store
    if store.is_complete():
        return  # somebody was faster
    store.repair(versions.own, known_models)
    pinned = deps.pinned()
    _unlist(pinned)
    intents = list(deps.intents.intents())
    for intent in intents:
        _restore_record(intent, pinned)
    servers = [_request_reconcile(intent, deps) for intent in intents if intent.committed]
    store.mark_complete()
    if servers:
        structlog.get_logger().warning("index_rebuilding", servers=len(servers))


def _unlist(deps: Dependencies) -> None:
    """Let no record that is left speak for tools that are gone; answers say that they are still to come."""
    servers_with_tools = deps.index.servers_with_tools()
    for record in deps.index.servers():
        if record.server_id in servers_with_tools or not record.is_listed:
            continue
        revision = deps.intents.next_revision()
        unlisted = {"features_version": "", "catalog_digest": "", "revision": revision}
        deps.index.put_server(record.model_copy(update=unlisted))


def _restore_record(intent: Intent, deps: Dependencies) -> None:
    """Write a record where there is none, so that the server is known in two places again before its next look."""
    if deps.index.server(intent.server_id) is None:
        deps.index.put_server(unlisted_record(intent, deps).model_copy(update={"status": intent.status}))


def _request_reconcile(intent: Intent, deps: Dependencies) -> str:
    """Ask for a look, which the next sweep sends; of a server that is down, only that its record comes back.

    Whether it is down is not repeated: an event may have said otherwise since the intent was read.
    """
    event = ServerChanged(source=SOURCE, data=ServerRef(server_id=intent.server_id))
    deps.intents.record(event, due_in_s=0)
    return intent.server_id


# An edition that was in service is kept for this long: whoever still searches it has noticed by then.
RETIRED_AFTER_S = 600.0


def maintain_index(deps: Dependencies, enqueue_migration: Callable[[], None]) -> None:
    """Rebuild what was lost, have the coming edition worked on, and remove editions that nobody searches any more.

    Raises:
        IndexUnavailable: the index does not answer.
        IntentsUnavailable: the intents do not.
    """
    if deps.versions is None:
        return
    if deps.rollout:
        deps.rollout.request_once()
    rebuild_if_lost(deps)
    store = deps.versions.store
    if store.versions().next_version:
        enqueue_migration()
    elif deps.intents.migration():
        deps.intents.note_migration(None)  # it was given up, or the model in service is wanted again
    for name in store.drop_retired(RETIRED_AFTER_S):
        structlog.get_logger().info("index_version_deleted", collection=name)
