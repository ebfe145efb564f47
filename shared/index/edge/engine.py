"""The index in this process, on disk, with no server: Qdrant Edge."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from shared.errors import ConfigInvalid, IndexLost
from shared.index.edge.collection import EdgeCollection
from shared.index.engine import SERVERS_KIND, TOOLSETS_KIND, Kind
from shared.index.payload import TOOL_INDEXES, tool_vector_schema
from shared.index.tool_index import FACET_LIMIT, QdrantIndex


def open_edge(directory: Path, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> QdrantIndex:
    """Return the index kept below `directory`, created on first use.

    Raises:
        ConfigInvalid: another process uses the directory, or it cannot be created.
    """
    engine = EdgeEngine(directory)
    with ExitStack() as opened:
        opened.callback(engine.close)
        # this one has the same name for every model, so two processes always meet here
        engine.ensure(SERVERS_KIND)
        kind = Kind(collection, tool_vector_schema(dimension), TOOL_INDEXES)
        engine.ensure(kind)
        engine.ensure(TOOLSETS_KIND)
        opened.pop_all()
    servers, toolsets = engine.collection(SERVERS_KIND), engine.collection(TOOLSETS_KIND)
    return QdrantIndex(engine.collection(kind), servers, toolsets, facet_limit)


class EdgeEngine:
    """The collections below a directory; each is opened once, since only one holder can have it."""

    def __init__(self, directory: Path) -> None:
        """Create the directory.

        Raises:
            ConfigInvalid: it cannot be made.
        """
        _make(directory)
        self._directory = directory
        self._open: dict[str, EdgeCollection] = {}
        self._opening = threading.Lock()

    def ensure(self, kind: Kind) -> None:
        """Open the collection, created on first use."""
        with self._opening:
            if kind.name not in self._open:
                self._open[kind.name] = EdgeCollection(self._directory / kind.name, kind)

    def collection(self, kind: Kind) -> EdgeCollection:
        """Return the collection."""
        if not self.exists(kind.name):
            raise IndexLost(f"{self._directory / kind.name} is gone")
        self.ensure(kind)
        return self._open[kind.name]

    def exists(self, name: str) -> bool:
        """Return whether the collection is on disk."""
        return (self._directory / name).is_dir()

    def names(self) -> list[str]:
        """Return the collections on disk."""
        return sorted(path.name for path in self._directory.iterdir() if path.is_dir() and path.name[0] != ".")

    def drop(self, name: str) -> None:
        """Remove the collection; renamed first, so that a crash leaves no half of it under its name."""
        with self._opening:
            if opened := self._open.pop(name, None):
                opened.close()
            if self.exists(name):
                doomed = Path(tempfile.mkdtemp(prefix=".dropped-", dir=self._directory))
                (self._directory / name).rename(doomed / name)
                shutil.rmtree(doomed)

    def close(self) -> None:
        """Release every collection, also those after one that cannot be."""
        with self._opening, ExitStack() as closing:
            for opened in self._open.values():
                closing.callback(opened.close)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"data_dir: cannot create {directory}: {error.strerror}") from error
