"""`python -m benchmarks.estimates`: compare the heuristic with cl100k_base, in the model form of real tools.

It stores the JSON and renders the Markdown next to it.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel

from benchmarks.command import DATA, command, run_benchmark
from benchmarks.retrieval.data import CorpusServer, read_servers
from benchmarks.throughput.report import table
from shared.text.tokens import counter, estimate_tool, model_text

CORPORA = ("livemcp", "mcpbench", "mcpproxy45", "mcpzero", "toolsieve181", "haystack")
HEADINGS = ("corpus", "tools", "counted", "estimated", "error of the sum, %", "of a tool, median", "95th percentile")


class Corpus(BaseModel):
    """The tokens of a corpus, and the error of a tool's estimate in percent of its count, without its sign."""

    model_config = ConfigDict(frozen=True)

    name: str
    tools: int
    counted: int
    estimated: int
    median_error: float
    p95_error: float

    @property
    def row(self) -> tuple[str | float, ...]:
        """Return the cells of the report."""
        sums = f"{self.tools:,}", f"{self.counted:,}", f"{self.estimated:,}"
        return self.name, *sums, f"{100 * (self.estimated / self.counted - 1):+.1f}", self.median_error, self.p95_error


class Results(RootModel[tuple[Corpus, ...]]):
    """The corpora."""


def measure(name: str, servers: list[CorpusServer]) -> Corpus:
    """Count and estimate every tool of these servers."""
    count = counter("cl100k_base")
    tools = [(server.name, tool) for server in servers for tool in server.listing.tools]
    counted = [count(model_text(tool)) for _, tool in tools]
    estimated = [estimate_tool(server, tool) for server, tool in tools]
    errors = [100 * abs(guess / exact - 1) for guess, exact in zip(estimated, counted, strict=True)]
    median, p95 = statistics.median(errors), statistics.quantiles(errors, n=20)[-1]
    sums = {"tools": len(tools), "counted": sum(counted), "estimated": sum(estimated)}
    return Corpus(name=name, **sums, median_error=round(median, 1), p95_error=round(p95, 1))


def render(results: Results) -> str:
    """Return the report."""
    head = "A run of `python -m benchmarks.estimates`: the heuristic against cl100k_base, in the model form."
    lines = ("# Estimates", "", head, "Rendered from `estimates.json`.", "")
    return "\n".join((*lines, *table(HEADINGS, (found.row for found in results.root)))) + "\n"


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    parser = command("estimates", has_quick=False)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora")
    arguments = parser.parse_args()
    run_benchmark("estimates", arguments, lambda: Results(_corpora(arguments.data)), Results, render)


def _corpora(data: Path) -> tuple[Corpus, ...]:
    return tuple(measure(name, read_servers([data / "corpora" / f"{name}.jsonl"])) for name in CORPORA)


if __name__ == "__main__":
    main()
