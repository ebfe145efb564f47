"""Models: how much does `find_tool` find with each of them?

`python -m benchmarks.model.evaluation NAME=DIRECTORY ...` compares the models of these directories; NAME alone is the
bundled one. The last model is compared with the first, query by query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import anyio
import numpy as np
from numpy.typing import NDArray

from benchmarks.corpora import ask, ingested, read_queries, read_servers
from benchmarks.harness import DATA, Figures, command, head, run_benchmark, table
from benchmarks.retrieval import QUICK, SETS, Evaluation, QuerySet, Score
from shared.text.embedding import BUNDLED_DIMENSION, BundledModel, bundled_model

K = 10
CUTS = (5, 10)
DRAWS = 2_000
OWN = QuerySet("own_dev", "own_dev", ("haystack",))
# The rule of docs/model.md chooses by the mean over these.
CHOOSING = ("livemcp_tasks", "livemcp_agent", "toolsieve", "mcpbench_single", "own_dev")
# It excludes a model that finds less on one of these.
GUARDS = ("mcpproxy_golden", "mcpzero_task_dev", "mcpzero_agent_dev")
MEASURED = tuple(query_set for query_set in (*SETS, OWN) if query_set.name in (*CHOOSING, *GUARDS))

Shares = NDArray[np.float64]


class TrainedModel(BundledModel):
    """An embedder with the model of a directory. Thread-safe."""

    model = "toolscale/trained"
    dimension = BUNDLED_DIMENSION


def measure(models: Mapping[str, Path], sets: Sequence[QuerySet], data: Path) -> Figures:
    """Return the score of each set with each model, and the differences between the first and the last model."""
    evaluation = Evaluation(data)
    scores: dict[str, dict[str, Score]] = {name: {} for name in models}
    recalls: dict[tuple[str, str, int], Shares] = {}
    for _, together in groupby(sets, key=lambda query_set: query_set.corpora):
        own = list(together)
        servers = read_servers(own[0].corpus_files(data))
        for name, directory in models.items():
            with ingested(servers, TrainedModel(directory)) as system:
                for query_set in own:
                    queries = read_queries(query_set.query_file(data))
                    run = anyio.run(partial(ask, system, queries, K, in_steps=query_set.in_steps))
                    scores[name][query_set.name] = evaluation.score(query_set.queries, run)
                    for cut in CUTS:
                        shares = evaluation.recalls(query_set.queries, run, cut)
                        recalls[name, query_set.name, cut] = 100 * np.array(shares)
                    print(f"{name}, {query_set.name}: {scores[name][query_set.name]}", flush=True)
    before, after = next(iter(models)), list(models)[-1]
    changes = [
        change(query_set.name, cut, recalls[before, query_set.name, cut], recalls[after, query_set.name, cut])
        for query_set in sets
        for cut in CUTS
    ]
    return {"before": before, "after": after, "models": scores, "changes": changes}


def mean(scores: Mapping[str, Score]) -> float:
    """Return the mean of recall at 5 and at 10 over the sets of CHOOSING, in percent; NaN if one is missing."""
    if not scores.keys() >= set(CHOOSING):
        return float("nan")
    return float(np.mean([(scores[name]["recall_at_5"] + scores[name]["recall_at_10"]) / 2 for name in CHOOSING]))


def change(name: str, cut: int, before: Shares, after: Shares) -> Figures:
    """Return the mean of the paired differences in points, and the 95 % interval of their bootstrap."""
    differences = after - before
    rng = np.random.default_rng(0)
    means = [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, [2.5, 97.5])
    values = (before.mean(), after.mean(), differences.mean(), low, high)
    figures = [round(float(value), 1) for value in values]
    keys = ("before", "after", "difference", "low", "high")
    return {"name": name, "cut": cut, "queries": len(before), **dict(zip(keys, figures, strict=True))}


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    sets = list(next(iter(figures["models"].values())))
    if "made_at" in figures:
        yield from head(__doc__, figures)
    else:  # the kept run is from before runs were dated
        yield "# Models"
    yield "The rule is [how a model is chosen](../../docs/model.md#how-it-is-chosen)."
    yield f"Recall at 5 / at 10, in percent; *mean* is that of both over {', '.join(CHOOSING)}."
    yield table(("model", "mean", *sets), [_row(*each) for each in figures["models"].items()])
    yield f"## {figures['after']} beside {figures['before']}"
    yield "The difference in points has the 95 % interval of a paired bootstrap."
    columns = ("set", "queries", "recall at", "before", "after", "difference")
    yield table(columns, map(_change_row, figures["changes"]))


def _row(name: str, scores: Mapping[str, Score]) -> list[str]:
    both = (f"{score['recall_at_5']} / {score['recall_at_10']}" for score in scores.values())
    return [name, f"{mean(scores):.2f}", *both]


def _change_row(found: Figures) -> list[str]:
    difference = f"{found['difference']:+.1f} ({found['low']:+.1f} to {found['high']:+.1f})"
    return [
        found["name"],
        f"{found['queries']:,}",
        *(str(found[key]) for key in ("cut", "before", "after")),
        difference,
    ]


def main() -> None:
    """Measure the models, or only render the kept results."""
    parser = command("model.evaluation", __doc__)
    parser.add_argument("models", nargs="*", metavar="NAME=DIRECTORY", default=["bundled"])
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    arguments = parser.parse_args()
    pairs = (model.partition("=") for model in arguments.models)
    models = {name: Path(directory) if directory else bundled_model() for name, _, directory in pairs}
    sets = [query_set for query_set in MEASURED if not arguments.quick or query_set.name == QUICK]
    run_benchmark("model", arguments, lambda _: measure(models, sets, arguments.data), render)


if __name__ == "__main__":
    main()
