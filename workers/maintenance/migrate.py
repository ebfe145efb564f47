"""A model change: fill the next index version from the active one, compare by digest until equal, and switch.

Reconciliations write to the active version only. The migration needs no server: it embeds stored definitions, so it
also migrates servers that are down. After the switch it requests reconciliations of the servers whose records changed
since the last passes began. It can be interrupted anywhere; digests show the finished tools.

The servers are divided into shares, and any number of workers migrate different shares at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from shared.catalog import EmbeddedTool, IndexedTool, point_id
from shared.errors import EventInvalid, LeaseHeld, ModelUnavailable
from shared.index.records import SHARES
from shared.index.versions import IndexStore, IndexVersion, IndexVersions, OpenVersion, Progress
from shared.intents.intent import MigrationProgress
from shared.intents.intents import Intents
from shared.text.vectors import tool_vectors

# Not a valid server id, because of the spaces; a share's lease has its number too.
MIGRATION_LEASE = "the migration"
SOURCE = "toolscale/migration"
# Tools per lease: about half a second, in which an event of their server waits. Passes that find no more differing
# tools than this may switch, since a large fleet rarely has none.
BATCH = 64
# Seconds of work per sweep, so that reconciliations run in between.
SLICE_S = 5.0
# Servers in one read of a share.
PAGE = 100

_log = structlog.get_logger()

Released = Callable[[str], None]
"""Called with a server whose lease was released; a message may have come in the meantime."""


def migrate(versions: IndexVersions, intents: Intents, released: Released, slice_s: float = SLICE_S) -> None:
    """Copy tools to the next version for `slice_s` seconds, and activate it once passes found all shares equal.

    Safe to repeat, to interrupt, and to run in several processes, which then work on different shares.

    Raises:
        IndexUnavailable: the index does not answer; the copied tools stay.
    """
    active, next_version = versions.current()
    if next_version:
        _Slice(versions.store, intents, active, next_version, released, time.monotonic() + slice_s).run()


def request_missed(store: IndexStore, intents: Intents, active: IndexVersion) -> None:
    """Request reconciliations of servers that changed while the last passes of a migration ran, stopped ones included.

    The stored progress of the active version gives the beginning of those passes; it is deleted last.
    """
    since = min(share.last_since for share in store.progress(active))
    if not since:
        return
    for server_id in store.index(active).revisions(newer_than=since):
        with suppress(EventInvalid):  # the store has no such server
            intents.request(server_id, SOURCE)
    store.delete_progress()


@dataclass
class _Slice:
    """The work of one process on a migration until `deadline_s` of the monotonic clock."""

    store: IndexStore
    intents: Intents
    active: OpenVersion
    next_version: OpenVersion
    released: Released
    deadline_s: float
    migrated: int = 0

    def run(self) -> None:
        self.store.ensure(self.next_version.version)
        try:
            if not self._switch_if_equal():
                self._continue_shares()
                self._switch_if_equal()
        except ModelUnavailable as error:
            self._abandon(error)

    def _continue_shares(self) -> None:
        version = self.next_version.version
        progress = self.store.progress(version)
        for number in sorted(range(SHARES), key=lambda number: progress[number].last_since):
            if self._has_time():
                self._continue_share(number, progress[number])
        servers = self._note_progress()
        _log.info("index_version_progressed", collection=version.name, servers=servers, carried=self.migrated)

    def _continue_share(self, number: int, before: Progress) -> None:
        """Continue the pass over a share, unless another process is or was faster."""
        version = self.next_version.version
        with suppress(LeaseHeld), self.intents.lease(f"{MIGRATION_LEASE} of share {number}") as lease:
            if self.store.progress(version)[number] != before:
                return
            begun = before if before.since else before.begun(self.intents.next_revision())
            after = self._compare(number, begun)
            lease.assert_held()
            self.store.store_progress(version, number, after)

    def _compare(self, number: int, progress: Progress) -> Progress:
        """Continue a pass over a share: to its end, the end of the slice, or a server that is being reconciled."""
        while servers := self.active.index.share(number, limit=PAGE, after=progress.after):
            for server_id in servers:
                migrated, is_equal = self._migrate_until_equal(server_id)
                self.migrated += migrated
                progress = replace(progress, differing=progress.differing + migrated)
                if not is_equal:
                    return progress
                progress = replace(progress, after=server_id, compared=progress.compared + 1)
        return progress.finished()

    def _note_progress(self) -> int:
        """Store the number of finished servers for display, which later passes do not lower; return that of all."""
        version, servers = self.next_version.version, self.intents.backlog().servers
        before = self.intents.migration()
        done_before = before.done if before and before.model == version.model else 0
        compared = sum(share.compared for share in self.store.progress(version))
        done = min(servers, max(done_before, compared))
        at = self.intents.now()
        self.intents.note_migration(MigrationProgress(model=version.model, servers=servers, done=done, at=at))
        return servers

    def _switch_if_equal(self) -> bool:
        """Activate the next version if the last passes found all shares equal; return whether it did."""
        version = self.next_version.version
        with suppress(LeaseHeld), self.intents.lease(MIGRATION_LEASE) as lease:
            if not self._is_equal() or not self._is_wanted():
                return False
            lease.assert_held()
            self.store.activate(version)  # if this process dies below, a sweep requests what is missing
            request_missed(self.store, self.intents, version)
            self.intents.note_migration(None)
            _log.info("index_version_activated", model=version.model, collection=version.name)
            return True
        return False

    def _is_equal(self) -> bool:
        shares = self.store.progress(self.next_version.version)
        if not all(share.last_since for share in shares) or sum(share.last_differing for share in shares) > BATCH:
            return False
        return all(self._migrate_until_equal(server_id)[1] for server_id in self._servers_without_record())

    def _servers_without_record(self) -> set[str]:
        """Return the servers of tools that no share has; one facet of each version finds them."""
        active, following = self.active.index, self.next_version.index
        return (active.servers_with_tools() | following.servers_with_tools()) - active.revisions().keys()

    def _migrate_until_equal(self, server_id: str) -> tuple[int, bool]:
        """Migrate batches of a server; return the number of migrated tools, and whether no tool differs any more.

        Some may still differ at the end of the slice, or while a reconciliation of the server is running.
        """
        migrated = 0
        while self._has_time():
            try:
                with self.intents.held(server_id):
                    if not self._is_wanted():  # a reconciliation may have written to the new active version
                        break
                    differing = migrate_batch(server_id, self.active, self.next_version)
            except LeaseHeld:
                break
            self.released(server_id)
            if not differing:
                return migrated, True
            migrated += min(BATCH, differing)
        return migrated, False

    def _is_wanted(self) -> bool:
        return self.store.versions().next_version == self.next_version.version

    def _has_time(self) -> bool:
        return time.monotonic() < self.deadline_s

    def _abandon(self, error: ModelUnavailable) -> None:
        """Request the active version again, since the next model cannot be loaded."""
        if self._is_wanted():
            self.store.request_version(self.active.version)
            _log.error("index_version_abandoned", model=self.next_version.version.model, reason=str(error))


def migrate_batch(server_id: str, active: OpenVersion, next_version: OpenVersion) -> int:
    """Make a batch of a server's tools in the next version equal to the active ones; return how many differed.

    The next version's model embeds them; counts, status and groups are copied.
    """
    active_states, next_states = active.index.tool_states(server_id), next_version.index.tool_states(server_id)
    missing = [name for name in active_states if next_states.get(name) != active_states[name]]
    extra = next_states.keys() - active_states.keys()
    tools = list(active.index.get([point_id(server_id, name) for name in missing[:BATCH]]).values())
    embedded = _embedded(server_id, tools, active, next_version)
    next_version.index.upsert(embedded)
    next_version.index.delete(server_id, extra)
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
