"""Whole calls: how many tokens enter a context, by calls one by one and by one script?

Each of 20 tasks on the demo's real servers is done twice, through a real `toolscale serve`: by the calls that an agent
needs, and by a script. The tasks, the calls and the scripts were written, and committed, before the tool was. Both
sides must leave the same data behind, and the script must return the answer that follows from the data.

Counted are all texts that enter the context: what the model writes (the arguments of each call, or the source), and
what it reads (each result, with all its pages). Calls that do not depend on each other are one round trip. Where no
output schema has the form of a result, the script's side also pays for a call that shows it, before the script.

Not counted: the definitions, which both sides need; the question and the answer in words; and that a model reads its
whole context again in each round trip, which favours the script further. A model may need a second script where this
first one is right.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import TextContent

from benchmarks.harness import Figures, Watches, command, head, run_benchmark, spread, spread_cell, table
from benchmarks.recount import Plan, serving
from benchmarks.recount_numbers import compact, tokens_of
from benchmarks.whole_calls import world
from benchmarks.whole_calls.tasks import DIRECTORY, TASKS, Call, Task, same
from tests.support.processes import Composition
from toolscale.demo.servers import LaunchableServer, install

NAME = "whole_calls"
SERVERS = ("time", "git", "sqlite", "powerpoint", "filesystem", "memory")
TARGET_PERCENT = 70
_CURSOR = re.compile(r'"nextCursor":"([^"]+)"')


@dataclass(slots=True)
class Cost:
    """What one way to do a task costs a context, in tokens and round trips."""

    round_trips: int = 0
    written: int = 0
    read: int = 0

    @property
    def tokens(self) -> int:
        """Return all tokens that enter the context."""
        return self.written + self.read


async def paid(client: Client, cost: Cost, name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Call a tool of Toolscale, add its cost with all further pages, and return the texts of the first page."""
    first: list[str] = []
    given = dict(arguments)
    while True:
        result = await client.call_tool(name, given)
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        if result.is_error:
            raise SystemExit(f"{name} {compact(given)[:300]} failed: {texts}")
        cost.written += tokens_of(given)
        cost.read += sum(map(tokens_of, texts))
        first = first or texts
        more = _CURSOR.search(texts[-1]) if texts and texts[-1].startswith('{"nextCursor"') else None
        if more is None:
            return first
        cost.round_trips += 1
        kept = {"tool_name": arguments["tool_name"]} if name == "call_tool" else dict(arguments)
        given = {**kept, "cursor": more[1]}


async def one_by_one(client: Client, task: Task) -> Cost:
    """Do the task by its calls, in rounds."""
    cost = Cost()
    for calls in task.rounds():
        await _round(client, cost, calls)
    return cost


async def by_script(client: Client, task: Task) -> Cost:
    """Do the task by its script, behind the calls that show the form of results.

    Raises:
        SystemExit: the script returned another answer.
    """
    cost = Cost()
    if task.looks:
        await _round(client, cost, task.looks)
    cost.round_trips += 1
    *_, result = await paid(client, cost, "run_script", {"source": task.script.strip("\n")})
    if not same(json.loads(result), task.answer()):
        raise SystemExit(f"{task.name}: expected {task.answer()}, got {result}")
    return cost


async def _round(client: Client, cost: Cost, calls: Sequence[Call]) -> None:
    cost.round_trips += 1
    for tool, parameters in calls:
        await paid(client, cost, "call_tool", {"tool_name": tool, "parameters": parameters})


Way = Callable[[Client, Task], Any]


