"""Thousands of events for a hundred servers that did not change, most of them duplicates, while agents ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from celery import Celery

from benchmarks.fleet.asking import asking
from benchmarks.fleet.compositions import TOKEN, Everything, Site, everything, site, tools_written, usage
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.results import Answers, Storm, StormRun
from benchmarks.fleet.servers import Fleet, RunningFleet, running_fleet
from benchmarks.throughput.embedded import PATIENCE_S, up
from benchmarks.throughput.isolation import in_fresh_process
from shared.events import ServerChanged, ServerEvent, ServerRef
from tests.support.events_api import Producer
from workers.celery_app import ACCEPT_EVENT
from workers.events_api.api import BATCH

BATCH_EVENTS = 100
WAYS = {"messages": "Celery messages", "door": f"HTTP door, {BATCH_EVENTS} events a request"}

Send = Callable[[Sequence[ServerEvent]], None]


def measure_storm(plan: Plan) -> Storm:
    """Return what each way of sending took."""
    fleet = Fleet(kind="generated", servers=plan.storm_servers, tools=plan.storm_tools, seed=plan.seed)
    with running_fleet(fleet) as servers:
        runs = tuple(in_fresh_process(_storm, way, servers, plan) for way in WAYS)
    return Storm(
        servers=plan.storm_servers,
        tools=servers.tools,
        events=plan.storm_events,
        distinct=plan.storm_events // plan.storm_repeats,
        runs=runs,
    )


def _storm(directory: Path, way: str, servers: RunningFleet, plan: Plan) -> StormRun:
    with site(directory) as at, everything(at.composition) as running:
        at.ingest([up(server) for server in servers.servers()])
        return _run(way, at, running, servers, plan)


def _run(way: str, at: Site, running: Everything, servers: RunningFleet, plan: Plan) -> StormRun:
    desired = _desired(at, servers.ids) + plan.storm_events
    took = partial(usage, [*running.workers, running.door])
    before = took(), servers.listings(), tools_written(running.workers)
    with asking(running.mcp_url, plan.question_rate, plan.seed) as answered_ms:
        started = time.perf_counter()
        _sender(way, at, running)(_events(servers.ids, plan))
        sent_s = time.perf_counter() - started
        _wait_until_drained(at, servers.ids, desired)
        drained_s = time.perf_counter() - started
    return StormRun(
        way=WAYS[way],
        sent_s=round(sent_s, 2),
        drained_s=round(drained_s, 2),
        cpu_s=round(took().cpu_s - before[0].cpu_s, 2),
        listings=servers.listings() - before[1],
        tools_written=tools_written(running.workers) - before[2],
        answers=Answers.of(answered_ms),
    )


def _events(server_ids: Sequence[str], plan: Plan) -> list[ServerEvent]:
    """Return distinct events for all servers in turn, each repeated several times in a row."""
    distinct = [
        ServerChanged(data=ServerRef(server_id=server_ids[number % len(server_ids)]))
        for number in range(plan.storm_events // plan.storm_repeats)
    ]
    return [event for event in distinct for _ in range(plan.storm_repeats)]


def _sender(way: str, at: Site, running: Everything) -> Send:
    if way == "door":
        return partial(_post, Producer(running.events_url, TOKEN))
    return partial(_publish, at.composition.redis_url)


def _publish(redis_url: str, events: Sequence[ServerEvent]) -> None:
    """Send a message for each event, as a producer that depends only on the broker."""
    with Celery("producer", broker=redis_url) as app:
        for event in events:
            app.send_task(ACCEPT_EVENT, args=[event.model_dump(mode="json")], queue="toolscale")


def _post(door: Producer, events: Sequence[ServerEvent]) -> None:
    """Post the events in batches; one that the door could not record in time is posted again."""
    for start in range(0, len(events), BATCH_EVENTS):
        batch = [event.model_dump(mode="json") for event in events[start : start + BATCH_EVENTS]]
        while batch:
            outcomes = door.post(batch, BATCH).content["events"]
            batch = [event for event, outcome in zip(batch, outcomes, strict=True) if outcome["status"] == 503]


def _wait_until_drained(at: Site, server_ids: Sequence[str], desired: int) -> None:
    """Return when all events are recorded and the index reflects them, seen within 0.1 s.

    Raises:
        TimeoutError: it did not come to that.
    """
    deadline = time.monotonic() + PATIENCE_S
    while _desired(at, server_ids) < desired or any(intent.is_lagging for intent in at.producer.intents.intents()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{desired - _desired(at, server_ids)} events were not recorded within {PATIENCE_S:g} s")
        time.sleep(0.1)


def _desired(at: Site, server_ids: Sequence[str]) -> int:
    """Return how many events were recorded of these servers."""
    found = (at.producer.intents.intent(server_id) for server_id in server_ids)
    return sum(intent.desired for intent in found if intent)
