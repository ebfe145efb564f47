"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.beside.results import Results, Size
from benchmarks.throughput.report import number, spread, table


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = [_head(results), _caveats(results), *(_size(size) for size in results.sizes)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine, plan = results.machine, results.plan
    yield "# This build beside an earlier one"
    yield ""
    yield f"A {plan.name} run of `python -m benchmarks.beside` on {results.made_at}."
    yield f"This build is {results.now}, the earlier one {results.before}."
    yield "Rendered from `beside.json`; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield f"{plan.rounds} rounds of {plan.requests} requests of each kind: medians, with the lowest and highest round."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda conditions: conditions.others_percent)
    yield "## Caveats"
    yield ""
    yield "- Both builds use the packages of this one, so a faster package is not in the ratio."
    yield "- One client sends one request after the other, as plain HTTP; vectors of the tools are random."
    yield "- Processor time includes all threads of the service, also those that write the history in the background."
    yield f"- Other programs took up to {busiest.others_percent:g} % of the processors ({busiest.subject})."


def _size(size: Size) -> Iterator[str]:
    yield f"## At {size.tools:,} tools"
    yield ""
    yield "Processor time of the service for a request, and p50 of the wait, in ms; `ratio` is of rounds side by side."
    yield ""
    headings = ("request", "before", "now", "ratio", "wait before", "wait now")
    yield from table(
        headings,
        (
            (
                compared.request,
                number(compared.before.processor.median),
                number(compared.now.processor.median),
                spread(compared.ratio),
                number(compared.before.p50.median),
                number(compared.now.p50.median),
            )
            for compared in size.compared
        ),
    )
