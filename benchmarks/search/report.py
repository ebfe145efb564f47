"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.search.results import Milliseconds, Results, Size

Row = Sequence[object]

_DECISION = "../../docs/adr/0026-exact-embedded-search.md"
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
        _costs(results.sizes),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Search in a large embedded catalogue"
    yield ""
    yield f"A {results.plan.name} run of `python -m benchmarks.search` on {results.made_at}."
    yield f"Rendered from the JSON file beside it; [ADR 0026]({_DECISION}) gives the reasons for exact search."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda condition: condition.others_percent)
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
    rows = [(label, *(_ms(getattr(size.index.parts, part)) for size in sizes)) for label, part in _PARTS]
    yield from _table(("", *(f"{size.tools:,} tools" for size in sizes)), rows)


def _costs(sizes: Sequence[Size]) -> Iterator[str]:
    yield "## Disk, memory and opening"
    yield ""
    rows = [
        (f"{size.tools:,}", *(f"{value:.4g}" for value in (index.opened_s, index.disk_mib, index.resident_mib)))
        for size, index in ((size, size.index) for size in sizes)
    ]
    yield from _table(("tools", "opening, s", "disk, MiB", "resident, MiB"), rows)


def _ms(measured: Milliseconds) -> str:
    return f"{measured.p50:.2f} / {measured.p95:.2f}"


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"
