"""`python -m benchmarks.replicas`: search among replicas, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command import DATA, command, run_benchmark
from benchmarks.replicas.catalogues import opened
from benchmarks.replicas.measuring import measure
from benchmarks.replicas.report import render
from benchmarks.replicas.results import Results
from benchmarks.retrieval.data import read_queries, read_servers
from benchmarks.retrieval.scoring import Evaluation
from benchmarks.search.vectors import KeptEmbedder
from benchmarks.throughput.machine import Watch, this_machine
from shared.text.embedding import FastEmbedder

CORPUS, QUERY_SETS = "livemcp", ("livemcp_tasks", "livemcp_agent")
# a server that many of the queries need
REPLICATED = "desktop-commander"
REPLICAS, ROUNDS = (10, 1_000), 3
QUICK_REPLICAS, QUICK_QUERIES = (2, 20), 10


def run(data: Path, *, quick: bool) -> Results:
    """Measure everything."""
    servers = read_servers([data / "corpora" / f"{CORPUS}.jsonl"])
    asked = {name: read_queries(data / "queries" / f"{name}.jsonl") for name in QUERY_SETS}
    queries = {name: found[: QUICK_QUERIES if quick else None] for name, found in asked.items()}
    replicas = QUICK_REPLICAS if quick else REPLICAS
    with opened(servers, REPLICATED, replicas, KeptEmbedder(None, FastEmbedder())) as systems:
        watch = Watch("find_tool")
        catalogues = measure(systems, queries, Evaluation(data).score, 1 if quick else ROUNDS)
        return Results(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            machine=this_machine(),
            conditions=watch.conditions(),
            queries=sum(map(len, queries.values())),
            replicas=replicas,
            replicated=REPLICATED,
            replicated_tools=sum(len(server.listing.tools) for server in servers if server.name == REPLICATED),
            catalogues=catalogues,
        )


def main() -> None:
    """Run the benchmark, or only render the kept JSON."""
    parser = command("replicas")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    arguments = parser.parse_args()
    run_benchmark("replicas", arguments, lambda: run(arguments.data, quick=arguments.quick), Results, render)


if __name__ == "__main__":
    main()
