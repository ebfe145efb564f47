"""When an index on Qdrant Edge gets a graph, and when it gets a new one.

Without a graph a search compares all vectors in scope: exact, and quick as long as they are few. What was written since
the graph was built is searched in that way too, so a graph is built again once that has become much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from shared.errors import GraphNotBuilt, GraphOvertaken, IndexUnavailable
from shared.index.edge.hnsw_build import Builder
from shared.index.edge.shard import LiveShard
from shared.index.engine import Kind
from shared.index.points import VectorSchema

# A graph is built again when what changed is this part of what there is.
CHANGED_PART = 10

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Graphs:
    """From how many points on there is a graph, 0: never; and when the building of one begins.

    It begins once nothing was written for `quiet_s`, or after `patience_s` where writes do not pause so long.
    """

    from_points: int = 0
    quiet_s: float = 5.0
    patience_s: float = 60.0
    make_builder: Callable[[VectorSchema], Builder] = field(default=Builder)


class GraphKeeper:
    """Has a graph built in the background when what was written makes one pay. Safe to call from several threads."""

    def __init__(self, kind: Kind, shard: LiveShard, graphs: Graphs) -> None:
        self._name = kind.name
        self._shard = shard
        self._graphs = graphs
        self._builder = graphs.make_builder(kind.vectors)
        self._written_at = time.monotonic()
        self._failed_with = 0
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_at_work = False

    def wrote(self) -> None:
        """Begin to wait for the moment to build, if enough has changed.

        Raises:
            IndexUnavailable: the shard does not answer.
        """
        self._written_at = time.monotonic()
        if self._graphs.from_points and self._is_due():
            self._begin()

    def stop(self) -> None:
        """End a building that is under way, and begin no other."""
        self._stopped.set()
        self._builder.stop()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _is_due(self) -> bool:
        changed = self._shard.outside_graph() - self._failed_with
        return changed >= self._graphs.from_points and changed >= self._shard.points() // CHANGED_PART

    def _begin(self) -> None:
        with self._starting:
            if not self._is_at_work and not self._stopped.is_set():
                self._is_at_work = True
                self._thread = threading.Thread(target=self._work, name="toolscale graph", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while self._goes_on():
            self._await_quiet()
            if not self._stopped.is_set():
                self._build()

    def _goes_on(self) -> bool:
        """Return whether another graph is due; who writes from then on, and makes one due, begins the next work."""
        with self._starting:
            self._is_at_work = False  # also when the shard does not answer
            self._is_at_work = not self._stopped.is_set() and self._is_due()
            return self._is_at_work

    def _await_quiet(self) -> None:
        give_in_at = time.monotonic() + self._graphs.patience_s
        while not self._stopped.is_set():
            now = time.monotonic()
            begin_at = min(give_in_at, self._written_at + self._graphs.quiet_s)
            if now >= begin_at:
                return
            self._stopped.wait(begin_at - now)

    def _build(self) -> None:
        try:
            done = self._shard.exchange(self._builder.build)
        except (GraphNotBuilt, IndexUnavailable, OSError) as error:
            if not self._stopped.is_set():
                if not isinstance(error, GraphOvertaken):
                    self._failed_with = self._shard.outside_graph()  # tried again when as much has changed once more
                _log.warning("index_graph_not_built", collection=self._name, reason=str(error))
        else:
            self._failed_with = 0
            _log.info(
                "index_graph_built",
                collection=self._name,
                points=done.points,
                meanwhile=done.repeated,
                copy_s=round(done.copy_s, 3),
                build_s=round(done.build_s, 3),
                switch_s=round(done.switch_s, 3),
            )
