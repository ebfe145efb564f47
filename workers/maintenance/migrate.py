"""A model change: fill the next index version from the active one, compare by digest until equal, and switch.

Reconciliations write to the active version only. The migration needs no server: it embeds stored definitions, so it
also migrates servers that are down. After the switch it requests reconciliations of the servers whose records changed
since the last pass began. It can be interrupted anywhere; digests show the finished tools.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from shared.catalog import EmbeddedTool, IndexedTool, point_id
from shared.errors import EventInvalid, LeaseHeld, ModelUnavailable
from shared.index.contract import IndexVersion
from shared.index.open_versions import IndexVersions, OpenVersion
from shared.index.versions import IndexStore, Progress
from shared.text.vectors import tool_vectors
from workers.intents.leases import held
from workers.intents.requests import request_reconcile
from workers.intents.store import IntentStore, Lease, MigrationProgress

# Not a valid server id, because of the space.
MIGRATION_LEASE = "the migration"
SOURCE = "toolscale/migration"
# Tools per lease: about half a second, in which an event of their server waits. A pass that finds no more differing
# tools than this may switch, since a large fleet rarely has none.
BATCH = 64
# Seconds of work per sweep, so that reconciliations run in between.
SLICE_S = 5.0

_log = structlog.get_logger()

Released = Callable[[str], None]
"""Called with a server whose lease was released; a message may have come in the meantime."""


def migrate(versions: IndexVersions, intents: IntentStore, released: Released, slice_s: float = SLICE_S) -> None:
    """Copy tools to the next version for `slice_s` seconds, and activate it once a pass found it equal.

    Safe to repeat and to interrupt. Of several processes that call it, one works and the others return.

    Raises:
        IndexUnavailable: the index does not answer; the copied tools stay.
    """
    try:
        with intents.lease(MIGRATION_LEASE) as lease:
            active, next_version = versions.current()
            if next_version:
                _Migration(versions, intents, active, next_version, lease, released).run(slice_s)
    except LeaseHeld:
        return


def request_missed(store: IndexStore, intents: IntentStore, active: IndexVersion) -> None:
    """Request reconciliations of servers that changed while the last pass of a migration ran, stopped ones included.

    The stored progress of the active version gives the beginning of that pass; it is cleared last.
    """
    since = store.progress(active).since
    if not since:
        return
    for server_id in store.index(active).revisions(newer_than=since):
        with suppress(EventInvalid):  # the store has no such server
            request_reconcile(server_id, intents, SOURCE)
    store.store_progress(active, Progress())


class _Migration:
    """One slice of a migration."""

    def __init__(
        self,
        versions: IndexVersions,
        intents: IntentStore,
        active: OpenVersion,
        next_version: OpenVersion,
        lease: Lease,
        released: Released,
    ) -> None:
        self._store = versions.store
        self._intents = intents
        self._active = active
        self._next_version = next_version
        self._lease = lease
        self._released = released

    def run(self, slice_s: float) -> None:
        version = self._next_version.version
        self._store.ensure(version)
        progress = self._store.progress(version)
        if not progress.since:
            progress = replace(progress, since=self._intents.next_revision())
        servers = sorted(self._active.index.servers_with_tools() | self._next_version.index.servers_with_tools())
        # the slice begins here: listing the servers of a large index takes longer than a slice
        migration_pass = _Pass(progress, time.monotonic() + slice_s)
        try:
            is_done = migration_pass.run(servers, self._migrate_server)
        except ModelUnavailable as error:
            self._abandon(error)
            return
        self._lease.assert_held()
        _log.info(
            "index_version_progressed", collection=version.name, servers=len(servers), carried=migration_pass.migrated
        )
        if is_done and migration_pass.progress.differing <= BATCH:
            self._switch(migration_pass.progress)
        else:
            self._store.store_progress(version, Progress() if is_done else migration_pass.progress)
            self._note_progress(servers, 0 if is_done else migration_pass.progress.remaining(servers))

    def _note_progress(self, servers: list[str], remaining: int) -> None:
        """Store the number of finished servers for display; later passes do not lower it."""
        intents, model = self._intents, self._next_version.version.model
        before = intents.migration()
        done_before = before.done if before and before.model == model else 0
        done = min(len(servers), max(done_before, len(servers) - remaining))
        intents.note_migration(MigrationProgress(model=model, servers=len(servers), done=done, at=intents.now()))

    def _migrate_server(self, server_id: str) -> int:
        """Migrate a batch of the server's tools; return how many of all its tools differed."""
        with held(server_id, self._intents) as lease:
            differing = migrate_batch(server_id, lease, self._active, self._next_version)
        self._released(server_id)
        return differing

    def _switch(self, progress: Progress) -> None:
        version = self._next_version.version
        if self._store.versions().next_version != version:
            return
        self._store.store_progress(version, progress)  # if this process dies below, a sweep requests what is missing
        self._store.activate(version)
        request_missed(self._store, self._intents, version)
        self._intents.note_migration(None)
        _log.info("index_version_activated", model=version.model, collection=version.name)

    def _abandon(self, error: ModelUnavailable) -> None:
        """Request the active version again, since the next model cannot be loaded."""
        stored = self._store.versions()
        if stored.active and stored.next_version == self._next_version.version:
            self._store.request_version(stored.active)
            _log.error("index_version_abandoned", model=self._next_version.version.model, reason=str(error))


