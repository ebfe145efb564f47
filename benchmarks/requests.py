"""Requests: how often does `find_tool` find the right tools of the demo's servers?

`requests.jsonl` has our requests, at least one for each tool, and ten that no tool fulfils. Each names its steps, and
for each step the tools that do it. A second reader judged all requests without those names; eight judgements differed,
and were corrected or the requests changed. The write path ingests the tools; `find_tool` answers over MCP.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import anyio

from benchmarks.corpora import PROTOCOL_VERSION, CorpusServer, System, ToolKey, asking, ingested, read_lines
from benchmarks.harness import Figures, Watches, command, head, run_benchmark, table
from benchmarks.recount_messages import raw_tools
from shared.catalog import Listing, ToolDefinition
from toolscale.demo.servers import install

FILE = Path(__file__).with_name("requests.jsonl")
LIMIT = 8
CUT_OFFS = (1, 5, LIMIT)
# Requests with a tool that is not among the first five are listed.
LISTED_BEYOND = 5

Servers = Mapping[str, Sequence[ToolDefinition]]
"""Tools by the ids of their servers."""

Steps = Sequence[Sequence[str]]
"""Of each step of a request the alternative tools, as `server:tool`; no step if no tool fulfils it."""


def read_requests() -> dict[str, Steps]:
    """Return the steps of each request."""
    return {line["request"]: line["tools"] for line in read_lines(FILE)}


def demo_servers(demo: Path) -> Servers:
    """Return the tools of the demo's servers, which are installed in `demo` if they are missing."""
    listed = raw_tools(install(demo, print))
    wires = {server: [json.dumps(tool, ensure_ascii=False) for tool in tools] for server, tools in listed.items()}
    return {server: [ToolDefinition.from_wire(wire) for wire in tools] for server, tools in wires.items()}


def corpus(servers: Servers) -> list[CorpusServer]:
    """Return the servers as the write path lists them; an id is the declared name too."""
    listings = {server: Listing(server, PROTOCOL_VERSION, tuple(tools)) for server, tools in servers.items()}
    return [CorpusServer(server, server, listing) for server, listing in listings.items()]


async def found_by(system: System, requests: Collection[str]) -> dict[str, list[ToolKey]]:
    """Return what `find_tool` finds for each request, best first."""
    async with asking(system) as find:
        return {request: await find(request, LIMIT) for request in requests}


def measure(demo: Path, watches: Watches) -> Figures:
    """Search the demo's tools for each request."""
    servers, requests = demo_servers(demo), read_requests()
    with ingested(corpus(servers)) as system:
        found = watches.measure("requests", lambda: anyio.run(found_by, system, requests))
    return {
        "servers": len(servers),
        "tools": sum(map(len, servers.values())),
        "answers": [
            {
                "request": request,
                "tools": requests[request],
                "found": [f"{server}:{tool}" for server, tool in tools],
            }
            for request, tools in found.items()
        ],
    }


def missing(answer: Figures, cut_off: int) -> list[str]:
    """Return the first alternative of each step without a right tool among the first ones."""
    first = set(answer["found"][:cut_off])
    return [step[0] for step in cast("Steps", answer["tools"]) if not first & set(step)]


def recall(answers: Sequence[Figures], cut_off: int) -> float:
    """Return the mean share of a request's steps with a right tool among the first ones, in percent."""
    shares = [1 - len(missing(answer, cut_off)) / len(answer["tools"]) for answer in answers]
    return 100 * sum(shares) / len(shares)


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    answers: list[Figures] = figures["answers"]
    answerable = [answer for answer in answers if answer["tools"]]
    unanswerable = [answer for answer in answers if not answer["tools"]]
    groups = {
        "of one step": [answer for answer in answerable if len(answer["tools"]) == 1],
        "of several steps": [answer for answer in answerable if len(answer["tools"]) > 1],
        "all": answerable,
    }
    yield from head(__doc__, figures)
    yield f"{figures['tools']} tools of {figures['servers']} real servers."
    yield "The share of the requests' steps with a right tool among the first ones, in percent:"
    rows = [
        (name, len(own), *(f"{recall(own, cut_off):.1f}" for cut_off in CUT_OFFS))
        for name, own in groups.items()
        if own
    ]
    yield table(("requests", "number", *(f"recall at {cut_off}" for cut_off in CUT_OFFS)), rows)
    recognised = sum(not answer["found"] for answer in unanswerable)
    yield f"Of {len(unanswerable)} requests that no tool fulfils, {recognised} were recognised (`no_match`)."
    yield f"## Right tools beyond the first {LISTED_BEYOND}"
    missed = [answer for answer in answerable if missing(answer, LISTED_BEYOND)]
    yield table(("request", "missing", "first"), map(_missed_row, missed))


def _missed_row(answer: Figures) -> tuple[str, str, str]:
    lacking = ", ".join(missing(answer, LISTED_BEYOND))
    return answer["request"], lacking, answer["found"][0] if answer["found"] else "none"


def main() -> None:
    """Measure, unless only the kept JSON is rendered again."""
    arguments = command("requests", __doc__, has_quick=False, needs_demo=True).parse_args()
    run_benchmark("requests", arguments, partial(measure, arguments.demo), render)


if __name__ == "__main__":
    main()
