"""One shard of Qdrant Edge on disk, with errors translated and writes flushed."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from qdrant_edge import EdgeConfig, EdgeShard, UpdateOperation

from shared.errors import IndexHeld, IndexUnavailable
from shared.index.edge.config import existing_shard, new_shard
from shared.index.points import VectorSchema

# Points between two flushes. After a crash the log replays unflushed points: 0.3 s for this many.
FLUSH_EVERY = 5_000


class Shard:
    """One shard. Its write-ahead log keeps every confirmed write when the process is killed."""

    def __init__(self, path: Path, schema: VectorSchema) -> None:
        """Open the shard at `path`, created where it is missing.

        Raises:
            IndexHeld: another process holds it.
            IndexUnavailable: it cannot be opened.
        """
        self._path = path
        self._unflushed = 0
        with self._translated():
            if not path.exists():
                _create(path, new_shard(schema))
            with suppress(OSError):  # another process may hold the shard and change it; loading reports that
                _read_ahead(path)
            self._shard = EdgeShard.load(str(path), existing_shard(schema))

    @contextmanager
    def opened(self) -> Generator[EdgeShard]:
        """Yield the engine's shard; errors of the engine become ours.

        Raises:
            IndexHeld: another process holds it.
            IndexUnavailable: the engine failed.
        """
        with self._translated():
            yield self._shard

    def update(self, operation: UpdateOperation, points: int = 1) -> None:
        """Write; `points` is the approximate number of points written."""
        with self._translated():
            self._shard.update(operation)
            self._unflushed += points
            if self._unflushed >= FLUSH_EVERY:
                self._unflushed = 0
                self._shard.flush()

    def close(self) -> None:
        """Flush and release the shard."""
        with self._translated():
            self._shard.close()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # Qdrant Edge raises the bare class; any other is our own bug
                raise
            if "failed to open WAL" in str(error):
                raise IndexHeld(
                    f"another Toolscale process uses {self._path.parent}: connect to that process over HTTP, use "
                    "another data directory, or share a Qdrant server by QDRANT_URL"
                ) from error
            raise IndexUnavailable(f"{self._path}: {error}") from error


def _create(path: Path, config: EdgeConfig) -> None:
    """Create the shard elsewhere and rename it into place, so that a crash leaves either no shard or a whole one."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as temporary:
        made = Path(temporary) / "shard"
        EdgeShard.create(str(made), config).close()
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # another process may have been faster; loading reports which process holds it
                raise


def _read_ahead(path: Path) -> None:
    """Read all files once, since the engine blocks the whole process while it waits for the disk."""
    chunk = bytearray(1 << 20)
    for file_path in path.rglob("*"):
        if file_path.is_file():
            with file_path.open("rb", buffering=0) as file:
                while file.readinto(chunk):
                    pass
