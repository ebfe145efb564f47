"""Ask an index the queries and time each part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.search.results import Milliseconds, Parts
from query.catalogue import Catalogue
from query.find import find_tool
from query.response.timings import Timings
from query.savings.ledger import Ledger
from query.search.ranking import DEPTH, rank
from query.search.request import FindRequest
from shared.catalog import QueryVectors, Scope
from shared.index.contract import ToolIndex
from shared.index.payload import NAME_VECTOR, TERMS_VECTOR, TEXT_VECTOR, scope_conditions
from shared.index.points import NamedVector, PointCollection
from shared.text.embedding import Embedder
from shared.text.vectors import query_vectors

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


def measure_parts(asked: Asked) -> Parts:
    """Return what each part of a search takes, one caller at a time."""
    queries = asked.queries
    everything = scope_conditions(Scope())

    def one_list(name: str) -> Milliseconds:
        questions = [_question(query, name) for query in queries]
        return _timed(lambda question: asked.collection.query([question], everything, DEPTH), questions, asked.rounds)

    candidates = [asked.index.search([query], Scope(), DEPTH)[0] for query in queries]
    chosen = [list(rank(candidate))[:LIMIT] for candidate in candidates]
    catalogue = Catalogue(asked.index, asked.embedder, Ledger(asked.index))

    def find(text: str, scope: Scope) -> Timings:
        return find_tool(FindRequest(tool_description=text), scope, catalogue)[1]

    find(asked.texts[0], Scope())  # the ledger reads every record once
    everywhere = [find(text, Scope()) for _ in range(asked.rounds) for text in asked.texts]
    narrow = [
        find(*arguments) for _ in range(asked.rounds) for arguments in zip(asked.texts, asked.scopes, strict=True)
    ]
    return Parts(
        name_list=one_list(NAME_VECTOR),
        text_list=one_list(TEXT_VECTOR),
        terms_list=one_list(TERMS_VECTOR),
        lists=_timed(lambda query: asked.index.search([query], Scope(), DEPTH), queries, asked.rounds),
        ranking=_timed(rank, candidates, asked.rounds),
        tools=_timed(asked.index.get, chosen, asked.rounds),
        search=Milliseconds.of([timings.search_ms for timings in everywhere]),
        filtered=Milliseconds.of([timings.search_ms for timings in narrow]),
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
