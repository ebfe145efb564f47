"""`python -m benchmarks.training.evaluation MODEL OUT`: recall of `find_tool` with the model of the directory MODEL.

It runs in the project's environment. OUT gets `scores.json` and a run of each set, which `evaluate.py` compares with
those of another model. Without MODEL, as `-`, the bundled model is measured.
With `--leaner`, all definitions have the shorter form that `toolscale lint --leaner` prints.
With `--passages OTHER`, MODEL embeds the requests only, and OTHER the tools.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import anyio
import numpy as np
from numpy.typing import NDArray

from benchmarks.command import DATA
from benchmarks.retrieval.data import CorpusServer, read_queries, read_servers, write_run
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.scoring import Evaluation
from benchmarks.retrieval.sets import SETS, QuerySet
from benchmarks.retrieval.system import ask, ingested
from shared.service.logging import configure_logging
from shared.text.embedding import BUNDLED_DIMENSION, BundledModel, bundled_model
from shared.text.tokens import counter
from toolscale.lint.rules import shorter_definitions

K = 10
SCORES = "scores.json"
OWN = QuerySet("own_dev", "own_dev", ("haystack",), 5)
# The rule of docs/model.md chooses by the mean over these.
CHOOSING = ("livemcp_tasks", "livemcp_agent", "toolsieve", "mcpbench_single", "own_dev")
# It excludes a model that finds less on one of these.
GUARDS = ("mcpproxy_golden", "mcpzero_task_dev", "mcpzero_agent_dev")


class TrainedModel:
    """An embedder with the model of one directory, or of one each for queries and passages. Thread-safe."""

    model = "toolscale/trained"
    dimension = BUNDLED_DIMENSION

    def __init__(self, queries: Path, passages: Path | None = None) -> None:
        self._queries = BundledModel(queries)
        self._passages = BundledModel(passages) if passages else self._queries

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows."""
        return self._passages.passages(texts)

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length."""
        return self._queries.query(text)


def shortened(server: CorpusServer) -> CorpusServer:
    """Return the server with the shorter forms of its definitions."""
    shorter = shorter_definitions(server.listing.tools, counter("cl100k_base"))
    return replace(server, listing=replace(server.listing, tools=tuple(each.definition for each in shorter)))


def measure(
    sets: Sequence[QuerySet], model: TrainedModel, out: Path, data: Path, *, with_leaner: bool = False
) -> dict[str, Score]:
    """Return the score of each set, and write its run to the directory `out`."""
    evaluation, scores = Evaluation(data), dict[str, Score]()
    for _, together in groupby(sets, key=lambda query_set: query_set.corpora):
        own = list(together)
        servers = read_servers(own[0].corpus_files(data))
        servers = list(map(shortened, servers)) if with_leaner else servers
        with ingested(servers, model) as system:
            for query_set in own:
                queries = read_queries(query_set.query_file(data))
                run = anyio.run(partial(ask, system, queries, K, in_steps=query_set.in_steps))
                write_run(out / f"{query_set.name}.jsonl", run)
                scores[query_set.name] = evaluation.score(query_set.queries, run)
                print(f"{query_set.name}: {scores[query_set.name]}", flush=True)
    return scores


def mean(scores: dict[str, Score]) -> float | None:
    """Return the mean of recall at 5 and at 10 over the sets of CHOOSING, in percent; None if one is missing."""
    if not scores.keys() >= set(CHOOSING):
        return None
    return round(float(np.mean([(scores[name].recall_at_5 + scores[name].recall_at_10) / 2 for name in CHOOSING])), 2)


def read_scores(directory: Path) -> dict[str, Score]:
    """Return the scores that `main` wrote to this directory."""
    kept = json.loads((directory / SCORES).read_text(encoding="utf-8"))
    return {name: Score.model_validate(score) for name, score in kept["sets"].items()}


def main() -> None:
    """Measure and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=[*CHOOSING, *GUARDS], choices=[each.name for each in (*SETS, OWN)])
    parser.add_argument("--passages", type=Path, metavar="OTHER", help="the model of the tools")
    parser.add_argument("--leaner", action="store_true", help="measure the shorter form of all definitions")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    arguments = parser.parse_args()
    configure_logging("WARNING")
    arguments.out.mkdir(parents=True, exist_ok=True)
    sets = [query_set for query_set in (*SETS, OWN) if query_set.name in arguments.sets]
    directory = bundled_model() if str(arguments.model) == "-" else arguments.model
    model = TrainedModel(directory, arguments.passages)
    scores = measure(sets, model, arguments.out, arguments.data, with_leaner=arguments.leaner)
    kept = {"mean": mean(scores), "sets": {name: score.model_dump() for name, score in scores.items()}}
    (arguments.out / SCORES).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
