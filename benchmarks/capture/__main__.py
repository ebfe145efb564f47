"""`python -m benchmarks.capture`: attack the ranking of the demo's servers, store the JSON, render the Markdown.

The servers of the demo are the victims. Each strategy adds servers of an attacker, and all requests are searched before
and after the operator's file names the victims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from benchmarks.capture.report import render
from benchmarks.capture.results import Places, Results, Strategy
from benchmarks.capture.strategies import attacks
from benchmarks.command import command, run_benchmark
from benchmarks.requests.data import Servers, corpus, demo_servers, read_requests
from benchmarks.retrieval.data import ToolKey
from benchmarks.retrieval.system import System, asking, ingested
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder

LIMIT = 8
REQUESTS = {each.request: each.right for each in read_requests() if each.tools}


def measure(demo: Path) -> Results:
    """Return the places of the attacker and of the right tools under each strategy, and those of honest newcomers."""
    victims = demo_servers(demo)
    embedder = FastEmbedder(load_settings().embedding_model)
    by_name: dict[str, Servers] = {"none": {}, **attacks(victims)}
    unattacked, *attacked = (_attacked(name, attack, victims, embedder) for name, attack in by_name.items())
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        requests=len(REQUESTS),
        servers=len(victims),
        tools=sum(map(len, victims.values())),
        unattacked=unattacked,
        attacked=attacked,
        newcomers=_newcomers(victims, embedder),
    )


def _attacked(name: str, attack: Servers, victims: Servers, embedder: FastEmbedder) -> Strategy:
    print(f"  {name}", flush=True)
    with ingested(corpus({**victims, **attack}), embedder) as system:
        before = _places(system, victims, REQUESTS)
        for server in victims:
            system.own(server)
        return Strategy(name=name, before=before, after=_places(system, victims, REQUESTS))


def _newcomers(victims: Servers, embedder: FastEmbedder) -> Strategy:
    """Return the places of the right tools when the operator's file names all servers but theirs."""
    print("  newcomers", flush=True)
    before, after = Places(), Places()
    for newcomer in victims:
        theirs = [
            each.request for each in read_requests() if each.tools and each.tools[0][0].startswith(f"{newcomer}:")
        ]
        with ingested(corpus(victims), embedder) as system:
            before += _places(system, victims, theirs)
            for server in set(victims) - {newcomer}:
                system.own(server)
            after += _places(system, victims, theirs)
    return Strategy(name="an honest newcomer", before=before, after=after)


def _places(system: System, victims: Servers, requests: Iterable[str]) -> Places:
    found = anyio.run(_ask, system, list(requests))
    return sum((Places.of(tools, REQUESTS[request], victims) for request, tools in found.items()), Places())


async def _ask(system: System, requests: Sequence[str]) -> dict[str, list[ToolKey]]:
    async with asking(system) as find:
        return {request: await find(request, LIMIT) for request in requests}


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    arguments = command("capture", has_quick=False, needs_demo=True).parse_args()
    run_benchmark("capture", arguments, lambda: measure(arguments.demo), Results, render)


if __name__ == "__main__":
    main()
