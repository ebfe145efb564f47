"""The index in this process, on disk, with no server: Qdrant Edge."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from typing_extensions import override

from shared.errors import ConfigInvalid, IndexLost
from shared.index.edge.collection import EdgeCollection
from shared.index.engine import CollectionSpec, Engine
from shared.service.private_file import make_private_directory


class EdgeEngine(Engine):
    """The collections below a directory; each is opened once, since a shard has one holder."""

    def __init__(self, directory: Path) -> None:
        """Create the directory.

        Raises:
            ConfigInvalid: it cannot be created.
        """
        _make(directory)
        self._directory = directory
        self._open: dict[str, EdgeCollection] = {}
        self._opening = threading.Lock()

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        with self._opening:
            if spec.name not in self._open:
                self._open[spec.name] = EdgeCollection(self._directory / spec.name, spec)

    @override
    def collection(self, spec: CollectionSpec) -> EdgeCollection:
        if not self.exists(spec.name):
            raise IndexLost(f"{self._directory / spec.name} is gone")
        self.ensure(spec)
        return self._open[spec.name]

    @override
    def exists(self, name: str) -> bool:
        return (self._directory / name).is_dir()

    @override
    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir() if path.is_dir() and path.name[0] != ".")

    @override
    def drop(self, name: str) -> None:
        """Delete the collection; a rename first ensures that a crash leaves no partial collection of this name."""
        with self._opening:
            if opened := self._open.pop(name, None):
                opened.close()
            if self.exists(name):
                doomed = Path(tempfile.mkdtemp(prefix=".dropped-", dir=self._directory))
                (self._directory / name).rename(doomed / name)
                shutil.rmtree(doomed)

    @override
    def server_version(self) -> str:
        return ""

    @override
    def close(self) -> None:
        with self._opening, ExitStack() as closing:
            for opened in self._open.values():
                closing.callback(opened.close)


def _make(directory: Path) -> None:
    try:
        make_private_directory(directory)
    except OSError as error:
        raise ConfigInvalid(f"data_dir: cannot create {directory}: {error.strerror}") from error
