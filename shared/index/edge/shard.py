"""A shard of Qdrant Edge on disk that can be exchanged for one with a graph while it is read and written.

The exchange loses no write: the graph is built on a copy; what is written meanwhile goes to the old shard, as ever, and
is repeated on the copy, in the same order. Only when the copy has all of it does the collection's pointer name it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from qdrant_edge import EdgeConfig, EdgeShard, UpdateOperation

from shared.errors import GraphNotBuilt, GraphOvertaken, IndexHeld, IndexUnavailable
from shared.index.edge.directory import Current, copy_aside, current, read_ahead, remove, size_bytes, switch, tidy

# Points between two flushes. What is not flushed is replayed from the log after a crash: 0.3 s for this many.
FLUSH_EVERY = 5_000
# Points written while a graph is built; 7 KB each are held for the copy. Beyond this, the build is given up.
MAX_MEANWHILE = 20_000
# Operations repeated while writers wait.
FEW = 8
# The copy, the graph that is written beside it, and room to go on working.
DISK_NEEDED = 3

Build = Callable[[Path], None]
"""Make a graph in the shard of this directory, which nobody else uses; raises GraphNotBuilt."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an exchange took: seconds in which writers waited for the copy, of building, and of taking the new shard."""

    points: int
    repeated: int
    copy_s: float
    build_s: float
    switch_s: float


class LiveShard:
    """One shard. Its write-ahead log keeps what a call has confirmed when the process is killed."""

    def __init__(self, collection: Path, config: EdgeConfig) -> None:
        """Open the collection's shard, made where there is none.

        Raises:
            IndexHeld: another process has it.
            IndexUnavailable: it cannot be opened.
        """
        self._collection = collection
        self._config = config
        self._writing = threading.Lock()
        self._meanwhile: _Meanwhile | None = None
        self._unflushed = 0
        with self.translated():
            if not collection.exists():
                _create(collection, config)
            self._current = _pointed(collection)
            with suppress(OSError):  # another process may have it and be changing it, which loading finds out
                read_ahead(self._path)
            self._shard = EdgeShard.load(str(self._path), config)
            tidy(collection)

    @property
    def now(self) -> EdgeShard:
        """Return the shard to read from; to be asked for at each read, within `translated`."""
        return self._shard

    @property
    def has_graph(self) -> bool:
        """Return whether the shard was exchanged for one with a graph."""
        return self._current != Current()

    def outside_graph(self) -> int:
        """Return how many points a search compares one by one, or passes over since they are gone: the more of both."""
        with self.translated():
            info = self._shard.info()
        added = max(0, info.indexed_vectors_count - self._current.vectors)
        gone = max(0, self._current.points + added - info.points_count)
        return max(added, gone)

    def points(self) -> int:
        """Return how many points there are."""
        with self.translated():
            return self._shard.info().points_count

    def update(self, operation: UpdateOperation, points: int = 1) -> None:
        """Write; `points` is about how many."""
        with self.translated(), self._writing:
            self._shard.update(operation)
            if self._meanwhile is not None:
                self._meanwhile.add(operation, points)
            self._unflushed += points
            if self._unflushed >= FLUSH_EVERY:
                self._unflushed = 0
                self._shard.flush()

    def exchange(self, build: Build) -> Exchange:
        """Take the place of this shard with a copy of it that has a graph; reads go on, writes wait for the copying.

        Raises:
            GraphNotBuilt: `build` failed, or there is no room.
            GraphOvertaken: more was written meanwhile than can be repeated.
            IndexUnavailable: the engine failed.
            OSError: the disk did.
        """
        self._check_room()
        clock = _Clock()
        copy, meanwhile = self._copy()
        try:
            copy_s = clock.lap_s()
            build(copy)
            build_s = clock.lap_s()
            points, repeated = self._take(copy, meanwhile)
        except BaseException:
            self._forget()
            remove(copy)
            raise
        return Exchange(points, repeated, copy_s, build_s, clock.lap_s())

    def close(self) -> None:
        """Flush and release the shard."""
        with self.translated():
            self._shard.close()

    @property
    def _path(self) -> Path:
        return self._collection / self._current.directory

    def _check_room(self) -> None:
        needed, free = DISK_NEEDED * size_bytes(self._path), shutil.disk_usage(self._collection).free
        if free < needed:
            raise GraphNotBuilt(f"{self._collection}: {needed >> 20} MiB of disk are needed, {free >> 20} MiB are free")

    def _copy(self) -> tuple[Path, _Meanwhile]:
        with self.translated(), self._writing:
            self._shard.flush()
            copy = copy_aside(self._collection, self._path)
            self._meanwhile = _Meanwhile()
            return copy, self._meanwhile

    def _take(self, copy: Path, meanwhile: _Meanwhile) -> tuple[int, int]:
        """Make the copy the collection's shard; return how many points its graph holds, and how many were repeated."""
        read_ahead(copy)
        with self.translated():
            made = EdgeShard.load(str(copy), self._config)
            built = Current(copy.name, made.info().points_count, made.info().indexed_vectors_count)
            meanwhile.repeat_on(made, leave=FEW)
            with self._writing:
                meanwhile.repeat_on(made)
                switch(self._collection, built)
                self._shard, self._current = made, built
                self._meanwhile, self._unflushed = None, meanwhile.points
        tidy(self._collection)
        return built.points, meanwhile.points

    def _forget(self) -> None:
        with self._writing:
            self._meanwhile = None

    @contextmanager
    def translated(self) -> Generator[None]:
        """Raise our errors for those of the engine."""
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # Qdrant Edge raises the bare class; any other is a mistake of ours
                raise
            if "failed to open WAL" in str(error):
                raise IndexHeld(
                    f"another Toolscale process uses {self._collection.parent}: connect to that one over HTTP, use "
                    "another data directory, or share a Qdrant server by QDRANT_URL"
                ) from error
            raise IndexUnavailable(f"{self._collection}: {error}") from error


class _Meanwhile:
    """What is written while a graph is built, in order."""

    def __init__(self) -> None:
        self.points = 0
        self._operations: deque[UpdateOperation] = deque()

    def add(self, operation: UpdateOperation, points: int) -> None:
        self.points += points
        self._operations.append(operation)
        if self.points > MAX_MEANWHILE:
            self._operations.clear()

    def repeat_on(self, shard: EdgeShard, leave: int = 0) -> None:
        """Write it there too, but for the last few operations."""
        while len(self._operations) > leave:
            shard.update(self._operations.popleft())
        if self.points > MAX_MEANWHILE:
            raise GraphOvertaken(f"{self.points} points were written while it was built")


class _Clock:
    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_s(self) -> float:
        """Return the seconds since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def _pointed(collection: Path) -> Current:
    try:
        return current(collection)
    except (OSError, ValueError, TypeError) as error:
        raise IndexUnavailable(f"{collection}: its pointer cannot be read: {error}") from error


def _create(collection: Path, config: EdgeConfig) -> None:
    """Make the shard elsewhere and rename it into place, so that a crash leaves either none or a whole one."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=collection.parent) as temporary:
        made = Path(temporary) / "shard"
        EdgeShard.create(str(made), config).close()
        try:
            made.rename(collection)
        except OSError:
            if not collection.exists():  # another process may have been faster; loading tells which of us has it
                raise
