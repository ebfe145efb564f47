"""Where a collection's shard lies on disk: in the collection's own directory, or in one below it once it has a graph.

The file `current` names the directory and is replaced by one rename, so whoever opens the collection finds either the
old shard or the new one, each whole. Whatever it does not name is left over from a process that was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

POINTER = "current"

_GRAPHS = "graph-"


@dataclass(frozen=True, slots=True)
class Current:
    """The directory of the shard, below the collection's ("." for that one itself), and what its graph holds.

    `points` and `vectors` are what the engine counted, as indexed, when the graph had been made; 0 without a graph.
    """

    directory: str = "."
    points: int = 0
    vectors: int = 0


def current(collection: Path) -> Current:
    """Return which shard is the collection's.

    Raises:
        OSError, ValueError: the pointer cannot be read.
    """
    pointer = collection / POINTER
    return Current(**json.loads(pointer.read_text(encoding="utf-8"))) if pointer.exists() else Current()


def switch(collection: Path, to: Current) -> None:
    """Make this shard the collection's, in one step that a crash cannot halve."""
    written = collection / f".{POINTER}"
    written.write_text(json.dumps(asdict(to)), encoding="utf-8")
    sync(written)
    written.replace(collection / POINTER)
    sync(collection)


def copy_aside(collection: Path, shard: Path) -> Path:
    """Return a new directory below the collection's with a copy of the shard, to which nobody may write meanwhile.

    Raises:
        OSError: it could not be copied; what was copied is removed again.
    """
    target = Path(tempfile.mkdtemp(prefix=_GRAPHS, dir=collection))
    try:
        # a shard in the collection's own directory has other copies, and the pointer, beside its files
        ignored = shutil.ignore_patterns(f"{_GRAPHS}*", POINTER, f".{POINTER}")
        return Path(shutil.copytree(shard, target, ignore=ignored, dirs_exist_ok=True))
    except OSError:
        remove(target)
        raise


def tidy(collection: Path) -> None:
    """Remove all but the collection's shard."""
    kept = current(collection)
    for path in collection.iterdir():
        is_left_over = path.name.startswith(_GRAPHS) if kept.directory == "." else path.name != POINTER
        if is_left_over and path.name != kept.directory:
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a directory with all that it holds, as far as the system lets go of it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def size_bytes(shard: Path) -> int:
    """Return what the files of a shard take on disk."""
    return sum(path.stat().st_blocks * 512 for path in shard.rglob("*") if path.is_file())


def sync(path: Path) -> None:
    """Return when this file or directory, and all below it, has reached the disk."""
    for each in (*path.rglob("*"), path):
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_ahead(shard: Path) -> None:
    """Read all files once: the engine, which blocks the whole process while it opens them, then waits for no disk."""
    chunk = bytearray(1 << 20)
    for path in shard.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(chunk):
                    pass
