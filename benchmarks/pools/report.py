"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.pools.results import Results

Row = Sequence[object]

_DECISION = "../../docs/decisions.md#threads-of-a-worker"


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (
        _head(results),
        _caveats(results),
        _arrangements(results),
        _waiting(results),
        _crowds(results),
        _batches(results),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# How looks share threads and cores"
    yield ""
    yield f"A {results.plan.name} run of `python -m benchmarks.pools` on {results.made_at}."
    yield f"Rendered from `pools.json`; what follows from it is in [decisions]({_DECISION})."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda condition: condition.others_percent)
    yield "## Keep in mind"
    yield ""
    yield "- Compare within a table: each was measured in one go, once, on the same machine."
    yield "- Servers and worker share its cores."
    yield "- The two queues have an index each, since Qdrant Edge serves one process; on a server they would share it."
    yield (
        f"- Other programs, the scripted servers among them, took up to {busiest.others_percent:g} % "
        f"of the processor ({busiest.subject})."
    )


def _arrangements(results: Results) -> Iterator[str]:
    plan = results.plan
    yield "## A look at an unchanged server, while others embed and others are silent"
    yield ""
    yield (
        f"{plan.large} new servers with {plan.tools_of_large} tools each and {plan.silent} that say nothing for "
        f"{plan.silence_s:g} s come first; then, every {plan.every_s:g} s, a look at an unchanged server."
    )
    yield ""
    head = ("arrangement", "looks", "p50, s", "p95, s", "longest, s", "new servers done, s", "silent ones too, s")
    rows = [
        (
            arrangement.pool.name,
            arrangement.quick_looks,
            f"{arrangement.quick_p50_s:.2f}",
            f"{arrangement.quick_p95_s:.2f}",
            f"{arrangement.quick_highest_s:.2f}",
            f"{arrangement.large_s:.1f}",
            f"{arrangement.all_s:.1f}",
        )
        for arrangement in results.arrangements
    ]
    yield from _table(head, rows)


def _waiting(results: Results) -> Iterator[str]:
    waiting = results.waiting
    yield "## Looks that wait"
    yield ""
    head = ("looks", "processor, share of a core", "memory a look, KiB", "threads", "open files")
    yield from _table(
        head,
        [(waiting.looks, f"{waiting.processor:.3f}", f"{waiting.kib_a_look:.0f}", waiting.threads, waiting.files)],
    )


def _crowds(results: Results) -> Iterator[str]:
    yield "## Memory, where every server offers as much as it may"
    yield ""
    yield "Before: after one such look. Two arenas are `MALLOC_ARENA_MAX=2`."
    yield ""
    head = ("looks side by side", "large lists at a time", "arenas of malloc", "before, MiB", "most, MiB")
    rows = [
        (
            crowd.looks,
            crowd.turns,
            crowd.arenas or "as the system has it",
            f"{crowd.mib_before:.0f}",
            f"{crowd.mib_peak:.0f}",
        )
        for crowd in results.crowds
    ]
    yield from _table(head, rows)


def _batches(results: Results) -> Iterator[str]:
    alone = results.batches[0].texts_per_s
    yield "## Texts of many servers, embedded together"
    yield ""
    yield (
        f"{results.plan.texts} texts, the fastest of {results.plan.rounds} rounds; the speed is relative to one at a "
        f"time, {alone:.0f} texts a second in this run."
    )
    yield ""
    head = ("texts at a time", "order", "speed", "lowest cosine to the same text alone")
    rows = [
        (
            batch.size,
            "by length" if batch.sorted_by_length else "as they came",
            f"{batch.texts_per_s / alone:.2f}",
            f"{batch.lowest_cosine:.4f}",
        )
        for batch in results.batches
    ]
    yield from _table(head, rows)


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(map(str, cells))} |"