@dataclass
class _Pass:
    """A pass over all servers, from the end of the previous slice until `deadline_s` of the monotonic clock."""

    progress: Progress
    deadline_s: float
    migrated: int = 0

    def run(self, servers: list[str], migrate_server: Callable[[str], int]) -> bool:
        """Migrate servers, those with a running reconciliation last; return whether the pass is complete."""
        for server_id in servers:
            if server_id > self.progress.after:
                if not self._migrate_until_equal(server_id, migrate_server):
                    return False
                self.progress = replace(self.progress, after=server_id)
        for server_id in self.progress.skipped:
            if not self._migrate_until_equal(server_id, migrate_server):
                return False
        return not self.progress.skipped

    def _migrate_until_equal(self, server_id: str, migrate_server: Callable[[str], int]) -> bool:
        """Migrate a server until no tool differs; return False if the slice ends before."""
        others = tuple(skipped for skipped in self.progress.skipped if skipped != server_id)
        while time.monotonic() < self.deadline_s:
            try:
                differing = migrate_server(server_id)
            except LeaseHeld:
                self.progress = replace(self.progress, skipped=(*others, server_id))
                return True
            if not differing:
                self.progress = replace(self.progress, skipped=others)
                return True
            migrated = min(differing, BATCH)
            self.migrated += migrated
            self.progress = replace(self.progress, differing=self.progress.differing + migrated)
        return False


def migrate_batch(server_id: str, lease: Lease, active: OpenVersion, next_version: OpenVersion) -> int:
    """Make a batch of a server's tools in the next version equal to the active ones; return how many differed.

    The next version's model embeds them; counts, status and groups are copied.
    """
    active_states, next_states = active.index.tool_states(server_id), next_version.index.tool_states(server_id)
    missing = [name for name in active_states if next_states.get(name) != active_states[name]]
    extra = next_states.keys() - active_states.keys()
    tools = list(active.index.get([point_id(server_id, name) for name in missing[:BATCH]]).values())
    embedded = _embedded(server_id, tools, active, next_version)
    lease.assert_held()
    next_version.index.upsert(embedded)
    next_version.index.delete(server_id, extra)
    lease.assert_held()  # or this may have come after what another run wrote
    return len(missing) + len(extra)


def _embedded(
    server_id: str, tools: list[IndexedTool], active: OpenVersion, next_version: OpenVersion
) -> list[EmbeddedTool]:
    """Return the tools with the next version's vectors; vectors of the same digest are reused."""
    stored = next_version.index.features_by_digest({tool.digest for tool in tools if tool.digest})
    unknown = {_key(tool): tool.definition for tool in tools if tool.digest not in stored}
    record = active.index.server(server_id)
    computed = tool_vectors(list(unknown.values()), record.declared_name if record else "", next_version.embedder)
    vectors = {digest: features.vectors for digest, features in stored.items()} | dict(
        zip(unknown, computed, strict=True)
    )
    return [EmbeddedTool(tool, vectors[_key(tool)]) for tool in tools]


def _key(tool: IndexedTool) -> str:
    """Return the tool's digest, or its name: different tools may have a cleared digest."""
    return tool.digest or tool.qualified_name
