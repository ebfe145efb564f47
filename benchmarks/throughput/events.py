"""Events per second, from the producer's call to the commit of the intent."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.throughput.embedded import Producer, index_settings, up, wait_until_committed
from benchmarks.throughput.fleet import FleetServer, fleet
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.plan import Plan
from benchmarks.throughput.results import EventRate, Events, Spread
from shared.events import ServerChanged, ServerDown, ServerEvent, ServerRef
from shared.intents.times import REDELIVER_AFTER_S
from tests.support.processes import Composition
from tests.support.redis_server import PROGRAM, redis_server

TOOLS = 5
EMBEDDED = "embedded: in-memory broker, intents in SQLite"
SCALED = "Redis (append-only file), one worker process"


@dataclass(frozen=True, slots=True)
class Run:
    """Events of one kind in one repetition: seconds until the last was recorded, and until all were committed."""

    kind: str
    events: int
    recorded_s: float
    committed_s: float


def measure_events(plan: Plan) -> tuple[Events, ...]:
    """Return the rates of the embedded composition and, where redis-server is installed, of the scaled one."""
    with fleet(plan.event_servers, TOOLS, plan.seed) as servers:
        embedded = [in_fresh_process(_embedded, servers, plan) for _ in range(plan.repetitions)]
        found = [Events(composition=EMBEDDED, rates=_rates(embedded))]
        if PROGRAM:
            scaled = [in_fresh_process(_scaled, servers, plan) for _ in range(plan.repetitions)]
            found.append(Events(composition=SCALED, rates=_rates(scaled)))
    return tuple(found)


def _embedded(directory: Path, servers: Sequence[FleetServer], plan: Plan) -> list[Run]:
    from toolscale.embedded.composition import run_embedded  # noqa: PLC0415  # in the process that measures alone

    with run_embedded(index_settings(directory)) as embedded:
        return _send_all(Producer(embedded.emit, embedded.deps.intents), servers, plan)


def _scaled(directory: Path, servers: Sequence[FleetServer], plan: Plan) -> list[Run]:
    with redis_server(directory) as url:
        composition = Composition(url, directory, {}, constants={})
        with composition.beat(), composition.worker(), redis_producer(url, directory) as producer:
            return _send_all(producer, servers, plan)


@contextmanager
def redis_producer(url: str, directory: Path) -> Generator[Producer]:
    """Yield a producer that records in Redis and wakes a worker, as `toolscale emit` does."""
    from shared.intents.intents import open_intents  # noqa: PLC0415
    from workers.celery_app import build_app, send_reconcile  # noqa: PLC0415
    from workers.emit import Emitter  # noqa: PLC0415

    settings = index_settings(directory).model_copy(update={"redis_url": url})
    with closing(open_intents(settings)) as intents, build_app(settings) as app:
        emitter = Emitter(intents, partial(send_reconcile, app), REDELIVER_AFTER_S)
        yield Producer(emitter.emit, intents)


def _send_all(producer: Producer, servers: Sequence[FleetServer], plan: Plan) -> list[Run]:
    _send(producer, "first sight", [up(server) for server in servers])  # loads model and vocabularies; not kept
    refs = [ServerRef(server_id=server.server_id) for server in servers]
    return [
        _send(producer, "changed", [ServerChanged(data=ref) for ref in refs]),
        _send(producer, "storm", [ServerChanged(data=refs[0]) for _ in range(plan.storm_events)]),
        _send(producer, "down", [ServerDown(data=ref) for ref in refs]),
    ]


def _send(producer: Producer, kind: str, events: Sequence[ServerEvent]) -> Run:
    started = time.perf_counter()
    for event in events:
        producer.emit(event)
    recorded_s = time.perf_counter() - started
    wait_until_committed(producer.intents, {event.data.server_id for event in events})
    return Run(kind, len(events), recorded_s, time.perf_counter() - started)


def _rates(repetitions: Sequence[Sequence[Run]]) -> tuple[EventRate, ...]:
    return tuple(
        EventRate(
            kind=runs[0].kind,
            events=runs[0].events,
            recorded_per_s=Spread.of([run.events / run.recorded_s for run in runs]),
            committed_per_s=Spread.of([run.events / run.committed_s for run in runs]),
        )
        for runs in zip(*repetitions, strict=True)
    )
