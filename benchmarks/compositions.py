"""The processes of Toolscale that are measured, on directories, a Redis and an index of their own.

Without QDRANT_URL the index is embedded, and one process opens it: a worker, which may answer queries too. With
QDRANT_URL any number of processes share that server.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from celery import Celery
from mcp import Client

from benchmarks.harness import peak_mib, processor_s
from shared.events import ServerChanged, ServerEvent, ServerRef
from shared.intents.intent import Intent
from shared.intents.intents import Intents, open_intents
from shared.intents.times import REDELIVER_AFTER_S, SWEEP_INTERVAL_S
from shared.settings import Settings, load_settings
from tests.support.processes import Composition, Running
from tests.support.qdrant_server import emptied_qdrant, qdrant_url
from tests.support.redis_server import redis_server
from workers.celery_app import SWEEP_INTENTS, build_app, send_reconcile
from workers.emit import Emitter

# A whole catalogue takes minutes, and more where others use the machine.
PATIENCE_S, POLL_S = 1_800.0, 0.005
TOKEN = "a-token-of-the-benchmark"

# Defaults, whatever the environment has.
QUERY_ENVIRONMENT = {"TOOLSCALE_PORT": "0", "TOOLSCALE_HOST": "", "TOOLSCALE_LOG_LEVEL": ""}
ENVIRONMENT = {
    **QUERY_ENVIRONMENT,
    "TOOLSCALE_WORKER_CONCURRENCY": "",
    "TOOLSCALE_EMBEDDING_MODEL": "",
    "TOOLSCALE_EVENTS_HOST": "",
    "TOOLSCALE_EVENTS_PORT": "0",
    "TOOLSCALE_MCP_CONFIG": "",
    "TOOLSCALE_EVENTS_TOKEN": TOKEN,
    # No server is due for a resync while something else is measured.
    "TOOLSCALE_RESYNC_INTERVAL_S": "86400",
}


def embedded_settings(directory: Path) -> Settings:
    """Return the defaults on this directory, wherever the environment's Redis and Qdrant are."""
    settings = load_settings(data_dir=directory, port=0)
    return settings.model_copy(update={"redis_url": None, "qdrant_url": None, "host": "127.0.0.1"})


def index_settings(directory: Path) -> Settings:
    """Return the same, but with the index on the Qdrant server at QDRANT_URL, if that is set."""
    return embedded_settings(directory).model_copy(update={"qdrant_url": qdrant_url()})


# A query service


@dataclass(frozen=True, slots=True)
class Service:
    """A query service: where MCP clients connect, and its process."""

    url: str
    process: psutil.Process


@contextmanager
def query_service(directory: Path, name: str = "query", **environment: str) -> Generator[Service]:
    """Run `python -m query` with default settings and these, on the index below the directory."""
    composition = Composition("", directory, {**QUERY_ENVIRONMENT, **environment})
    with composition.run(name, "-m", "query") as running:
        yield Service(logged_url(running, "query_service_started"), psutil.Process(running.process.pid))


async def find_ms(client: Client, query: str) -> float:
    """Return the milliseconds of one call of `find_tool`.

    Raises:
        RuntimeError: the answer is an error.
    """
    started = time.perf_counter()
    result = await client.call_tool("find_tool", {"tool_description": query})
    elapsed_ms = (time.perf_counter() - started) * 1000
    if result.is_error or not result.structured_content:
        raise RuntimeError(f"find_tool answered {query!r} with {result.content}")
    return elapsed_ms


# Events, and the servers that they are about


@dataclass(frozen=True, slots=True)
class Producer:
    """Sends events into a composition, and the store that shows their effects."""

    emit: Callable[[ServerEvent], Intent]
    intents: Intents

    def ingest(self, events: Sequence[ServerEvent]) -> None:
        """Send these events and return when the index follows."""
        for event in events:
            self.emit(event)
        wait_until_committed(self.intents, {event.data.server_id for event in events})


def wait_until_committed(intents: Intents, server_ids: Iterable[str]) -> None:
    """Return when the index reflects all that was recorded of these servers, seen within 5 ms.

    Raises:
        TimeoutError: it does not within half an hour.
    """
    pending = list(server_ids)
    deadline = time.monotonic() + PATIENCE_S
    while pending:
        intent = intents.intent(pending[-1])
        if intent and not intent.is_lagging:
            pending.pop()
            continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(pending)} servers not committed after {PATIENCE_S:g} s, {pending[-1]} among them")
        time.sleep(POLL_S)


