"""The write side of two builds in turns: real processes on empty stores, measured from outside.

A life is a composition from its start: it lists new servers, copies of the first, and all again; then it records
events. Commands, events and log lines are those of operators and producers, which both builds have.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any

import httpx2
import psutil
import yaml
from celery import Celery

from benchmarks.beside.builds import processor_s, program
from benchmarks.beside.results import Compared, Measured, Table
from benchmarks.fleet.servers import Fleet, running_fleet
from benchmarks.throughput.machine import Watches
from benchmarks.throughput.memory import MIB
from tests.support.ports import free_port
from tests.support.qdrant_server import emptied_qdrant, qdrant_url
from tests.support.redis_server import PROGRAM as REDIS
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

CAVEATS = (
    "Builds, fleet, Redis and producer share the machine, so trust processor time over seconds.",
    "Processor time is that of Toolscale's processes, without Redis and a Qdrant server.",
    "Servers with events are listed again while events arrive, each at most every ten seconds.",
)
BATCH = 100
TOKEN = "a-token-of-the-benchmark"
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/cloudevents-batch+json"}
SETTINGS = {
    "TOOLSCALE_EVENTS_TOKEN": TOKEN,
    "TOOLSCALE_RESYNC_INTERVAL_S": "0",  # a server is listed only after an event
    "TOOLSCALE_SUBSCRIBE": "none",
}
RECORDED, NOT_RECORDED = 202, 503
# A build that needs longer for a step hangs.
STEP_WITHIN_S = 1_800.0
POLL_S = 0.01

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run: `new` servers with tools of their own, `copies` of the first server, `busy` ones with events."""

    new: int
    copies: int
    tools: int
    events: int
    busy: int
    rounds: int
    seed: int = 20260704


FULL = Plan(new=100, copies=899, tools=20, events=10_000, busy=20, rounds=5)
QUICK = Plan(new=3, copies=2, tools=2, events=20, busy=2, rounds=1)


@dataclass
class Life:
    """A running composition and its costs. Its first process works, and writes `log`.

    Events go to `url`; single events to the queue in Redis, where there is one.
    """

    processes: Sequence[subprocess.Popen[bytes]]
    log: IO[bytes]
    url: str
    client: httpx2.Client
    redis_url: str | None = None
    costs: dict[str, float] = field(default_factory=dict[str, float])

    def spent(self) -> tuple[float, float]:
        """Return the time, and the processor time of all processes, in seconds."""
        return time.perf_counter(), sum(processor_s(process.pid) for process in self.processes)

    def note(self, subject: str, since: tuple[float, float]) -> None:
        """Keep the seconds and the processor seconds since then."""
        for unit, before, now in zip(("s", "processor s"), since, self.spent(), strict=True):
            self.costs[f"{subject}, {unit}"] = now - before

    def answers(self, path: str) -> bool:
        """Return whether the process with the events API answers at this path with 200."""
        try:
            return self.client.get(httpx2.URL(self.url).join(path)).is_success
        except httpx2.TransportError:
            return False

    def post(self, events: Sequence[Event], batch: int = BATCH) -> None:
        """Record these events in batches; those that the build cannot record in time are sent again."""
        for start in range(0, len(events), batch):
            left = events[start : start + batch]
            while left:
                response = self.client.post(self.url, headers=HEADERS, json=left)
                statuses = [outcome["status"] for outcome in response.json()["events"]]
                if not {RECORDED, NOT_RECORDED}.issuperset(statuses):
                    raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
                left = [event for event, status in zip(left, statuses, strict=True) if status == NOT_RECORDED]

    def record_each(self, events: Sequence[Event]) -> None:
        """Record these events one by one: as Celery messages, or in a request for each."""
        if self.redis_url is None:
            self.post(events, batch=1)
            return
        with Celery("producer", broker=self.redis_url) as app:
            for event in events:
                app.send_task("toolscale.accept_event", args=[event], queue="toolscale")
        self.wait_for("event_recorded", "event_id", [event["id"] for event in events])

    def wait_for(self, event: str, name: str, values: Iterable[str]) -> None:
        """Return when the log has a line of this event for each value of the field `name`, since the last call.

        Raises:
            RuntimeError: a process ended, or the lines did not come.
        """
        missing, deadline = set(values), time.monotonic() + STEP_WITHIN_S
        while missing:
            line = self.log.readline()
            if line.endswith(b"\n"):
                if f'"{event}"'.encode() in line:
                    missing.discard(json.loads(line)[name])
                continue
            self.log.seek(-len(line), os.SEEK_CUR)  # the rest of the line follows
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                end = Path(self.log.name).read_text(encoding="utf-8")[-2_000:]
                raise RuntimeError(f"no {event} of {len(missing)}, {min(missing)} among them:\n{end}")
            time.sleep(POLL_S)


Composition = Callable[[Path, Path], AbstractContextManager[Life]]
"""Runs a checkout's build in an empty directory."""


