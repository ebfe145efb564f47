"""All index versions in one Qdrant, and the pointers to the active and the requested version.

The pointers are points in the collection of the server records. One write replaces a pointer, in both engines, and a
reader gets the version's model with it. A Qdrant alias has no model: a query could be embedded for another version.
Each schema has pointers of its own, so that a release never reads or writes points of another schema.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shared.catalog import NAMESPACE
from shared.errors import IndexLost
from shared.index.contract import SCHEMA_VERSION, SHARES, TOOLS_PREFIX, IndexVersion, slug
from shared.index.engine import SERVERS_SPEC, TOOLSETS_SPEC, Engine, tools_spec
from shared.index.points import Payload, Point
from shared.index.tool_index import QdrantIndex

if TYPE_CHECKING:
    from shared.index.points import PointCollection


@dataclass(frozen=True, slots=True)
class _ActiveVersions:
    """The active and the requested index version; `since` is the later of the two changes, in epoch seconds.

    `active` is None until a worker has opened the index.
    """

    active: IndexVersion | None = None
    requested: IndexVersion | None = None
    since: float = 0.0

    @property
    def next_version(self) -> IndexVersion | None:
        """Return the version that the migration fills; None without a migration."""
        return self.requested if self.active and self.requested != self.active else None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a migration in one share of the servers.

    The pass compared `compared` servers, up to the server `after`, and found `differing` tools that differed. `since`
    is the revision at which it began; 0 between passes. `last_since` and `last_differing` are those of the last
    complete pass; 0 before the first.
    """

    after: str = ""
    compared: int = 0
    differing: int = 0
    since: int = 0
    last_since: int = 0
    last_differing: int = 0

    def begun(self, since: int) -> Progress:
        """Return the beginning of the next pass."""
        return Progress(since=since, last_since=self.last_since, last_differing=self.last_differing)

    def finished(self) -> Progress:
        """Return the progress at the end of this pass."""
        return Progress(compared=self.compared, last_since=self.since, last_differing=self.differing)


