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
from shared.index.contract import SCHEMA_VERSION, TOOLS_PREFIX, Edition, slug
from shared.index.engine import SERVERS_KIND, TOOLSETS_KIND, Engine, tools_kind
from shared.index.points import Payload, Point
from shared.index.tool_index import QdrantIndex

if TYPE_CHECKING:
    from shared.index.points import PointCollection


@dataclass(frozen=True, slots=True)
class Service:
    """Which edition is searched, and which one should be; `since` is the later change of the two, in seconds.

    `edition` is None in an index that no worker has opened yet.
    """

    edition: Edition | None = None
    wanted: Edition | None = None
    since: float = 0.0

    @property
    def coming(self) -> Edition | None:
        """Return the edition that is being made to take over; None: there is nothing to do."""
        return self.wanted if self.edition and self.wanted != self.edition else None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the making of an edition is: all servers up to the id `after` were visited, but for those `left`.

    `clean`: no visit of this pass found a difference.
    """

    after: str = ""
    left: tuple[str, ...] = ()
    clean: bool = True

    def remaining(self, servers: Sequence[str]) -> int:
        """Return how many of these servers this pass has still to visit."""
        return sum(server_id > self.after for server_id in servers) + len(self.left)


class IndexStore:
    """The index with its editions. Safe to call from several threads and, on a server, from several processes.

    Every method raises IndexUnavailable when Qdrant does not answer, and IndexLost when a collection is gone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.ensure(SERVERS_KIND)
        engine.ensure(TOOLSETS_KIND)

    def service(self) -> Service:
        """Return which edition is in service now, and which one is wanted."""
        found = self._servers.retrieve([_IN_SERVICE, _WANTED])
        since = max((each["since"] for each in found.values()), default=0.0)
        return Service(_edition(found.get(_IN_SERVICE)), _edition(found.get(_WANTED)), since)

    def establish(self, own: Edition, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Put an edition into service where none is: `own`, unless tools of another one are there already.

        Those were written before editions were told apart; `models` are the names their model may have.
        """
        edition = self.service().edition
        if edition is None:
            edition = self._found(own, models)
            self.put_in_service(edition)
            self.want(edition)
        if not self._engine.exists(edition.name):
            self._servers.delete([_WHOLE])
        self.ensure(edition)

    def ensure(self, edition: Edition) -> None:
        """Create what is missing of an edition's collection."""
        self._engine.ensure(tools_kind(edition))

    def index(self, edition: Edition, beside: Edition | None = None) -> QdrantIndex:
        """Return the index over an edition; what needs no vectors is written to the one `beside` it as well."""
        others = [] if beside is None else [self._tools(beside)]
        toolsets = self._engine.collection(TOOLSETS_KIND)
        return QdrantIndex(self._tools(edition), self._servers, toolsets, beside=others)

    def want(self, edition: Edition) -> None:
        """Ask for this edition to be made and put into service."""
        self.ensure(edition)
        self._put(_WANTED, _payload(edition))

    def put_in_service(self, edition: Edition) -> None:
        """Make this the edition that is searched, for every process, in one write."""
        self._put(_IN_SERVICE, _payload(edition))

    def progress(self, edition: Edition) -> Progress:
        """Return how far the making of this edition is."""
        stored = self._servers.retrieve([_PROGRESS]).get(_PROGRESS, {})
        if stored.get("edition") != edition.name:
            return Progress()
        return Progress(stored["after"], tuple(stored["left"]), stored["clean"])

    def note(self, edition: Edition, progress: Progress) -> None:
        """Remember how far the making of this edition is, for whichever process goes on with it."""
        self._put(_PROGRESS, {"edition": edition.name, **asdict(progress)})

    def drop_retired(self, older_than_s: float) -> list[str]:
        """Remove all editions but the one in service, once it has been that for so long; return their names."""
        service = self.service()
        if service.edition is None or service.coming or time.time() - service.since < older_than_s:
            return []
        retired = [name for name in self._editions() if name != service.edition.name]
        for name in retired:
            self._engine.drop(name)
        return retired

    def is_whole(self) -> bool:
        """Return whether nothing was lost since the index was marked: neither the records nor the tools in service."""
        try:
            found = self._servers.retrieve([_WHOLE, _IN_SERVICE])
        except IndexLost:
            return False
        edition = _edition(found.get(_IN_SERVICE))
        return _WHOLE in found and edition is not None and self._engine.exists(edition.name)

    def repair(self, own: Edition, models: Callable[[], Iterable[str]] = tuple) -> None:
        """Create the collections that are gone, empty, and an edition in service."""
        self._engine.ensure(SERVERS_KIND)
        self._engine.ensure(TOOLSETS_KIND)
        self.establish(own, models)

    def mark(self) -> None:
        """Note that a look at every server was asked for since the index was made."""
        self._put(_WHOLE, {"since": time.time()})

    def touch(self) -> None:
        """Write something that nobody reads, to learn whether the index takes writes."""
        self._put(_TOUCHED, {"at": time.time()})

    def close(self) -> None:
        """Release the store and every index of it."""
        self._engine.close()

    @property
    def _servers(self) -> PointCollection:
        return self._engine.collection(SERVERS_KIND)

    def _tools(self, edition: Edition) -> PointCollection:
        return self._engine.collection(tools_kind(edition))

    def _editions(self) -> list[str]:
        return [name for name in self._engine.names() if name.startswith(TOOLS_PREFIX)]

    def _found(self, own: Edition, models: Callable[[], Iterable[str]]) -> Edition:
        """Return ours if it holds tools, or else the one that holds the most."""
        others = [name for name in self._editions() if name != own.name]
        if self._size(own) or not others:
            return own
        slugs = {slug(model): model for model in models()}
        return max((each for name in others if (each := _named(name, slugs))), key=self._size, default=own)

    def _size(self, edition: Edition) -> int:
        return self._tools(edition).count(()) if self._engine.exists(edition.name) else 0

    def _put(self, point: str, payload: Payload) -> None:
        self._servers.upsert([Point(point, payload)])


def _id(role: str) -> str:
    # nested, so that no server's id gives the same; without a revision, so that no one takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, "editions"), role))


_IN_SERVICE, _WANTED, _PROGRESS, _WHOLE = _id("in service"), _id("wanted"), _id("progress"), _id("whole")
_TOUCHED = _id("touched")


def _payload(edition: Edition) -> Payload:
    return {**asdict(edition), "since": time.time()}


def _edition(payload: Payload | None) -> Edition | None:
    return Edition(payload["model"], payload["dimension"], payload["schema"]) if payload else None


def _named(name: str, models: dict[str, str]) -> Edition | None:
    """Return the edition of a collection's name; a model that nobody knows keeps the form it has there."""
    _, model, dimension, schema = name.split("__")
    if schema != f"v{SCHEMA_VERSION}":
        return None  # its points look different: they can neither be searched nor carried over
    return Edition(models.get(model, model), int(dimension))