def measure(before: Path, now: Path, watches: Watches, *, is_quick: bool) -> Measured:
    """Measure both builds in each composition."""
    plan = QUICK if is_quick else FULL
    compositions: dict[str, Composition] = {"toolscale serve": _embedded, "worker and events API on Redis": _scaled}
    distinct = Fleet(kind="generated", servers=1 + plan.new, tools=plan.tools, seed=plan.seed)
    same = Fleet(kind="replicas", servers=plan.copies, tools=plan.tools, seed=plan.seed)
    with running_fleet(distinct) as originals, running_fleet(same) as copies:
        urls = {server.server_id: server.url for server in originals.servers()}
        urls |= {f"copy-{server.server_id}": server.url for server in copies.servers()}
        tables = tuple(
            watches.measure(name, partial(_table, name, composition, [before, now], urls, plan))
            for name, composition in compositions.items()
        )
    method = f"Lives of both builds in turns, {plan.rounds} of each, with servers of {plan.tools} tools"
    return Measured(method=method, caveats=CAVEATS, tables=tables)


def _table(name: str, composition: Composition, builds: Sequence[Path], urls: Mapping[str, str], plan: Plan) -> Table:
    if composition is _scaled and not REDIS:
        return Table(title=name, note="Left out: redis-server is not installed.")

    def live(build: Path, steps: Callable[[Life], None]) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="toolscale-bench-") as directory:
            with composition(build, Path(directory)) as life:
                steps(life)
            return life.costs

    for build in builds:
        live(build, lambda _: None)  # compiles its modules
    lives: list[list[dict[str, float]]] = [[], []]
    for number in range(plan.rounds):
        for turn in (0, 1) if number % 2 == 0 else (1, 0):
            lives[turn].append(live(builds[turn], partial(_take_steps, urls=urls, plan=plan)))
    rows = (
        Compared.of(subject, *([costs[subject] for costs in of_build] for of_build in lives)) for subject in lives[0][0]
    )
    index = "a Qdrant server" if composition is _scaled and qdrant_url() else "Qdrant Edge"
    return Table(title=name, note=f"The index is in {index}.", rows=tuple(rows))


def _take_steps(life: Life, urls: Mapping[str, str], plan: Plan) -> None:
    def announce(server_ids: Sequence[str]) -> None:
        life.post([_event("up", server_id, url=urls[server_id]) for server_id in server_ids])
        life.wait_for("server_indexed", "server", server_ids)

    first, *others = urls
    announce([first])  # loads the model
    began = life.spent()
    announce(others[: plan.new])
    life.note(f"{plan.new * plan.tools:,} new tools", began)
    announce(others[plan.new :])
    began = life.spent()
    life.post([_event("changed", server_id) for server_id in urls])
    life.wait_for("server_indexed", "server", urls)
    life.note(f"resync of {len(urls):,} unchanged servers", began)
    busy = list(islice(cycle(islice(urls, plan.busy)), plan.events))
    for way, record in (("one by one", life.record_each), (f"in batches of {BATCH}", life.post)):
        events = [_event("changed", server_id) for server_id in busy]
        began = life.spent()
        record(events)
        life.note(f"{plan.events:,} events {way}", began)
    life.costs["memory at the end, MiB"] = psutil.Process(life.processes[0].pid).memory_info().rss / MIB


def _event(kind: str, server_id: str, **data: str) -> Event:
    """Return a CloudEvent as docs/events.md describes it."""
    attributes = {"specversion": "1.0", "id": uuid.uuid4().hex, "source": "benchmarks/beside"}
    return {**attributes, "type": f"dev.toolscale.server.{kind}", "data": {"server_id": server_id, **data}}


@contextmanager
def _embedded(checkout: Path, directory: Path) -> Generator[Life]:
    port, began = free_port(), time.perf_counter()
    settings = {**SETTINGS, "TOOLSCALE_DATA_DIR": str(directory), "REDIS_URL": "", "QDRANT_URL": ""}
    command = ["-m", "toolscale", "serve", "--port", str(port)]
    log = directory / "serve.log"
    with program(checkout, command, log, settings) as serve, _life([serve], log, port) as life:
        for path in ("/healthz", "/readyz"):
            eventually(partial(life.answers, path))
            life.note(f"start until {path} answers", (began, 0.0))
        yield life


@contextmanager
def _scaled(checkout: Path, directory: Path) -> Generator[Life]:
    services = yaml.safe_load((checkout / "docker-compose.yml").read_text(encoding="utf-8"))["services"]

    def arguments(service: str) -> list[str]:
        command, *rest = services[service]["command"]
        return rest if command == "python" else ["-m", command, *rest]

    port, log = free_port(), directory / "worker.log"
    beat = [*arguments("beat")[:-1], str(directory / "schedule")]
    with emptied_qdrant(), redis_server(directory) as redis_url:
        addresses = {"REDIS_URL": redis_url, "TOOLSCALE_EVENTS_PORT": str(port)}
        settings = {**SETTINGS, "TOOLSCALE_DATA_DIR": str(directory), **addresses}
        with (
            program(checkout, beat, directory / "beat.log", settings) as ticking,
            program(checkout, arguments("worker"), log, settings) as worker,
            program(checkout, arguments("events-api"), directory / "events-api.log", settings) as api,
            _life([worker, ticking, api], log, port, redis_url) as life,
        ):
            eventually(lambda: b"ready." in log.read_bytes() and life.answers("/healthz"))
            yield life


@contextmanager
def _life(
    processes: Sequence[subprocess.Popen[bytes]], log: Path, port: int, redis_url: str | None = None
) -> Generator[Life]:
    with log.open("rb") as lines, httpx2.Client(trust_env=False, timeout=60.0) as client:
        yield Life(processes, lines, f"http://127.0.0.1:{port}/events", client, redis_url)