def played(servers: Sequence[LaunchableServer], way: Way) -> list[tuple[Cost, str]]:
    """Do all tasks in this way, on data that is made for it; return each cost, and the digest of the data behind it."""
    world.build(DIRECTORY)
    done: list[tuple[Cost, str]] = []

    async def play(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            for task in TASKS:
                cost = await way(client, task)
                done.append((cost, world.state(DIRECTORY)))

    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        composition = Composition("", Path(name), {"QDRANT_URL": ""})
        url = stack.enter_context(serving(Plan(servers, {}, {}, (), play), composition))
        anyio.run(play, url)
    return done


def measure(demo: Path, watches: Watches) -> Figures:
    """Return what each task costs in both ways.

    Raises:
        SystemExit: a task left other data behind, or had another answer.
    """
    scratch = str(demo.resolve() / "scratch")
    servers = [
        replace(
            server,
            args=tuple(arg.replace(scratch, str(DIRECTORY)) for arg in server.args),
            env={key: text.replace(scratch, str(DIRECTORY)) for key, text in server.env.items()},
        )
        for server in install(demo, print)
        if server.server_id in SERVERS
    ]
    calls = watches.measure("calls one by one", partial(played, servers, one_by_one))
    scripts = watches.measure("scripts", partial(played, servers, by_script))
    tasks: list[Figures] = []
    for task, (one, state), (other, same_state) in zip(TASKS, calls, scripts, strict=True):
        if state != same_state:
            raise SystemExit(f"{task.name}: both ways left different data")
        fewer = round(100 * (1 - other.tokens / one.tokens), 1)
        tasks.append({"task": task.name, "calls": _figures(one), "script": _figures(other), "fewer_percent": fewer})
    return {"servers": len(servers), "tasks": tasks, **_summary(tasks)}


def _figures(cost: Cost) -> Figures:
    return {**asdict(cost), "tokens": cost.tokens}


def _summary(tasks: Sequence[Figures]) -> Figures:
    percents = [task["fewer_percent"] for task in tasks]
    first, middle, third = statistics.quantiles(percents, n=4, method="inclusive")
    return {
        "fewer_percent": {**spread(percents), "quartiles": [round(each, 1) for each in (first, middle, third)]},
        "round_trips": {way: spread([task[way]["round_trips"] for task in tasks]) for way in ("calls", "script")},
        "tokens": {way: sum(task[way]["tokens"] for task in tasks) for way in ("calls", "script")},
        "fewer_in_all_percent": round(
            100
            * (1 - sum(task["script"]["tokens"] for task in tasks) / sum(task["calls"]["tokens"] for task in tasks)),
            1,
        ),
    }


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    yield from head(__doc__, figures)
    fewer, trips, tokens = figures["fewer_percent"], figures["round_trips"], figures["tokens"]
    verdict = "reached" if fewer["median"] >= TARGET_PERCENT else "missed"
    quartiles = ", ".join(f"{each:.0f}" for each in fewer["quartiles"])
    yield (
        f"A script takes {fewer['median']:.0f} % fewer tokens in the median of {len(figures['tasks'])} tasks "
        f"({fewer['lowest']:.0f} to {fewer['highest']:.0f}; quartiles {quartiles}),\n"
        f"and {figures['fewer_in_all_percent']:.0f} % fewer in all: "
        f"{tokens['script']:,} in place of {tokens['calls']:,}.\n"
        f"The target of {TARGET_PERCENT} % in the median is {verdict}.\n"
        f"Round trips: {spread_cell(trips['script'])} in place of {spread_cell(trips['calls'])}."
    )
    yield summary_table(figures)
    yield "## Each task"
    yield table(
        ("task", "round trips", "by script", "tokens", "written", "by script", "written", "fewer, %"),
        [_row(task) for task in sorted(figures["tasks"], key=lambda task: -task["fewer_percent"])],
    )
    yield "## Distribution"
    yield table(("fewer tokens, %", "tasks"), _distribution([task["fewer_percent"] for task in figures["tasks"]]))


def summary_table(figures: Figures) -> str:
    """Return the median of the round trips, and the tokens of all tasks, by each way."""
    trips, tokens = figures["round_trips"], figures["tokens"]
    return table(
        (f"{len(figures['tasks'])} tasks, {figures['servers']} servers", "calls one by one", "a script each"),
        [
            ("tokens into the context, all tasks", f"{tokens['calls']:,}", f"**{tokens['script']:,}**"),
            ("round trips, median", *(spread_cell(trips[way]) for way in ("calls", "script"))),
            ("fewer tokens, median of the tasks, %", "", f"**{figures['fewer_percent']['median']:.0f}**"),
        ],
    )


def _row(task: Figures) -> Sequence[object]:
    one, other = task["calls"], task["script"]
    return (
        task["task"], one["round_trips"], other["round_trips"], f"{one['tokens']:,}", f"{one['written']:,}",
        f"{other['tokens']:,}", f"{other['written']:,}", f"{task['fewer_percent']:.0f}",
    )  # fmt: skip


def _distribution(percents: Sequence[float]) -> Iterator[Sequence[object]]:
    edges = (None, 0, 25, 50, 70, 90, 100)
    for low, high in pairwise(edges):
        found = sum((low is None or each >= low) and each < (high or 0) for each in percents)
        yield ("more tokens" if low is None else f"{low} to {high}"), found


def main() -> None:
    """Measure, unless only the kept JSON is rendered again."""
    arguments = command(NAME, __doc__, has_quick=False, needs_demo=True).parse_args()
    run_benchmark(NAME, arguments, partial(measure, arguments.demo), render)


if __name__ == "__main__":
    main()
