"""Build a graph in a process of its own: `python -m shared.index.edge.hnsw_build SHARD PARENT SCHEMA`.

Every call into Qdrant Edge holds the GIL (measured for 0.9: a thread that only ticks stands still), and a graph over
100,000 tools takes about a minute. So it is built elsewhere, at the lowest priority.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from qdrant_edge import EdgeShard

from shared.errors import GraphNotBuilt
from shared.index.edge.config import building
from shared.index.edge.directory import sync
from shared.index.points import VectorSchema

_PR_SET_PDEATHSIG = 1


class Builder:
    """Builds graphs one at a time, each in a process that ends with this one."""

    def __init__(self, schema: VectorSchema) -> None:
        self._schema = schema
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False
        self._starting = threading.Lock()

    def build(self, shard: Path) -> None:
        """Make the graph in a shard that nobody has open, and return when it is on disk.

        Raises:
            GraphNotBuilt: the process failed or was stopped.
        """
        with self._start(shard) as child:
            said, _ = child.communicate()
        if child.returncode != 0:
            raise GraphNotBuilt(f"its process ended with {child.returncode}: {said.strip()[-300:]}")

    def stop(self) -> None:
        """End the process, and let no other one begin."""
        with self._starting:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def _start(self, shard: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", __name__, str(shard), str(os.getpid()), json.dumps(asdict(self._schema))]
        # what this process imports from, not what happens to lie in the current directory
        imports = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with self._starting:
            if self._is_stopped:
                raise GraphNotBuilt("the index is being closed")
            self._child = subprocess.Popen(  # noqa: S603  # this program itself
                command,
                env={**os.environ, "PYTHONPATH": imports},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            return self._child


def build_here(shard: Path, schema: VectorSchema) -> None:
    """Make the graph in this process, which stands still meanwhile."""
    opened = EdgeShard.load(str(shard), building(schema))
    opened.optimize()
    opened.flush()
    opened.close()
    sync(shard)


def main(arguments: list[str]) -> None:
    """Build, unless the process that asked for it is gone."""
    shard, parent, schema = arguments
    _end_with_parent()
    if os.getppid() == int(parent):
        if sys.platform != "win32":
            os.nice(19)
        build_here(Path(shard), VectorSchema(**json.loads(schema)))


def _end_with_parent() -> None:
    # elsewhere an orphan builds to the end, in a directory that nobody looks into any more
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
