"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.search.results import Index, Milliseconds, Results, Size

Row = Sequence[object]

_DECISION = "../../docs/adr/0021-graphs-are-built-by-another-process.md"
_PARTS = (
    ("vectors of names", "name_list"),
    ("vectors of texts", "text_list"),
    ("terms", "terms_list"),
    ("all three in one round trip", "lists"),
    ("ranking", "ranking"),
    ("reading eight tools", "tools"),
    ("**search, without the query's embedding**", "search"),
    ("the same, filtered", "filtered"),
)


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (
        _head(results),
        _caveats(results),
        _latency(results.sizes),
        _recall(results.sizes),
        _building(results.sizes),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Search in a large embedded catalogue, with and without a graph"
    yield ""
    yield f"A {results.plan.name} run of `python -m benchmarks.search` on {results.made_at}."
    yield f"Rendered from `search.json`; why it is built so is in [ADR 0021]({_DECISION})."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda each: each.others_percent)
    yield "## Keep in mind"
    yield ""
    yield (
        f"- {results.corpus_tools:,} real tools, repeated under other servers for larger sizes: a search there finds "
        "each tool several times, all equally near."
    )
    yield (
        f"- {results.queries} queries of other corpora, cut to {results.plan.words} words, one after the other, "
        f"{results.plan.rounds} times; vectors of queries are remembered."
    )
    yield "- Recall is against a search that compares all vectors, over the same index."
    yield "- Sizes were measured once, each in a process of its own."
    yield (
        f"- Other programs took up to {busiest.others_percent:g} % of the processor ({busiest.subject}), "
        "which shows in the highest times."
    )


def _latency(sizes: Sequence[Size]) -> Iterator[str]:
    yield "## Where the time goes"
    yield ""
    yield "Milliseconds, p50 / p95."
    yield ""
    indexes = [(f"{size.tools:,} tools, {name}", index) for size in sizes for name, index in _both(size)]
    rows = [(label, *(_ms(getattr(index.parts, part)) for _, index in indexes)) for label, part in _PARTS]
    yield from _table(("", *(name for name, _ in indexes)), rows)


def _recall(sizes: Sequence[Size]) -> Iterator[str]:
    yield "## What the graph finds of what is there"
    yield ""
    yield "Recall of the lists of both dense vectors, and of the five tools that `find_tool` puts first."
    yield ""
    head = ("tools", "scope", "lists at 5", "at 10", "at 150", "ranked at 5")
    rows = [
        (f"{size.tools:,}", scope, *(f"{100 * share:.1f} %" for share in recall.model_dump().values()))
        for size in sizes
        for scope, recall in (("all", size.recall), (f"{100 * size.selectivity:.2g} %", size.filtered_recall))
    ]
    yield from _table(head, rows)


def _building(sizes: Sequence[Size]) -> Iterator[str]:
    yield "## What the graph costs"
    yield ""
    yield (
        "Writers wait for the copy; the process stands still at most as long as it says; the rest goes on beside it, "
        "in a process of lowest priority."
    )
    yield ""
    head = (
        *("tools", "copy, s", "build, s", "taking it, s", "standing still, s", "builder, MiB"),
        *("disk before, MiB", "disk after, MiB", "resident before, MiB", "resident after, MiB"),
    )
    rows = [
        (
            f"{size.tools:,}",
            *(f"{getattr(size.building, each):.2f}" for each in ("copy_s", "build_s", "switch_s", "stall_s")),
            f"{size.building.builder_peak_mib:.0f}",
            *(f"{index.disk_mib:.0f}" for _, index in _both(size)),
            *(f"{index.resident_mib:.0f}" for _, index in _both(size)),
        )
        for size in sizes
    ]
    yield from _table(head, rows)


def _both(size: Size) -> tuple[tuple[str, Index], tuple[str, Index]]:
    return ("all compared", size.exact), ("by a graph", size.graph)


def _ms(measured: Milliseconds) -> str:
    return f"{measured.p50:.2f} / {measured.p95:.2f}"


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"
