"""Beside: what do requests, the write side and the tokens of answers cost, compared with an earlier build?

    git worktree add /tmp/earlier COMMIT && make -C /tmp/earlier .venv/.ready
    make bench BENCH=beside BENCH_ARGS=/tmp/earlier

Each build runs from its checkout, with the packages of its `.venv`, or without one with those of this build.
Both run in turns, so that both meet the same noise of the machine; `ratio` is of rounds side by side.
All that is used is public: commands, events, MCP requests, and the log lines `server_indexed` and `event_recorded`.

`--only reads`: `toolscale serve` lists generated servers, and ends; then `python -m query` of both builds answers the
same requests as plain HTTP, a batch of one build after that of the other, from one client, and from 16 and 50 at once.

`--only writes`: a life is a composition on empty stores. It lists new servers, after a first one that loads the model;
then copies of the first, and all again, of which none has changed, so that the processor seconds of this resync are the
milliseconds of one server; then it records events about a few servers, one by one and in batches.
With `QDRANT_URL` the second composition has its index on that server, which must be empty and is left empty.

`--only answers`: `toolscale serve` of each build lists the demo's servers, and a client asks `find_tool` the demo's
questions and one more, without other arguments. Counted are the whole text of each answer's first page, and the model
form of the tools in `tools/list` (cl100k_base). Tokens do not depend on the machine; only a cursor, which is random,
counts a few more or less.

- Builds, servers, Redis and client share the machine, so trust processor time over seconds.
- Processor time is that of all threads of Toolscale's processes, without Redis and a Qdrant server.
- Servers with events are listed again while events arrive, each at most every ten seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any

import anyio
import httpx2
import psutil
import yaml
from celery import Celery
from mcp import Client

from benchmarks.fleet_servers import Fleet, running_fleet
from benchmarks.generated import definitions, queries
from benchmarks.harness import MIB, ROOT, Figures, Watches, command, head, run_benchmark, spread, spread_cell, table
from shared.catalog import ToolDefinition
from shared.text.tokens import counter, model_text
from tests.support.ports import free_port
from tests.support.qdrant_server import emptied_qdrant, qdrant_url
from tests.support.redis_server import PROGRAM as REDIS
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually
from toolscale.demo.demo import QUESTIONS
from toolscale.demo.servers import install, write_config

# A median ratio above this is worse: rounds on a shared machine differ by more, their medians by less.
WORSE = 1.05
BATCH = 100
TOKEN = "a-token-of-the-benchmark"
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/cloudevents-batch+json"}
SETTINGS = {
    "TOOLSCALE_EVENTS_TOKEN": TOKEN,
    "TOOLSCALE_RESYNC_INTERVAL_S": "0",  # a server is listed only after an event
    "TOOLSCALE_SUBSCRIBE": "none",
}
ON_EDGE = {"REDIS_URL": "", "QDRANT_URL": ""}
RECORDED, NOT_RECORDED = 202, 503
# A build that needs longer for a step hangs.
STEP_WITHIN_S = 1_800.0
POLL_S = 0.01
TOOLSET = "bench"
ASKED = (*QUESTIONS, "store a value that expires after an hour")
REVISION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "beside", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run.

    Reads: servers of each catalogue, rounds, and requests of each kind in a round. `crowds` are clients at once; each
    crowd sends as many requests as the largest has clients.
    Writes: `new` servers with tools of their own, `copies` of the first one, `busy` ones with events, and lives.
    Answers: the directory of the demo's servers.
    """

    name: str
    servers: tuple[int, ...]
    rounds: int
    requests: int
    new: int
    copies: int
    tools: int
    events: int
    busy: int
    lives: int
    crowds: tuple[int, ...] = (16, 50)
    seed: int = 20260704
    demo: Path = ROOT / ".demo"


FULL = Plan("full", (50, 500), 40, 20, new=100, copies=899, tools=20, events=10_000, busy=20, lives=5)
QUICK = Plan("quick", (3,), 2, 2, new=3, copies=2, tools=2, events=20, busy=2, lives=1)


def compared(subject: str, before: Sequence[float], now: Sequence[float]) -> Figures:
    """Return the spreads of a cost of both builds by round, lower is better, and of the part of it that is left."""
    ratios = [later / earlier for earlier, later in zip(before, now, strict=True)]
    return {"subject": subject, "before": spread(before), "now": spread(now), "ratio": spread(ratios)}


