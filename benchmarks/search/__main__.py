"""`python -m benchmarks.search`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.retrieval.data import CorpusServer, read_queries, read_servers
from benchmarks.search.catalogue import PreparedServer, enough, prepare
from benchmarks.search.measuring import measure_alone
from benchmarks.search.plan import FULL, QUICK, Plan
from benchmarks.search.report import render
from benchmarks.search.results import Results, Size
from benchmarks.search.vectors import KeptEmbedder
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.machine import Conditions, Watch, this_machine
from shared.observability.logging import configure_logging
from shared.text.embedding import FastEmbedder

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "retrieval"
RESULTS = ROOT / "benchmarks" / "results"
QUERY_SETS = ("livemcp_agent", "toolsieve")


def run(plan: Plan, data: Path, vectors: Path | None) -> Results:
    """Measure everything the plan asks for."""
    servers = enough(read_servers([data / "corpora" / "haystack.jsonl"]), max(plan.sizes))
    prepared, texts = _embedded(servers, vectors), _texts(plan, data)
    conditions: list[Conditions] = []
    sizes: list[Size] = []
    for tools in plan.sizes:
        watch = Watch(f"{tools} tools")
        sizes.append(in_fresh_process(measure_alone, plan, tools, prepared, texts))
        conditions.append(watch.conditions())
        print(f"{tools} tools: measured in {conditions[-1].seconds:.0f} s", flush=True)
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(conditions),
        corpus_tools=sum(len(transcript.listing.tools) for transcript in servers),
        queries=len(texts),
        sizes=tuple(sizes),
    )


def _embedded(servers: Sequence[CorpusServer], vectors: Path | None) -> list[PreparedServer]:
    embedder = KeptEmbedder(vectors, FastEmbedder())
    prepared = prepare(servers, embedder)
    embedder.keep()
    return prepared


def _texts(plan: Plan, data: Path) -> list[str]:
    queries = (query for name in QUERY_SETS for query in read_queries(data / "queries" / f"{name}.jsonl"))
    return [" ".join(query.text.split()[: plan.words]) for query in queries][: plan.queries]


def write(results: Results, directory: Path) -> None:
    """Keep the results as JSON, and the report rendered from that JSON."""
    (directory / "search.json").write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(directory)


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "search.json").read_text(encoding="utf-8"))
    (directory / "search.md").write_text(render(kept), encoding="utf-8")


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of search.json and search.md")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    parser.add_argument("--vectors", type=Path, help="a file that keeps the corpus's vectors from one run to the next")
    arguments = parser.parse_args()
    configure_logging("WARNING")
    if not arguments.render:
        write(run(QUICK if arguments.quick else FULL, arguments.data, arguments.vectors), arguments.output)
    else:
        report(arguments.output)


if __name__ == "__main__":
    main()
