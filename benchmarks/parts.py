"""Parts: what does the service's interpreter do while it answers `find_tool`?

    pip install py-spy
    make bench BENCH=parts

`python -m query` answers clients of the MCP SDK, who search without a pause, among generated tools with vectors of the
bundled model. Every text is new. py-spy reads the stack of the thread that holds the interpreter, a few hundred times a
second; a reading counts for the part of its innermost frame that is in one of the files below.

- One thread holds the interpreter at a time, so this time bounds the answers a second. The model, and reads of files,
  work without it: they are in the processor time alone.
- py-spy slows the service, so trust shares over milliseconds.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import anyio
from mcp import Client

from benchmarks.catalogue import bundled_index, put_replicas
from benchmarks.compositions import Service, find_ms, index_settings, query_service
from benchmarks.corpora import MAX_BYTES, PROTOCOL_VERSION
from benchmarks.generated import definitions, queries, server_id
from benchmarks.harness import (
    Figures,
    Watches,
    command,
    head,
    in_fresh_process,
    processor_s,
    run_benchmark,
    table,
    wait_until_indexed,
)
from shared.catalog import Listing
from shared.text.embedding import FastEmbedder
from workers.fetch.definitions import read_definition

READINGS_PER_S = 300
# The parts, and what the files of their innermost frames have in their paths; of two that fit, the first.
PARTS: dict[str, tuple[str, ...]] = {
    "model": ("shared/text/embedding", "onnxruntime", "tokenizers"),
    "terms, and counting of tokens": ("shared/text/",),
    "index": ("shared/index/", "qdrant_edge", "qdrant_client"),
    "search and ranking": ("query/search/", "query/find.py", "query/named.py", "query/scopes.py"),
    "writing the answer": ("query/answers/", "query/tools/", "query/tool.py", "query/records.py", "query/kept.py"),
    "usage, logs and metrics": ("query/usage/", "query/metrics.py", "structlog", "logging/", "prometheus_client"),
    "other code of Toolscale": ("query/", "shared/", "toolscale/"),
    "MCP SDK": ("(mcp/", "(mcp_types/", "(sse_starlette/"),
    "HTTP": ("(uvicorn/", "(starlette/", "(h11/", "(httptools/"),
    "event loop and hand-overs to threads": ("(anyio/", "(asyncio/", "(concurrent/", "(threading.py"),
}
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run; each of the crowds of clients sends so many questions together."""

    name: str
    tools: int
    tools_per_server: int
    clients: tuple[int, ...]
    questions: int
    seed: int = 20260704


FULL = Plan("full", 1_000, tools_per_server=50, clients=(1, 50), questions=3_000)
QUICK = Plan("quick", 20, tools_per_server=10, clients=(2,), questions=100)


def measure(plan: Plan, watches: Watches) -> Figures:
    """Return the readings of each part, and the processor time of an answer, for each number of clients."""
    if shutil.which("py-spy") is None:
        raise SystemExit("parts needs py-spy, which is no package of the lock: pip install py-spy")

    def of_clients(clients: int) -> Figures:
        return in_fresh_process(_of_clients, clients, plan)

    answered = [watches.measure(f"{clients} at once", partial(of_clients, clients)) for clients in plan.clients]
    return {"plan": asdict(plan), "answered": answered}


def _of_clients(directory: Path, clients: int, plan: Plan) -> Figures:
    _fill(directory, plan)
    texts = queries(plan.questions + plan.questions // 10, plan.seed)
    first, measured = texts[plan.questions :], texts[: plan.questions]
    with query_service(directory) as service:
        anyio.run(_ask, service.url, first, clients)  # the first answers load what the others have
        before_s = processor_s(service.process)
        stacks = _read_while(service, directory / "stacks", lambda: anyio.run(_ask, service.url, measured, clients))
        spent_s = processor_s(service.process) - before_s
    readings = Counter[str]()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        readings[part_of(stack.split(";"))] += int(count)
    return {"clients": clients, "readings": readings, "processor_ms": spent_s * 1e3 / len(measured)}


def _fill(directory: Path, plan: Plan) -> None:
    listings: dict[str, Listing] = {}
    for name in map(server_id, range(plan.tools // plan.tools_per_server)):
        raw = definitions(name, plan.tools_per_server, plan.seed)
        read = (read_definition(each, PROTOCOL_VERSION, MAX_BYTES)[0] for each in raw)
        listings[name] = Listing(name, PROTOCOL_VERSION, tuple(read))
    with bundled_index(index_settings(directory)) as index:
        put_replicas(index, listings, FastEmbedder())
    wait_until_indexed()


async def _ask(url: str, texts: list[str], clients: int) -> None:
    async def ask(own: list[str]) -> None:
        async with Client(url) as client:
            for text in own:
                await find_ms(client, text)

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(ask, texts[number::clients])


def _read_while(service: Service, output: Path, ask: Callable[[], None]) -> str:
    """Return a line for each stack of the service while it is asked: its frames, the innermost last, and how often."""
    options = ["--gil", "--nonblocking", "--format", "raw", "--rate", str(READINGS_PER_S), "--duration", "unlimited"]
    reading = ["py-spy", "record", "--pid", str(service.process.pid), *options, "--output", str(output)]
    with subprocess.Popen(reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        try:
            ask()
        finally:
            reader.send_signal(signal.SIGINT)
    return output.read_text(encoding="utf-8")


def part_of(stack: list[str]) -> str:
    """Return the part of a stack, whose frames are `name (file:line)`, the innermost last."""
    for frame in reversed(stack):
        for part, paths in PARTS.items():
            if any(path in frame for path in paths):
                return part
    return OTHER


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    yield from head(__doc__, figures)
    plan, answered = figures["plan"], figures["answered"]
    yield f"{plan['tools']:,} tools, {plan['questions']:,} questions; the share of the interpreter's time."
    rows = [
        (part, *(f"{each['readings'].get(part, 0) / sum(each['readings'].values()):.0%}" for each in answered))
        for part in (*PARTS, OTHER)
    ]
    spent = ("processor time of an answer, ms", *(f"{each['processor_ms']:.2f}" for each in answered))
    yield table(("part", *(f"{each['clients']} at once" for each in answered)), [*rows, spent])
    files = ((part, ", ".join(f"`{path}`" for path in paths)) for part, paths in PARTS.items())
    yield table(("part", "files"), files)


def main() -> None:
    """Measure, or only render what is kept."""
    arguments = command("parts", __doc__).parse_args()
    run_benchmark("parts", arguments, partial(measure, QUICK if arguments.quick else FULL), render)


if __name__ == "__main__":
    main()
