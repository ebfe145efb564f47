"""Pages with many servers.

**Question.** How much processor time of the service does each page of the web page take with 11, 500 and 5,000 servers?

**Repeat.** `make bench BENCH=page` takes about three minutes on two cores.

**Method.** A real `python -m query` serves an index that is filled with generated tools and random vectors, with
groups, labels, sources and states, and a history of thirty days.
One client loads each page twenty times; the operating system's figures give the processor time of the service.

**Caveats.**

- Processor time includes all threads of the service, also those that read and store in the background.
- The first load may read the records of all servers; a later load does so again after a minute.
- The table of servers and the tools of the map are kept for 30 seconds while no server changes, as in this run.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx2
import psutil

from benchmarks.catalogue import bundled_index, fill
from benchmarks.compositions import Service, embedded_settings, query_service
from benchmarks.generated import definitions, server_id
from benchmarks.harness import (
    Figures,
    Watches,
    command,
    figures_table,
    head,
    in_fresh_process,
    processor_s,
    run_benchmark,
)
from query.usage.usage import CatalogueSize, RowKey, open_usage, today
from shared.catalog import OPERATOR_SOURCE, ServerRecord
from shared.index.tools import ToolIndex
from shared.settings import Settings

LIMIT_MS = 300.0
# One server in so many is in each of the other states.
FAILING, STOPPED, QUARANTINED = 20, 25, 50
SOURCES = (OPERATOR_SOURCE, "toolscale/docker", "toolscale/kubernetes", "toolscale/cli")
# A start takes a few seconds, and the sizes that are sampled each ten seconds little time after it.
IDLE_S, START_S = 1.0, 60.0
SEED = 7
TOOL = definitions(server_id(1), 1, SEED)[0]["name"]
PAGES = {
    "overview": "/ui",
    "feed": "/ui/feed",
    "tools": "/ui/tools",
    "servers": "/ui/servers",
    "servers, filtered": "/ui/servers?q=a&label=env%3Dprod&sort=name&order=desc",
    "server": f"/ui/servers/{server_id(1)}",
    "tool": f"/ui/tools/{server_id(1)}:{TOOL}",
    "advice": "/ui/advice",
    "find": "/ui/find?q=send+a+message+to+the+team",
    "history": "/ui/history",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run: servers, tools of each, days of history with so many callers, and loads of each page."""

    name: str
    servers: tuple[int, ...]
    tools_per_server: int
    days: int
    callers: int
    loads: int


FULL = Plan("full", servers=(11, 500, 5_000), tools_per_server=5, days=30, callers=20, loads=20)
QUICK = Plan("quick", servers=(11, 30), tools_per_server=2, days=2, callers=2, loads=2)


def measure(plan: Plan, watches: Watches) -> Figures:
    """Return the costs of each page at each size."""

    def at_size(servers: int) -> Figures:
        return in_fresh_process(_at_size, servers, plan)

    sizes = [watches.measure(f"{servers:,} servers", partial(at_size, servers)) for servers in plan.servers]
    return {"plan": asdict(plan), "sizes": sizes}


def _at_size(directory: Path, servers: int, plan: Plan) -> Figures:
    with serving(directory, servers, plan) as service, httpx2.Client(base_url=service.url, trust_env=False) as client:
        pages = [_loaded(name, path, service.process, client, plan.loads) for name, path in PAGES.items()]
    return {"servers": servers, "pages": pages}


def _loaded(name: str, path: str, process: psutil.Process, client: httpx2.Client, loads: int) -> Figures:
    """Return the processor time of the first load, and the mean of the loads after it."""
    before_s = processor_s(process)
    length = len(client.get(path).raise_for_status().content)
    first_s = processor_s(process) - before_s
    slowest_s, before_s = 0.0, processor_s(process)
    for _ in range(loads):
        started_s = time.perf_counter()
        client.get(path).raise_for_status()
        slowest_s = max(slowest_s, time.perf_counter() - started_s)
    mean_s = (processor_s(process) - before_s) / loads
    milliseconds = {"first_ms": first_s, "mean_ms": mean_s, "slowest_ms": slowest_s}
    rounded = {name: round(seconds * 1e3, 1) for name, seconds in milliseconds.items()}
    return {"page": name, "path": path, **rounded, "size_kib": round(length / 1024, 1)}


