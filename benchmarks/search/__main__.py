"""`python -m benchmarks.search`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks import qdrant
from benchmarks.command import DATA, command, kept_name, run_benchmark
from benchmarks.retrieval.data import CorpusServer, read_queries, read_servers
from benchmarks.search.catalogue import PreparedServer, enough, prepare
from benchmarks.search.measuring import measure_alone
from benchmarks.search.plan import FULL, QUICK, Plan
from benchmarks.search.report import render
from benchmarks.search.results import Results, Size
from benchmarks.search.vectors import KeptEmbedder
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.machine import Watches, this_machine
from shared.text.embedding import FastEmbedder
from tests.support.qdrant_server import qdrant_url

QUERY_SETS = ("livemcp_agent", "toolsieve")


def run(plan: Plan, data: Path, vectors: Path | None) -> Results:
    """Measure everything the plan asks for."""
    servers = enough(read_servers([data / "corpora" / "haystack.jsonl"]), max(plan.sizes))
    prepared, texts = _embedded(servers, vectors), _texts(plan, data)
    watches = Watches()
    sizes = [watches.measure(f"{tools} tools", partial(_size, plan, tools, prepared, texts)) for tools in plan.sizes]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        server=_server_version(),
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        corpus_tools=sum(len(transcript.listing.tools) for transcript in servers),
        queries=len(texts),
        sizes=tuple(sizes),
    )


def _server_version() -> str:
    url = qdrant_url()
    return str(qdrant.read(url, "/")["version"]) if url else ""


def _size(plan: Plan, tools: int, prepared: Sequence[PreparedServer], texts: Sequence[str]) -> Size:
    return in_fresh_process(measure_alone, plan, tools, prepared, texts)


def _embedded(servers: Sequence[CorpusServer], vectors: Path | None) -> list[PreparedServer]:
    embedder = KeptEmbedder(vectors, FastEmbedder())
    prepared = prepare(servers, embedder)
    embedder.keep()
    return prepared


def _texts(plan: Plan, data: Path) -> list[str]:
    queries = (query for name in QUERY_SETS for query in read_queries(data / "queries" / f"{name}.jsonl"))
    return [" ".join(query.text.split()[: plan.words]) for query in queries][: plan.queries]


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = command("search")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    parser.add_argument("--vectors", type=Path, help="a file that keeps the corpus's vectors from one run to the next")
    parser.add_argument("--sizes", type=int, nargs="+", default=FULL.sizes, help="numbers of tools")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL.model_copy(update={"sizes": tuple(arguments.sizes)})
    run_benchmark(kept_name("search"), arguments, lambda: run(plan, arguments.data, arguments.vectors), Results, render)


if __name__ == "__main__":
    main()
