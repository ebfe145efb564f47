"""`python -m benchmarks.advice`: measure advice on the demo's servers, store the JSON, render the Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

from benchmarks.advice.coverage import RUNS, TARGET, Costs, Coverage, Needed, coverages, needed
from benchmarks.command import command, run_benchmark
from benchmarks.requests.data import Request, Servers, corpus, demo_servers, read_requests
from benchmarks.retrieval.system import ingested
from benchmarks.throughput.report import table
from benchmarks.throughput.results import Frozen, Spread
from query.advice.rivals import SIMILAR, near_pairs, takes_the_same
from query.caller import Caller
from query.catalogue import Catalogue
from query.savings.ledger import Ledger
from query.tools.list_available_tools import tools_of
from shared.catalog import Encoding, IndexedTool, Scope

ENCODING: Encoding = "cl100k_base"
THRESHOLDS = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
LISTED = 40


class NearPair(Frozen):
    """Two tools of different servers, and whether our requests have them as alternatives of a step."""

    first: str
    second: str
    similarity: float
    takes_the_same: bool
    are_alternatives: bool


class Results(Frozen):
    """A run over the requests and the tools of the demo's servers."""

    made_at: str
    model: str
    servers: int
    tools: int
    tokens: int
    requests: int
    coverages: list[Coverage]
    needed: list[Needed]
    pairs: list[NearPair]


def measure(demo: Path) -> Results:
    """Ingest the demo's tools by the write path, and measure coverage and rivals on them."""
    return measured(demo_servers(demo), read_requests())


def measured(servers: Servers, requests: Sequence[Request], runs: int = RUNS) -> Results:
    """Return the results over these servers."""
    used = [request for request in requests if request.tools]
    with ingested(corpus(servers)) as system:
        catalogue = Catalogue(system.index, system.embedder, Ledger(system.index))
        tools = list(tools_of(Scope(), catalogue))
        costs = _costs(tools)
        return Results(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            model=system.embedder.model,
            servers=len(servers),
            tools=len(tools),
            tokens=sum(costs.values()),
            requests=len(used),
            coverages=coverages(used, costs, runs),
            needed=needed(used, costs, runs),
            pairs=list(_pairs(tools, catalogue, used)),
        )


def _costs(tools: Sequence[IndexedTool]) -> Costs:
    return {tool.qualified_name: tool.model_counts[ENCODING] for tool in tools}


def _pairs(tools: Sequence[IndexedTool], catalogue: Catalogue, requests: Sequence[Request]) -> Iterator[NearPair]:
    steps = (step for request in requests for step in request.tools)
    alternatives = {frozenset(pair) for step in steps for pair in combinations(step, 2)}
    for one, other, similarity in near_pairs(tools, Caller("benchmark"), catalogue):
        if similarity >= THRESHOLDS[0]:
            first, second = sorted((one, other), key=lambda tool: tool.qualified_name)
            yield NearPair(
                first=first.qualified_name,
                second=second.qualified_name,
                similarity=round(similarity, 4),
                takes_the_same=takes_the_same(first.definition.as_object(), second.definition.as_object()),
                are_alternatives=frozenset((first.qualified_name, second.qualified_name)) in alternatives,
            )


def render(results: Results) -> str:
    """Return the report; every number in it comes from `results`."""
    return "\n".join((*_introduction(results), *_coverage(results), *_rivals(results))) + "\n"


def _introduction(results: Results) -> Iterator[str]:
    yield "# Advice on the demo's servers"
    yield ""
    yield f"A run of `python -m benchmarks.advice` on {results.made_at}. Rendered from `advice.json`."
    yield f"{results.tools} tools of {results.servers} real servers cost {results.tokens:,} tokens ({ENCODING})."
    yield f"The calls are of {results.requests} requests of ours, with their right tools."
    yield "No agent made these calls, and the skewed traffic is drawn from the requests by chance."


