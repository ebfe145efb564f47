"""All index versions in one Qdrant, and the pointers to the active and the requested version.

The pointers are points in the collection of the server records. One write replaces a pointer, in both engines, and a
reader gets the version's model with it. A Qdrant alias has no model: a query could be embedded for another version.
Each schema has pointers of its own, so that a release never reads or writes points of another schema.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from shared.catalog import FEATURES_VERSION, NAMESPACE
from shared.errors import IndexLost
from shared.index import open_store
from shared.index.points import CollectionSpec, Payload, Point, greater_than, must, walk
from shared.index.records import COPIED as _MARK
from shared.index.records import SERVERS_SPEC, TOOLSETS_SPEC
from shared.index.tools import NAME_VECTOR, TERMS_VECTOR, TEXT_VECTOR, TOOL_INDEXES, ToolIndex
from shared.text.embedding import FastEmbedder

if TYPE_CHECKING:
    from shared.index.points import Engine, PointCollection
    from shared.settings import Settings
    from shared.text.embedding import Embedder

_TOOLS_PREFIX = "tools__"


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """A collection of all tools embedded with one model; vectors of two models are never mixed."""

    model: str
    dimension: int
    schema: str = FEATURES_VERSION

    @property
    def name(self) -> str:
        """Return the name of its collection."""
        return f"{_TOOLS_PREFIX}{_slug(self.model)}__{self.dimension}__v{self.schema}"


def tools_spec(version: IndexVersion) -> CollectionSpec:
    """Return the specification of an index version's collection."""
    dense, sparse = (NAME_VECTOR, TEXT_VECTOR), (TERMS_VECTOR,)
    return CollectionSpec(version.name, TOOL_INDEXES, version.dimension, dense, sparse)


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
        """Create the missing parts of a version's collection; into a new one, nothing was copied."""
        if not self._engine.exists(version.name):
            self.delete_marks()
        self._engine.ensure(tools_spec(version))

    def index(self, version: IndexVersion) -> ToolIndex:
        """Return the index over a version."""
        return ToolIndex(self._tools(version), self._servers, self._engine.collection(TOOLSETS_SPEC))

    def request_version(self, version: IndexVersion) -> None:
        """Request that the migration fills this version and activates it; marks of earlier requests are deleted."""
        self.delete_marks()
        self.ensure(version)
        self._put(_REQUESTED, _payload(version))

    def activate(self, version: IndexVersion) -> None:
        """Make searches and reconciliations of every process use this version, in one write."""
        self._put(_ACTIVE, _payload(version))

    def copied(self, version: IndexVersion) -> dict[str, int]:
        """Return, by server, the revision of its record when its tools were last copied to this version."""
        marks = walk(self._servers, must(greater_than(_MARK, -1)))
        return {mark["server_id"]: mark[_MARK] for mark in marks if mark["version"] == version.name}

    def mark_copied(self, version: IndexVersion, server_id: str, revision: int) -> None:
        """Record that a server's tools, as of this revision of its record, were copied to this version."""
        self._put(_mark_id(server_id), {"server_id": server_id, "version": version.name, _MARK: revision})

    def delete_marks(self) -> None:
        """Forget which servers were copied."""
        marks = walk(self._servers, must(greater_than(_MARK, -1)), ("server_id",))
        self._servers.delete([_mark_id(mark["server_id"]) for mark in marks])

    def drop_retired(self, older_than_s: float) -> list[str]:
        """Delete all versions except one that was active and filled for so long; return the names of the deleted."""
        versions, filled_at = self.versions(), self._filled_at()
        if versions.active is None or versions.next_version or filled_at is None:
            return []
        if time.time() - max(versions.since, filled_at) < older_than_s:
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

    def mark_complete(self, *, is_filled: bool) -> None:
        """Record that every server's reconciliation was requested since the index was created, or that all ended."""
        self._put(_COMPLETE, {"since": time.time(), "is_filled": is_filled})

    def is_filled(self) -> bool:
        """Return whether every server that was known when the index was created has been listed since, or failed."""
        return self._filled_at() is not None

    def has_older_version(self) -> bool:
        """Return whether processes of another release may still answer from a version that this one cannot read."""
        return any(not name.endswith(f"__v{FEATURES_VERSION}") for name in self._collections())

    def _filled_at(self) -> float | None:
        """Return when the index was filled, None if it is not."""
        mark = self._servers.retrieve([_COMPLETE]).get(_COMPLETE)
        return mark["since"] if mark and mark.get("is_filled") else None

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
        return [name for name in self._engine.names() if name.startswith(_TOOLS_PREFIX)]

    def _version_with_most_tools(self, own: IndexVersion, models: Callable[[], Iterable[str]]) -> IndexVersion:
        """Return `own` if it has tools, otherwise the version with the most."""
        others = [name for name in self._collections() if name != own.name]
        if self._size(own) or not others:
            return own
        slugs = {_slug(model): model for model in models()}
        return max(
            (version for name in others if (version := _version_named(name, slugs))), key=self._size, default=own
        )

    def _size(self, version: IndexVersion) -> int:
        return self._tools(version).count({}) if self._engine.exists(version.name) else 0

    def _put(self, point: str, payload: Payload) -> None:
        self._servers.upsert([Point(point, payload)])


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """An index version with its index and the embedder of its model."""

    version: IndexVersion
    index: ToolIndex
    embedder: Embedder


