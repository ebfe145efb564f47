"""Fleets of hundreds and thousands of servers.

**Question.** How much does a fleet cost: a storm of events, a resync of all, a whole catalogue at once, many replicas
of one server? How does each affect agents?
[Scaling](../../docs/scaling.md) computes the needs of larger fleets from the results.

**Repeat.** `make bench BENCH=fleet` takes a quarter of an hour on two cores.
`BENCH_ARGS="--only storm crowd"` measures some of the parts, and keeps the others; each has its date and machine.
`--haystack FILE` replaces the corpus of `haystack`: one tool as JSON per line with `server`, `name`, `description` and
`inputSchema`. With `QDRANT_URL`, workers and query service are separate processes, and two workers share the index.

**Method.** Redis is real, with an append-only file, and so are the product's processes; they run with default settings,
except that no resync is due. The servers are scripted, all in one process, over both generations of the protocol.

- `storm`: `changed` events, ten for each server in rotation; nothing has changed. First as Celery messages of a
  producer with only the broker's address, then in batches to the events API. A client in another process calls
  `find_tool`. Measured until every event is recorded and committed.
- `crowd`: replicas of one server, ingested by a worker. Then every server due at once, twice for a new worker, with a
  sweep every five seconds; with servers of each protocol. Scaling takes the second listing once a run has it, since
  most listings by a worker are not its first, which has a version probe.
- `haystack`: all servers of a public corpus announced at once to one worker; on a Qdrant server, then a sample of them
  to one and to two workers.
- `metrics`: the time of `find_tool` and of its token metrics, in the embedded composition, while events of servers that
  did change arrive. The catalogue is filled with random vectors.

**Caveats.**

- Workers, query service, Redis, the fleet and the clients share the machine's cores.
- Scripted servers answer at once. Real servers are slower, which costs a worker a thread and no processor time.
- Qdrant Edge belongs to one process: without `QDRANT_URL`, the storm has worker and query service in one.
- Processor seconds are those of the worker processes, in the storm also of query service and events API. Other programs
  hardly change them, but do change seconds. Memory is the kernel's peak of a process's resident memory.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import anyio
import psutil
import redis
from celery import Celery
from mcp import Client

from benchmarks.catalogue import fill
from benchmarks.compositions import (
    PATIENCE_S,
    TOKEN,
    Everything,
    Producer,
    Site,
    changes,
    cpu_s,
    everything,
    find_ms,
    highest_mib,
    index_settings,
    site,
    tools_written,
    wait_until_committed,
    workers,
)
from benchmarks.fleet_servers import PROTOCOLS, Era, Fleet, RunningFleet, running_fleet
from benchmarks.generated import queries
from benchmarks.harness import (
    DATA,
    MIB,
    RESULTS,
    ROOT,
    Figures,
    Watches,
    cell,
    command,
    disk_mib,
    figures_table,
    hardware,
    in_fresh_process,
    keep,
    kept,
    kept_name,
    made,
    number,
    percentiles,
    report,
    table,
    title,
)
from benchmarks.scaling import scaling_page
from query.catalogue import catalogue_of
from query.find import Timings, find_tool
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.events import ServerChanged, ServerEvent, ServerRef
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.logging import configure_logging
from shared.service.redis import connect
from tests.support.events_api import Producer as EventsApi
from tests.support.processes import Running
from tests.support.qdrant_server import qdrant_url
from toolscale.embedded.composition import Embedded, run_embedded
from workers.celery_app import ACCEPT_EVENT
from workers.events_api.api import BATCH

SCALING = ROOT / "docs" / "scaling.md"
HAYSTACK = DATA / "corpora" / "haystack.jsonl"
SEED = 20260704
BATCH_EVENTS = 100
WAYS = ("Celery messages", f"HTTP, {BATCH_EVENTS} events a request")
# Servers that change, and are listed again and again; the others are only there.
CHANGING = 20
WARM_UP_SERVERS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run; times are in seconds, rates in events or questions a second."""

    name: str
    storm_servers: int = 100
    storm_tools: int = 20
    storm_events: int = 10_000
    storm_repeats: int = 10
    """Repetitions of each event of the storm: 10 makes nine in ten duplicates."""
    replicas: int = 1_000
    replica_tools: int = 20
    wide_servers: int = 100
    wide_tools: int = 100
    """Fewer replicas with more tools each, for the cost of a resync by the tool."""
    haystack_share: int = 1
    """The whole corpus is ingested with every `haystack_share`th server, comparisons with every `sample_share`th."""
    sample_share: int = 8
    catalogue_sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    tools_per_server: int = 50
    event_rate: float = 10.0
    question_rate: float = 10.0
    metrics_s: float = 62.0
    """How long token metrics are watched at each size: longer than the ledger goes without reading everything."""


