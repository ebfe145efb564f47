"""Run notifications processes on a real Redis, and measure their processor time, memory, files and bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import psutil

from benchmarks.listeners.results import Connections, Plan, Reading
from shared.events import ServerAnnouncement, ServerChanged, ServerRef, ServerUp
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.support.metrics import scraped
from tests.support.notifying import notifying_server
from tests.support.ports import free_port
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

COMPLETE_READS, CHANGES = "benchmarks.listeners.complete_reads", "workers.notifications"
UNUSED_URL = "http://127.0.0.1:9/mcp"
PROTOCOLS = {"http": "2026-07-28", "legacy": "2025-11-25"}
CONNECTED = 'toolscale_subscription_servers{state="connected"}'
# Processes read for this long before a measurement.
SETTLED_S = 12.0


class Replica:
    """A notifications process, and the port of its metrics."""

    def __init__(self, process: psutil.Popen, port: int) -> None:
        self.process = process
        self._page = f"http://127.0.0.1:{port}/metrics"

    def is_started(self) -> bool:
        """Return whether the process listens, so that it has imported all of its modules."""
        assert self.process.poll() is None, "the process ended"
        try:
            return CONNECTED in scraped(self._page)
        except OSError:
            return False

    def connected(self) -> int:
        """Return the number of its open connections."""
        return int(scraped(self._page)[CONNECTED])

    def cpu_s(self) -> float:
        """Return its processor seconds so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> int:
        """Return its resident bytes."""
        return int(self.process.memory_info().rss)


@contextmanager
def running(module: str, url: str, directory: Path, count: int, subscribe: str) -> Generator[list[Replica]]:
    """Run this many processes until the block ends, which begins once all have started."""
    replicas = [_started(module, url, directory, subscribe) for _ in range(count)]
    try:
        for replica in replicas:
            eventually(replica.is_started, 120)
        yield replicas
    finally:
        for replica in replicas:
            replica.process.terminate()
        for replica in replicas:
            replica.process.wait(60)


def _started(module: str, url: str, directory: Path, subscribe: str) -> Replica:
    port = free_port()
    settings = {"REDIS_URL": url, "TOOLSCALE_METRICS_PORT": str(port), "TOOLSCALE_SUBSCRIBE": subscribe}
    environment = os.environ | settings | {"QDRANT_URL": "", "TOOLSCALE_DATA_DIR": str(directory)}
    environment["TOOLSCALE_LOG_LEVEL"] = "WARNING"
    return Replica(psutil.Popen([sys.executable, "-m", module], env=environment, stderr=subprocess.DEVNULL), port)


def announce(store: Intents, count: int, url: str) -> list[str]:
    """Store intents of so many running and listed servers at this URL."""
    server_ids = [f"team-{number % 97:02}/server-{number:05}" for number in range(count)]
    for server_id in server_ids:
        announcement = ServerAnnouncement(server_id=server_id, url=url, groups=frozenset({"engineering", "eu"}))
        recorded = store.record(ServerUp(source="toolscale/kubernetes", data=announcement), due_in_s=86_400.0)
        store.commit(server_id, recorded.intent.desired, "catalogue of the server")
    return server_ids


def readings(plan: Plan, directory: Path) -> tuple[Reading, ...]:
    """Measure processes that open no connection, before and after only changes were read."""
    with redis_server(directory) as url, closing(_store(url)) as store:
        server_ids = announce(store, plan.servers, UNUSED_URL)
        before = _reading("complete reads, nothing changes", COMPLETE_READS, url, directory, 1, plan.busy_s)
        after = _reading("changes, nothing changes", CHANGES, url, directory, 2, plan.idle_s)
        with reconciling(store, server_ids, plan.reconciliations_per_s):
            case = f"changes, {plan.reconciliations_per_s:g} reconciliations a second"
            busy = _reading(case, CHANGES, url, directory, 2, plan.busy_s)
    return before, after, busy


def _store(url: str) -> Intents:
    return Intents(RedisStorage(connect(url)), RetryPolicy(3_600.0, 3_600.0))


def _reading(case: str, module: str, url: str, directory: Path, processes: int, seconds: float) -> Reading:
    with running(module, url, directory, processes, "none") as replicas, connect(url) as client:
        time.sleep(SETTLED_S)
        began, sent, cpu_s = time.monotonic(), _sent(client), _cpu_s(replicas)
        time.sleep(seconds)
        took_s = time.monotonic() - began
        return Reading(
            case=case,
            processes=processes,
            seconds=round(took_s, 1),
            core_percent=round(100 * (_cpu_s(replicas) - cpu_s) / took_s / processes, 2),
            redis_kib_per_s=round((_sent(client) - sent) / 1024 / took_s / processes, 1),
            memory_mib=round(sum(replica.memory() for replica in replicas) / processes / 2**20, 1),
        )


def _cpu_s(replicas: Sequence[Replica]) -> float:
    return sum(replica.cpu_s() for replica in replicas)


def _sent(client: object) -> int:
    """Return the bytes that Redis sent to all clients, this one and a process that reconciles included."""
    return int(client.info("stats")["total_net_output_bytes"])  # type: ignore[attr-defined]


@contextmanager
def reconciling(store: Intents, server_ids: Sequence[str], per_s: float) -> Generator[None]:
    """Write intents as the resync of an unchanged fleet does, at this rate, until the block ends."""
    stopped, servers = threading.Event(), cycle(server_ids)

    def reconcile() -> None:
        began = time.monotonic()
        for number, server_id in enumerate(servers):
            recorded = store.record(ServerChanged(data=ServerRef(server_id=server_id)), due_in_s=86_400.0)
            store.begin(server_id)
            store.commit(server_id, recorded.intent.desired)
            if stopped.wait(max(0.0, began + (number + 1) / per_s - time.monotonic())):
                return

    thread = threading.Thread(target=reconcile)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def connections(kind: str, plan: Plan, directory: Path) -> Connections:
    """Measure one process with open connections to one server of the MCP SDK, under as many ids."""
    with (
        redis_server(directory) as url,
        closing(_store(url)) as store,
        notifying_server(kind, directory / "tools", "one") as server,
        running(CHANGES, url, directory, 1, "http") as (replica,),
    ):
        memory, files, began = replica.memory(), replica.process.num_fds(), time.monotonic()
        announce(store, plan.connections, server.target.url)
        eventually(lambda: replica.connected() == plan.connections, 600)
        opened_s = time.monotonic() - began
        time.sleep(SETTLED_S)
        cpu_s, since = replica.cpu_s(), time.monotonic()
        time.sleep(plan.busy_s)
        return Connections(
            protocol=PROTOCOLS[kind],
            connections=plan.connections,
            opened_s=round(opened_s, 1),
            memory_kib_each=round((replica.memory() - memory) / 1024 / plan.connections, 1),
            files_each=round((replica.process.num_fds() - files) / plan.connections, 2),
            core_percent=round(100 * (replica.cpu_s() - cpu_s) / (time.monotonic() - since), 2),
        )
