"""`python -m benchmarks.capture`: attack the ranking of the demo's servers, store the JSON, render the Markdown.

The servers of the demo are the victims. Each strategy adds servers of an attacker, and all questions are asked before
and after the operator's file names the victims.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from benchmarks.capture.questions import QUESTIONS
from benchmarks.capture.report import render
from benchmarks.capture.results import Places, Results, Strategy
from benchmarks.capture.strategies import Servers, attacks
from benchmarks.command import ROOT, command, run_benchmark
from benchmarks.recount.session import demo_plan
from benchmarks.recount.upstream import raw_tools
from benchmarks.retrieval.data import PROTOCOL_VERSION, CorpusServer, ToolKey
from benchmarks.retrieval.system import System, asking, ingested
from shared.catalog import Listing, ToolDefinition
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder

LIMIT = 8


def measure(demo: Path) -> Results:
    """Return the places of the attacker and of the right tools under each strategy, and those of honest newcomers."""
    victims = _victims(demo)
    embedder = FastEmbedder(load_settings().embedding_model)
    by_name: dict[str, Servers] = {"none": {}, **attacks(victims)}
    unattacked, *attacked = (_attacked(name, attack, victims, embedder) for name, attack in by_name.items())
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        questions=len(QUESTIONS),
        servers=len(victims),
        tools=sum(map(len, victims.values())),
        unattacked=unattacked,
        attacked=attacked,
        newcomers=_newcomers(victims, embedder),
    )


def _victims(demo: Path) -> Servers:
    listed = raw_tools(demo_plan(demo).servers)
    wires = {server: [json.dumps(tool, ensure_ascii=False) for tool in tools] for server, tools in listed.items()}
    return {server: [ToolDefinition.from_wire(wire) for wire in tools] for server, tools in wires.items()}


def _attacked(name: str, attack: Servers, victims: Servers, embedder: FastEmbedder) -> Strategy:
    print(f"  {name}", flush=True)
    with ingested(_corpus({**victims, **attack}), embedder) as system:
        before = _places(system, victims, QUESTIONS)
        for server in victims:
            system.vet(server)
        return Strategy(name=name, before=before, after=_places(system, victims, QUESTIONS))


def _newcomers(victims: Servers, embedder: FastEmbedder) -> Strategy:
    """Return the places of the right tools when the operator's file names all servers but theirs."""
    print("  newcomers", flush=True)
    before, after = Places(), Places()
    for newcomer in victims:
        theirs = [question for question, tools in QUESTIONS.items() if tools[0].startswith(f"{newcomer}:")]
        with ingested(_corpus(victims), embedder) as system:
            before += _places(system, victims, theirs)
            for server in set(victims) - {newcomer}:
                system.vet(server)
            after += _places(system, victims, theirs)
    return Strategy(name="an honest newcomer", before=before, after=after)


def _corpus(servers: Servers) -> list[CorpusServer]:
    listings = {server: Listing(server, PROTOCOL_VERSION, tuple(tools)) for server, tools in servers.items()}
    return [CorpusServer(server, server, listing) for server, listing in listings.items()]


def _places(system: System, victims: Servers, questions: Iterable[str]) -> Places:
    found = anyio.run(_ask, system, list(questions))
    return sum((Places.of(tools, QUESTIONS[question], victims) for question, tools in found.items()), Places())


async def _ask(system: System, questions: Sequence[str]) -> dict[str, list[ToolKey]]:
    async with asking(system) as find:
        return {question: await find(question, LIMIT) for question in questions}


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    parser = command("capture", has_quick=False)
    parser.add_argument("--demo", type=Path, default=ROOT / ".demo", help="directory of the demo's servers")
    arguments = parser.parse_args()
    run_benchmark("capture", arguments, lambda: measure(arguments.demo), Results, render)


if __name__ == "__main__":
    main()
