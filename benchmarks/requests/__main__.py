"""`python -m benchmarks.requests`: search the demo's tools for every request, store the JSON, render the Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from benchmarks.command import command, run_benchmark
from benchmarks.requests.data import Request, corpus, demo_servers, read_requests
from benchmarks.retrieval.data import ToolKey
from benchmarks.retrieval.system import System, asking, ingested
from benchmarks.throughput.report import table
from benchmarks.throughput.results import Frozen

LIMIT = 8
CUT_OFFS = (1, 5, LIMIT)
# Requests with a tool that is not among the first five are listed.
LISTED_BEYOND = 5


class Answer(Frozen):
    """The tools that `find_tool` found for a request, best first, as `server:tool`."""

    request: Request
    found: tuple[str, ...]

    def recall(self, cut_off: int) -> float:
        """Return the share of the request's steps with a right tool among the first ones."""
        return (len(self.request.tools) - len(self.missing(cut_off))) / len(self.request.tools)

    def missing(self, cut_off: int) -> list[str]:
        """Return the first alternative of each step without a right tool among the first ones."""
        return [step[0] for step in self.request.tools if not set(step) & set(self.found[:cut_off])]


class Results(Frozen):
    """A run over all requests."""

    made_at: str
    model: str
    servers: int
    tools: int
    answers: list[Answer]


def measure(demo: Path) -> Results:
    """Ingest the demo's tools by the write path, and call `find_tool` over MCP for each request."""
    servers = demo_servers(demo)
    with ingested(corpus(servers)) as system:
        found = anyio.run(_ask, system, read_requests())
        return Results(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            model=system.embedder.model,
            servers=len(servers),
            tools=sum(map(len, servers.values())),
            answers=[Answer(request=request, found=_names(tools)) for request, tools in found],
        )


async def _ask(system: System, requests: Sequence[Request]) -> list[tuple[Request, list[ToolKey]]]:
    async with asking(system) as find:
        return [(request, await find(request.request, LIMIT)) for request in requests]


def _names(tools: Collection[ToolKey]) -> tuple[str, ...]:
    return tuple(f"{server}:{tool}" for server, tool in tools)


def render(results: Results) -> str:
    """Return the report; every number in it comes from `results`."""
    answerable = [answer for answer in results.answers if answer.request.tools]
    unanswerable = [answer for answer in results.answers if not answer.request.tools]
    groups = {
        "of one step": [answer for answer in answerable if len(answer.request.tools) == 1],
        "of several steps": [answer for answer in answerable if len(answer.request.tools) > 1],
        "all": answerable,
    }
    rows = [
        (name, len(answers), *(_percent(answers, cut_off) for cut_off in CUT_OFFS)) for name, answers in groups.items()
    ]
    missed = [answer for answer in answerable if answer.recall(LISTED_BEYOND) < 1]
    lines = (
        "# Requests over the demo's servers",
        "",
        f"A run of `python -m benchmarks.requests` on {results.made_at}. Rendered from `requests.json`.",
        f"{results.tools} tools of {results.servers} real servers, through `find_tool`.",
        f"The model is `{results.model}`.",
        "The requests are ours; two readers judged each of them from the definitions, without its result.",
        "",
        "The share of the requests' steps with a right tool among the first ones, in percent:",
        "",
        *table(("requests", "number", *(f"recall at {cut_off}" for cut_off in CUT_OFFS)), rows),
        "",
        f"Of {len(unanswerable)} requests that no tool fulfils,",
        f"{sum(not answer.found for answer in unanswerable)} were recognised (`no_match`).",
        "",
        f"## Right tools beyond the first {LISTED_BEYOND}",
        "",
        *table(("request", "missing", "first"), map(_missed_row, missed)),
    )
    return "\n".join(lines) + "\n"


def _percent(answers: Sequence[Answer], cut_off: int) -> str:
    return f"{100 * sum(answer.recall(cut_off) for answer in answers) / len(answers):.1f}"


def _missed_row(answer: Answer) -> tuple[str, str, str]:
    missing = ", ".join(answer.missing(LISTED_BEYOND))
    return answer.request.request, missing, answer.found[0] if answer.found else "none"


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    arguments = command("requests", has_quick=False, needs_demo=True).parse_args()
    run_benchmark("requests", arguments, lambda: measure(arguments.demo), Results, render)


if __name__ == "__main__":
    main()
