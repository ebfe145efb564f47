"""`python -m benchmarks.definitions`: measure the demo's definitions, store the JSON, render the Markdown.

It also writes the percentiles that `toolscale lint` ships with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise, permutations
from pathlib import Path
from typing import get_args

from benchmarks.command import RESULTS, command, run_benchmark
from benchmarks.requests.__main__ import Results as Requests
from benchmarks.requests.data import Servers, demo_servers
from benchmarks.throughput.report import table
from benchmarks.throughput.results import Frozen
from shared.catalog import Encoding, ToolDefinition
from shared.text.embedding import Embedder, FastEmbedder
from shared.text.leaner import Kind
from shared.text.tokens import Counter, counter, tokens_by_field
from toolscale.lint.rules import CORPUS, SIMILAR, Corpus, Percentiles, shorter_definitions

ENCODING: Encoding = "cl100k_base"
KINDS: tuple[Kind, ...] = get_args(Kind)
COSINES = (-1.0, 0.5, 0.6, 0.7, SIMILAR, 0.85, 1.0)


class Tool(Frozen):
    """The tokens of a tool's parts, in the model form."""

    name: str
    parts: dict[str, int]


class Confusion(Frozen):
    """Pairs of a right tool and another one of its server, whose descriptions have a cosine of at least `cosine`.

    `before` counts the pairs whose other tool `find_tool` put before the right one.
    """

    cosine: float
    pairs: int
    before: int


class Shorter(Frozen):
    """The tokens of a server's tools, and the tokens that each kind of removal saves."""

    server: str
    tokens: int
    removed: dict[Kind, int]

    @property
    def saved(self) -> int:
        """Return the tokens that the shorter definitions save."""
        return sum(self.removed.values())


class Results(Frozen):
    """The sizes of all tools, their shorter forms, and the confusions of their pairs in the results of the requests."""

    made_at: str
    tools: list[Tool]
    confusions: list[Confusion]
    shorter: list[Shorter]


def measure(demo: Path) -> Results:
    """Count the demo's tools, and compare the descriptions of each server."""
    servers, count = demo_servers(demo), counter(ENCODING)
    tools = [
        Tool(name=f"{server}:{tool.name}", parts=_by_key(tool))
        for server, definitions in servers.items()
        for tool in definitions
    ]
    requests = Requests.model_validate_json((RESULTS / "requests.json").read_bytes())
    pairs = list(_pairs(requests, _cosines(servers, FastEmbedder())))
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        tools=tools,
        confusions=list(_confusions(pairs)),
        shorter=[_shorter(server, definitions, count) for server, definitions in servers.items()],
    )


def _by_key(tool: ToolDefinition) -> dict[str, int]:
    return {field.key: tokens for field, tokens in tokens_by_field(tool.for_model(), ENCODING).items()}


def _shorter(server: str, tools: Sequence[ToolDefinition], count: Counter) -> Shorter:
    found = shorter_definitions(tools, count)
    removed: dict[Kind, int] = {kind: sum(each.removed.get(kind, 0) for each in found) for kind in KINDS}
    return Shorter(server=server, tokens=sum(each.before for each in found), removed=removed)


def _cosines(servers: Servers, embedder: Embedder) -> dict[tuple[str, str], float]:
    """Return the cosine of each ordered pair of descriptions of a server."""
    cosines: dict[tuple[str, str], float] = {}
    for server, tools in servers.items():
        vectors = embedder.passages([tool.description for tool in tools])
        for (one, tool), (two, other) in permutations(enumerate(tools), 2):
            cosines[f"{server}:{tool.name}", f"{server}:{other.name}"] = float(vectors[one] @ vectors[two])
    return cosines


def _pairs(requests: Requests, cosines: dict[tuple[str, str], float]) -> Iterator[tuple[float, bool]]:
    """Yield the cosine of the right tool and each wrong one, and whether the wrong one comes first."""
    for answer in requests.answers:
        if len(answer.request.tools) != 1:
            continue
        right = answer.request.tools[0][0]
        rank = {tool: position for position, tool in enumerate(answer.found)}
        for (tool, other), cosine in cosines.items():
            if tool == right and other not in answer.request.right:
                yield cosine, rank.get(other, math.inf) < rank.get(right, math.inf)


