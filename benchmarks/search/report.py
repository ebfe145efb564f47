"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.search.results import Milliseconds, Results, Searches, Size

Row = Sequence[object]

_DECISION = "../../docs/decisions.md#the-embedded-index"
_PARTS = (
    ("vectors of names", "name_list"),
    ("vectors of texts", "text_list"),
    ("terms", "terms_list"),
    ("all three in one round trip", "lists"),
    ("ranking", "ranking"),
    ("reading eight tools", "tools"),
)
_SEARCHES = (
    ("**search, without the query's embedding**", "search"),
    ("the same, within one of a hundred groups", "filtered"),
    ("the same, within the servers of the corpus", "originals"),
)


_Cost = tuple[str, Callable[[Size], float]]
_FILLING: Sequence[_Cost] = (("filling", lambda size: size.filled_s),)
_SERVER_FILLING: Sequence[_Cost] = (
    *_FILLING,
    ("the last graphs", lambda size: size.indexed_s),
    ("processor time for both", lambda size: size.server_cpu_s),
)
_COSTS: Sequence[_Cost] = (
    ("opening", lambda size: size.index.opened_s),
    ("disk", lambda size: size.index.disk_mib),
    ("memory", lambda size: size.index.resident_mib),
)


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (
        _head(results),
        _caveats(results),
        _latency(results),
        _costs(results),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Search in a large catalogue"
    yield ""
    yield f"On a server of Qdrant {results.server}." if results.server else "In this process, on Qdrant Edge."
    yield f"A {results.plan.name} run of `python -m benchmarks.search` on {results.made_at}."
    yield f"Rendered from the JSON file beside it; [decisions]({_DECISION}) gives the reasons for exact search."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda condition: condition.others_percent)
    yield "## Keep in mind"
    yield ""
    yield (
        f"- {results.corpus_tools:,} real tools, repeated under other servers with other names for larger sizes: "
        "a search there finds each tool several times, all equally near."
    )
    yield (
        "- A search among replicas has a filter of one server of each set, as the one within the servers of the "
        "corpus has; it also reads the names of equal tools."
    )
    if any(size.index.parts.search.cpu_ms is None for size in results.sizes):
        yield (
            "- Where the processor time was not measured, revisions counted from 1, so the ledger compared all records "
            "each second."
        )
    yield (
        f"- {results.queries} queries of other corpora, cut to {results.plan.words} words, one after the other, "
        f"{results.plan.rounds} times; vectors of queries are remembered."
    )
    yield "- Sizes were measured once, each in a process of its own."
    yield (
        f"- Other programs{', the Qdrant server among them,' if results.server else ''} took up to "
        f"{busiest.others_percent:g} % of the processor ({busiest.subject})."
    )


def _latency(results: Results) -> Iterator[str]:
    sizes = results.sizes
    yield "## Where the time goes"
    yield ""
    yield "Milliseconds, p50 / p95; of searches p50 / p95 / p99."
    yield ""
    rows = [(label, *(_ms(getattr(size.index.parts, part)) for size in sizes)) for label, part in (*_PARTS, *_SEARCHES)]
    yield from _table(("", *(f"{size.tools:,} tools" for size in sizes)), rows)
    yield ""
    yield f"Processor time of a search, in ms{': the caller / the Qdrant server' if results.server else ''}."
    yield ""
    rows = [
        (label, *(_cpu(getattr(size.index.parts, part), results.server) for size in sizes)) for label, part in _SEARCHES
    ]
    yield from _table(("", *(f"{size.tools:,} tools" for size in sizes)), rows)


def _costs(results: Results) -> Iterator[str]:
    yield "## Disk, memory and opening"
    yield ""
    yield f"Seconds, and MiB of {'the Qdrant server' if results.server else 'this process'} after the searches."
    yield ""
    filling = _SERVER_FILLING if results.server else _FILLING
    columns = (*filling, *_COSTS)
    yield from _table(
        ("tools", *(label for label, _ in columns)),
        [(f"{size.tools:,}", *(f"{cost(size):,.4g}" for _, cost in columns)) for size in results.sizes],
    )


def _ms(measured: Milliseconds) -> str:
    highest = f" / {measured.p99:.2f}" if isinstance(measured, Searches) else ""
    return f"{measured.p50:.2f} / {measured.p95:.2f}{highest}"


def _cpu(measured: Searches, server: str) -> str:
    times_ms = (measured.cpu_ms, measured.server_cpu_ms) if server else (measured.cpu_ms,)
    return " / ".join("not measured" if time_ms is None else f"{time_ms:.2f}" for time_ms in times_ms)


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"
