"""One size of index: asked without a graph, given one, and asked again."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.search.asking import Asked, Found, found, measure_parts, recall
from benchmarks.search.catalogue import PreparedServer, fill
from benchmarks.search.plan import Plan
from benchmarks.search.results import Graph, Index, Size
from benchmarks.throughput.memory import MIB
from shared.catalog import Scope
from shared.index.contract import Edition
from shared.index.edge.config import searching
from shared.index.edge.directory import size_bytes
from shared.index.edge.engine import EdgeEngine
from shared.index.edge.hnsw_build import Builder
from shared.index.edge.shard import LiveShard
from shared.index.engine import tools_kind
from shared.index.versions import IndexStore
from shared.observability.logging import configure_logging
from shared.text.embedding import Embedder, FastEmbedder

TICK_S = 0.005


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured at every size: a directory of one index, the plan, and the queries."""

    directory: Path
    plan: Plan
    embedder: Embedder
    texts: Sequence[str]

    @property
    def edition(self) -> Edition:
        """Return the edition that is searched."""
        return Edition(self.embedder.model, self.embedder.dimension)


def measure_alone(
    directory: Path, plan: Plan, tools: int, servers: Sequence[PreparedServer], texts: Sequence[str]
) -> Size:
    """Return the same as `measure_size`, in an empty directory and with the bundled model."""
    configure_logging("ERROR")  # a line for each answer that had to be shortened would be timed too
    return measure_size(Subject(directory, plan, FastEmbedder(), texts), tools, servers)


def measure_size(subject: Subject, tools: int, servers: Sequence[PreparedServer]) -> Size:
    """Return all that is to be known of an index of so many tools."""
    with _asked(subject) as asked:
        started = time.perf_counter()
        filled = fill(asked.index, servers, tools, subject.plan.groups)
        filled_s = time.perf_counter() - started
        within = [asked.index.token_sum(scope, "heuristic").counted for scope in set(asked.scopes)]
    exact, everything, narrow = _measured(subject)
    building = build_graph(subject)
    graph, ours, ours_narrow = _measured(subject)
    return Size(
        tools=tools,
        servers=filled,
        filled_s=round(filled_s, 1),
        selectivity=round(sum(within) / len(within) / tools, 4),
        exact=exact,
        graph=graph,
        recall=recall(ours, everything),
        filtered_recall=recall(ours_narrow, narrow),
        building=building,
    )


def build_graph(subject: Subject) -> Graph:
    """Have the graph built as the product does, and return what that took."""
    kind = tools_kind(subject.edition)
    with closing(LiveShard(subject.directory / kind.name, searching(kind.vectors))) as shard, _watched() as watched:
        done = shard.exchange(Builder(kind.vectors).build)
    return Graph(
        copy_s=round(done.copy_s, 2),
        build_s=round(done.build_s, 2),
        switch_s=round(done.switch_s, 2),
        stall_s=round(watched.stall_s, 2),
        builder_peak_mib=round(watched.children_peak_bytes / MIB, 1),
    )


def _measured(subject: Subject) -> tuple[Index, Found, Found]:
    """Return what an index takes, and what it finds in all and in the narrow scopes."""
    started = time.perf_counter()
    with _asked(subject) as asked:
        opened_s = time.perf_counter() - started
        everything, narrow = found(asked, narrow=False), found(asked, narrow=True)
        index = Index(
            parts=measure_parts(asked),
            opened_s=round(opened_s, 2),
            disk_mib=round(size_bytes(subject.directory) / MIB, 1),
            resident_mib=round(psutil.Process().memory_info().rss / MIB, 1),
        )
        return index, everything, narrow


@contextmanager
def _asked(subject: Subject) -> Generator[Asked]:
    engine = EdgeEngine(subject.directory)
    with closing(IndexStore(engine)) as store:
        store.establish(subject.edition)
        yield Asked(
            index=store.index(subject.edition),
            collection=engine.collection(tools_kind(subject.edition)),
            embedder=subject.embedder,
            texts=subject.texts,
            scopes=[_narrow(number, subject.plan) for number in range(len(subject.texts))],
            rounds=subject.plan.rounds,
        )


def _narrow(number: int, plan: Plan) -> Scope:
    return Scope(groups=frozenset({f"group-{number % plan.groups}"}))


@dataclass(slots=True)
class _Watched:
    """The longest that this process stood still, and the most memory that its children had, files they map included."""

    stall_s: float = 0.0
    children_peak_bytes: int = 0


@contextmanager
def _watched() -> Generator[_Watched]:
    watched, ended, itself = _Watched(), threading.Event(), psutil.Process()

    def watch() -> None:
        begun = time.perf_counter()
        while not ended.wait(TICK_S):
            watched.stall_s = max(watched.stall_s, time.perf_counter() - begun - TICK_S)
            watched.children_peak_bytes = max(watched.children_peak_bytes, _children_bytes(itself))
            begun = time.perf_counter()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join()


def _children_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return sum(int(child.memory_info().rss) for child in process.children())
    return 0
