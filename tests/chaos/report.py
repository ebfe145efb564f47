"""Results of `make chaos` as Markdown, rendered from the stored JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures
from tests.chaos.results import Asked, Outcome, Results, Schedules


def write(results: Results, directory: Path) -> None:
    """Write the results as JSON, and the report rendered from them."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / "chaos.json"
    kept.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (directory / "chaos.md").write_text("\n".join(render(results)) + "\n", encoding="utf-8")


def render(results: Results) -> Iterator[str]:
    """Yield the report's lines; every number in them comes from the results."""
    yield "# Chaos"
    yield ""
    yield "The latest run of each part of `make chaos`."
    yield "Rendered from `chaos.json`; [operations](../../docs/operations.md) states the guarantees."
    for outcome in results.faults:
        yield from ("", *faults(outcome))
    if results.schedules:
        yield from ("", *schedules(results.schedules))


def faults(outcome: Outcome) -> Iterator[str]:
    """Yield the faults of real processes and their effects."""
    yield f"## Faults, seed {outcome.seed}"
    yield ""
    yield f"On {outcome.made_at}, in {outcome.seconds:.0f} s."
    yield f"{_place(outcome.machine)}."
    yield f"{outcome.workers} worker processes at a time, real Redis with AOF, index: {outcome.index}."
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
    yield f"| changes without an event | {outcome.unannounced_changes} |"
    yield f"| listings requested from servers | {outcome.listings} |"
    yield f"| recorded events that a killed Redis had lost | {outcome.lost_acknowledged_events} |"
    yield f"| times that a server was parked, until a retry listed it again | {outcome.parked} |"
    yield f"| resync interval | {outcome.resync_s:g} s |"
    yield f"| last fault until the index equals the servers | {_converged(outcome)}, allowed {outcome.bound_s:g} s |"
    yield f"| tools compared, twice | {outcome.tools_compared[0]}, {outcome.tools_compared[1]} |"
    yield f"| differences: lost, duplicated, stale or wrong tools, or wrong answers | {len(outcome.differences)} |"
    if outcome.asked:
        yield from ("", *_asked(outcome.asked))


def schedules(played: Schedules) -> Iterator[str]:
    """Yield the schedules that hypothesis played, and their outcome."""
    yield "## Schedules"
    yield ""
    yield f"By hypothesis, on {played.made_at}, seed {played.seed}; at most {played.steps_at_most} steps each."
    yield f"{_place(played.machine)}."
    yield ""
    yield "| played | store | schedules | steps | seconds | failed |"
    yield "|---|---|---:|---:|---:|---:|"
    for run in played.runs:
        counted = f"{run.schedules:,} | {run.steps:,} | {run.seconds:.0f}"
        yield f"| {run.what} | {run.store} | {counted} | {'yes' if run.failure else 'none'} |"


def _asked(asked: Asked) -> Iterator[str]:
    yield "A client called `find_tool` over MCP during the faults:"
    yield ""
    yield "| | |"
    yield "|---|---:|"
    yield f"| questions | {asked.questions} |"
    yield f"| answers | {asked.answers} |"
    yield f"| answers marked as incomplete, after the index was deleted | {asked.incomplete} |"
    yield f"| answers without a tool of a parked server | {asked.hidden} |"
    yield from (f"| errors: {kind} | {times} |" for kind, times in asked.errors.items())
    yield f"| longest wait for an answer | {asked.longest_s:.1f} s, allowed {asked.within_s:g} s |"
    yield f"| longest wait for an error | {asked.longest_error_s:.1f} s, allowed {asked.within_s:g} s |"
    yield f"| longest time that a removed tool was found during the faults | {asked.longest_stale_s:.1f} s |"


def _place(machine: Figures) -> str:
    return f"{machine['processor']}, {machine['cores']} cores, shared with other work"


def _converged(outcome: Outcome) -> str:
    return "not reached" if outcome.converged_after_s is None else f"{outcome.converged_after_s:.1f} s"
