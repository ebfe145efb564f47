"""`python -m benchmarks.answers`: ask `find_tool` for eight tools in each form, and count what it answers.

It stores the JSON and renders the Markdown next to it. `--corpora haystack` embeds 20,000 tools, which takes minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict

from benchmarks.command import DATA, command, run_benchmark
from benchmarks.retrieval.data import Query, read_queries, read_servers
from benchmarks.retrieval.system import ingested
from benchmarks.throughput.machine import Machine, this_machine
from query.answers.answer import FindResponse
from query.answers.budget import ResponsePolicy, counting
from query.catalogue import Catalogue
from query.find import Timings, find_tool
from query.records import Ledger
from query.search.ranking import NO_THRESHOLD
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.settings import ResponseMode
from shared.text.tokens import json_text

LIMIT = 8
NEVER = NO_THRESHOLD  # each question is answered with eight tools, whether they fit or not


Answer = tuple[FindResponse, Timings]


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class FormResult(_Kept):
    """The answers of one form: their tokens, text as a model reads it, and the milliseconds to fit them."""

    form: str
    median_tokens: float
    p95_tokens: float
    most_tokens: int
    median_tools: float
    fit_p50_ms: float
    fit_p95_ms: float


class Results(_Kept):
    """Everything a run found."""

    made_at: str
    machine: Machine
    corpora: tuple[str, ...]
    tools: int
    questions: int
    same_ranking: int
    """Questions whose summaries are of the same tools, in the same order, as their definitions."""
    forms: tuple[FormResult, ...]


def measure(data: Path, corpora: Sequence[str], queries: str) -> Results:
    """Ingest the corpora by the write path, and ask every question in every form."""
    servers = read_servers([data / "corpora" / f"{name}.jsonl" for name in corpora])
    questions = read_queries(data / "queries" / f"{queries}.jsonl")
    with ingested(servers) as system:
        answers = ResponsePolicy()
        catalogue = Catalogue(
            system.index, system.embedder, Ledger(system.index), "cl100k_base", NEVER, response_policy=answers
        )
        found = {mode: _ask(catalogue, questions, mode) for mode in get_args(ResponseMode)}
        unbounded = Catalogue(
            system.index,
            system.embedder,
            catalogue.ledger,
            "cl100k_base",
            NEVER,
            response_policy=ResponsePolicy(max_tokens=1_000_000),
        )
        whole = [_names(answer) for answer, _ in _ask(unbounded, questions, "detailed")]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=this_machine(),
        corpora=tuple(corpora),
        tools=sum(len(server.listing.tools) for server in servers),
        questions=len(questions),
        same_ranking=sum(_names(answer) == names for (answer, _), names in zip(found["summary"], whole, strict=True)),
        forms=tuple(_result(mode, answers) for mode, answers in found.items()),
    )


def render(results: Results) -> str:
    """Return the report."""
    rows = [
        f"| {batch.form} | {batch.median_tokens:,.0f} | {batch.p95_tokens:,.0f} | {batch.most_tokens:,} "
        f"| {batch.median_tools:g} | {batch.fit_p50_ms:.1f} | {batch.fit_p95_ms:.1f} |"
        for batch in results.forms
    ]
    lines = [
        "# Answers",
        "",
        f"A run of `python -m benchmarks.answers` on {results.made_at}, on {results.machine.processor}.",
        f"{results.questions} questions to {results.tools:,} real tools ({', '.join(results.corpora)}), {LIMIT} tools",
        "asked for, at most 5,000 tokens; cl100k_base, over the text of the answer with everything in it.",
        "Rendered from `answers.json`.",
        "",
        "Other programs ran on the machine: the tokens do not depend on that, the milliseconds do.",
        "",
        "| form | tokens, median | 95th percentile | most | tools, median | fitting, median ms | 95th percentile ms |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"In {results.same_ranking} of {results.questions} questions the summaries are of the same tools, in the same",
        "order, as the definitions are where no budget cuts them.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    parser = command("answers", has_quick=False)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    parser.add_argument("--corpora", nargs="+", default=["livemcp"], help="names of corpora; several are one catalogue")
    parser.add_argument("--queries", default="livemcp_agent", help="name of a set of queries")
    arguments = parser.parse_args()
    data, corpora, queries = arguments.data, arguments.corpora, arguments.queries
    run_benchmark("answers", arguments, lambda: measure(data, corpora, queries), Results, render)


def _ask(catalogue: Catalogue, questions: Sequence[Query], mode: ResponseMode) -> list[Answer]:
    requests = (FindRequest(tool_description=server.text, limit=LIMIT, detail=mode) for server in questions)
    return [find_tool(request, Scope(), catalogue) for request in requests]


def _names(answer: FindResponse) -> list[tuple[str, str]]:
    return [tool.first_server for tool in answer.tools]


def _result(form: str, answered: Sequence[Answer]) -> FormResult:
    count = counting("cl100k_base")
    answers = [response for response, _ in answered]
    tokens = [count(json_text(answer.as_object())) for answer in answers]
    fit_ms = [timings.fit_ms for _, timings in answered]
    return FormResult(
        form=form,
        median_tokens=statistics.median(tokens),
        p95_tokens=statistics.quantiles(tokens, n=20)[-1],
        most_tokens=max(tokens),
        median_tools=statistics.median(len(answer.tools) for answer in answers),
        fit_p50_ms=round(statistics.median(fit_ms), 2),
        fit_p95_ms=round(statistics.quantiles(fit_ms, n=20)[-1], 2),
    )


if __name__ == "__main__":
    main()
