"""What a run of `make chaos` found, kept as JSON, and the Markdown rendered from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Machine


class Outcome(BaseModel):
    """One run: what was done to the composition, and how the catalogue compared with the truth after it."""

    model_config = ConfigDict(frozen=True)

    made_at: str
    seed: int
    index: str
    workers: int
    servers: int
    sick: int
    seconds: float
    faults: dict[str, int]
    events: int
    changes_nobody_announced: int
    listings: int
    resync_s: float
    bound_s: float
    converged_after_s: float | None
    clocks_ahead_s: tuple[int, ...]
    parked: int
    lost_acknowledged_events: int
    tools_compared: tuple[int, int]
    differences: tuple[str, ...]
    machine: Machine

    @property
    def passed(self) -> bool:
        """Return whether the catalogue equalled the truth, within the bound, both times."""
        return not self.differences and self.converged_after_s is not None


def write(outcome: Outcome, directory: Path) -> None:
    """Keep the outcome as JSON, and the report rendered from that JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / "chaos.json"
    kept.write_text(outcome.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (directory / "chaos.md").write_text("\n".join(render(outcome)) + "\n", encoding="utf-8")


def render(outcome: Outcome) -> Iterator[str]:
    """Yield the report's lines; every number in them comes from the outcome."""
    yield "# Chaos"
    yield ""
    yield f"One run of `make chaos` on {outcome.made_at}, seed {outcome.seed}, in {outcome.seconds:.0f} s."
    yield "Rendered from `chaos.json`; what the figures promise is in [operations](../../docs/operations.md)."
    yield ""
    yield f"{outcome.machine.processor}, {outcome.machine.cores} cores, shared with other work."
    yield f"{outcome.workers} worker process at a time, real Redis with AOF, index: {outcome.index}."
    yield f"{outcome.servers} scripted servers, of which {outcome.sick} hung, dripped or failed."
    clocks = ", ".join(f"{seconds:+d}" if seconds else "0" for seconds in outcome.clocks_ahead_s)
    yield f"The clock of each worker and of beat was wrong by one of {clocks} s."
    yield ""
    yield "| fault | times |"
    yield "|---|---:|"
    yield from (f"| {name} | {times} |" for name, times in outcome.faults.items())
    yield ""
    yield "| | |"
    yield "|---|---:|"
    yield f"| events, duplicates among them | {outcome.events} |"
    yield f"| changes that nobody announced | {outcome.changes_nobody_announced} |"
    yield f"| listings that servers were asked for | {outcome.listings} |"
    yield f"| recorded events that a killed Redis had lost | {outcome.lost_acknowledged_events} |"
    yield f"| times that a server was parked, and came back by itself | {outcome.parked} |"
    yield f"| resync interval | {outcome.resync_s:g} s |"
    yield f"| last fault to truth | {_converged(outcome)}, allowed {outcome.bound_s:g} s |"
    yield f"| tools compared, twice | {outcome.tools_compared[0]}, {outcome.tools_compared[1]} |"
    yield f"| lost, duplicated, stale or differing | {len(outcome.differences)} |"


def _converged(outcome: Outcome) -> str:
    return "not reached" if outcome.converged_after_s is None else f"{outcome.converged_after_s:.1f} s"
