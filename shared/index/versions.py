"""Every edition of the tools in one Qdrant, and which of them is in service.

The pointer is a point in the servers' collection, beside the server records: replaced by one write, the same in both
engines, and read together with the name of the model that the edition was made with. An alias of Qdrant's could not
say that, and a search through it could meet another edition than the query was embedded for.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shared.catalog import NAMESPACE
from shared.errors import IndexLost
from shared.index.contract import SCHEMA_VERSION, TOOLS_PREFIX, IndexVersion, slug
from shared.index.engine import SERVERS_SPEC, TOOLSETS_SPEC, Engine, tools_spec
from shared.index.points import Payload, Point
from shared.index.tool_index import QdrantIndex

if TYPE_CHECKING:
    from shared.index.points import PointCollection


@dataclass(frozen=True, slots=True)
class ActiveVersions:
    """Which edition is searched, and which one should be; `since` is the later change of the two, in seconds.

    `edition` is None in an index that no worker has opened yet.
    """

    active: IndexVersion | None = None
    requested: IndexVersion | None = None
    since: float = 0.0

    @property
    def next_version(self) -> IndexVersion | None:
        """Return the edition that is being made to take over; None: there is nothing to do."""
        return self.requested if self.active and self.requested != self.active else None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the making of an edition is: all servers up to the id `after` were visited, but for those `left`.

    `clean`: no visit of this pass found a difference.
    """

    after: str = ""
    skipped: tuple[str, ...] = ()
    clean: bool = True

    def remaining(self, servers: Sequence[str]) -> int:
        """Return how many of these servers this pass has still to visit."""
        return sum(server_id > self.after for server_id in servers) + len(self.skipped)


class IndexStore:
    """The index with its editions. Safe to call from several threads and, on a server, from several processes.

    Every method raises IndexUnavailable when Qdrant does not answer, and IndexLost when a collection is gone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.ensure(SERVERS_SPEC)
        engine.ensure(TOOLSETS_SPEC)

    def versions(self) -> ActiveVersions:
        """Return which edition is in service now, and which one is wanted."""
        payloads = self._servers.retrieve([_ACTIVE, _REQUESTED])
        since = max((payload["since"] for payload in payloads.values()), default=0.0)
        return ActiveVersions(_version(payloads.get(_ACTIVE)), _version(payloads.get(_REQUESTED)), since)

    def ensure_active_version(self, own: IndexVersion, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Put an edition into service where none is: `own`, unless tools of another one are there already.

        Those were written before editions were told apart; `models` are the names their model may have.
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
        """Create what is missing of an edition's collection."""
        self._engine.ensure(tools_spec(version))

    def index(self, version: IndexVersion, mirror: IndexVersion | None = None) -> QdrantIndex:
        """Return the index over an edition; what needs no vectors is written to the one `beside` it as well."""
        others = [] if mirror is None else [self._tools(mirror)]
        toolsets = self._engine.collection(TOOLSETS_SPEC)
        return QdrantIndex(self._tools(version), self._servers, toolsets, mirrors=others)

    def request_version(self, version: IndexVersion) -> None:
        """Ask for this edition to be made and put into service."""
        self.ensure(version)
        self._put(_REQUESTED, _payload(version))

    def activate(self, version: IndexVersion) -> None:
        """Make this the edition that is searched, for every process, in one write."""
        self._put(_ACTIVE, _payload(version))

    def progress(self, version: IndexVersion) -> Progress:
        """Return how far the making of this edition is."""
        stored = self._servers.retrieve([_PROGRESS]).get(_PROGRESS, {})
        if stored.get("version") != version.name:
            return Progress()
        return Progress(stored["after"], tuple(stored["skipped"]), stored["clean"])

    def store_progress(self, version: IndexVersion, progress: Progress) -> None:
        """Remember how far the making of this edition is, for whichever process goes on with it."""
        self._put(_PROGRESS, {"version": version.name, **asdict(progress)})

    def drop_retired(self, older_than_s: float) -> list[str]:
        """Remove all editions but the one in service, once it has been that for so long; return their names."""
        versions = self.versions()
        if versions.active is None or versions.next_version or time.time() - versions.since < older_than_s:
            return []
        retired = [name for name in self._collections() if name != versions.active.name]
        for name in retired:
            self._engine.drop(name)
        return retired

    def is_complete(self) -> bool:
        """Return whether nothing was lost since the index was marked: neither the records nor the tools in service."""
        try:
            payloads = self._servers.retrieve([_COMPLETE, _ACTIVE])
        except IndexLost:
            return False
        active = _version(payloads.get(_ACTIVE))
        return _COMPLETE in payloads and active is not None and self._engine.exists(active.name)

    def repair(self, own: IndexVersion, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Create the collections that are gone, empty, and an edition in service."""
        self._engine.ensure(SERVERS_SPEC)
        self._engine.ensure(TOOLSETS_SPEC)
        self.ensure_active_version(own, models)

    def mark_complete(self) -> None:
        """Note that a look at every server was asked for since the index was made."""
        self._put(_COMPLETE, {"since": time.time()})

    def check_writable(self) -> None:
        """Write something that nobody reads, to learn whether the index takes writes."""
        self._put(_TOUCHED, {"at": time.time()})

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
        """Return ours if it holds tools, or else the one that holds the most."""
        others = [name for name in self._collections() if name != own.name]
        if self._size(own) or not others:
            return own
        slugs = {slug(model): model for model in models()}
        return max(
            (version for name in others if (version := _version_named(name, slugs))), key=self._size, default=own
        )

    def _size(self, version: IndexVersion) -> int:
        return self._tools(version).count(()) if self._engine.exists(version.name) else 0

    def _put(self, point: str, payload: Payload) -> None:
        self._servers.upsert([Point(point, payload)])


def _id(role: str) -> str:
    # nested, so that no server's id gives the same; without a revision, so that no one takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, "versions"), role))


_ACTIVE, _REQUESTED, _PROGRESS, _COMPLETE = _id("active"), _id("requested"), _id("progress"), _id("complete")
_TOUCHED = _id("touched")


def _payload(version: IndexVersion) -> Payload:
    return {**asdict(version), "since": time.time()}


def _version(payload: Payload | None) -> IndexVersion | None:
    return IndexVersion(payload["model"], payload["dimension"], payload["schema"]) if payload else None


def _version_named(name: str, models: dict[str, str]) -> IndexVersion | None:
    """Return the edition of a collection's name; a model that nobody knows keeps the form it has there."""
    _, model, dimension, schema = name.split("__")
    if schema != f"v{SCHEMA_VERSION}":
        return None  # its points look different: they can neither be searched nor carried over
    return IndexVersion(models.get(model, model), int(dimension))
