"""What a run measured, as the JSON keeps it, and the Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.report import spread, table
from benchmarks.throughput.results import Frozen, Spread

# A median ratio above this is worse: rounds on a shared machine differ by more, their medians by less.
WORSE = 1.05


class Compared(Frozen):
    """A cost of both builds by round, lower is better; `ratio` is the part of it that is left."""

    subject: str
    before: Spread
    now: Spread
    ratio: Spread

    @classmethod
    def of(cls, subject: str, before: Sequence[float], now: Sequence[float]) -> Compared:
        """Return the spreads of rounds side by side."""
        ratios = [later / earlier for earlier, later in zip(before, now, strict=True)]
        return cls(subject=subject, before=Spread.of(before), now=Spread.of(now), ratio=Spread.of(ratios))


class Table(Frozen):
    """Costs that were measured together; none, where the note has the reason."""

    title: str
    note: str
    rows: tuple[Compared, ...] = ()


class Measured(Frozen):
    """The costs of a part, and how they were measured."""

    method: str
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]


class Results(Measured):
    """All that a run of a part measured; `before` and `now` are commits."""

    part: str
    run: str
    made_at: str
    machine: Machine
    conditions: tuple[Conditions, ...]
    before: str
    now: str


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = [_head(results), _caveats(results), *map(_table, results.tables)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    yield f"# This build beside an earlier one: {results.part}"
    yield ""
    yield f"A {results.run} run of `python -m benchmarks.beside --only {results.part}` on {results.made_at}."
    yield f"This build is {results.now}, the earlier one {results.before}."
    yield f"Rendered from `beside-{results.part}.json`; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield f"{results.method}: medians, with the lowest and highest round; `ratio` is of rounds side by side."


def _caveats(results: Results) -> Iterator[str]:
    busiest = max(results.conditions, key=lambda conditions: conditions.others_percent)
    yield "## Caveats"
    yield ""
    yield from (f"- {caveat}" for caveat in results.caveats)
    yield f"- Other programs took up to {busiest.others_percent:g} % of the processors ({busiest.subject})."


def _table(found: Table) -> Iterator[str]:
    yield f"## {found.title}"
    yield ""
    yield found.note
    if found.rows:
        worse = "; ".join(row.subject for row in found.rows if row.ratio.median > WORSE)
        yield f"More than {100 * (WORSE - 1):.0f} % worse: {worse or 'nothing'}."
        yield ""
        rows = [(row.subject, spread(row.before), spread(row.now), spread(row.ratio)) for row in found.rows]
        yield from table(("cost", "before", "now", "ratio"), rows)