@contextmanager
def serving(directory: Path, servers: int, plan: Plan) -> Generator[Service]:
    """Fill an index and a history, and run `python -m query` on them; its URL is that of the host."""
    settings = embedded_settings(directory)
    with bundled_index(settings) as index:
        fill(index, range(servers), plan.tools_per_server, SEED)
        for number, record in enumerate(sorted(index.servers(), key=lambda record: record.server_id)):
            index.put_server(_varied(record, number))
        _write_history(settings, index, plan)
    with query_service(directory, QDRANT_URL="") as service:
        _wait_until_idle(service.process)
        yield Service(service.url.removesuffix("/mcp"), service.process)


def _wait_until_idle(process: psutil.Process) -> None:
    """Wait until the service uses no processor time: after its start, it reads the catalogue in the background.

    Raises TimeoutError after START_S.
    """
    until_s, before_s = time.monotonic() + START_S, -1.0
    while (now_s := processor_s(process)) > before_s:
        if time.monotonic() > until_s:
            raise TimeoutError(f"the service is still busy after {START_S:.0f} s")
        before_s = now_s
        time.sleep(IDLE_S)


def _varied(record: ServerRecord, number: int) -> ServerRecord:
    """Return the record with groups, labels, a source and a state as fleets have them."""
    changes: dict[str, object] = {
        "groups": frozenset({f"team-{number % 40}"}),
        "labels": {"env": ("prod", "test")[number % 2], "region": f"r{number % 7}"},
        "source": SOURCES[number % len(SOURCES)],
    }
    if number % FAILING == 1:
        changes |= {"stale_since": 2.0, "failures": 2, "last_error": f"{record.server_id}: the connection closed"}
    if number % STOPPED == 2:
        changes |= {"status": "stopped"}
    if number % QUARANTINED == 3:
        changes |= {"status": "quarantined", "failures": 5, "stale_since": 2.0, "last_error": "no connection"}
    return record.model_copy(update=changes)


def _write_history(settings: Settings, index: ToolIndex, plan: Plan) -> None:
    records = index.servers()
    tools, tokens = sum(each.tool_count for each in records), sum(each.model_tokens["cl100k_base"] for each in records)
    called = list(_called(len(records), plan))
    used = {"answers": 9, "calls": 3, "failed_calls": 1, "bytes": 4_096}
    with closing(open_usage(settings)) as usage:
        for ago in range(plan.days):
            day = today() - timedelta(days=ago)
            usage.put_size(day, CatalogueSize(len(records), tools, tokens))
            usage.add({RowKey(day, *each): used for each in called})


def _called(servers: int, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield each caller with the servers and tools that it calls every day."""
    for caller in range(plan.callers):
        for number in range(plan.callers):
            server = server_id((caller * 31 + number) % servers)
            tools = definitions(server, plan.tools_per_server, SEED)
            yield f"caller-{caller}", server, tools[number % len(tools)]["name"]


def render(figures: Figures) -> Iterator[str]:
    """Yield the report."""
    plan = figures["plan"]
    pages = [{"servers": size["servers"], **page} for size in figures["sizes"] for page in size["pages"]]
    highest = max(page["mean_ms"] for page in pages)
    yield from head(__doc__, figures)
    yield "## Processor time of the service"
    yield (
        f"{plan['tools_per_server']} tools for each server, {plan['days']} days of history, {plan['callers']} callers; "
        f"the mean of {plan['loads']} loads, and the slowest until the last byte.\n"
        f"Target: {LIMIT_MS:g} ms for each page: {'met' if highest <= LIMIT_MS else 'missed'}."
    )
    yield figures_table(pages, "servers", "page", "mean_ms", "first_ms", "slowest_ms", "size_kib")


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("page", __doc__).parse_args()
    run_benchmark("page", arguments, partial(measure, QUICK if arguments.quick else FULL), render)


if __name__ == "__main__":
    main()