class IndexVersions:
    """Opens the versions of a store. Safe to call from several threads.

    `own` is the version of this process's settings; it is used while no version is active. Each model has one
    embedder, which is dropped when neither the active nor the next version needs it.
    """

    def __init__(self, store: IndexStore, own: Embedder, make_embedder: Callable[[str], Embedder]) -> None:
        self.store = store
        self.own = IndexVersion(own.model, own.dimension)
        self._make_embedder = make_embedder
        self._embedders = {own.model: own}
        self._changing = threading.Lock()

    def current(self) -> tuple[OpenVersion, OpenVersion | None]:
        """Return the active version and the next one, read at the same moment; loads no model.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        stored = self.store.versions()
        active, next_version = stored.active or self.own, stored.next_version
        models = {version.model for version in (active, next_version) if version}
        with self._changing:
            self._embedders = {model: embedder for model, embedder in self._embedders.items() if model in models}
        return self._open(active), self._open(next_version) if next_version else None

    def is_active(self, version: IndexVersion) -> bool:
        """Return whether this version is still the active one.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return (self.store.versions().active or self.own) == version

    def ensure_own_version(self) -> None:
        """Create this process's version, empty, if none is active, so that a new index can be searched.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.store.versions().active is None:
            self.store.ensure(self.own)

    def embedder(self, model: str) -> Embedder:
        """Return the embedder of this model."""
        with self._changing:
            if model not in self._embedders:
                self._embedders[model] = self._make_embedder(model)
            return self._embedders[model]

    def _open(self, version: IndexVersion) -> OpenVersion:
        return OpenVersion(version, self.store.index(version), self.embedder(version.model))


def open_index_versions(settings: Settings, own: Embedder) -> IndexVersions:
    """Return the versions of the index in the settings; `own` is the embedder of the model in the settings.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: the index cannot be opened with these settings.
    """
    return IndexVersions(open_store(settings), own, FastEmbedder)


def active_index(current: Callable[[], OpenVersion]) -> ToolIndex:
    """Return an index whose every call uses the version that is active at that moment.

    It serves readers of tools and records. A search needs the index and the embedder of one moment.
    """
    return cast("ToolIndex", _ActiveIndex(current))


class _ActiveIndex:
    def __init__(self, current: Callable[[], OpenVersion]) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current().index, name)


def _slug(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


def _id(role: str) -> str:
    # nested, so that it differs from every server's id; without a revision, so that no reader takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, f"versions of schema {FEATURES_VERSION}"), role))


_ACTIVE, _REQUESTED, _COMPLETE, _TOUCHED = _id("active"), _id("requested"), _id("complete"), _id("touched")


def _mark_id(server_id: str) -> str:
    return _id(f"copied {server_id}")


def _payload(version: IndexVersion) -> Payload:
    return {**asdict(version), "since": time.time()}


def _version(payload: Payload | None) -> IndexVersion | None:
    return IndexVersion(payload["model"], payload["dimension"], str(payload["schema"])) if payload else None


def _version_named(name: str, models: dict[str, str]) -> IndexVersion | None:
    """Return the version of a collection's name; an unknown model keeps the spelling of that name."""
    _, model, dimension, schema = name.split("__")
    if schema != f"v{FEATURES_VERSION}":
        return None  # points of another schema can be neither searched nor migrated
    return IndexVersion(models.get(model, model), int(dimension))
