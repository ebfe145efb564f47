"""Another model: its edition of the tools is made beside the one in service, and takes over when it holds the same.

Looks write what changes to both; here, server by server, what was there before is embedded again. All that is needed
is in the index, so servers that are down are carried over as well. Whoever is killed loses nothing: digests say what
is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from shared.catalog import EmbeddedTool, IndexedTool, point_id
from shared.errors import LeaseHeld, ModelUnavailable
from shared.index.open_versions import IndexVersions, OpenVersion
from shared.index.versions import Progress
from shared.text.vectors import tool_vectors
from workers.dependencies import Dependencies
from workers.intents.leases import held
from workers.intents.store import Lease, MigrationProgress

# No server's id, which has no spaces.
MIGRATION_LEASE = "the migration"
# Tools carried over under one lease: half a second or so, in which an event for their server waits.
BATCH = 64
# The migration works for this long and is asked again by the next sweep, so that looks get their turn in between.
SLICE_S = 5.0

_log = structlog.get_logger()

Released = Callable[[str], None]
"""Told of a server whose lease was released: a message that came meanwhile found it held."""


def migrate(deps: Dependencies, released: Released, slice_s: float = SLICE_S) -> None:
    """Carry tools over to the coming edition for so many seconds; once it holds all, put it into service.

    Safe to repeat, to interrupt anywhere and to call from several processes, of which one does it.

    Raises:
        IndexUnavailable: the index does not answer; what was carried over stays.
    """
    try:
        with deps.intents.lease(MIGRATION_LEASE) as lease:
            now = deps.pinned()
            if now.versions and now.next_version:
                _Migration(now, now.versions, now.next_version, lease, released).run(slice_s)
    except LeaseHeld:
        return


def without_unusable(deps: Dependencies) -> Dependencies:
    """Return what a look writes tools with: without the coming edition if its model cannot be loaded any more.

    It is then wanted no longer, or no tool could change until it was mended.

    Raises:
        ModelUnavailable: nor can that of the edition in service; nothing has been written yet.
    """
    if deps.next_version is None or deps.versions is None:
        return deps
    try:
        deps.next_version.embedder.query("ready")
    except ModelUnavailable as error:
        _abandon(deps.versions, deps.next_version, error)
        return replace(deps, next_version=None)
    deps.embedder.query("ready")
    return deps


class _Migration:
    """One slice of it."""

    def __init__(
        self, deps: Dependencies, versions: IndexVersions, next_version: OpenVersion, lease: Lease, released: Released
    ) -> None:
        self._deps = deps
        self._versions = versions
        self._store = versions.store
        self._next_version = next_version
        self._lease = lease
        self._released = released

    def run(self, slice_s: float) -> None:
        version = self._next_version.version
        self._store.ensure(version)
        servers = sorted(self._deps.index.servers_with_tools() | self._next_version.index.servers_with_tools())
        # from here: asking a large index who has tools takes longer than a slice
        migration_pass = _Pass(self._store.progress(version), time.monotonic() + slice_s)
        try:
            is_done = migration_pass.run(servers, self._migrate_server)
        except ModelUnavailable as error:
            _abandon(self._versions, self._next_version, error)
            return
        self._lease.assert_held()
        _log.info(
            "index_version_progressed", collection=version.name, servers=len(servers), carried=migration_pass.migrated
        )
        if is_done and migration_pass.progress.clean:
            self._switch()
        else:
            self._store.store_progress(version, Progress() if is_done else migration_pass.progress)
            self._note_progress(servers, 0 if is_done else migration_pass.progress.remaining(servers))

    def _note_progress(self, servers: list[str], remaining: int) -> None:
        """Note how far it is, for people; what is only checked once more counts as done."""
        intents, model = self._deps.intents, self._next_version.version.model
        before = intents.migration()
        done_before = before.done if before and before.model == model else 0
        done = min(len(servers), max(done_before, len(servers) - remaining))
        intents.note_migration(MigrationProgress(model=model, servers=len(servers), done=done, at=intents.now()))

    def _migrate_server(self, server_id: str) -> int:
        """Carry tools over; return how many were missing, or different, or too many."""
        with held(server_id, self._deps.intents) as lease:
            differing = migrate_batch(server_id, lease, self._deps, self._next_version)
        self._released(server_id)
        return differing

    def _switch(self) -> None:
        version = self._next_version.version
        if self._store.versions().next_version == version:
            self._store.activate(version)
            self._deps.intents.note_migration(None)
            _log.info("index_version_activated", model=version.model, collection=version.name)


@dataclass
class _Pass:
    """A pass over all servers, from where the slice before ended until `deadline_s` of the monotonic clock."""

    progress: Progress
    deadline_s: float
    migrated: int = 0

    def run(self, servers: list[str], migrate_server: Callable[[str], int]) -> bool:
        """Visit servers, those that were being looked at last; return whether this ended the pass."""
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
        """Visit a server until nothing differs; return False when the time is over before."""
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
            self.migrated += min(differing, BATCH)
            self.progress = replace(self.progress, clean=False)
        return False


def migrate_batch(server_id: str, lease: Lease, deps: Dependencies, next_version: OpenVersion) -> int:
    """Make a batch of a server's tools in the coming edition equal to those in service; return how many were not.

    Embedded with the coming edition's model; counts, status and groups are taken as they are.
    """
    active_states, next_states = deps.index.tool_states(server_id), next_version.index.tool_states(server_id)
    missing = [name for name in active_states if next_states.get(name) != active_states[name]]
    extra = next_states.keys() - active_states.keys()
    tools = list(deps.index.get([point_id(server_id, name) for name in missing[:BATCH]]).values())
    embedded = _embedded(server_id, tools, deps, next_version)
    lease.assert_held()
    next_version.index.upsert(embedded)
    next_version.index.delete(server_id, extra)
    lease.assert_held()  # or this may have come after what another run wrote
    return len(missing) + len(extra)


def _embedded(
    server_id: str, tools: list[IndexedTool], deps: Dependencies, next_version: OpenVersion
) -> list[EmbeddedTool]:
    """Return the tools with the coming edition's vectors; those of replicas that it has already are not made again."""
    stored = next_version.index.features_by_digest({tool.digest for tool in tools})
    unknown = {tool.digest: tool.definition for tool in tools if tool.digest not in stored}
    record = deps.index.server(server_id)
    computed = tool_vectors(list(unknown.values()), record.declared_name if record else "", next_version.embedder)
    vectors = {digest: features.vectors for digest, features in stored.items()} | dict(
        zip(unknown, computed, strict=True)
    )
    return [EmbeddedTool(tool, vectors[tool.digest]) for tool in tools]


def _abandon(versions: IndexVersions, next_version: OpenVersion, error: ModelUnavailable) -> None:
    service = versions.store.versions()
    if service.active and service.next_version == next_version.version:
        versions.store.request_version(service.active)
        _log.error("index_version_abandoned", model=next_version.version.model, reason=str(error))
