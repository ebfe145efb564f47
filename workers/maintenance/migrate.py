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
from shared.index.open_versions import Editions, OpenEdition
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
            now = deps.current()
            if now.editions and now.coming:
                _Migration(now, now.editions, now.coming, lease, released).go_on(slice_s)
    except LeaseHeld:
        return


def without_unusable(deps: Dependencies) -> Dependencies:
    """Return what a look writes tools with: without the coming edition if its model cannot be loaded any more.

    It is then wanted no longer, or no tool could change until it was mended.

    Raises:
        ModelUnavailable: nor can that of the edition in service; nothing has been written yet.
    """
    if deps.coming is None or deps.editions is None:
        return deps
    try:
        deps.coming.embedder.query("ready")
    except ModelUnavailable as error:
        _give_up(deps.editions, deps.coming, error)
        return replace(deps, coming=None)
    deps.embedder.query("ready")
    return deps


class _Migration:
    """One slice of it."""

    def __init__(
        self, deps: Dependencies, editions: Editions, coming: OpenEdition, lease: Lease, released: Released
    ) -> None:
        self._deps = deps
        self._editions = editions
        self._store = editions.store
        self._coming = coming
        self._lease = lease
        self._released = released

    def go_on(self, slice_s: float) -> None:
        edition = self._coming.edition
        self._store.ensure(edition)
        servers = sorted(self._deps.index.owners() | self._coming.index.owners())
        # from here: asking a large index who has tools takes longer than a slice
        visits = _Visits(self._store.progress(edition), time.monotonic() + slice_s)
        try:
            is_done = visits.run(servers, self._visit)
        except ModelUnavailable as error:
            _give_up(self._editions, self._coming, error)
            return
        self._lease.assert_held()
        _log.info("edition_progressed", collection=edition.name, servers=len(servers), carried=visits.carried)
        if is_done and visits.progress.clean:
            self._switch()
        else:
            self._store.note(edition, Progress() if is_done else visits.progress)
            self._tell(servers, 0 if is_done else visits.progress.remaining(servers))

    def _tell(self, servers: list[str], remaining: int) -> None:
        """Note how far it is, for people; what is only checked once more counts as done."""
        intents, model = self._deps.intents, self._coming.edition.model
        before = intents.migration()
        done_before = before.done if before and before.model == model else 0
        done = min(len(servers), max(done_before, len(servers) - remaining))
        intents.note_migration(MigrationProgress(model=model, servers=len(servers), done=done, at=intents.now()))

    def _visit(self, server_id: str) -> int:
        """Carry tools over; return how many were missing, or different, or too many."""
        with held(server_id, self._deps.intents) as lease:
            differing = carry_over(server_id, lease, self._deps, self._coming)
        self._released(server_id)
        return differing

    def _switch(self) -> None:
        edition = self._coming.edition
        if self._store.service().coming == edition:
            self._store.put_in_service(edition)
            self._deps.intents.note_migration(None)
            _log.info("edition_in_service", model=edition.model, collection=edition.name)


@dataclass
class _Visits:
    """A pass over all servers, from where the slice before ended until `deadline_s` of the monotonic clock."""

    progress: Progress
    deadline_s: float
    carried: int = 0

    def run(self, servers: list[str], visit: Callable[[str], int]) -> bool:
        """Visit servers, those that were being looked at last; return whether this ended the pass."""
        for server_id in servers:
            if server_id > self.progress.after:
                if not self._settle(server_id, visit):
                    return False
                self.progress = replace(self.progress, after=server_id)
        for server_id in self.progress.left:
            if not self._settle(server_id, visit):
                return False
        return not self.progress.left

    def _settle(self, server_id: str, visit: Callable[[str], int]) -> bool:
        """Visit a server until nothing differs; return False when the time is over before."""
        others = tuple(each for each in self.progress.left if each != server_id)
        while time.monotonic() < self.deadline_s:
            try:
                differing = visit(server_id)
            except LeaseHeld:
                self.progress = replace(self.progress, left=(*others, server_id))
                return True
            if not differing:
                self.progress = replace(self.progress, left=others)
                return True
            self.carried += min(differing, BATCH)
            self.progress = replace(self.progress, clean=False)
        return False


def carry_over(server_id: str, lease: Lease, deps: Dependencies, coming: OpenEdition) -> int:
    """Make a batch of a server's tools in the coming edition equal to those in service; return how many were not.

    Embedded with the coming edition's model; counts, status and groups are taken as they are.
    """
    there, here = deps.index.states(server_id), coming.index.states(server_id)
    missing = [name for name in there if here.get(name) != there[name]]
    extra = here.keys() - there.keys()
    tools = list(deps.index.fetch([point_id(server_id, name) for name in missing[:BATCH]]).values())
    embedded = _embedded(server_id, tools, deps, coming)
    lease.assert_held()
    coming.index.upsert(embedded)
    coming.index.delete(server_id, extra)
    lease.assert_held()  # or this may have come after what another run wrote
    return len(missing) + len(extra)


def _embedded(server_id: str, tools: list[IndexedTool], deps: Dependencies, coming: OpenEdition) -> list[EmbeddedTool]:
    """Return the tools with the coming edition's vectors; those of replicas that it has already are not made again."""
    known = coming.index.prepared({tool.digest for tool in tools})
    unknown = {tool.digest: tool.definition for tool in tools if tool.digest not in known}
    record = deps.index.server(server_id)
    made = tool_vectors(list(unknown.values()), record.declared_name if record else "", coming.embedder)
    vectors = {digest: each.vectors for digest, each in known.items()} | dict(zip(unknown, made, strict=True))
    return [EmbeddedTool(tool, vectors[tool.digest]) for tool in tools]


def _give_up(editions: Editions, coming: OpenEdition, error: ModelUnavailable) -> None:
    service = editions.store.service()
    if service.edition and service.coming == coming.edition:
        editions.store.want(service.edition)
        _log.error("edition_given_up", model=coming.edition.model, reason=str(error))