# Programs of a build


@contextmanager
def program(
    checkout: Path, arguments: Sequence[str], log: Path, settings: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    """Run Python of a build with these arguments and these settings alone, and kill it at the end."""
    own = checkout / ".venv" / "bin" / "python"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLSCALE_")}
    # a start that compiles all modules again would take twice the time
    variables = {**inherited, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "", **SETTINGS, **settings}
    started = [str(own) if own.exists() else sys.executable, *arguments]
    with (
        log.open("wb") as output,
        subprocess.Popen(started, cwd=checkout, env=variables, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()  # its stores are thrown away


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process of this machine took, to a microsecond."""
    # the clock of another process's processor time, as clock_getcpuclockid(3) returns it; psutil counts hundredths
    return time.clock_gettime((~pid << 3) | 2)


def commit_of(checkout: Path) -> str:
    """Return the short commit of a checkout."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "an unknown commit"


# Reads


@dataclass(frozen=True, slots=True)
class Request:
    """A request; those of the toolset go to its path."""

    method: str
    params: dict[str, Any]
    has_toolset: bool = False


def called(tool: str, arguments: dict[str, Any], *, has_toolset: bool = False) -> Request:
    """Return a call of a built-in tool."""
    return Request("tools/call", {"name": tool, "arguments": arguments}, has_toolset)


def other_requests(tool: str) -> dict[str, Request]:
    """Return a request for each built-in tool but `find_tool`, and two for `tools/list`."""
    return {
        "describe_tool": called("describe_tool", {"names": [tool]}),
        "list_available_tools": called("list_available_tools", {}),
        "get_active_toolset": called("get_active_toolset", {}, has_toolset=True),
        "get_savings_report": called("get_savings_report", {}),
        "tools/list": Request("tools/list", {}),
        "tools/list, with a toolset": Request("tools/list", {}, has_toolset=True),
    }


@dataclass(frozen=True, slots=True)
class QueryService:
    """A running query service."""

    url: str
    pid: int
    client: httpx2.Client

    def answer(self, requests: Sequence[Request], clients: int = 1) -> float:
        """Return the processor time of the service for each request, in ms; so many clients send them at once.

        Raises:
            RuntimeError: an answer is an error.
        """
        began_s = processor_s(self.pid)
        with ThreadPoolExecutor(clients) as senders:
            for _ in senders.map(self._answer, requests):
                pass
        return (processor_s(self.pid) - began_s) * 1e3 / len(requests)

    def _answer(self, request: Request) -> None:
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": REVISION,
            "mcp-method": request.method,
            **({"mcp-name": request.params["name"]} if "name" in request.params else {}),
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": request.method, "params": {**request.params, "_meta": _META}}
        path = f"/mcp/{TOOLSET}" if request.has_toolset else "/mcp"
        response = self.client.post(self.url + path, headers=headers, json=body)
        if not response.is_success or '"isError":true' in response.text:
            raise RuntimeError(f"{request} was answered with {response.status_code}: {response.text[:500]}")

    def memory_mib(self) -> float:
        """Return the resident memory of the service, in MiB."""
        return psutil.Process(self.pid).memory_info().rss / MIB


@contextmanager
def query_service(checkout: Path, urls: Mapping[str, str]) -> Generator[QueryService]:
    """Have a build list these servers, and run its query service on the index."""
    with tempfile.TemporaryDirectory(prefix="toolscale-bench-") as name:
        directory, port = Path(name), free_port()
        with embedded(checkout, directory) as life:
            life.announce(urls)
            life.processes[0].send_signal(signal.SIGTERM)
            life.processes[0].wait(STEP_WITHIN_S)
        settings = {**ON_EDGE, "TOOLSCALE_DATA_DIR": name, "TOOLSCALE_PORT": str(port)}
        url, log = f"http://127.0.0.1:{port}", directory / "query.log"
        with (
            program(checkout, ["-m", "query"], log, settings) as process,
            # a build before this one closes a connection when the client would send on it again
            httpx2.Client(trust_env=False, timeout=60.0, limits=httpx2.Limits(keepalive_expiry=2.0)) as client,
        ):
            eventually(lambda: b"query_service_started" in log.read_bytes(), what=f"the query service of {checkout}")
            toolset = {"name": TOOLSET, "tools": [next(iter(urls))]}
            client.put(f"{url}/toolsets/{TOOLSET}", json=toolset).raise_for_status()
            yield QueryService(url, process.pid, client)


def measure_reads(builds: Sequence[Path], plan: Plan, watches: Watches) -> list[Figures]:
    """Return the processor time of each kind of request, at each size of the catalogue."""
    return [
        watches.measure(f"{servers * plan.tools:,} tools", partial(_reads, builds, servers, plan))
        for servers in plan.servers
    ]


def _reads(builds: Sequence[Path], servers: int, plan: Plan) -> Figures:
    fleet = Fleet(kind="generated", servers=servers, tools=plan.tools, seed=plan.seed)
    crowd = max(plan.crowds)
    texts = iter(queries((plan.rounds + 1) * (plan.requests + crowd * len(plan.crowds)), plan.seed))

    def searches(count: int) -> list[Request]:
        return [called("find_tool", {"tool_description": text}) for text in islice(texts, count)]

    rounds: list[dict[str, list[float]]] = []
    with running_fleet(fleet) as running, ExitStack() as stack:
        urls = {server.server_id: server.url for server in running.servers()}
        services = [stack.enter_context(query_service(build, urls)) for build in builds]
        first = next(iter(urls))
        others = other_requests(f"{first}:{definitions(first, plan.tools, plan.seed)[0]['name']}")
        for _ in range(plan.rounds + 1):
            new = searches(plan.requests)
            batches: dict[str, tuple[list[Request], int]] = {
                "find_tool, never asked before": (new, 1),
                "find_tool, asked before": (new, 1),
                **{f"find_tool, {clients} clients": (searches(crowd), clients) for clients in plan.crowds},
                **{name: ([request] * plan.requests, 1) for name, request in others.items()},
            }
            rounds.append({name: [each.answer(*batch) for each in services] for name, batch in batches.items()})
        memory = [[each.memory_mib()] for each in services]
    measured = rounds[1:]  # the first one warms up
    method = f"{plan.rounds} rounds of {plan.requests} of each kind"
    return {
        "title": f"At {servers * plan.tools:,} tools",
        "note": f"Processor time of the service for a request, in ms: {method}.",
        "rows": [
            *(compared(name, *zip(*(each[name] for each in measured), strict=True)) for name in measured[0]),
            compared("memory at the end, MiB", *memory),
        ],
    }


# Writes


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

    def announce(self, urls: Mapping[str, str]) -> None:
        """Announce these servers, and return when all are in the index."""
        self.post([event("up", server_id, url=url) for server_id, url in urls.items()])
        self.wait_for("server_indexed", "server", urls)

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
            for each in events:
                app.send_task("toolscale.accept_event", args=[each], queue="toolscale")
        self.wait_for("event_recorded", "event_id", [each["id"] for each in events])

    def wait_for(self, name: str, key: str, values: Iterable[str]) -> None:
        """Return when the log has a line of this name for each value of the field `key`, since the last call.

        Raises:
            RuntimeError: a process ended, or the lines did not come.
        """
        missing, deadline = set(values), time.monotonic() + STEP_WITHIN_S
        while missing:
            line = self.log.readline()
            if line.endswith(b"\n"):
                if f'"{name}"'.encode() in line:
                    missing.discard(json.loads(line)[key])
                continue
            self.log.seek(-len(line), os.SEEK_CUR)  # the rest of the line follows
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                end = Path(self.log.name).read_text(encoding="utf-8")[-2_000:]
                raise RuntimeError(f"no {name} of {len(missing)}, {min(missing)} among them:\n{end}")
            time.sleep(POLL_S)


Composition = Callable[[Path, Path], AbstractContextManager[Life]]
"""Runs a checkout's build in an empty directory."""


@contextmanager
def embedded(checkout: Path, directory: Path, *options: str) -> Generator[Life]:
    """Run `toolscale serve` with these options."""
    port, began, log = free_port(), time.perf_counter(), directory / "serve.log"
    settings = {**ON_EDGE, "TOOLSCALE_DATA_DIR": str(directory)}
    command = ["-m", "toolscale", "serve", "--port", str(port), *options]
    with program(checkout, command, log, settings) as serve, _life([serve], log, port) as life:
        for path in ("/healthz", "/readyz"):
            eventually(partial(life.answers, path))
            life.note(f"start until {path} answers", (began, 0.0))
        yield life


@contextmanager
def scaled(checkout: Path, directory: Path) -> Generator[Life]:
    """Run worker, beat and events API on Redis, with the commands of the build's docker-compose.yml."""
    services = yaml.safe_load((checkout / "docker-compose.yml").read_text(encoding="utf-8"))["services"]

    def arguments(service: str) -> list[str]:
        command, *rest = services[service]["command"]
        return rest if command == "python" else ["-m", command, *rest]

    port, log = free_port(), directory / "worker.log"
    beat = [*arguments("beat")[:-1], str(directory / "schedule")]
    with emptied_qdrant(), redis_server(directory) as redis_url:
        addresses = {"REDIS_URL": redis_url, "TOOLSCALE_EVENTS_PORT": str(port)}
        settings = {"TOOLSCALE_DATA_DIR": str(directory), **addresses}
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


def measure_writes(builds: Sequence[Path], plan: Plan, watches: Watches) -> list[Figures]:
    """Return the costs of each step of a life, in each composition."""
    compositions: dict[str, Composition] = {"toolscale serve": embedded, "worker and events API on Redis": scaled}
    distinct = Fleet(kind="generated", servers=1 + plan.new, tools=plan.tools, seed=plan.seed)
    same = Fleet(kind="replicas", servers=plan.copies, tools=plan.tools, seed=plan.seed)
    with running_fleet(distinct) as originals, running_fleet(same) as copies:
        urls = {server.server_id: server.url for server in originals.servers()}
        urls |= {f"copy-{server.server_id}": server.url for server in copies.servers()}
        return [
            watches.measure(name, partial(_writes, name, composition, builds, urls, plan))
            for name, composition in compositions.items()
        ]


def _writes(
    name: str, composition: Composition, builds: Sequence[Path], urls: Mapping[str, str], plan: Plan
) -> Figures:
    if composition is scaled and not REDIS:
        return {"title": name, "note": "Left out: redis-server is not installed.", "rows": []}

    def live(build: Path, steps: Callable[[Life], None]) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="toolscale-bench-") as directory:
            with composition(build, Path(directory)) as life:
                steps(life)
            return life.costs

    for build in builds:
        live(build, lambda _: None)  # compiles its modules
    lives: list[list[dict[str, float]]] = [[], []]
    for number in range(plan.lives):
        for turn in (0, 1) if number % 2 == 0 else (1, 0):
            lives[turn].append(live(builds[turn], partial(_take_steps, urls=urls, plan=plan)))
    before, now = lives
    index = "a Qdrant server" if composition is scaled and qdrant_url() else "Qdrant Edge"
    rows = [compared(cost, [costs[cost] for costs in before], [costs[cost] for costs in now]) for cost in now[0]]
    return {"title": name, "note": f"{plan.lives} lives of each build; the index is in {index}.", "rows": rows}


def _take_steps(life: Life, urls: Mapping[str, str], plan: Plan) -> None:
    def part(start: int, end: int) -> dict[str, str]:
        return dict(islice(urls.items(), start, end))

    life.announce(part(0, 1))  # loads the model
    began = life.spent()
    life.announce(part(1, 1 + plan.new))
    life.note(f"{plan.new * plan.tools:,} new tools", began)
    life.announce(part(1 + plan.new, len(urls)))
    began = life.spent()
    life.post([event("changed", server_id) for server_id in urls])
    life.wait_for("server_indexed", "server", urls)
    life.note(f"resync of {len(urls):,} unchanged servers", began)
    busy = list(islice(cycle(islice(urls, plan.busy)), plan.events))
    for way, record in (("one by one", life.record_each), (f"in batches of {BATCH}", life.post)):
        events = [event("changed", server_id) for server_id in busy]
        began = life.spent()
        record(events)
        life.note(f"{plan.events:,} events {way}", began)
    life.costs["memory at the end, MiB"] = psutil.Process(life.processes[0].pid).memory_info().rss / MIB


def event(kind: str, server_id: str, **data: str) -> Event:
    """Return a CloudEvent as docs/events.md describes it."""
    attributes = {"specversion": "1.0", "id": uuid.uuid4().hex, "source": "benchmarks/beside"}
    return {**attributes, "type": f"dev.toolscale.server.{kind}", "data": {"server_id": server_id, **data}}


# Answers


def measure_answers(builds: Sequence[Path], plan: Plan, watches: Watches) -> list[Figures]:
    """Return the tokens of the tools in `tools/list` and of each answer, among the demo's tools."""
    servers = [server.server_id for server in install(plan.demo, print)]
    config = str(write_config(plan.demo).resolve())

    def answers_of(build: Path) -> dict[str, tuple[int, int]]:
        with (
            tempfile.TemporaryDirectory(prefix="toolscale-bench-", ignore_cleanup_errors=True) as directory,
            embedded(build, Path(directory), "--config", config) as life,
        ):
            life.wait_for("server_indexed", "server", servers)
            return anyio.run(_answers, str(httpx2.URL(life.url).join("/mcp")))

    before, now = (
        watches.measure(f"answers {name}", partial(answers_of, build))
        for name, build in zip(("before", "now"), builds, strict=True)
    )
    rows = [
        compared(f"{subject} ({before[subject][0]} and {tools} tools)", [before[subject][1]], [tokens])
        for subject, (tools, tokens) in now.items()
    ]
    asked = [[sum(build[question][1] for question in ASKED)] for build in (before, now)]
    return [
        {
            "title": "Tokens of an answer",
            "note": f"Among the tools of the demo's {len(servers)} servers, in tokens; with the tools in it.",
            "rows": [*rows, compared("all questions", *asked)],
        }
    ]


async def _answers(url: str) -> dict[str, tuple[int, int]]:
    """Return the numbers of tools and tokens of `tools/list` and of the answer to each question."""
    count = counter("cl100k_base")
    async with Client(url) as client:
        listed = (await client.list_tools()).tools
        wires = (tool.model_dump_json(by_alias=True, exclude_none=True) for tool in listed)
        definitions = count("".join(model_text(ToolDefinition.from_wire(wire)) for wire in wires))
        counts = {"tools/list, model form": (len(listed), definitions)}
        for question in ASKED:
            answer = await client.call_tool("find_tool", {"tool_description": question})
            texts = [block.text for block in answer.content if block.type == "text"]
            found: dict[str, Any] = json.loads(texts[-1])
            counts[question] = (len(found["tools"]), count("".join(texts)))
    return counts


# The report

PARTS = {"reads": measure_reads, "writes": measure_writes, "answers": measure_answers}


def measure(part: str, before: Path, plan: Plan, watches: Watches) -> Figures:
    """Measure a part of both builds."""
    found = PARTS[part]([before, ROOT], plan, watches)
    return {"plan": {"name": plan.name}, "before": commit_of(before), "now": commit_of(ROOT), "tables": found}


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    yield from head(__doc__, figures)
    yield (
        f"This build is {figures['now']}, the earlier one {figures['before']}.\n"
        "Medians, with the lowest and highest round; lower is better."
    )
    for found in figures["tables"]:
        yield f"## {found['title']}"
        worse = "; ".join(row["subject"] for row in found["rows"] if row["ratio"]["median"] > WORSE)
        yield f"{found['note']}\nMore than {100 * (WORSE - 1):.0f} % worse: {worse or 'nothing'}."
        columns = ("before", "now", "ratio")
        rows = [(row["subject"], *(spread_cell(row[column]) for column in columns)) for row in found["rows"]]
        yield table(("cost", *columns), rows)


def main() -> None:
    """Measure the parts, or only render the kept results."""
    parser = command("beside", __doc__, needs_demo=True)
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="of the earlier build; default: this one")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these parts alone")
    arguments = parser.parse_args()
    for part in arguments.only:
        plan = replace(QUICK if arguments.quick else FULL, demo=arguments.demo)
        run_benchmark(f"beside-{part}", arguments, partial(measure, part, arguments.checkout.resolve(), plan), render)


if __name__ == "__main__":
    main()
