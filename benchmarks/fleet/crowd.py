"""A thousand replicas of one server: their first ingestion, and then resyncs of all of them by one worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis

from benchmarks.fleet.compositions import Site, site, tools_written, usage, workers
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.results import Crowd, Replicas, Resync
from benchmarks.fleet.servers import MODERN, Era, Fleet, RunningFleet, running_fleet
from benchmarks.fleet.watching import watched_worker
from benchmarks.throughput.embedded import PATIENCE_S, up, wait_until_committed
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.memory import MIB
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.text.tokens import counters
from tests.support.processes import Running

PROTOCOLS: dict[Era, str] = {"handshake": "2025-11-25", "modern": MODERN}


@dataclass(frozen=True, slots=True)
class Commands:
    """Counters and memory of Redis at one moment."""

    processed: int
    used_mib: float


def measure_crowd(plan: Plan) -> Crowd:
    """Return what the replicas took, a resync over each protocol, and one of fewer servers with more tools."""
    narrow = Fleet(kind="replicas", servers=plan.replicas, tools=plan.replica_tools, seed=plan.seed)
    wide = Fleet(kind="replicas", servers=plan.wide_servers, tools=plan.wide_tools, seed=plan.seed)
    with running_fleet(narrow) as servers:
        replicas, resyncs = in_fresh_process(_crowd, servers, ("handshake", "modern"))
    with running_fleet(wide) as servers:
        _, wide_resyncs = in_fresh_process(_crowd, servers, ("handshake",))
    return Crowd(replicas=replicas, resyncs=(*resyncs, *wide_resyncs))


def _crowd(directory: Path, servers: RunningFleet, eras: Sequence[Era]) -> tuple[Replicas, list[Resync]]:
    with site(directory) as at:
        empty_mib = _commands(at).used_mib
        replicas = _ingest(at, servers)
        return replicas, [resync for era in eras for resync in _resyncs(at, servers, era, empty_mib)]


def _ingest(at: Site, servers: RunningFleet) -> Replicas:
    with watched_worker(at) as (worker, stages):
        before = usage([worker])
        started = time.perf_counter()
        at.ingest([up(server) for server in servers.servers("handshake")])
        seconds, after = time.perf_counter() - started, usage([worker])
    return Replicas(
        servers=len(servers.ids),
        tools=servers.tools,
        counted=stages.items["count"] // len(counters()),
        embedded=stages.items["embed"],
        seconds=round(seconds, 2),
        cpu_s=round(after.cpu_s - before.cpu_s, 2),
        peak_mib=after.peak_mib,
    )


def _resyncs(at: Site, servers: RunningFleet, era: Era, empty_mib: float) -> list[Resync]:
    """Let a new worker list all servers twice; only its first listing of each has a version probe."""
    announcements = [up(server) for server in servers.servers(era)]
    with workers(at.composition) as working:
        at.ingest(announcements)  # from now on they are listed by this protocol
    with workers(at.composition) as working:
        at.ingest(announcements[:1])  # it has imported what a listing needs
        first = _resync(at, servers, era, working, empty_mib)
        second = _resync(at, servers, era, working, empty_mib)
        return [first, second.model_copy(update={"listing": "second"})]


def _resync(at: Site, servers: RunningFleet, era: Era, working: Sequence[Running], empty_mib: float) -> Resync:
    """Make all servers due, and measure until each has been listed and reconciled."""
    make_due(at)
    before, listings, commands = usage(working), servers.listings(), _commands(at)
    written, started = tools_written(working), time.perf_counter()
    with at.sweeping():
        _wait_until_listed(servers, listings + len(servers.ids))
    wait_until_committed(at.producer.intents, servers.ids)
    seconds, after, commands_after = time.perf_counter() - started, usage(working), _commands(at)
    return Resync(
        protocol=PROTOCOLS[era],
        servers=len(servers.ids),
        tools=servers.tools,
        seconds=round(seconds, 2),
        listings=servers.listings() - listings,
        tools_written=tools_written(working) - written,
        cpu_s=round(after.cpu_s - before.cpu_s, 2),
        peak_mib=after.peak_mib,
        redis_commands=commands_after.processed - commands.processed,
        redis_grown_mib=round(commands_after.used_mib - empty_mib, 2),
    )


def make_due(at: Site) -> None:
    """Record the end of a reconciliation of each server, with a resync interval of 1 ms."""
    at_once = RetryPolicy(first_s=15.0, longest_s=900.0, resync_s=0.001)
    with closing(Intents(RedisStorage(connect(at.composition.redis_url)), at_once)) as intents:
        for intent in intents.intents():
            intents.commit(intent.server_id, intent.desired)


def _wait_until_listed(servers: RunningFleet, listings: int) -> None:
    """Return when the fleet has been listed so often.

    Raises:
        TimeoutError: it did not come to that.
    """
    deadline = time.monotonic() + PATIENCE_S
    while servers.listings() < listings:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{listings - servers.listings()} servers were not listed within {PATIENCE_S:g} s")
        time.sleep(0.1)


def _commands(at: Site) -> Commands:
    with redis.Redis.from_url(at.composition.redis_url) as client:
        found = cast("dict[str, float]", client.info())
    return Commands(int(found["total_commands_processed"]), round(found["used_memory"] / MIB, 2))
