"""Token metrics within find_tool at several sizes, while events of servers that did change arrive at a steady rate."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.fleet.changes import changes, ticks
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.results import Answers, Metrics, MetricsBySize
from benchmarks.fleet.servers import Fleet, RunningFleet, running_fleet
from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.embedded import Producer, index_settings, up, wait_until_committed
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.memory import MIB
from query.catalogue import catalogue_of
from query.find import Timings, find_tool
from query.search.request import FindRequest
from shared.catalog import Scope
from toolscale.embedded.composition import Embedded, run_embedded

# Servers that change, and are looked at again and again; the others are only there.
CHANGING = 20


def measure_metrics(plan: Plan) -> MetricsBySize:
    """Return what token metrics took at each size, in one embedded composition that grows from one to the next."""
    changing = min(CHANGING, plan.catalogue_sizes[0] // plan.tools_per_server)
    fleet = Fleet(kind="changing", servers=changing, tools=plan.tools_per_server, seed=plan.seed)
    with running_fleet(fleet) as servers:
        sizes = in_fresh_process(_sizes, servers, plan)
    return MetricsBySize(event_rate=plan.event_rate, question_rate=plan.question_rate, sizes=tuple(sizes))


def _sizes(directory: Path, servers: RunningFleet, plan: Plan) -> list[Metrics]:
    with run_embedded(index_settings(directory)) as embedded:
        producer = Producer(embedded.emit, embedded.deps.intents)
        for server in servers.servers():
            producer.emit(up(server))
        wait_until_committed(producer.intents, servers.ids)
        held = (len(servers.ids), *(size // plan.tools_per_server for size in plan.catalogue_sizes))
        return [_grown(embedded, servers, range(*grown), plan) for grown in itertools.pairwise(held)]


def _grown(embedded: Embedded, servers: RunningFleet, numbers: range, plan: Plan) -> Metrics:
    """Add servers of these numbers, then watch the token metrics."""
    fill(embedded.deps.index, numbers, plan.tools_per_server, plan.seed, embedded.deps.embedder.dimension)
    listings, producer = servers.listings(), Producer(embedded.emit, embedded.deps.intents)
    find = _find(embedded)
    with changes(producer, servers.ids, plan.event_rate) as emitted:
        timings = _ask(find, plan)
    return Metrics(
        tools=numbers.stop * plan.tools_per_server,
        servers=numbers.stop,
        events=len(emitted),
        looks=servers.listings() - listings,
        seconds=plan.metrics_s,
        resident_mib=round(psutil.Process().memory_info().rss / MIB, 1),
        token_metrics=Answers.of([timing.sum_ms for timing in timings]),
        find_tool=Answers.of([timing.total_ms for timing in timings]),
    )


def _find(embedded: Embedded) -> Callable[[str], Timings]:
    """Return find_tool as the query service of this process would call it, its ledger filled by a first question."""
    catalogue = catalogue_of(embedded.deps.index, embedded.deps.embedder, embedded.settings)

    def ask(query: str) -> Timings:
        return find_tool(FindRequest(tool_description=query), Scope(), catalogue)[1]

    ask("ready")
    return ask


def _ask(find: Callable[[str], Timings], plan: Plan) -> list[Timings]:
    """Ask at the plan's rate, or as fast as answers come where they take longer."""
    asked = itertools.cycle(queries(500, plan.seed))
    return [find(next(asked)) for _ in ticks(plan.question_rate, threading.Event(), plan.metrics_s)]
