"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.retrieval.results import AbstentionPoint, Results, Score, SetResult
from benchmarks.retrieval.sets import PEER, SETS, QuerySet

CAVEATS = (
    "The sets annotated by people are small: with 95 queries an interval is about 14 points wide.",
    "Recall is over capabilities: a task that needs three tools and gets two has two thirds.",
    "An answer that says that nothing fits counts as having found nothing, and is part of Toolscale's numbers; its "
    "rivals always answer.",
    "The weights of the fusion were chosen on these sets; 0.05 more or less moves single sets by up to two points.",
    f"{PEER} was rebuilt from its source by those who gathered the sets, and returns at most eight tools.",
    "Latencies are of one caller at a time, on a machine that did other things as well.",
)


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results` or `sets`."""
    sections = (_head(results), _recall(results), _targets(results), _abstention(results), _costs(results))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Retrieval"
    yield ""
    yield f"A run of `make bench-retrieval` on {results.made_at}, in {results.seconds:.0f} s, on {machine.processor},"
    yield f"{machine.cores} cores. Rendered from `retrieval.json`; what is measured and why: docs/retrieval.md."
    yield ""
    yield "## Keep in mind"
    yield ""
    yield from (f"- {caveat}" for caveat in CAVEATS)


def _recall(results: Results) -> Iterator[str]:
    yield "## Recall at 5 / at 10, in percent, with 95 % intervals"
    yield ""
    rivals = list(results.sets[0].rivals) if results.sets else []
    columns = ["set", "queries", "tools", "Toolscale, over MCP", *rivals, PEER]
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for result in results.sets:
        cells = [result.name, str(result.queries), f"{result.tools:,}", f"**{_score(result.toolscale)}**"]
        cells += [_score(result.rivals[rival]) for rival in rivals]
        yield f"| {' | '.join([*cells, _peer(result.name)])} |"


def _targets(results: Results) -> Iterator[str]:
    yield "## What was to be reached"
    yield ""
    yield "| set | recall at | reached | floor | aim |"
    yield "|---|---|---|---|---|"
    by_name = {query_set.name: query_set for query_set in SETS}
    for found in results.sets:
        target = by_name[found.name]
        if target.floor is not None:
            yield f"| {found.name} | {target.at} | {reached(found, target)} | {target.floor:g} | {target.aim:g} |"


def reached(found: SetResult, target: QuerySet) -> float:
    """Return the recall at the cut-off that the set's target is about."""
    score = found.toolscale
    return {5: score.recall_at_5, 8: score.recall_at_8, 10: score.recall_at_10}[target.at]


def _abstention(results: Results) -> Iterator[str]:
    yield "## Knowing that nothing fits"
    yield ""
    yield "How often `no_match` is said, in percent, means over the sets: to queries asked in another set's corpus,"
    yield "whose servers have nothing to do with them; with the servers they need taken out of the index; and with the"
    yield "tools they need taken out. And what it costs in recall at 5 where the tools are there."
    yield f"Measured on {results.abstention.made_at}."
    yield ""
    yield "| threshold | asked elsewhere | servers out | tools out | recall lost |"
    yield "|---|---|---|---|---|"
    for point in results.abstention.means:
        recognised = f"{point.elsewhere:.1f} | {point.servers_removed:.1f} | {point.tools_removed:.1f}"
        yield f"| {point.no_match_threshold:g} | {recognised} | {point.lost_recall:.1f} |"
    yield ""
    yield "Set by set, in this order: asked elsewhere / servers out / tools out / recall lost."
    yield ""
    yield f"| set | {' | '.join(f'{point.no_match_threshold:g}' for point in results.abstention.means)} |"
    yield "|" + "---|" * (1 + len(results.abstention.means))
    for curve in results.abstention.sets:
        yield f"| {curve.name} | {' | '.join(map(_shares, curve.points))} |"


def _shares(point: AbstentionPoint) -> str:
    return f"{point.elsewhere:.0f} / {point.servers_removed:.0f} / {point.tools_removed:.0f} / {point.lost_recall:.1f}"


def _costs(results: Results) -> Iterator[str]:
    yield "## Time and space, on Qdrant Edge"
    yield ""
    yield "| corpus | tools | servers | ingested in, s | on disk, MiB |"
    yield "|---|---|---|---|---|"
    for corpus in results.corpora:
        size = f"{corpus.tools:,} | {corpus.servers:,} | {corpus.ingested_s:.0f} | {corpus.disk_mib:.0f}"
        yield f"| {corpus.name} | {size} |"
    yield ""
    yield "| tools | queries | embedding a query, median ms | search, median ms | search, 95th percentile ms |"
    yield "|---|---|---|---|---|"
    for latency in results.latency:
        times = f"{latency.embed_p50:.1f} | {latency.search_p50:.1f} | {latency.search_p95:.1f}"
        yield f"| {latency.tools:,} | {latency.queries} | {times} |"


def _score(score: Score) -> str:
    low, high = score.interval_at_5
    low_10, high_10 = score.interval_at_10
    return (
        f"{score.recall_at_5:.1f} ({low:.0f} to {high:.0f}) / {score.recall_at_10:.1f} ({low_10:.0f} to {high_10:.0f})"
    )


def _peer(name: str) -> str:
    found = next(query_set.peer for query_set in SETS if query_set.name == name)
    return f"{found[0]} / {found[1]}" if found else ""
