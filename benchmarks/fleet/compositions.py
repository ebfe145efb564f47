"""The processes of Toolscale with a separate Redis, and the resources that they use.

Without QDRANT_URL the index is embedded, and one process opens it: a worker, which may answer queries too. With
QDRANT_URL any number of processes share that server.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from celery import Celery

from benchmarks.throughput.embedded import Producer, wait_until_committed
from benchmarks.throughput.events import redis_producer
from benchmarks.throughput.machine import processor_s
from benchmarks.throughput.memory import MIB
from shared.events import ServerEvent
from shared.intents.times import SWEEP_INTERVAL_S
from tests.support.processes import Composition, Running
from tests.support.qdrant_server import emptied_qdrant, qdrant_url
from tests.support.redis_server import redis_server
from workers.celery_app import SWEEP_INTENTS

TOKEN = "a-token-of-the-benchmark"

# A whole catalogue takes minutes, and more where others use the machine.
INGESTED_WITHIN_S = 1_800.0

# The environment may have its own ideas.
# No server is due for a resync while something else is measured.
ENVIRONMENT = {
    "TOOLSCALE_WORKER_CONCURRENCY": "",
    "TOOLSCALE_EMBEDDING_MODEL": "",
    "TOOLSCALE_LOG_LEVEL": "",
    "TOOLSCALE_HOST": "",
    "TOOLSCALE_PORT": "0",
    "TOOLSCALE_EVENTS_HOST": "",
    "TOOLSCALE_EVENTS_PORT": "0",
    "TOOLSCALE_MCP_CONFIG": "",
    "TOOLSCALE_EVENTS_TOKEN": TOKEN,
    "TOOLSCALE_RESYNC_INTERVAL_S": "86400",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of processes: processor seconds since the start, and the maximum memory of one of them."""

    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Site:
    """A Redis, a data directory, and a producer of events for the processes on both."""

    composition: Composition
    producer: Producer

    def ingest(self, events: Sequence[ServerEvent]) -> None:
        """Send these events and return when the index follows."""
        for event in events:
            self.producer.emit(event)
        with self.sweeping():
            wait_until_committed(self.producer.intents, {event.data.server_id for event in events}, INGESTED_WITHIN_S)

    @contextmanager
    def sweeping(self) -> Generator[None]:
        """Send a sweep every so many seconds, as beat does, until the block ends."""
        ended = threading.Event()
        thread = threading.Thread(target=_sweep, args=(self.composition.redis_url, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@dataclass(frozen=True, slots=True)
class Everything:
    """Both sides running: processes that work, where MCP clients connect, and the door, where events are posted."""

    workers: Sequence[Running]
    mcp_url: str
    door: Running
    events_url: str


def _sweep(redis_url: str, ended: threading.Event) -> None:
    with Celery("beat", broker=redis_url) as app:
        while not ended.is_set():
            app.send_task(SWEEP_INTENTS, queue="toolscale")
            ended.wait(SWEEP_INTERVAL_S)


@contextmanager
def site(directory: Path, **environment: str) -> Generator[Site]:
    """Yield a new Redis and an empty index; `environment` has more settings of the processes."""
    with (
        emptied_qdrant(),
        redis_server(directory) as redis_url,
        redis_producer(redis_url, directory) as producer,
    ):
        yield Site(Composition(redis_url, directory, {**ENVIRONMENT, **environment}, constants={}), producer)


@contextmanager
def workers(composition: Composition, count: int = 1) -> Generator[list[Running]]:
    """Run so many worker processes, ready to take tasks."""
    with ExitStack() as running:
        yield [running.enter_context(composition.worker(f"worker{number}")) for number in range(count)]


@contextmanager
def everything(composition: Composition) -> Generator[Everything]:
    """Run worker, query service and events API.

    With an embedded index, which one process opens, a worker answers queries too; else each is a process.
    """
    with ExitStack() as running:
        door = running.enter_context(composition.run("events-api", "-m", "workers.events_api"))
        events_url = said_url(door, "events_api_started").removesuffix("/events")
        running.enter_context(composition.beat())
        if qdrant_url():
            working = running.enter_context(workers(composition, 2))
            query = running.enter_context(composition.run("query", "-m", "query"))
            yield Everything(working, said_url(query, "query_service_started"), door, events_url)
        else:
            node = running.enter_context(composition.worker("node", app="tests.chaos.answering_worker"))
            yield Everything([node], said_url(node, "query_service_started"), door, events_url)


def said_url(service: Running, event: str) -> str:
    """Return the URL in the log line of a listening service."""
    service.wait_for(event)
    return next(str(line["url"]) for line in log_lines(service, event))


def log_lines(process: Running, event: str) -> list[dict[str, object]]:
    """Return what the process logged under this name."""
    lines = (line for line in process.output().splitlines() if f'"event": "{event}"' in line)
    return [json.loads(line) for line in lines]


def tools_written(processes: Sequence[Running]) -> int:
    """Return how many tools these processes say they have written."""
    return sum(int(str(line["written"])) for process in processes for line in log_lines(process, "server_indexed"))


def usage(processes: Sequence[Running]) -> Usage:
    """Return what these processes took so far."""
    return Usage(
        cpu_s=round(sum(processor_s(psutil.Process(running.process.pid)) for running in processes), 2),
        peak_mib=max(map(_peak_mib, processes)),
    )


def _peak_mib(running: Running) -> float:
    status = Path(f"/proc/{running.process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    resident = psutil.Process(running.process.pid).memory_info().rss / MIB
    return round(max(resident, int(found[1]) / 1024 if found else 0.0), 1)
