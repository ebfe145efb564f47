"""Ask the catalogues the same queries: recall, tokens, repeated definitions and latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import get_args

from benchmarks.replicas.catalogues import ALONE
from benchmarks.replicas.results import AnswerTokens, CatalogueResult
from benchmarks.retrieval.data import Query, ToolKey
from benchmarks.retrieval.results import Score
from benchmarks.retrieval.system import System
from benchmarks.search.results import Milliseconds
from query.answers.answer import FindResponse
from query.answers.budget import counting
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import NO_THRESHOLD
from query.search.request import FindRequest
from shared.catalog import Scope, point_id
from shared.settings import ResponseMode
from shared.text.tokens import json_text

RANKED = 10
MODES: tuple[ResponseMode, ...] = get_args(ResponseMode)

QuerySets = Mapping[str, Sequence[Query]]
Run = Mapping[str, Sequence[ToolKey]]
"""The tools found for each query, by its id."""


def measure(
    systems: Mapping[str, System], queries: QuerySets, score: Callable[[str, Run], Score], rounds: int
) -> tuple[CatalogueResult, ...]:
    """Return the result of each catalogue; `score` rates a run of a set of queries."""
    catalogues = {name: _catalogue(system) for name, system in systems.items()}
    runs = {name: _runs(systems[name], catalogue, queries) for name, catalogue in catalogues.items()}
    latency = _latency(list(catalogues.values()), queries, rounds)
    return tuple(
        _result(name, systems[name], catalogue, queries, runs, score, milliseconds)
        for (name, catalogue), milliseconds in zip(catalogues.items(), latency, strict=True)
    )


def _catalogue(system: System) -> Catalogue:
    return Catalogue(system.index, system.embedder, Ledger(system.index), "cl100k_base", NO_THRESHOLD)


def _result(
    name: str,
    system: System,
    catalogue: Catalogue,
    queries: QuerySets,
    runs: Mapping[str, Mapping[str, Run]],
    score: Callable[[str, Run], Score],
    latency: Milliseconds,
) -> CatalogueResult:
    answers = {mode: [_find(catalogue, query, detail=mode) for query in _all(queries)] for mode in MODES}
    mine, alone = runs[name], runs[ALONE]
    return CatalogueResult(
        name=name,
        servers=len(system.index.servers()),
        tools=catalogue.ledger.baseline(Scope(), "cl100k_base").tools,
        scores={of_set: score(of_set, run) for of_set, run in mine.items()},
        same_rankings=sum(
            mine[of_set][query] == found for of_set, run in alone.items() for query, found in run.items()
        ),
        repeated=sum(_repeats(system, answer) for answer in chain.from_iterable(answers.values())),
        tokens={mode: _tokens(system, found) for mode, found in answers.items()},
        find_tool=latency,
    )


def _all(queries: QuerySets) -> list[Query]:
    return [query for asked in queries.values() for query in asked]


def _find(catalogue: Catalogue, query: Query, **request: object) -> FindResponse:
    asked = FindRequest.model_validate({"tool_description": query.text, **request})
    return find_tool(asked, Scope(), catalogue)[0]


def _runs(system: System, catalogue: Catalogue, queries: QuerySets) -> dict[str, Run]:
    return {
        of_set: {query.id: _keys(system, _find(catalogue, query, detail="summary", limit=RANKED)) for query in asked}
        for of_set, asked in queries.items()
    }


def _keys(system: System, answer: FindResponse) -> list[ToolKey]:
    return [system.key(*tool.first_server) for tool in answer.tools]


def _definitions(system: System, answer: FindResponse) -> list[str]:
    tools = system.index.get([point_id(*tool.first_server) for tool in answer.tools])
    return [tool.definition.wire for tool in tools.values()]


def _repeats(system: System, answer: FindResponse) -> bool:
    definitions = _definitions(system, answer)
    return len(set(definitions)) < len(definitions)


def _tokens(system: System, answers: Sequence[FindResponse]) -> AnswerTokens:
    count = counting("cl100k_base")
    tokens = [count(json_text(answer.as_object())) for answer in answers]
    return AnswerTokens(
        median=statistics.median(tokens),
        p95=round(statistics.quantiles(tokens, n=20)[-1], 1),
        median_definitions=statistics.median(len(set(_definitions(system, answer))) for answer in answers),
    )


def _latency(catalogues: Sequence[Catalogue], queries: QuerySets, rounds: int) -> list[Milliseconds]:
    """Return the latency of each catalogue; for every query all of them answer in turn, so that they share the load."""
    samples: list[list[float]] = [[] for _ in catalogues]
    for _ in range(rounds):
        for query in _all(queries):
            for catalogue, own in zip(catalogues, samples, strict=True):
                started = time.perf_counter()
                _find(catalogue, query)
                own.append((time.perf_counter() - started) * 1e3)
    return [Milliseconds.of(own) for own in samples]
