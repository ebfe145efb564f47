"""The first ingestion of a whole corpus: how fast, what more workers add, and what takes the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet.compositions import Site, site, tools_written, usage, workers
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.results import Haystack, Ingestion, Stages, StageTime
from benchmarks.fleet.servers import Fleet, RunningFleet, running_fleet
from benchmarks.fleet.watching import watched_worker
from benchmarks.throughput.embedded import up
from benchmarks.throughput.fleet import FleetServer
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.memory import MIB
from benchmarks.throughput.stages import STAGES
from tests.support.qdrant_server import qdrant_url

WARM_UP_SERVERS = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of worker processes on one index.

    With `apart`, each worker has a separate index, queue and share of the servers: the upper limit for workers on
    a shared index.
    """

    workers: int = 1
    apart: bool = False

    def __str__(self) -> str:
        counted = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return counted + (", each with an index and a queue of its own" if self.apart else "")


def settings_compared() -> tuple[Setting, ...]:
    """Return what is compared: two workers share an index only where that is a server."""
    return Setting(), Setting(workers=2, apart=not qdrant_url())


def measure_haystack(plan: Plan, corpus: Path) -> Haystack:
    """Return the ingestion of the whole corpus by one worker, the comparison on a sample, and its stages.

    Raises:
        FileNotFoundError: there is no such corpus.
    """
    whole = Fleet(kind="corpus", corpus=corpus.resolve(strict=True), share=plan.haystack_share)
    sample = whole.model_copy(update={"share": plan.sample_share})
    with running_fleet(whole) as servers:
        corpus_servers, corpus_tools = len(servers.ids), servers.tools
        ingestions = [_measured(Setting(), servers)]
    with running_fleet(sample) as servers:
        ingestions += [_measured(setting, servers) for setting in settings_compared()]
        stages = in_fresh_process(_stages, servers)
    return Haystack(
        corpus_servers=corpus_servers, corpus_tools=corpus_tools, ingestions=tuple(ingestions), stages=stages
    )


def _measured(setting: Setting, servers: RunningFleet) -> Ingestion:
    return in_fresh_process(_ingest, setting, servers)


def _ingest(directory: Path, setting: Setting, servers: RunningFleet) -> Ingestion:
    apart = setting.workers if setting.apart else 1
    shares = [servers.servers()[start::apart] for start in range(apart)]
    with ExitStack() as opened:
        sites = [opened.enter_context(site(_made(directory / str(n)))) for n in range(apart)]
        working = [
            worker for at in sites for worker in opened.enter_context(workers(at.composition, setting.workers // apart))
        ]
        _announce(sites, [share[: _first(share)] for share in shares])
        before, tools_before = usage(working), tools_written(working)
        started = time.perf_counter()
        _announce(sites, [share[_first(share) :] for share in shares])
        seconds, after, tools = time.perf_counter() - started, usage(working), tools_written(working) - tools_before
        return Ingestion(
            setting=str(setting),
            servers=sum(len(share) - _first(share) for share in shares),
            tools=tools,
            seconds=round(seconds, 2),
            tools_per_s=round(tools / seconds, 1),
            cpu_s=round(after.cpu_s - before.cpu_s, 2),
            peak_mib=after.peak_mib,
            disk_mib=_disk_mib(directory),
        )


def _first(share: Sequence[FleetServer]) -> int:
    """Return how many servers are left out of the measurement, so that the workers have loaded all they need."""
    return min(WARM_UP_SERVERS, len(share) // 2)


def _announce(sites: Sequence[Site], shares: Sequence[Sequence[FleetServer]]) -> None:
    """Announce each share of the servers at its site, all sites at once, and return when all indexes follow."""

    def announce(at: Site, share: Sequence[FleetServer]) -> None:
        at.ingest([up(server) for server in share])

    with ThreadPoolExecutor(len(sites)) as threads:
        list(threads.map(announce, sites, shares))


def _stages(directory: Path, servers: RunningFleet) -> Stages:
    with site(directory, TOOLSCALE_WORKER_CONCURRENCY="1") as at, watched_worker(at) as (worker, watched):
        started = time.perf_counter()
        at.ingest([up(server) for server in servers.servers()])
        seconds, tools = time.perf_counter() - started, tools_written([worker])
    times = [
        StageTime(name=name, seconds=round(watched.seconds[name], 2), items=watched.items[name]) for name in STAGES
    ]
    rest = StageTime(name="rest", seconds=round(seconds - sum(watched.seconds.values()), 2), items=0)
    return Stages(servers=len(servers.ids), tools=tools, seconds=round(seconds, 2), stages=(*times, rest))


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _disk_mib(directory: Path) -> float:
    """Return what the indexes take on disk: blocks, since the engine reserves more than it writes."""
    files = (path for path in directory.glob("*/index/**/*") if path.is_file())
    return round(sum(path.stat().st_blocks for path in files) * 512 / MIB, 1)
