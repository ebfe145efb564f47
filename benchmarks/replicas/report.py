"""The report of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.replicas.results import CatalogueResult, Results


def render(results: Results) -> str:
    """Return the report as Markdown."""
    alone = results.catalogues[0]
    lines = [
        "# Replicas",
        "",
        f"A run of `python -m benchmarks.replicas` on {results.made_at}, on {results.machine.processor}.",
        f"{results.queries} queries to {alone.tools:,} real tools of {alone.servers} servers.",
        f"They are alone, or beside replicas of `{results.replicated}`, which has",
        f"{results.replicated_tools} tools. The unrelated copies have no digests, so that each tool is a definition of",
        "its own: the search before replica sets.",
        "Rendered from `replicas.json`.",
        "",
        "## Tools found",
        "",
        *_found(results),
        "",
        "*Same ranking*: queries whose first ten tools are those of the corpus alone, in the same order.",
        "*Repeated*: answers with two equal definitions, over all detail levels.",
        "Unrelated copies fill the lists of candidates. Where all candidates of a list are equal, they have its",
        "average score, and other tools come first.",
        "",
        "## Tokens of answers",
        "",
        "cl100k_base, over the text of an answer for eight tools of at most 5,000 tokens: median / 95th percentile,",
        "and the median number of distinct definitions in it.",
        "",
        *_tokens(results),
        "",
        "## Latency",
        "",
        "`find_tool` in process with cached query vectors; for each query all catalogues answer in turn.",
        f"Other programs took {results.conditions.others_percent:g} % of the processors: compare the ratios.",
        "",
        *_latency(results),
    ]
    return "\n".join(lines) + "\n"


def _found(results: Results) -> list[str]:
    sets = list(results.catalogues[0].scores)
    recall = [f"{name}: R@5 / R@10" for name in sets]
    return _table(
        ["catalogue", "servers", "tools", *recall, "same ranking", "repeated"],
        (
            [
                catalogue.name,
                f"{catalogue.servers:,}",
                f"{catalogue.tools:,}",
                *(f"{catalogue.scores[name].recall_at_5} / {catalogue.scores[name].recall_at_10}" for name in sets),
                f"{catalogue.same_rankings}",
                f"{catalogue.repeated}",
            ]
            for catalogue in results.catalogues
        ),
    )


def _tokens(results: Results) -> list[str]:
    modes = list(results.catalogues[0].tokens)
    return _table(
        ["catalogue", *(f"{mode}{side}" for mode in modes for side in ("", ": definitions"))],
        ([catalogue.name, *_token_cells(catalogue, modes)] for catalogue in results.catalogues),
    )


def _token_cells(catalogue: CatalogueResult, modes: Sequence[str]) -> Iterable[str]:
    for mode in modes:
        tokens = catalogue.tokens[mode]
        yield f"{tokens.median:,.0f} / {tokens.p95:,.0f}"
        yield f"{tokens.median_definitions:g}"


def _latency(results: Results) -> list[str]:
    alone = results.catalogues[0].find_tool
    return _table(
        ["catalogue", "p50 ms", "p95 ms", "p50 ratio", "p95 ratio"],
        (
            [
                catalogue.name,
                f"{catalogue.find_tool.p50:.1f}",
                f"{catalogue.find_tool.p95:.1f}",
                f"{catalogue.find_tool.p50 / alone.p50:.2f}",
                f"{catalogue.find_tool.p95 / alone.p95:.2f}",
            ]
            for catalogue in results.catalogues
        ),
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]
