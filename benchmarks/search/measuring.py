"""Measure an index of one size."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.qdrant import server_cpu_s, server_process, storage_directory, wait_until_indexed
from benchmarks.search.asking import Asked, measure_parts
from benchmarks.search.catalogue import PreparedServer, fill, originals
from benchmarks.search.plan import Plan
from benchmarks.search.results import Index, Size
from benchmarks.throughput.embedded import index_settings
from benchmarks.throughput.memory import MIB
from shared.catalog import Scope
from shared.index import open_engine
from shared.index.versions import IndexStore, IndexVersion, tools_spec
from shared.service.logging import configure_logging
from shared.settings import Settings
from shared.text.embedding import Embedder, FastEmbedder

TICK_S = 0.005


@dataclass(frozen=True, slots=True)
class Subject:
    """The inputs at every size: a directory of one index, the plan, and the queries."""

    directory: Path
    plan: Plan
    embedder: Embedder
    texts: Sequence[str]

    @property
    def settings(self) -> Settings:
        """Return the settings of the index."""
        return index_settings(self.directory)

    @property
    def qdrant_url(self) -> str | None:
        """Return the address of the Qdrant server; None: Edge."""
        return self.settings.qdrant_url

    @property
    def index_version(self) -> IndexVersion:
        """Return the index version that is searched."""
        return IndexVersion(self.embedder.model, self.embedder.dimension)


def measure_alone(
    directory: Path, plan: Plan, tools: int, servers: Sequence[PreparedServer], texts: Sequence[str]
) -> Size:
    """Return the same as `measure_size`, in an empty directory and with the bundled model."""
    configure_logging("ERROR")  # a line for each answer that had to be shortened would be timed too
    return measure_size(Subject(directory, plan, FastEmbedder(), texts), tools, servers)


def measure_size(subject: Subject, tools: int, servers: Sequence[PreparedServer]) -> Size:
    """Return all that is to be known of an index of so many tools."""
    with _asked(subject) as asked:
        url, started, cpu_s = subject.qdrant_url, time.perf_counter(), server_cpu_s(subject.qdrant_url)
        filled = fill(asked.index, servers, tools, subject.plan.groups)
        filled_s = time.perf_counter() - started
        if url:
            wait_until_indexed(url)
        indexed_s, cpu_s = time.perf_counter() - started - filled_s, server_cpu_s(url) - cpu_s
        within = [asked.index.token_sum(scope, "heuristic").counted for scope in set(asked.scopes)]
    return Size(
        tools=tools,
        servers=filled,
        filled_s=round(filled_s, 1),
        indexed_s=round(indexed_s, 1) if url else 0.0,
        server_cpu_s=round(cpu_s, 1),
        selectivity=round(sum(within) / len(within) / tools, 4),
        index=_measured(subject, Scope(servers=originals(servers, filled))),
    )


def _measured(subject: Subject, originals: Scope) -> Index:
    started, url = time.perf_counter(), subject.qdrant_url
    with _asked(subject) as asked:
        opened_s = time.perf_counter() - started
        parts = measure_parts(asked, originals)
        process, directory = (server_process(url), storage_directory(url)) if url else (None, subject.directory)
        return Index(
            parts=parts,
            opened_s=round(opened_s, 2),
            disk_mib=round(_size_bytes(directory) / MIB, 1),
            resident_mib=round((process or psutil.Process()).memory_info().rss / MIB, 1),
        )


def _size_bytes(directory: Path) -> int:
    """Return the bytes on disk below this directory."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


@contextmanager
def _asked(subject: Subject) -> Generator[Asked]:
    engine = open_engine(subject.settings)
    with closing(IndexStore(engine)) as store:
        store.ensure_active_version(subject.index_version)
        yield Asked(
            index=store.index(subject.index_version),
            collection=engine.collection(tools_spec(subject.index_version)),
            embedder=subject.embedder,
            texts=subject.texts,
            scopes=[_narrow(number, subject.plan) for number in range(len(subject.texts))],
            rounds=subject.plan.rounds,
        )


def _narrow(number: int, plan: Plan) -> Scope:
    return Scope(groups=frozenset({f"group-{number % plan.groups}"}))
