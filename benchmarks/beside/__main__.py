"""`python -m benchmarks.beside CHECKOUT`: measure this build beside another one, and render the Markdown."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.beside.builds import Build, Request, build_serving, other_requests, search
from benchmarks.beside.report import render
from benchmarks.beside.results import FULL, QUICK, Compared, Cost, Plan, Results, Size
from benchmarks.command import ROOT, command, run_benchmark
from benchmarks.serving.plan import FULL as SERVED
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.machine import Watches, this_machine
from benchmarks.throughput.results import Spread

Round = tuple[float, list[float]]
"""Processor time for each request, and the duration of each, in ms."""


def run(before: Path, plan: Plan) -> Results:
    """Measure both builds at each size."""
    watches = Watches()
    sizes = [watches.measure(f"{tools:,} tools", partial(_size, before, tools, plan)) for tools in plan.tools]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        before=_commit(before),
        now=_commit(ROOT),
        sizes=tuple(sizes),
    )


def _size(before: Path, tools: int, plan: Plan) -> Size:
    with build_serving(before, tools) as earlier, build_serving(ROOT, tools) as present:
        questions = iter(queries((plan.rounds + 1) * plan.requests, plan.seed))
        rounds = [_round(plan, questions, (earlier, present)) for _ in range(plan.rounds + 1)]
    measured = rounds[1:]  # the first one warms up
    compared = (_compared(request, [each[request] for each in measured]) for request in measured[0])
    return Size(tools=tools, compared=tuple(compared))


def _round(plan: Plan, questions: Iterator[str], builds: Sequence[Build]) -> Mapping[str, list[Round]]:
    """Send the same requests to one build after the other, and return the rounds of each build by request."""
    searches = [search(question) for question in islice(questions, plan.requests)]
    others = other_requests(SERVED.tools_per_server, SERVED.seed)
    batches: dict[str, list[Request]] = {
        "find_tool, never asked before": searches,
        "find_tool, asked before": searches,
        **{name: [request] * plan.requests for name, request in others.items()},
    }
    return {name: [build.answer(batch) for build in builds] for name, batch in batches.items()}


def _compared(request: str, rounds: Sequence[list[Round]]) -> Compared:
    before, now = ([of_builds[build] for of_builds in rounds] for build in (0, 1))
    ratios = [later[0] / earlier[0] for earlier, later in zip(before, now, strict=True)]
    return Compared(request=request, before=_cost(before), now=_cost(now), ratio=Spread.of(ratios))


def _cost(rounds: Sequence[Round]) -> Cost:
    medians = [statistics.median(took_ms) for _, took_ms in rounds]
    return Cost(processor=Spread.of([processor_ms for processor_ms, _ in rounds]), p50=Spread.of(medians))


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "an unknown commit"


def main() -> None:
    """Run the benchmark, or only render the stored results."""
    parser = command("beside")
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="of the earlier build; default: this one")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    run_benchmark("beside", arguments, lambda: run(arguments.checkout.resolve(), plan), Results, render)


if __name__ == "__main__":
    main()
