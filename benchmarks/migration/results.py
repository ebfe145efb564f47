"""Results of a run as stored in JSON, and the report, which is rendered from these values only."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Size(Frozen):
    """Seconds of each repetition in an index of one size.

    `page_s`: a page of a share. `facet_s`: the servers of all tools by a facet. `scan_s`: the same by reading all
    tools. `pass_s`: a pass over equal versions, with the switch, by one worker.
    """

    tools: int
    servers: int
    page_s: tuple[float, ...]
    facet_s: tuple[float, ...]
    scan_s: tuple[float, ...]
    pass_s: float


class Results(Frozen):
    """All of a run; `engine` names the index."""

    made_at: str
    engine: str
    machine: Machine
    conditions: tuple[Conditions, ...]
    sizes: tuple[Size, ...]


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    return "\n".join([*_head(results), *_rows(results)]) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    busiest = max(results.conditions, key=lambda condition: condition.others_percent)
    yield "# The beginning of a slice of a model change"
    yield ""
    yield f"A run of `python -m benchmarks.migration` on {results.made_at}, on {results.engine}."
    yield "Rendered from `migration.json`."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield ""
    yield "## Keep in mind"
    yield ""
    yield "- Tools are synthetic and small, with vectors of 64 dimensions; listings read no vectors."
    yield "- Client and engine share the cores, and sizes were measured once."
    yield f"- Other programs took up to {busiest.others_percent:g} % of the processor ({busiest.subject})."
    yield ""
    yield "## How long each listing takes"
    yield ""
    yield "Milliseconds, the median of the repetitions; the pass in seconds."
    yield ""


def _rows(results: Results) -> Iterator[str]:
    yield "| tools | servers | page of a share | facet | reading all tools, as before | pass without differences, s |"
    yield "|---|---|---|---|---|---|"
    for size in results.sizes:
        times = " | ".join(f"{1000 * median(seconds):.1f}" for seconds in (size.page_s, size.facet_s, size.scan_s))
        yield f"| {size.tools:,} | {size.servers:,} | {times} | {size.pass_s:.1f} |"