class IndexStore:
    """The index with all its versions. Safe to call from several threads and, on a server, from several processes.

    Every method raises IndexUnavailable when Qdrant does not answer, and IndexLost when a collection is gone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.ensure(SERVERS_SPEC)
        engine.ensure(TOOLSETS_SPEC)

    def versions(self) -> _ActiveVersions:
        """Return the active and the requested version."""
        payloads = self._servers.retrieve([_ACTIVE, _REQUESTED])
        since = max((payload["since"] for payload in payloads.values()), default=0.0)
        return _ActiveVersions(_version(payloads.get(_ACTIVE)), _version(payloads.get(_REQUESTED)), since)

    def ensure_active_version(self, own: IndexVersion, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Activate a version if none is active: `own`, unless only other versions have tools.

        `models` returns the names that the model of such a version may have.
        """
        active = self.versions().active
        if active is None:
            active = self._version_with_most_tools(own, models)
            self.activate(active)
            self.request_version(active)
        if not self._engine.exists(active.name):
            self._servers.delete([_COMPLETE])
        self.ensure(active)

    def ensure(self, version: IndexVersion) -> None:
        """Create the missing parts of a version's collection."""
        self._engine.ensure(tools_spec(version))

    def index(self, version: IndexVersion) -> QdrantIndex:
        """Return the index over a version."""
        return QdrantIndex(self._tools(version), self._servers, self._engine.collection(TOOLSETS_SPEC))

    def request_version(self, version: IndexVersion) -> None:
        """Request that the migration fills this version and activates it; progress of earlier requests is deleted."""
        self.ensure(version)
        self.delete_progress()
        self._put(_REQUESTED, _payload(version))

    def activate(self, version: IndexVersion) -> None:
        """Make searches and reconciliations of every process use this version, in one write."""
        self._put(_ACTIVE, _payload(version))

    def progress(self, version: IndexVersion) -> list[Progress]:
        """Return the progress of this version's migration in each share."""
        stored = self._servers.retrieve(_PROGRESS)
        return [_progress(stored.get(point), version) for point in _PROGRESS]

    def store_progress(self, version: IndexVersion, share: int, progress: Progress) -> None:
        """Store the progress in a share, so that any process can continue it."""
        self._put(_PROGRESS[share], {"version": version.name, **asdict(progress)})

    def delete_progress(self) -> None:
        """Delete the progress in all shares."""
        self._servers.delete(_PROGRESS)

    def drop_retired(self, older_than_s: float) -> list[str]:
        """Delete all versions except one that has been active for so long; return the names of the deleted."""
        versions = self.versions()
        if versions.active is None or versions.next_version or time.time() - versions.since < older_than_s:
            return []
        retired = [name for name in self._collections() if name != versions.active.name]
        for name in retired:
            self._engine.drop(name)
        return retired

    def is_complete(self) -> bool:
        """Return whether the index has lost neither records nor active tools since it was marked complete."""
        try:
            payloads = self._servers.retrieve([_COMPLETE, _ACTIVE])
        except IndexLost:
            return False
        active = _version(payloads.get(_ACTIVE))
        return _COMPLETE in payloads and active is not None and self._engine.exists(active.name)

    def repair(self, own: IndexVersion, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Create the missing collections, empty, and activate a version."""
        self._engine.ensure(SERVERS_SPEC)
        self._engine.ensure(TOOLSETS_SPEC)
        self.ensure_active_version(own, models)

    def mark_complete(self) -> None:
        """Record that every server's reconciliation was requested since the index was created."""
        self._put(_COMPLETE, {"since": time.time()})

    def check_writable(self) -> None:
        """Write a point without readers, to find out whether the index accepts writes."""
        self._put(_TOUCHED, {"at": time.time()})

    def server_version(self) -> str:
        """Return the version of the Qdrant server; empty for an embedded index."""
        return self._engine.server_version()

    def close(self) -> None:
        """Release the store and every index of it."""
        self._engine.close()

    @property
    def _servers(self) -> PointCollection:
        return self._engine.collection(SERVERS_SPEC)

    def _tools(self, version: IndexVersion) -> PointCollection:
        return self._engine.collection(tools_spec(version))

    def _collections(self) -> list[str]:
        return [name for name in self._engine.names() if name.startswith(TOOLS_PREFIX)]

    def _version_with_most_tools(self, own: IndexVersion, models: Callable[[], Iterable[str]]) -> IndexVersion:
        """Return `own` if it has tools, otherwise the version with the most."""
        others = [name for name in self._collections() if name != own.name]
        if self._size(own) or not others:
            return own
        slugs = {slug(model): model for model in models()}
        return max(
            (version for name in others if (version := _version_named(name, slugs))), key=self._size, default=own
        )

    def _size(self, version: IndexVersion) -> int:
        return self._tools(version).count({}) if self._engine.exists(version.name) else 0

    def _put(self, point: str, payload: Payload) -> None:
        self._servers.upsert([Point(point, payload)])


def _id(role: str) -> str:
    # nested, so that it differs from every server's id; without a revision, so that no reader takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, f"versions of schema {SCHEMA_VERSION}"), role))


_ACTIVE, _REQUESTED, _COMPLETE, _TOUCHED = _id("active"), _id("requested"), _id("complete"), _id("touched")
_PROGRESS = [_id(f"progress of share {number}") for number in range(SHARES)]


def _progress(payload: Payload | None, version: IndexVersion) -> Progress:
    if payload is None or payload["version"] != version.name:
        return Progress()
    return Progress(**{name: payload[name] for name in Progress.__slots__ if name in payload})


def _payload(version: IndexVersion) -> Payload:
    return {**asdict(version), "since": time.time()}


def _version(payload: Payload | None) -> IndexVersion | None:
    return IndexVersion(payload["model"], payload["dimension"], payload["schema"]) if payload else None


def _version_named(name: str, models: dict[str, str]) -> IndexVersion | None:
    """Return the version of a collection's name; an unknown model keeps the spelling of that name."""
    _, model, dimension, schema = name.split("__")
    if schema != f"v{SCHEMA_VERSION}":
        return None  # points of another schema can be neither searched nor migrated
    return IndexVersion(models.get(model, model), int(dimension))