@contextmanager
def changes(producer: Producer, server_ids: Sequence[str], rate: float) -> Generator[list[str]]:
    """Send so many events `changed` a second until the block ends; yields the servers that they were sent for."""
    stopped = threading.Event()
    sent: list[str] = []

    def send() -> None:
        for server_id in itertools.cycle(server_ids):
            due_s = time.monotonic() + 1 / rate
            producer.emit(ServerChanged(data=ServerRef(server_id=server_id)))
            sent.append(server_id)
            if stopped.wait(max(0.0, due_s - time.monotonic())):
                return

    with _threaded(send, stopped):
        yield sent


# A site: Redis, and processes on it


@dataclass(frozen=True, slots=True)
class Site:
    """A Redis, a data directory, and a producer of events for the processes on both."""

    composition: Composition
    producer: Producer

    def ingest(self, events: Sequence[ServerEvent]) -> None:
        """Send these events and return when the index follows."""
        with self.sweeping():
            self.producer.ingest(events)

    @contextmanager
    def sweeping(self) -> Generator[None]:
        """Send a sweep every so many seconds, as beat does, until the block ends."""
        stopped = threading.Event()

        def sweep() -> None:
            with Celery("beat", broker=self.composition.redis_url) as app:
                while not stopped.is_set():
                    app.send_task(SWEEP_INTENTS, queue="toolscale")
                    stopped.wait(SWEEP_INTERVAL_S)

        with _threaded(sweep, stopped):
            yield


@contextmanager
def site(directory: Path) -> Generator[Site]:
    """Yield a new Redis and an empty index, for processes with default settings."""
    with emptied_qdrant(), redis_server(directory) as redis_url:
        settings = index_settings(directory).model_copy(update={"redis_url": redis_url})
        with closing(open_intents(settings)) as intents, build_app(settings) as app:
            emitter = Emitter(intents, partial(send_reconcile, app), REDELIVER_AFTER_S)
            composition = Composition(redis_url, directory, ENVIRONMENT, constants={})
            yield Site(composition, Producer(emitter.emit, intents))


@contextmanager
def workers(composition: Composition, count: int = 1) -> Generator[list[Running]]:
    """Run so many worker processes, ready to take tasks."""
    with ExitStack() as running:
        yield [running.enter_context(composition.worker(f"worker{number}")) for number in range(count)]


@dataclass(frozen=True, slots=True)
class Everything:
    """Both sides running: the processes that work, where MCP clients connect, and where events are posted."""

    workers: Sequence[Running]
    mcp_url: str
    events_api: Running
    events_url: str


@contextmanager
def everything(composition: Composition) -> Generator[Everything]:
    """Run worker, query service and events API.

    With an embedded index, which one process opens, a worker answers queries too; else each is a process.
    """
    with ExitStack() as running:
        events_api = running.enter_context(composition.run("events-api", "-m", "workers.events_api"))
        events_url = logged_url(events_api, "events_api_started").removesuffix("/events")
        running.enter_context(composition.beat())
        if qdrant_url():
            working = running.enter_context(workers(composition, 2))
            query = running.enter_context(composition.run("query", "-m", "query"))
        else:
            query = running.enter_context(composition.worker("node", app="tests.chaos.answering_worker"))
            working = [query]
        yield Everything(working, logged_url(query, "query_service_started"), events_api, events_url)


def logged_url(service: Running, event: str) -> str:
    """Return the URL in the log line of a listening service."""
    service.wait_for(event)
    return next(str(line["url"]) for line in log_lines(service, event))


def log_lines(process: Running, event: str) -> list[dict[str, object]]:
    """Return the log lines of the process with this name."""
    lines = (line for line in process.output().splitlines() if f'"event": "{event}"' in line)
    return [json.loads(line) for line in lines]


def tools_written(processes: Sequence[Running]) -> int:
    """Return the number of tools that these processes wrote, by their logs."""
    return sum(int(str(line["written"])) for process in processes for line in log_lines(process, "server_indexed"))


def cpu_s(processes: Sequence[Running]) -> float:
    """Return the processor seconds of these processes since their start."""
    return sum(processor_s(psutil.Process(running.process.pid)) for running in processes)


def highest_mib(processes: Sequence[Running]) -> float:
    """Return the maximum memory of one of these processes."""
    return max(peak_mib(psutil.Process(running.process.pid)) for running in processes)


@contextmanager
def _threaded(target: Callable[[], None], stopped: threading.Event) -> Generator[None]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
