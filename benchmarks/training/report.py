"""`python -m benchmarks.training.report CHOSEN NAME=DIR ...`: keep the scores of all candidates, and render them.

A DIR is an OUT of `benchmarks.training.evaluation`; the first one is the model before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from benchmarks.command import DATA, command, run_benchmark
from benchmarks.retrieval.data import ToolKey, read_run
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.scoring import Evaluation
from benchmarks.throughput.report import table
from benchmarks.throughput.results import Frozen
from benchmarks.training.evaluation import CHOOSING, GUARDS, mean, read_scores

Shares = NDArray[np.float64]

CUTS = (5, 10)
DRAWS = 2_000


class Change(Frozen):
    """Recall on a set at one cut-off, in percent, and the difference with its 95 % interval, in points."""

    name: str
    cut: int
    queries: int
    before: float
    after: float
    difference: float
    interval: tuple[float, float]


class Results(Frozen):
    """The scores of all candidates; the first one is the model before, and stays if it is the chosen one.

    `changes` are between the model before and `compared`, or the chosen one.
    `later` has those of runs that were measured after the choice, such as the chosen one, made again.
    """

    chosen: str
    compared: str = ""
    candidates: dict[str, dict[str, Score]]
    changes: list[Change]
    later: dict[str, dict[str, Score]] = Field(default_factory=dict[str, dict[str, Score]])


def measured(chosen: str, compared: str, directories: Mapping[str, Path], data: Path) -> Results:
    """Return the scores that lie in these directories."""
    before, after = next(iter(directories.values())), directories[compared or chosen]
    evaluation = Evaluation(data)
    return Results(
        chosen=chosen,
        compared=compared,
        candidates={name: read_scores(directory) for name, directory in directories.items()},
        changes=[_change(name, cut, before, after, evaluation) for name in (*CHOOSING, *GUARDS) for cut in CUTS],
    )


def _change(name: str, cut: int, before: Path, after: Path, evaluation: Evaluation) -> Change:
    runs = [read_run(directory / f"{name}.jsonl") for directory in (before, after)]
    shares = [_shares(name, cut, run, evaluation) for run in runs]
    return changed(name, cut, *shares)


def _shares(name: str, cut: int, run: Mapping[str, Sequence[ToolKey]], evaluation: Evaluation) -> Shares:
    return 100 * np.array(evaluation.recalls(name, run, cut))


def changed(name: str, cut: int, before: Shares, after: Shares) -> Change:
    """Return the mean of the paired differences, and the interval of their bootstrap."""
    differences = after - before
    rng = np.random.default_rng(0)
    means = [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, [2.5, 97.5])
    figures = [round(float(value), 1) for value in (before.mean(), after.mean(), differences.mean(), low, high)]
    return Change(
        name=name,
        cut=cut,
        queries=len(before),
        before=figures[0],
        after=figures[1],
        difference=figures[2],
        interval=(figures[3], figures[4]),
    )


def render(results: Results) -> str:
    """Return the report."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield from ("# Choice of a bundled model", "")
    rule = "[how a model is chosen](../../docs/model.md#how-it-is-chosen)"
    yield f"Rendered from the JSON file beside it; the rule is {rule}."
    yield from ("", "## Candidates", "")
    yield "Recall at 5 / at 10, in percent, through `find_tool`."
    yield f"*Mean* is that of both over {', '.join(CHOOSING)}; `{results.chosen}` is chosen."
    yield ""
    yield from table(("model", "mean", *CHOOSING, *GUARDS), [_row(*each) for each in results.candidates.items()])
    if results.later:
        yield from ("", "## After the choice", "")
        yield "Measured on a processor without VNNI, with the product of a later day."
        yield ""
        yield from table(("model", "mean", *CHOOSING, *GUARDS), [_row(*each) for each in results.later.items()])
    yield from ("", f"## {results.compared or results.chosen} beside {next(iter(results.candidates))}", "")
    yield "The difference in points has the 95 % interval of a paired bootstrap."
    yield ""
    columns = ("set", "queries", "recall at", "before", "after", "difference")
    yield from table(columns, [_change_row(change) for change in results.changes])


def _row(name: str, scores: Mapping[str, Score]) -> tuple[str, ...]:
    both = (f"{score.recall_at_5} / {score.recall_at_10}" for score in (scores[each] for each in (*CHOOSING, *GUARDS)))
    return (name, f"{mean(dict(scores)):.2f}", *both)


def _change_row(change: Change) -> tuple[str, ...]:
    low, high = change.interval
    figures = f"{change.difference:+.1f} ({low:+.1f} to {high:+.1f})"
    return change.name, f"{change.queries:,}", str(change.cut), str(change.before), str(change.after), figures


def main() -> None:
    """Store the scores as JSON, and render them."""
    parser = command("training.report", has_quick=False)
    parser.add_argument("chosen", nargs="?")
    parser.add_argument("directories", nargs="*", metavar="NAME=DIR")
    parser.add_argument("--compared", default="", help="the candidate beside the model before, if not the chosen one")
    parser.add_argument("--name", default="model", help="of the kept files")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    arguments = parser.parse_args()
    pairs = (each.partition("=") for each in arguments.directories)
    directories = {name: Path(directory) for name, _, directory in pairs}
    chosen, compared = arguments.chosen, arguments.compared
    run_benchmark(
        arguments.name, arguments, lambda: measured(chosen, compared, directories, arguments.data), Results, render
    )


if __name__ == "__main__":
    main()
