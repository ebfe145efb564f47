"""`python -m benchmarks.retrieval`: all sets of a data directory, or one set from any files of that format.

`--corpus FILE… --queries FILE --out RUN.jsonl` writes a run, for an evaluation script to score. Without these,
every set of `--data` is measured, the JSON stored, and the Markdown rendered next to it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path

import anyio

from benchmarks.command import DATA, RESULTS, command
from benchmarks.retrieval.abstention import (
    MAX_TOOLS_ELSEWHERE,
    Judged,
    JudgedSet,
    curve,
    judge,
    judge_elsewhere,
    mean_curve,
)
from benchmarks.retrieval.data import read_queries, read_servers, write_run
from benchmarks.retrieval.documents import DOCUMENTS, filled
from benchmarks.retrieval.latency import measure_latency
from benchmarks.retrieval.report import render
from benchmarks.retrieval.results import Abstention, CorpusResult, Latency, Results, SetResult
from benchmarks.retrieval.rivals import RIVALS, ask_rival
from benchmarks.retrieval.scoring import Evaluation
from benchmarks.retrieval.sets import SETS, QuerySet
from benchmarks.retrieval.system import System, ask, ingested
from benchmarks.throughput.machine import this_machine
from shared.service.logging import configure_logging

K = 10
JUDGED = tuple(query_set for query_set in SETS if len(query_set.corpora) == 1 and not query_set.in_steps)


class Measurement:
    """A measurement in progress: set after set, corpus after corpus."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._evaluation = Evaluation(data)
        self.sets: list[SetResult] = []
        self.corpora: list[CorpusResult] = []
        self.latency: list[Latency] = []
        self._judged: dict[str, list[Judged]] = {}
        self._elsewhere: dict[str, list[float]] = defaultdict(list)

    def measure(self, sets: list[QuerySet], *, only_abstention: bool = False) -> None:
        """Measure these sets, which share their corpora."""
        servers = read_servers(sets[0].corpus_files(self._data))
        tools = sum(len(server.listing.tools) for server in servers)
        with ingested(servers) as system:
            name = " + ".join(sets[0].corpora)
            print(f"{name}: {tools} tools ingested in {system.ingested_s:.0f} s", flush=True)
            self.corpora.append(_corpus(name, tools, len(servers), system))
            self._judge(sets, system, tools)
            if only_abstention:
                return
            for query_set in sets:
                self._measure(query_set, system, tools)
            self.latency.append(measure_latency(system, tools, read_queries(sets[0].query_file(self._data))))

    def _measure(self, query_set: QuerySet, system: System, tools: int) -> None:
        queries = read_queries(query_set.query_file(self._data))
        run = anyio.run(partial(ask, system, queries, K, in_steps=query_set.in_steps))
        rivals = {
            name: self._evaluation.score(
                query_set.queries, ask_rival(system, queries, K, rank, in_steps=query_set.in_steps)
            )
            for name, rank in RIVALS.items()
        }
        score = self._evaluation.score(query_set.queries, run)
        print(f"  {query_set.name}: {score.recall_at_5} / {score.recall_at_8} / {score.recall_at_10}", flush=True)
        self.sets.append(
            SetResult(name=query_set.name, queries=len(queries), tools=tools, toolscale=score, rivals=rivals)
        )

    def abstention(self) -> Abstention:
        """Return how well it is known that nothing fits."""
        judged = {name: JudgedSet(own, self._elsewhere[name]) for name, own in self._judged.items()}
        sets = tuple(curve(name, judgements) for name, judgements in judged.items())
        return Abstention(made_at=_today(), means=mean_curve(judged), sets=sets)

    def _judge(self, sets: list[QuerySet], system: System, tools: int) -> None:
        for query_set in JUDGED:
            queries = read_queries(query_set.query_file(self._data))
            if query_set in sets:
                self._judged[query_set.name] = judge(system, queries)
            elif tools <= MAX_TOOLS_ELSEWHERE:
                self._elsewhere[query_set.name] += judge_elsewhere(system, queries)


def measure(data: Path) -> Results:
    """Measure every set."""
    started = time.perf_counter()
    measurement = Measurement(data)
    for _, sets in groupby(SETS, key=lambda query_set: query_set.corpora):
        measurement.measure(list(sets))
    return Results(
        made_at=_today(),
        seconds=round(time.perf_counter() - started, 1),
        machine=this_machine(),
        sets=tuple(measurement.sets),
        corpora=tuple(measurement.corpora),
        abstention=measurement.abstention(),
        latency=tuple(measurement.latency),
    )


def abstention_alone(data: Path) -> Abstention:
    """Measure only how well it is known that nothing fits."""
    measurement = Measurement(data)
    for _, sets in groupby(JUDGED, key=lambda query_set: query_set.corpora):
        measurement.measure(list(sets), only_abstention=True)
    return measurement.abstention()


def one_run(arguments: argparse.Namespace) -> None:
    """Write the run of one set."""
    queries = read_queries(arguments.queries)
    with ingested(read_servers(arguments.corpus)) as system:
        run = anyio.run(partial(ask, system, queries, arguments.k, in_steps=arguments.subqueries))
    write_run(arguments.out, run)
    print(f"Wrote {arguments.out}: {len(run)} queries, {sum(not tools for tools in run.values())} without a match")


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "retrieval.json").read_text(encoding="utf-8"))
    rendered = directory / "retrieval.md"
    rendered.write_text(render(kept), encoding="utf-8")
    print(f"Wrote {rendered}")
    for document in DOCUMENTS if directory == RESULTS else ():
        document.write_text(filled(document.read_text(encoding="utf-8"), kept), encoding="utf-8")
        print(f"Wrote {document}")


def main() -> None:
    """Do what the arguments ask for."""
    arguments = _arguments()
    configure_logging("WARNING")
    if arguments.queries:
        one_run(arguments)
        return
    kept = arguments.output / "retrieval.json"
    if arguments.abstention:
        results = {**json.loads(kept.read_text(encoding="utf-8")), "abstention": abstention_alone(arguments.data)}
        kept.write_text(Results.model_validate(results).model_dump_json(indent=2) + "\n", encoding="utf-8")
    elif not arguments.render:
        kept.write_text(measure(arguments.data).model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(arguments.output)


def _corpus(name: str, tools: int, servers: int, system: System) -> CorpusResult:
    return CorpusResult(
        name=name,
        tools=tools,
        servers=servers,
        ingested_s=round(system.ingested_s, 1),
        disk_mib=round(system.disk_mib, 1),
    )


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _arguments() -> argparse.Namespace:
    parser = command("retrieval", has_quick=False)
    one = parser.add_argument_group("one set")
    one.add_argument("--corpus", type=Path, nargs="+", action="extend", help="files of tools; several are one corpus")
    one.add_argument("--queries", type=Path, help="file of queries")
    one.add_argument("--out", type=Path, help="file of the run")
    one.add_argument("--subqueries", action="store_true", help="ask the steps of queries that carry them, in one call")
    one.add_argument("--k", type=int, default=K, help="tools to return, at most 50")
    every = parser.add_argument_group("all sets")
    every.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    every.add_argument("--abstention", action="store_true", help="measure only `no_match`, the rest stays as kept")
    arguments = parser.parse_args()
    if bool(arguments.queries) != bool(arguments.corpus and arguments.out):
        parser.error("--corpus, --queries and --out belong together")
    return arguments


if __name__ == "__main__":
    main()