FULL = Plan("full")
QUICK = Plan(
    "quick",
    storm_servers=4,
    storm_tools=3,
    storm_events=40,
    replicas=6,
    replica_tools=3,
    wide_servers=2,
    wide_tools=5,
    haystack_share=400,
    sample_share=800,
    catalogue_sizes=(50, 100),
    tools_per_server=10,
    metrics_s=1.0,
)


# A storm of events


def measure_storm(plan: Plan, _: Path) -> Figures:
    """Return what each way of sending the events took."""
    fleet = Fleet("generated", plan.storm_servers, plan.storm_tools, SEED)
    with running_fleet(fleet) as servers:
        runs = [in_fresh_process(_storm, way, servers, plan) for way in WAYS]
    distinct = plan.storm_events // plan.storm_repeats
    return {
        "servers": plan.storm_servers,
        "tools": servers.tools,
        "events": plan.storm_events,
        "distinct": distinct,
        "runs": runs,
    }


def _storm(directory: Path, way: str, servers: RunningFleet, plan: Plan) -> Figures:
    distinct = [
        ServerChanged(data=ServerRef(server_id=server_id))
        for server_id in itertools.islice(itertools.cycle(servers.ids), plan.storm_events // plan.storm_repeats)
    ]
    events = [event for event in distinct for _ in range(plan.storm_repeats)]
    with site(directory) as at, everything(at.composition) as running:
        at.ingest([server.up for server in servers.servers()])
        processes = [*running.workers, running.events_api]
        recorded = _recorded(at, servers.ids) + len(events)
        before = cpu_s(processes), servers.listings(), tools_written(running.workers)
        with _asking(running.mcp_url, plan.question_rate) as answered_ms:
            started = time.perf_counter()
            _send(way, events, at, running)
            sent_s = time.perf_counter() - started
            _wait_until(lambda: _recorded(at, servers.ids) >= recorded, "events were not recorded")
            _wait_until(lambda: not any(intent.is_lagging for intent in at.producer.intents.intents()), "intents lag")
            drained_s = time.perf_counter() - started
        return {
            "sent_as": way,
            "sent_s": round(sent_s, 2),
            "drained_s": round(drained_s, 2),
            "processor_s": round(cpu_s(processes) - before[0], 2),
            "listings": servers.listings() - before[1],
            "tools_written": tools_written(running.workers) - before[2],
            "answers": _answers(answered_ms),
        }


def _send(way: str, events: Sequence[ServerEvent], at: Site, running: Everything) -> None:
    """Send a message for each event, as a producer that depends only on the broker, or post the events in batches."""
    bodies = [event.model_dump(mode="json") for event in events]
    if way == WAYS[0]:
        with Celery("producer", broker=at.composition.redis_url) as app:
            for body in bodies:
                app.send_task(ACCEPT_EVENT, args=[body], queue="toolscale")
        return
    api = EventsApi(running.events_url, TOKEN)
    for start in range(0, len(bodies), BATCH_EVENTS):
        batch = bodies[start : start + BATCH_EVENTS]
        while batch:  # an event that could not be recorded in time is posted again
            outcomes = api.post(batch, BATCH).content["events"]
            batch = [event for event, outcome in zip(batch, outcomes, strict=True) if outcome["status"] == 503]


def _recorded(at: Site, server_ids: Sequence[str]) -> int:
    """Return the number of events that were recorded of these servers."""
    found = (at.producer.intents.intent(server_id) for server_id in server_ids)
    return sum(intent.desired for intent in found if intent)


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {PATIENCE_S:g} s {what}")
        time.sleep(0.1)


@contextmanager
def _asking(url: str, rate: float) -> Generator[list[float]]:
    """Call `find_tool` from another process until the block ends; the list then holds the ms of each answer.

    Raises:
        EOFError: an answer was an error, which the process printed.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    answered_ms: list[float] = []
    process = spawn.Process(target=_ask, args=(url, rate, theirs))
    process.start()
    theirs.close()
    try:
        ours.recv()  # it has connected
        yield answered_ms
        ours.send("end")
        answered_ms += ours.recv()
    finally:
        process.kill()
        process.join()


def _ask(url: str, rate: float, parent: Connection) -> None:
    async def ask() -> list[float]:
        answered_ms: list[float] = []
        async with Client(url) as client:
            await find_ms(client, "ready")
            parent.send("connected")
            for query in itertools.cycle(queries(2_000, SEED)):
                due_s = time.monotonic() + 1 / rate  # less often where answers take longer than that
                answered_ms.append(await find_ms(client, query))
                await anyio.sleep(max(0.0, due_s - time.monotonic()))
                if parent.poll():
                    break
        return answered_ms

    parent.send(anyio.run(ask))


def _answers(samples_ms: Sequence[float]) -> Figures:
    return {"count": len(samples_ms), **percentiles(samples_ms, 50, 95, 99), "highest": round(max(samples_ms), 2)}


# Replicas, and a resync of all


def measure_crowd(plan: Plan, _: Path) -> Figures:
    """Return what the replicas took, a resync over each protocol, and one of fewer servers with more tools."""
    with running_fleet(Fleet("replicas", plan.replicas, plan.replica_tools, SEED)) as servers:
        crowd = in_fresh_process(_crowd, servers, ("handshake", "modern"))
    with running_fleet(Fleet("replicas", plan.wide_servers, plan.wide_tools, SEED)) as servers:
        wide = in_fresh_process(_crowd, servers, ("handshake",))
    return {"replicas": crowd["replicas"], "resyncs": [*crowd["resyncs"], *wide["resyncs"]]}


def _crowd(directory: Path, servers: RunningFleet, eras: Sequence[Era]) -> Figures:
    with site(directory) as at:
        empty_mib = _redis_info(at)["used_memory"] / MIB
        with workers(at.composition) as working:
            before_s, started = cpu_s(working), time.perf_counter()
            at.ingest([server.up for server in servers.servers("handshake")])
            replicas = {
                "servers": len(servers.ids),
                "tools": servers.tools,
                "seconds": round(time.perf_counter() - started, 2),
                "processor_s": round(cpu_s(working) - before_s, 2),
                "peak_mib": highest_mib(working),
            }
        return {
            "replicas": replicas,
            "resyncs": [resync for era in eras for resync in _resyncs(at, servers, era, empty_mib)],
        }


def _resyncs(at: Site, servers: RunningFleet, era: Era, empty_mib: float) -> list[Figures]:
    """Let a new worker list all servers twice; only its first listing of each has a version probe."""
    events = [server.up for server in servers.servers(era)]
    with workers(at.composition) as working:
        at.ingest(events)  # from now on they are listed by this protocol
    with workers(at.composition) as working:
        at.ingest(events[:1])  # it has imported what a listing needs
        return [
            {"protocol": PROTOCOLS[era], "listing": listing, **_resync(at, servers, working, empty_mib)}
            for listing in ("first", "second")
        ]


def _resync(at: Site, servers: RunningFleet, working: Sequence[Running], empty_mib: float) -> Figures:
    """Make all servers due, and measure until each has been listed and reconciled."""
    at_once = RetryPolicy(first_s=15.0, longest_s=900.0, resync_s=0.001)
    with closing(Intents(RedisStorage(connect(at.composition.redis_url)), at_once)) as intents:
        for intent in intents.intents():
            intents.commit(intent.server_id, intent.desired)
    spent_s, listings, written = cpu_s(working), servers.listings(), tools_written(working)
    commands, started = _redis_info(at)["total_commands_processed"], time.perf_counter()
    with at.sweeping():
        _wait_until(lambda: servers.listings() >= listings + len(servers.ids), "servers were not listed")
    wait_until_committed(at.producer.intents, servers.ids)
    seconds, info = time.perf_counter() - started, _redis_info(at)
    return {
        "servers": len(servers.ids),
        "tools": servers.tools,
        "seconds": round(seconds, 2),
        "listings": servers.listings() - listings,
        "tools_written": tools_written(working) - written,
        "processor_s": round(cpu_s(working) - spent_s, 2),
        "peak_mib": highest_mib(working),
        "redis_commands": info["total_commands_processed"] - commands,
        "redis_grown_mib": round(info["used_memory"] / MIB - empty_mib, 2),
    }


def _redis_info(at: Site) -> dict[str, int]:
    with redis.Redis.from_url(at.composition.redis_url) as client:
        return cast("dict[str, int]", client.info())


# A whole catalogue at once


def measure_haystack(plan: Plan, corpus: Path) -> Figures:
    """Return the ingestion of the whole corpus by one worker and, where workers can share an index, of a sample."""
    whole = Fleet("corpus", corpus=str(corpus.resolve(strict=True)), share=plan.haystack_share)
    with running_fleet(whole) as servers:
        totals = {"corpus_servers": len(servers.ids), "corpus_tools": servers.tools}
        ingestions = [in_fresh_process(_ingest, 1, servers)]
    if qdrant_url():
        with running_fleet(replace(whole, share=plan.sample_share)) as servers:
            ingestions += [in_fresh_process(_ingest, count, servers) for count in (1, 2)]
    return {**totals, "ingestions": ingestions}


def _ingest(directory: Path, count: int, servers: RunningFleet) -> Figures:
    """Announce all servers at once to so many workers."""
    events = [server.up for server in servers.servers()]
    first = min(WARM_UP_SERVERS, len(events) // 2)
    with site(directory) as at, workers(at.composition, count) as working:
        at.ingest(events[:first])  # the workers have loaded all they need
        spent_s, tools, started = cpu_s(working), tools_written(working), time.perf_counter()
        at.ingest(events[first:])
        seconds, tools = time.perf_counter() - started, tools_written(working) - tools
        return {
            "workers": count,
            "servers": len(events) - first,
            "tools": tools,
            "seconds": round(seconds, 2),
            "tools_per_s": round(tools / seconds, 1),
            "processor_s": round(cpu_s(working) - spent_s, 2),
            "peak_mib": highest_mib(working),
            "disk_mib": disk_mib(directory.glob("index/**/*")),
        }


# Token metrics while events arrive


def measure_metrics(plan: Plan, _: Path) -> Figures:
    """Return what token metrics took at each size, in one embedded composition that grows from one to the next."""
    changing = min(CHANGING, plan.catalogue_sizes[0] // plan.tools_per_server)
    with running_fleet(Fleet("changing", changing, plan.tools_per_server, SEED)) as servers:
        sizes = in_fresh_process(_sizes, servers, plan)
    return {"event_rate": plan.event_rate, "question_rate": plan.question_rate, "sizes": sizes}


def _sizes(directory: Path, servers: RunningFleet, plan: Plan) -> list[Figures]:
    with run_embedded(index_settings(directory)) as embedded:
        Producer(embedded.emit, embedded.deps.intents).ingest([server.up for server in servers.servers()])
        held = (len(servers.ids), *(size // plan.tools_per_server for size in plan.catalogue_sizes))
        return [_grown(embedded, servers, range(*grown), plan) for grown in itertools.pairwise(held)]


def _grown(embedded: Embedded, servers: RunningFleet, numbers: range, plan: Plan) -> Figures:
    """Add servers of these numbers, then call `find_tool` as the query service of this process would."""
    index = embedded.deps.index
    fill(index, numbers, plan.tools_per_server, SEED)
    catalogue = catalogue_of(index, embedded.deps.embedder, embedded.settings)

    def find(query: str) -> Timings:
        return find_tool(FindRequest(tool_description=query), Scope(), catalogue)[1]

    find("ready")  # the ledger reads every record once
    listings, timings = servers.listings(), list[Timings]()
    asked = itertools.cycle(queries(500, SEED))
    with changes(Producer(embedded.emit, embedded.deps.intents), servers.ids, plan.event_rate) as emitted:
        end_s = time.monotonic() + plan.metrics_s
        while (began_s := time.monotonic()) < end_s:
            timings.append(find(next(asked)))
            time.sleep(max(0.0, began_s + 1 / plan.question_rate - time.monotonic()))
    return {
        "tools": numbers.stop * plan.tools_per_server,
        "servers": numbers.stop,
        "events": len(emitted),
        "listings": servers.listings() - listings,
        "resident_mib": round(psutil.Process().memory_info().rss / MIB, 1),
        "token_metrics": _answers([timing.sum_ms for timing in timings]),
        "find_tool": _answers([timing.total_ms for timing in timings]),
    }


# The report


def render(figures: Figures) -> Iterator[str]:
    """Yield the report of the parts that were measured, each on its date and machine."""
    parts = {name: figures[name] for name in PARTS if name in figures}
    yield from title(__doc__)
    runs = [{**part, "part": name, **part["conditions"][0]} for name, part in parts.items()]
    columns = ("part", "made_at", "machine.processor", "plan", "index", "seconds", "others_percent")
    yield figures_table(runs, *columns)
    yield from dict.fromkeys(hardware(part["machine"]) for part in parts.values())
    yield "## Targets"
    rows = [
        (what, f"{bound:,g}{unit}", f"{cell(measured)}{unit}", "yes" if measured <= bound else "no")
        for what, bound, measured, unit in targets(parts)
    ]
    yield table(("what", "at most", "measured", "met"), rows)
    for name, part in parts.items():
        yield from TABLES[name](part)


def targets(parts: Figures) -> Iterator[tuple[str, float, float, str]]:
    """Yield what is bounded, the bound, what was measured, and the unit, of the parts that were measured."""
    if storm := parts.get("storm"):
        for run in storm["runs"]:
            name = f"{storm['events']:,} events for {storm['servers']} servers, {run['sent_as']}"
            yield f"{name}: until the index follows", 30, run["drained_s"], " s"
            yield f"{name}: listings", 3 * storm["servers"], run["listings"], ""
            yield f"{name}: tools written", 0, run["tools_written"], ""
            yield f"{name}: find_tool at the same time, p95", 200, run["answers"]["p95"], " ms"
    if crowd := parts.get("crowd"):
        for resync in crowd["resyncs"]:
            if resync["listing"] == "first" and resync["servers"] == crowd["replicas"]["servers"]:
                name = f"resync of {resync['servers']:,} unchanged servers, protocol {resync['protocol']}"
                yield name, 60, resync["seconds"], " s"
                yield f"{name}: memory of the worker", 400, resync["peak_mib"], " MiB"
    if metrics := parts.get("metrics"):
        for size in metrics["sizes"]:
            yield f"token metrics at {size['tools']:,} tools, p99", 10, size["token_metrics"]["p99"], " ms"


def _storm_table(found: Figures) -> Iterator[str]:
    yield "## A storm of events"
    yield (
        f"{found['events']:,} events for {found['servers']} servers with {found['tools']:,} tools, "
        f"all of it unchanged; {found['distinct']:,} distinct ones, the others duplicates.\n"
        "Answers of `find_tool` at the same time are in ms."
    )
    answers = ("answers.count", "answers.p50", "answers.p95", "answers.p99", "answers.highest")
    columns = ("sent_as", "sent_s", "drained_s", "listings", "tools_written", "processor_s")
    yield figures_table(found["runs"], *columns, *answers)


def _crowd_table(found: Figures) -> Iterator[str]:
    replicas = found["replicas"]
    yield "## Replicas, and a resync of all"
    yield (
        f"{replicas['servers']:,} replicas of one server, {replicas['tools']:,} tools in all, ingested by one worker "
        f"in {number(replicas['seconds'])} s of the clock, {number(replicas['processor_s'])} of its processor, "
        f"and with {number(replicas['peak_mib'])} MiB at most.\n"
        "Then all servers due at once; the listing is the first or second by this worker."
    )
    columns = ("protocol", "listing", "servers", "tools", "listings", "tools_written", "seconds", "processor_s")
    yield figures_table(found["resyncs"], *columns, "peak_mib", "redis_commands", "redis_grown_mib")


def _haystack_table(found: Figures) -> Iterator[str]:
    yield "## A whole catalogue at once"
    yield (
        f"{found['corpus_servers']:,} servers with {found['corpus_tools']:,} tools of a public corpus, "
        "all announced at once; on a Qdrant server also a sample of them. The tools are those written."
    )
    columns = ("workers", "servers", "tools", "seconds", "tools_per_s", "processor_s", "peak_mib", "disk_mib")
    yield figures_table(found["ingestions"], *columns)


def _metrics_table(found: Figures) -> Iterator[str]:
    yield "## Token metrics while events arrive"
    yield (
        f"In the embedded composition, {found['event_rate']:g} events a second of servers that did change, "
        f"and {found['question_rate']:g} questions a second; ms."
    )
    rows = [
        {**size, "part": part, **size[name]}
        for size in found["sizes"]
        for part, name in (("token metrics", "token_metrics"), ("search and token metrics", "find_tool"))
    ]
    columns = ("tools", "servers", "resident_mib", "events", "listings", "part", "count")
    yield figures_table(rows, *columns, "p50", "p95", "p99", "highest")


PARTS: Mapping[str, Callable[[Plan, Path], Figures]] = {
    "storm": measure_storm,
    "crowd": measure_crowd,
    "haystack": measure_haystack,
    "metrics": measure_metrics,
}
TABLES: Mapping[str, Callable[[Figures], Iterator[str]]] = {
    "storm": _storm_table,
    "crowd": _crowd_table,
    "haystack": _haystack_table,
    "metrics": _metrics_table,
}


def main() -> None:
    """Measure parts, or only render what is kept; each part is kept as soon as it is measured."""
    parser = command("fleet", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these, keep the others")
    parser.add_argument("--haystack", type=Path, default=HAYSTACK, help="a corpus: one tool as JSON a line")
    arguments = parser.parse_args()
    if "haystack" in arguments.only and not arguments.render and not arguments.haystack.exists():
        parser.error(f"no corpus at {arguments.haystack}: give one with --haystack, or other parts with --only")
    configure_logging("ERROR")
    name, plan = kept_name("fleet"), QUICK if arguments.quick else FULL
    measured: list[str] = [] if arguments.render else arguments.only
    for part in measured:
        watches = Watches()
        found = watches.measure(part, partial(PARTS[part], plan, arguments.haystack))
        index = "a Qdrant server" if qdrant_url() else "Qdrant Edge"
        circumstances = {**made(), "plan": plan.name, "index": index, "conditions": watches.conditions}
        keep(name, arguments.output, {**kept(name, arguments.output), part: {**circumstances, **found}})
    figures = report(name, arguments.output, render)
    if arguments.output == RESULTS and not qdrant_url():
        SCALING.write_text(scaling_page(SCALING.read_text(encoding="utf-8"), figures), encoding="utf-8")
        print(f"Wrote {SCALING}")


if __name__ == "__main__":
    main()
