"""`python -m benchmarks.peers`: compare the systems, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.command import DATA, command
from benchmarks.peers.candidates import CANDIDATES, Candidate
from benchmarks.peers.latency import ALL_ANSWERS_S, READY_S, Limits, measure_latency
from benchmarks.peers.launching import Launcher
from benchmarks.peers.process import ROOT
from benchmarks.peers.recall import measure_recall
from benchmarks.peers.report import render
from benchmarks.peers.results import Compared, LatencyPart, RecallPart, Results
from benchmarks.retrieval.data import read_queries
from benchmarks.retrieval.sets import SETS
from benchmarks.throughput.machine import Conditions, Watch, this_machine

SIZES = (1_000, 10_000, 100_000)
QUERIES = 60
PARTS = ("recall", "latency")


def recall_part(arguments: argparse.Namespace, launcher: Launcher) -> RecallPart:
    """Return what all systems find on all sets."""
    watch = Watch("recall")
    sets = [query_set for query_set in SETS if not arguments.sets or query_set.name in arguments.sets]
    found = tuple(measure_recall(arguments.data, sets, launcher, arguments.runs))
    return RecallPart(**_made([watch.conditions()]), sets=found)


def latency_parts(arguments: argparse.Namespace, launcher: Launcher) -> tuple[LatencyPart, ...]:
    """Return how long all systems take, size by size."""
    corpus = arguments.data / "corpora" / f"{arguments.corpus}.jsonl"
    queries = [query.text for query in read_queries(arguments.data / "queries" / f"{arguments.queries}.jsonl")]
    parts: list[LatencyPart] = []
    for size in arguments.sizes:
        print(f"{size} tools", flush=True)
        watch = Watch(f"latency at {size} tools")
        systems = measure_latency(corpus, size, queries[:QUERIES], launcher, arguments.limits)
        parts.append(LatencyPart(**_made([watch.conditions()]), tools=size, systems=tuple(systems)))
    return tuple(parts)


def merged(
    kept: Results | None,
    candidates: Sequence[Candidate],
    recall: RecallPart | None = None,
    latency: Sequence[LatencyPart] = (),
) -> Results:
    """Return the results with what is new in place of what was kept of the same part and size."""
    before = kept or Results(systems=())
    by_size = {part.tools: part for part in (*before.latency, *latency)}
    return Results(
        systems=tuple(
            Compared(name=candidate.name, version=candidate.version, given=candidate.given) for candidate in candidates
        ),
        recall=recall or before.recall,
        latency=tuple(by_size[size] for size in sorted(by_size)),
    )


def main() -> None:
    """Do what the arguments ask for."""
    arguments = _arguments()
    file = arguments.output / "peers.json"
    kept = Results.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None
    if not arguments.render:
        kept = _measured(arguments, kept)
        file.write_text(kept.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if kept:
        rendered = arguments.output / "peers.md"
        rendered.write_text(render(kept), encoding="utf-8")
        print(f"Wrote {rendered}")


def _measured(arguments: argparse.Namespace, kept: Results | None) -> Results:
    with TemporaryDirectory(prefix="toolscale-peers-") as nowhere:
        launcher = Launcher(CANDIDATES, arguments.environments, arguments.vectors or Path(nowhere))
        launcher.prepare()
        recall = recall_part(arguments, launcher) if "recall" in arguments.only else None
        latency = latency_parts(arguments, launcher) if "latency" in arguments.only else ()
        return merged(kept, CANDIDATES, recall, latency)


def _made(conditions: Sequence[Conditions]) -> dict[str, Any]:
    return {"made_at": f"{datetime.now(UTC):%Y-%m-%d}", "machine": this_machine(), "conditions": tuple(conditions)}


def _arguments() -> argparse.Namespace:
    parser = command("peers", has_quick=False)
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these; the other part stays as it was kept")
    add("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    add("--sets", nargs="+", help="names of the sets for recall; all without it")
    add("--runs", type=Path, help="directory to write the runs to, for an evaluation script")
    add(
        "--sizes",
        type=int,
        nargs="+",
        default=SIZES,
        help="numbers of tools for latency; other sizes stay as they were kept",
    )
    add("--corpus", default="haystack", help="corpus that is cut or repeated to a size")
    add("--queries", default="livemcp_agent", help="queries that are asked for latency")
    add("--ready-s", type=float, default=READY_S, help="seconds a system has to take in the tools of a size")
    add("--all-answers-s", type=float, default=ALL_ANSWERS_S, help="seconds a system has for a size's queries")
    add("--environments", type=Path, default=ROOT / ".peers", help="directory of the peers' environments")
    add("--vectors", type=Path, help="directory to keep vectors of tools in; without it, they are embedded anew")
    arguments = parser.parse_args()
    arguments.limits = Limits(ready_s=arguments.ready_s, all_answers_s=arguments.all_answers_s)
    return arguments


if __name__ == "__main__":
    main()
