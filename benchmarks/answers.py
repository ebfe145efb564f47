"""Answers: how many tokens does one take as summaries, as definitions, and in the default form of `find_tool`?

Real tools are ingested by the write path. Each query is sent once in each form, for at most eight tools and 5,000
tokens (cl100k_base); the whole text of an answer is counted. Tokens do not depend on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from benchmarks.corpora import Query, System, ingested, read_queries, read_servers
from benchmarks.harness import DATA, Figures, Watches, command, head, run_benchmark, table
from benchmarks.retrieval import QUICK
from query.answers.answer import FindResponse
from query.answers.budget import ResponsePolicy, counting
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import NO_THRESHOLD
from query.search.request import FindRequest
from shared.catalog import Encoding, Scope
from shared.settings import ResponseMode
from shared.text.tokens import json_text

LIMIT = 8
ENCODING: Encoding = "cl100k_base"

Answers = Sequence[FindResponse]


def measure(data: Path, corpora: Sequence[str], queries: str, watches: Watches) -> Figures:
    """Ingest the corpora, and send every query in every form."""
    servers = read_servers([data / "corpora" / f"{name}.jsonl" for name in corpora])
    asked = read_queries(data / "queries" / f"{queries}.jsonl")
    with ingested(servers) as system:
        send = partial(_answers, system, asked)
        found = {mode: watches.measure(mode, partial(send, mode, ResponsePolicy())) for mode in get_args(ResponseMode)}
        whole = send("detailed", ResponsePolicy(max_tokens=1_000_000))
    same = [_names(cut) == _names(full) for cut, full in zip(found["summary"], whole, strict=True)]
    return {
        "corpora": list(corpora),
        "tools": sum(len(server.listing.tools) for server in servers),
        "queries": len(asked),
        "same_ranking": sum(same),
        "forms": {mode: _form(answers) for mode, answers in found.items()},
    }


def _answers(system: System, queries: Sequence[Query], mode: ResponseMode, policy: ResponsePolicy) -> Answers:
    # each query is answered with tools, whether they fit or not
    catalogue = Catalogue(
        system.index, system.embedder, Ledger(system.index), ENCODING, NO_THRESHOLD, response_policy=policy
    )
    requests = (FindRequest(tool_description=query.text, limit=LIMIT, detail=mode) for query in queries)
    return [find_tool(request, Scope(), catalogue)[0] for request in requests]


def _names(answer: FindResponse) -> list[tuple[str, str]]:
    return [tool.first_server for tool in answer.tools]


def _form(answers: Answers) -> Figures:
    count = counting(ENCODING)
    tokens = [count(json_text(answer.as_object())) for answer in answers]
    return {
        "median_tokens": statistics.median(tokens),
        "p95_tokens": statistics.quantiles(tokens, n=20)[-1],
        "most_tokens": max(tokens),
        "median_tools": statistics.median(len(answer.tools) for answer in answers),
    }


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    yield from head(__doc__, figures)
    yield f"{figures['queries']} queries among {figures['tools']:,} tools ({', '.join(figures['corpora'])})."
    keys = ("median_tokens", "p95_tokens", "most_tokens", "median_tools")
    yield table(
        ("form", "tokens, median", "95th percentile", "most", "tools, median"),
        [(form, *(f"{found[key]:,.0f}" for key in keys)) for form, found in figures["forms"].items()],
    )
    yield (
        f"For {figures['same_ranking']} of {figures['queries']} queries the summaries are of the same tools, in the\n"
        "same order, as definitions without a limit."
    )


def main() -> None:
    """Measure, unless only the kept JSON is rendered again."""
    parser = command("answers", __doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    parser.add_argument("--corpora", nargs="+", default=["livemcp"], help="names of corpora; several are one catalogue")
    parser.add_argument("--queries", default="livemcp_agent", help="name of a set of queries")
    arguments = parser.parse_args()
    corpora, queries = (["mcpproxy45"], QUICK) if arguments.quick else (arguments.corpora, arguments.queries)
    measured = partial(measure, arguments.data, corpora, queries)
    run_benchmark("answers", arguments, measured, render)


if __name__ == "__main__":
    main()
