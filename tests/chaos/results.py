"""Results of `make chaos`, stored as JSON; a run of one part keeps the other."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.harness import Figures


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Played(Frozen):
    """Schedules of one machine on one kind of store that were played, and their steps; no `failure`: all held."""

    what: str
    store: str
    schedules: int
    steps: int
    seconds: float
    failure: str


class Schedules(Frozen):
    """One run of all machines on all stores; a schedule has `steps_at_most` steps."""

    made_at: str
    seed: int
    steps_at_most: int
    runs: tuple[Played, ...]
    machine: Figures

    @property
    def passed(self) -> bool:
        """Return whether no schedule failed."""
        return not any(run.failure for run in self.runs)


class Asked(Frozen):
    """Results of queries to find_tool during faults.

    `incomplete` answers were marked as incomplete after a loss of the index. `hidden` answers lacked a tool of a
    server that was parked after deaths of workers. `errors` counts by kind. The durations of the longest answer and
    the longest error are in seconds, with the limit `within_s`. `longest_stale_s` is the longest time that a tool was
    found after its removal.
    """

    questions: int
    answers: int
    incomplete: int
    hidden: int
    errors: dict[str, int]
    within_s: float
    longest_s: float
    longest_error_s: float
    longest_stale_s: float


class Outcome(Frozen):
    """One run: what was done to the composition, and how the catalogue compared with the truth after it.

    `asked` is None in a run from before anybody asked.
    """

    made_at: str
    seed: int
    index: str
    workers: int
    servers: int
    sick: int
    seconds: float
    faults: dict[str, int]
    events: int
    unannounced_changes: int
    listings: int
    resync_s: float
    bound_s: float
    converged_after_s: float | None
    clocks_ahead_s: tuple[int, ...]
    parked: int
    lost_acknowledged_events: int
    tools_compared: tuple[int, int]
    differences: tuple[str, ...]
    asked: Asked | None = None
    machine: Figures

    @property
    def passed(self) -> bool:
        """Return whether the catalogue equalled the truth, within the bound, both times, and no answer was wrong."""
        return not self.differences and self.converged_after_s is not None


class Results(Frozen):
    """The latest runs of each part, where there were some."""

    schedules: Schedules | None = None
    faults: tuple[Outcome, ...] = ()

    def replaced_by(self, later: Results) -> Results:
        """Return these results with the parts of the later ones in place of the old; missing parts stay."""
        return Results(schedules=later.schedules or self.schedules, faults=later.faults or self.faults)


def read(directory: Path) -> Results:
    """Return what is kept in this directory; nothing yet where there is no file."""
    kept = directory / "chaos.json"
    return Results.model_validate_json(kept.read_text(encoding="utf-8")) if kept.exists() else Results()