def _confusions(pairs: Sequence[tuple[float, bool]]) -> Iterator[Confusion]:
    for low, high in pairwise(COSINES):
        inside = [before for cosine, before in pairs if low <= cosine < high or cosine >= high == COSINES[-1]]
        yield Confusion(cosine=low, pairs=len(inside), before=sum(inside))


def corpus_of(results: Results) -> Corpus:
    """Return the percentiles of the results."""
    parameters = [
        tokens for tool in results.tools for key, tokens in tool.parts.items() if key.startswith("parameter:")
    ]
    return Corpus(
        measured_on=results.made_at,
        encoding=ENCODING,
        servers=len({tool.name.partition(":")[0] for tool in results.tools}),
        tool=_percentiles([sum(tool.parts.values()) for tool in results.tools]),
        description=_percentiles([tool.parts.get("description", 0) for tool in results.tools]),
        parameter=_percentiles(parameters),
    )


def _percentiles(sizes: Sequence[int]) -> Percentiles:
    """Return the percentiles by nearest rank."""
    ordered = sorted(sizes)
    p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.9, 0.99))
    return Percentiles(number=len(ordered), p90=p90, p99=p99)


def render(results: Results) -> str:
    """Return the report; every number in it comes from `results`."""
    corpus = corpus_of(results)
    sizes = {"tool": corpus.tool, "description": corpus.description, "parameter": corpus.parameter}
    lines = (
        "# Definitions of the demo's servers",
        "",
        f"A run of `python -m benchmarks.definitions` on {results.made_at}. Rendered from `definitions.json`.",
        f"{len(results.tools)} tools of {corpus.servers} servers; tokens of {ENCODING}, in the model form.",
        "",
        "## Sizes",
        "",
        *table(
            ("size of a", "number", "90th percentile", "99th percentile"),
            ((name, row.number, row.p90, row.p99) for name, row in sizes.items()),
        ),
        "",
        "## Similar descriptions",
        "",
        "For each request of `requests.json` with one step: the right tool with each wrong one of its server.",
        "The third column counts the wrong tools that `find_tool` put before the right one.",
        "",
        *table(("cosine of the descriptions from", "pairs", "wrong one first", "%"), map(_row, results.confusions)),
        "",
        "## Shorter definitions that accept the same arguments",
        "",
        *table(("server", "tokens", *KINDS, "saved", "%"), map(_shorter_row, (*results.shorter, _total(results)))),
    )
    return "\n".join(lines) + "\n"


def _row(row: Confusion) -> tuple[str, int, int, str]:
    return f"{row.cosine:.2f}", row.pairs, row.before, f"{100 * row.before / max(1, row.pairs):.1f}"


def _shorter_row(row: Shorter) -> tuple[str, ...]:
    figures = row.tokens, *(row.removed[kind] for kind in KINDS), row.saved
    return row.server, *(f"{figure:,}" for figure in figures), f"{100 * row.saved / max(1, row.tokens):.1f}"


def _total(results: Results) -> Shorter:
    removed: dict[Kind, int] = {kind: sum(row.removed[kind] for row in results.shorter) for kind in KINDS}
    return Shorter(server="total", tokens=sum(row.tokens for row in results.shorter), removed=removed)


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    arguments = command("definitions", has_quick=False, needs_demo=True).parse_args()
    results = run_benchmark("definitions", arguments, lambda: measure(arguments.demo), Results, render)
    shipped = CORPUS if arguments.output == RESULTS else arguments.output / CORPUS.name
    shipped.write_text(corpus_of(results).model_dump_json(indent=2) + "\n", encoding="utf-8")
    print(f"Wrote {shipped}")


if __name__ == "__main__":
    main()
