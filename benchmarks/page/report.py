"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.page.results import LIMIT_MS, Results
from benchmarks.throughput.report import table


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (_head(results), _caveats(results), _pages(results))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine, plan = results.machine, results.plan
    yield "# Pages with many servers"
    yield ""
    yield f"A {plan.name} run of `python -m benchmarks.page` on {results.made_at}."
    yield "Rendered from `page.json`; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda conditions: conditions.others_percent)
    yield "## Caveats"
    yield ""
    yield "- The servers' texts are generated, and their vectors are random."
    yield "- Processor time includes all threads of the service, also those that read and store in the background."
    yield "- The first load may read the records of all servers; a later load does so again after a minute."
    yield f"- Other programs took up to {busiest.others_percent:g} % of the processors ({busiest.subject})."


def _pages(results: Results) -> Iterator[str]:
    means = [page.mean_ms for size in results.sizes for page in size.pages]
    plan = results.plan
    yield "## Processor time of the service"
    yield ""
    yield (
        f"{plan.tools_per_server} tools for each server, {plan.days} days of history, {plan.callers} callers; "
        f"the mean of {plan.loads} loads."
    )
    yield f"Target: {LIMIT_MS:g} ms for each page: {'met' if max(means) <= LIMIT_MS else 'missed'}."
    yield ""
    headings = ("servers", "page", "mean, ms", "first, ms", "slowest until the last byte, ms", "size, KiB")
    rows = [
        (f"{size.servers:,}", page.page, page.mean_ms, page.first_ms, page.slowest_ms, page.size_kib)
        for size in results.sizes
        for page in size.pages
    ]
    yield from table(headings, rows)
