"""A model change: copy every server's tools to the next index version, embedded with its model, and switch.

Reconciliations write to the active version only. The migration needs no server: it embeds stored definitions, so it
also copies servers that are down. A mark for each server has the revision of its record that was copied; a server
without a mark of its present revision lags. When all servers have a mark and only a few lag, the next version becomes
active, and the few are reconciled again. The migration can be interrupted anywhere, and several processes may work on
it: each holds the lease of the server that it copies.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from shared.catalog import EmbeddedTool, IndexedTool, point_id
from shared.errors import EventInvalid, IndexUnavailable, LeaseHeld, ModelUnavailable
from shared.index.versions import IndexStore, IndexVersion, IndexVersions, OpenVersion
from shared.intents.intent import MigrationProgress
from shared.intents.intents import Intents
from shared.text.embedding import tool_vectors

# Not a valid server id, because of the space.
MIGRATION_LEASE = "the migration"
SOURCE = "toolscale/migration"
# Tools per lease: about half a second, in which an event of their server waits.
BATCH = 64
# Servers that may lag at the switch, since in a large fleet some always change.
FEW = 64
# Seconds of work per sweep, so that reconciliations run in between.
SLICE_S = 5.0

_log = structlog.get_logger()

Released = Callable[[str], None]
"""Called with a server whose lease was released; a message may have come in the meantime."""


class ModelRollout:
    """The request for the index version of the settings, made when a worker starts. Safe to call from threads."""

    def __init__(self, versions: IndexVersions) -> None:
        self._versions = versions
        self._requesting = threading.Lock()
        self._requested = False
        self._last_reason = ""

    def request_once(self) -> None:
        """Request the version once per process; if its model cannot be loaded, log it and try again later.

        Returns at once while another thread is requesting, since loading may include a download.
        """
        if self._requested or not self._requesting.acquire(blocking=False):
            return
        own, store = self._versions.own, self._versions.store
        try:
            stored = store.versions()
            if stored.active and stored.requested != own:
                if stored.active != own:
                    self._versions.embedder(own.model).query("ready")
                store.request_version(own)
                _log.info("index_version_requested", model=own.model, collection=own.name, active=stored.active.name)
            self._requested = stored.active is not None
        except (IndexUnavailable, ModelUnavailable) as error:
            if str(error) != self._last_reason:
                _log.warning("index_version_request_failed", model=own.model, reason=str(error))
                self._last_reason = str(error)
        finally:
            self._requesting.release()


def migrate(versions: IndexVersions, intents: Intents, released: Released, slice_s: float = SLICE_S) -> None:
    """Copy servers to the next version for `slice_s` seconds, and activate it once all are copied.

    Safe to repeat, to interrupt, and to run in several processes.

    Raises:
        IndexUnavailable: the index does not answer; the copied tools stay.
    """
    active, next_version = versions.current()
    if next_version:
        _Slice(versions.store, intents, active, next_version, released, time.monotonic() + slice_s).run()


def request_missed(store: IndexStore, intents: Intents, active: IndexVersion) -> None:
    """Request reconciliations of the servers that changed after they were copied to the version that is active now.

    Stopped servers are included. The marks are deleted last, so a process that dies before that leaves them to others.
    """
    copied = store.copied(active)
    if not copied:
        return
    for server_id, revision in store.index(active).revisions().items():
        if copied.get(server_id) != revision:
            with suppress(EventInvalid):  # the store has no such server
                intents.request(server_id, SOURCE)
    store.delete_marks()


@dataclass
class _Slice:
    """The work of one process on a migration until `deadline_s` of the monotonic clock."""

    store: IndexStore
    intents: Intents
    active: OpenVersion
    next_version: OpenVersion
    released: Released
    deadline_s: float

    def run(self) -> None:
        self.store.ensure(self.next_version.version)
        model = self.next_version.version.model
        servers, copied, lagging = self._read()
        try:
            # what changed during the first round is copied by the next, until a round copies nothing
            while any([self._copy(server_id) for server_id in lagging]):
                servers, copied, lagging = self._read()
        except ModelUnavailable as error:
            if self._is_wanted():
                self.store.request_version(self.active.version)
                _log.error("index_version_abandoned", model=model, reason=str(error))
            return
        done, at = len(servers) - len(lagging), self.intents.now()
        # for people to read
        self.intents.note_migration(MigrationProgress(model=model, servers=len(servers), done=done, at=at))
        _log.info("index_version_progressed", model=model, servers=len(servers), copied=done)
        if len(lagging) <= FEW and copied >= servers:
            self._switch()

    def _read(self) -> tuple[set[str], set[str], list[str]]:
        """Return all servers, those with a mark, and those whose present record was not copied.

        The last are in random order, so that processes begin with others.
        """
        active, copied = self.active.index, self.store.copied(self.next_version.version)
        with_tools = active.servers_with_tools() | self.next_version.index.servers_with_tools()
        revisions = dict.fromkeys(with_tools, 0) | active.revisions()  # 0: its record is missing
        lagging = [server_id for server_id, revision in revisions.items() if copied.get(server_id) != revision]
        random.shuffle(lagging)
        return set(revisions), set(copied), lagging

    def _copy(self, server_id: str) -> bool:
        """Copy a server in batches and mark it; return False at the end of the slice, or while it is reconciled."""
        while time.monotonic() < self.deadline_s:
            try:
                with self.intents.held(server_id):
                    if not self._is_wanted():  # a reconciliation may have written to the new active version
                        return False
                    record = self.active.index.server(server_id)
                    is_copied = copy_batch(server_id, self.active, self.next_version) <= BATCH
                    if is_copied:
                        revision = record.revision if record else 0
                        self.store.mark_copied(self.next_version.version, server_id, revision)
            except LeaseHeld:
                return False
            self.released(server_id)
            if is_copied:
                return True
        return False

    def _switch(self) -> None:
        """Activate the next version, and have the servers reconciled that changed since they were copied."""
        version = self.next_version.version
        with suppress(LeaseHeld), self.intents.lease(MIGRATION_LEASE) as lease:
            if not self._is_wanted():
                return
            lease.assert_held()
            self.store.activate(version)
            # if this process dies here, a sweep requests what is missing
            request_missed(self.store, self.intents, version)
            self.intents.note_migration(None)
            _log.info("index_version_activated", model=version.model, collection=version.name)

    def _is_wanted(self) -> bool:
        return self.store.versions().next_version == self.next_version.version


def copy_batch(server_id: str, active: OpenVersion, next_version: OpenVersion) -> int:
    """Make a batch of a server's tools in the next version equal to the active ones; return how many differed.

    The next version's model embeds them; counts, status and groups are copied.
    """
    active_states, next_states = active.index.tool_states(server_id), next_version.index.tool_states(server_id)
    missing = [name for name in active_states if next_states.get(name) != active_states[name]]
    extra = next_states.keys() - active_states.keys()
    tools = list(active.index.get([point_id(server_id, name) for name in missing[:BATCH]]).values())
    # vectors of the same digest are reused
    stored = next_version.index.features_by_digest({tool.digest for tool in tools if tool.digest})
    unknown = {_key(tool): tool.definition for tool in tools if tool.digest not in stored}
    record = active.index.server(server_id)
    computed = tool_vectors(list(unknown.values()), record.declared_name if record else "", next_version.embedder)
    vectors = {digest: features.vectors for digest, features in stored.items()} | dict(
        zip(unknown, computed, strict=True)
    )
    next_version.index.upsert([EmbeddedTool(tool, vectors[_key(tool)]) for tool in tools])
    next_version.index.delete(server_id, extra)
    return len(missing)


def _key(tool: IndexedTool) -> str:
    """Return the tool's digest, or its name: different tools may have a cleared digest."""
    return tool.digest or tool.qualified_name
