"""Recall of each system on the sets of `benchmarks.retrieval`, scored by the script of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.answering import ToolKey
from benchmarks.peers.corpora import write_tools
from benchmarks.peers.launching import Launcher
from benchmarks.peers.process import BrokenError, OutOfTimeError, System
from benchmarks.peers.results import SetRecall
from benchmarks.retrieval.data import Query, read_queries, write_run
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.scoring import Evaluation
from benchmarks.retrieval.sets import QuerySet

K = 10
# Recall is not timed: these limits only stop a system that hangs.
READY_WITHIN_S = 3600.0
ANSWER_WITHIN_S = 300.0

Run = Mapping[str, Sequence[ToolKey]]


def measure_recall(data: Path, sets: Sequence[QuerySet], launcher: Launcher, runs: Path | None) -> list[SetRecall]:
    """Return what all systems find on these sets; the runs are written to a directory, where one is given."""
    found: list[SetRecall] = []
    for corpora, own in groupby(sets, key=lambda query_set: query_set.corpora):
        found += _over_corpus(data, corpora, list(own), launcher, runs)
    return found


def _over_corpus(
    data: Path, corpora: tuple[str, ...], sets: Sequence[QuerySet], launcher: Launcher, runs: Path | None
) -> list[SetRecall]:
    scores: dict[str, dict[str, Score]] = {query_set.name: {} for query_set in sets}
    failed: dict[str, dict[str, str]] = {query_set.name: {} for query_set in sets}
    with TemporaryDirectory(prefix="toolscale-peers-") as directory:
        file = Path(directory) / "tools.jsonl"
        tools = write_tools(sets[0].corpus_files(data), file)
        print(f"{' + '.join(corpora)}: {tools} tools", flush=True)
        for name in launcher.names:
            try:
                with launcher.running(name, file) as system:
                    system.ready(READY_WITHIN_S)
                    for query_set in sets:
                        scores[query_set.name][name] = _score(query_set, data, system, name, runs)
            except (OutOfTimeError, BrokenError) as error:
                print(f"  {name}: {error}", flush=True)
                failed |= {query_set.name: {**failed[query_set.name], name: str(error)} for query_set in sets}
    counts = {query_set.name: len(read_queries(query_set.query_file(data))) for query_set in sets}
    return [
        SetRecall(
            name=query_set.name,
            queries=counts[query_set.name],
            tools=tools,
            scores=scores[query_set.name],
            failed={name: why for name, why in failed[query_set.name].items() if name not in scores[query_set.name]},
        )
        for query_set in sets
    ]


def _score(query_set: QuerySet, data: Path, system: System, name: str, runs: Path | None) -> Score:
    queries = read_queries(query_set.query_file(data))
    run = {query.id: system.ask(_steps(query, query_set), K, ANSWER_WITHIN_S).ranked for query in queries}
    if runs:
        runs.mkdir(parents=True, exist_ok=True)
        write_run(runs / f"{query_set.name}, {name}.jsonl", run)
    score = Evaluation(data).score(query_set.queries, run)
    print(f"  {query_set.name}, {name}: {score.recall_at_5} / {score.recall_at_10}", flush=True)
    return score


def _steps(query: Query, query_set: QuerySet) -> Sequence[str]:
    return query.steps if query_set.in_steps and query.steps else (query.text,)