def _coverage(results: Results) -> Iterator[str]:
    yield ""
    yield "## Covered calls"
    yield ""
    yield f"In percent: the median of {RUNS} seeds, and in brackets the lowest and the highest."
    yield "The past calls decide the choice; the later ones follow it."
    yield "Our requests are at least one for each tool, so a tool of the past half returns less often than an agent's."
    for traffic in dict.fromkeys(coverage.traffic for coverage in results.coverages):
        yield ""
        yield f"### Traffic: {traffic}"
        yield ""
        yield from table(
            ("budget", "method", "past calls", "best possible", "later calls"),
            [
                (f"{row.budget_tokens:,}", row.method, *map(_percent, (row.past, row.most_past, row.after)))
                for row in results.coverages
                if row.traffic == traffic
            ],
        )
    yield ""
    yield f"## Tokens that cover {100 * TARGET:.0f} % of the past calls"
    yield ""
    for traffic in dict.fromkeys(need.traffic for need in results.needed):
        yield f"- {traffic}: {_reached(results, traffic)}"
    yield ""
    yield from table(
        ("traffic", "method", "tokens"),
        [(row.traffic, row.method, f"{row.tokens.median:,.0f} {_range(row.tokens, ',.0f')}") for row in results.needed],
    )


def _reached(results: Results, traffic: str) -> str:
    """Return the smallest budget of the tables that reaches the target, else the tokens that do, beside the cut-off."""
    rows = {(row.method, row.budget_tokens): row.past.median for row in results.coverages if row.traffic == traffic}
    for (method, budget), covered in rows.items():
        if method == "advised" and covered >= 100 * TARGET:
            return f"a budget of {budget:,} covers {covered:.1f} %; the alphabet, {rows['alphabetical', budget]:.1f} %."
    tokens = {need.method: need.tokens.median for need in results.needed if need.traffic == traffic}
    alphabetical = f"the alphabet needs {tokens['alphabetical']:,.0f}."
    best = max(row.most_past.median for row in results.coverages if row.traffic == traffic)
    reached = f"no budget above is enough; the best possible choice covers {best:.1f} %"
    return f"{reached}. The advice needs {tokens['advised']:,.0f} tokens; {alphabetical}"


def _rivals(results: Results) -> Iterator[str]:
    yield ""
    yield "## Near tools of different servers"
    yield ""
    yield f"Rivals have a similarity of {SIMILAR} or more, and parameters of the types that the other one requires."
    yield "*Alternatives* are tools of one step of our requests."
    yield ""
    yield from table(
        ("similarity from", "pairs", "with the same types", "of these alternatives"),
        [_above(threshold, results.pairs) for threshold in THRESHOLDS],
    )
    yield ""
    yield f"The nearest, at most {LISTED}:"
    yield ""
    yield from table(
        ("tool", "tool", "similarity", "same types", "alternatives"),
        [
            (pair.first, pair.second, f"{pair.similarity:.2f}", _yes(pair.takes_the_same), _yes(pair.are_alternatives))
            for pair in results.pairs[:LISTED]
        ],
    )


def _above(threshold: float, pairs: Sequence[NearPair]) -> tuple[str, int, int, int]:
    near = [pair for pair in pairs if pair.similarity >= threshold]
    same = [pair for pair in near if pair.takes_the_same]
    return f"{threshold:.2f}", len(near), len(same), sum(pair.are_alternatives for pair in same)


def _yes(is_true: bool) -> str:
    return "yes" if is_true else ""


def _percent(spread: Spread) -> str:
    return f"{spread.median:.1f} {_range(spread, '.1f')}"


def _range(spread: Spread, form: str) -> str:
    return f"({spread.lowest:{form}} to {spread.highest:{form}})"


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    arguments = command("advice", has_quick=False, needs_demo=True).parse_args()
    run_benchmark("advice", arguments, lambda: measure(arguments.demo), Results, render)


if __name__ == "__main__":
    main()
