"""Ask an index the queries and time each part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.qdrant import server_cpu_s
from benchmarks.search.results import Milliseconds, Parts, Searches
from benchmarks.throughput.results import percentile
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import DEPTH, rank
from query.search.request import FindRequest
from shared.catalog import QueryVectors, Scope
from shared.index.points import NamedVector, PointCollection
from shared.index.tools import NAME_VECTOR, TERMS_VECTOR, TEXT_VECTOR, ToolIndex, scope_filter
from shared.text.embedding import Embedder, query_vectors
from tests.support.qdrant_server import qdrant_url

LIMIT = 8

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Asked:
    """An index, the collection of its tools, and what is asked."""

    index: ToolIndex
    collection: PointCollection
    embedder: Embedder
    texts: Sequence[str]
    scopes: Sequence[Scope]
    """The narrow scope of each text."""
    rounds: int

    @property
    def queries(self) -> list[QueryVectors]:
        """Return the texts, embedded; the embedder remembers them."""
        return [query_vectors(text, self.embedder) for text in self.texts]


def measure_parts(asked: Asked, originals: Scope) -> Parts:
    """Return what each part of a search takes, one caller at a time.

    `originals` has the servers of the corpus without those that repeat them.
    """
    queries = asked.queries
    everything = scope_filter(Scope())

    def one_list(name: str) -> Milliseconds:
        questions = [_question(query, name) for query in queries]
        return _timed(lambda question: asked.collection.query([question], everything, DEPTH), questions, asked.rounds)

    candidates = [asked.index.search([query], Scope(), DEPTH)[0] for query in queries]
    chosen = [list(rank(candidate))[:LIMIT] for candidate in candidates]
    catalogue = Catalogue(asked.index, asked.embedder, Ledger(asked.index), index_is_embedded=not qdrant_url())

    def find(text: str, scope: Scope) -> float:
        return find_tool(FindRequest(tool_description=text), scope, catalogue)[1].search_ms

    find(asked.texts[0], Scope())  # the ledger reads every record once
    return Parts(
        name_list=one_list(NAME_VECTOR),
        text_list=one_list(TEXT_VECTOR),
        terms_list=one_list(TERMS_VECTOR),
        lists=_timed(lambda query: asked.index.search([query], Scope(), DEPTH), queries, asked.rounds),
        ranking=_timed(rank, candidates, asked.rounds),
        tools=_timed(asked.index.get, chosen, asked.rounds),
        search=_searched(find, asked, [Scope()] * len(asked.texts)),
        filtered=_searched(find, asked, asked.scopes),
        originals=_searched(find, asked, [originals] * len(asked.texts)),
    )


def _searched(find: Callable[[str, Scope], float], asked: Asked, scopes: Sequence[Scope]) -> Searches:
    """Return the durations and the processor time of these searches, each text within its scope."""
    before = time.process_time(), server_cpu_s(qdrant_url())
    samples = [find(*arguments) for _ in range(asked.rounds) for arguments in zip(asked.texts, scopes, strict=True)]
    cpu_s, server_s = time.process_time() - before[0], server_cpu_s(qdrant_url()) - before[1]
    return Searches(
        **Milliseconds.of(samples).model_dump(),
        p99=round(percentile(samples, 99), 2),
        cpu_ms=round(cpu_s * 1e3 / len(samples), 2),
        server_cpu_ms=round(server_s * 1e3 / len(samples), 2),
    )


def _timed(ask: Callable[[Q], object], questions: Sequence[Q], rounds: int) -> Milliseconds:
    samples: list[float] = []
    for question in list(questions) * rounds:
        started = time.perf_counter()
        ask(question)
        samples.append((time.perf_counter() - started) * 1e3)
    return Milliseconds.of(samples)


def _question(query: QueryVectors, name: str) -> NamedVector:
    if name == TERMS_VECTOR:
        return NamedVector(name, query.terms)
    assert query.dense is not None
    return NamedVector(name, query.dense)
