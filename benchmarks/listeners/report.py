"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.listeners.results import Results
from benchmarks.throughput.report import table

CORE_PERCENT, KIB_PER_S = 3.0, 100.0
IDLE = "changes, nothing changes"


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (_head(results), _caveats(results), _readings(results), _connections(results))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield "# Notifications processes with many servers"
    yield ""
    yield f"A {results.plan.name} run of `python -m benchmarks.listeners` on {results.made_at}."
    yield "Rendered from `listeners.json`; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda conditions: conditions.others_percent)
    yield "## Caveats"
    yield ""
    yield "- Redis, the processes and the server share the machine's cores."
    yield "- The cases of the first table open no connection; the reads and the division are those of the product."
    yield "- The bytes are all that Redis sent, also to the writer of the reconciliations."
    yield "- The connections go to one server on loopback, under many ids; it sends a keep-alive every 15 s."
    yield f"- Other programs took up to {busiest.others_percent:g} % of the processors ({busiest.subject})."


def _readings(results: Results) -> Iterator[str]:
    (idle,) = (reading for reading in results.readings if reading.case == IDLE)
    is_met = idle.core_percent <= CORE_PERCENT and idle.redis_kib_per_s <= KIB_PER_S
    yield f"## {results.plan.servers:,} servers without connections"
    yield ""
    yield (
        f"Target of a process when nothing changes: {CORE_PERCENT:g} % of a core and {KIB_PER_S:g} KiB/s, "
        f"with its complete read in the time: {'met' if is_met else 'missed'}."
    )
    yield ""
    rows = [
        (row.case, row.processes, row.seconds, row.core_percent, row.redis_kib_per_s, row.memory_mib)
        for row in results.readings
    ]
    headings = ("case", "processes", "s", "of a core, %", "from Redis, KiB/s", "memory, MiB")
    yield from table(headings, rows)


def _connections(results: Results) -> Iterator[str]:
    yield "## Open connections of a process, idle"
    yield ""
    rows = [
        (row.protocol, f"{row.connections:,}", row.opened_s, row.memory_kib_each, row.files_each, row.core_percent)
        for row in results.connections
    ]
    headings = ("protocol", "connections", "opened in s", "memory each, KiB", "files each", "of a core, %")
    yield from table(headings, rows)
