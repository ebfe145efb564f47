"""Costs of waiting reconciliations: processor time, memory, threads and open files."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.pools.load import look
from benchmarks.throughput.embedded import embedded_settings, up
from benchmarks.throughput.fleet import FleetServer
from benchmarks.throughput.isolation import in_fresh_process
from shared.intents.intents import open_intents
from workers.dependencies import open_dependencies
from workers.fetch.turns import interrupt_fetches

WINDOW_S = 5.0
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Waited:
    """Resources of a process with waiting reconciliations. `processor` is seconds per second; 1 is a whole core."""

    looks: int
    processor: float
    kib_a_look: float
    threads: int
    files: int


def measure_waiting(servers: Sequence[FleetServer]) -> Waited:
    """Return what looks at these silent servers take while all of them wait."""
    return in_fresh_process(_wait_for_all, servers)


def _wait_for_all(directory: Path, servers: Sequence[FleetServer]) -> Waited:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    settings = embedded_settings(directory).model_copy(update={"listing_timeout_s": _PATIENCE_S})
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as deps:
        for server in servers:
            intents.record(up(server), due_in_s=600)
        with ThreadPoolExecutor(len(servers)) as pool:
            first = pool.submit(look, servers[0], deps)
            _until_connected(1)
            before_kib = _resident_kib()
            looks = [first, *(pool.submit(look, server, deps) for server in servers[1:])]
            _until_connected(len(servers))
            time.sleep(1)  # what they do after connecting is over
            waited = _measured(len(servers), before_kib)
            while not all(future.done() for future in looks):
                interrupt_fetches()
                time.sleep(0.05)
    return waited


def _measured(looks: int, before_kib: float) -> Waited:
    process = psutil.Process()
    began, started = time.process_time(), time.perf_counter()
    time.sleep(WINDOW_S)
    return Waited(
        looks=looks,
        processor=(time.process_time() - began) / (time.perf_counter() - started),
        kib_a_look=(_resident_kib() - before_kib) / max(looks - 1, 1),
        threads=process.num_threads(),
        files=process.num_fds(),
    )


def _until_connected(connections: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S / 2
    while (
        sum(connection.status == "ESTABLISHED" for connection in psutil.Process().net_connections("tcp")) < connections
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {connections} connections")
        time.sleep(0.1)


def _resident_kib() -> float:
    return psutil.Process().memory_info().rss / 1024
