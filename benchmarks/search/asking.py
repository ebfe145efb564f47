"""Ask an index the queries, a stopwatch around each part; and what it found, to be compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.search.results import Milliseconds, Parts, Recall
from query.catalogue import Catalogue
from query.find import find_tool
from query.response.timings import Timings
from query.savings.ledger import Ledger
from query.search.ranking import DEPTH, rank
from query.search.request import FindRequest
from shared.catalog import Candidates, QueryVectors, Scope
from shared.index.contract import ToolIndex
from shared.index.payload import NAME_VECTOR, TERMS_VECTOR, TEXT_VECTOR, scope_conditions
from shared.index.points import Nearest, PointCollection
from shared.text.embedding import Embedder
from shared.text.vectors import query_vectors

LIMIT = 8
# Scores of the same vectors, computed in another order.
ROUNDING = 1e-5

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


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of each query, and the digests of its best five tools."""

    candidates: Sequence[Candidates]
    best: Sequence[Sequence[str]]


def found(asked: Asked, *, narrow: bool) -> Found:
    """Return what each query finds, in its narrow scope or in all."""
    scopes = asked.scopes if narrow else [Scope()] * len(asked.texts)
    candidates = [
        asked.index.search([query], scope, DEPTH)[0] for query, scope in zip(asked.queries, scopes, strict=True)
    ]
    return Found(candidates, [_best(each, asked.index) for each in candidates])


def recall(approximate: Found, exact: Found) -> Recall:
    """Return how much of the exact search's was found."""
    lists = [
        pair
        for ours, theirs in zip(approximate.candidates, exact.candidates, strict=True)
        for pair in ((ours.name, theirs.name), (ours.text, theirs.text))
    ]
    best = zip(approximate.best, exact.best, strict=True)
    return Recall(
        lists_at_5=_mean([share_found(list(ours.values()), list(theirs.values()), 5) for ours, theirs in lists]),
        lists_at_10=_mean([share_found(list(ours.values()), list(theirs.values()), 10) for ours, theirs in lists]),
        lists_at_150=_mean([share_found(list(ours.values()), list(theirs.values()), 150) for ours, theirs in lists]),
        ranked_at_5=_mean([_common(ours, theirs) for ours, theirs in best]),
    )


def share_found(ours: Sequence[float], exact: Sequence[float], k: int) -> float:
    """Return the share of the k best scores that are at least as good as the exact search's last one of these."""
    bar = sorted(exact, reverse=True)[:k]
    reached = sum(score >= bar[-1] - ROUNDING for score in ours) if bar else 0
    return min(reached, len(bar)) / len(bar) if bar else 1.0


def measure_parts(asked: Asked) -> Parts:
    """Return what each part of a search takes, one caller at a time."""
    queries = asked.queries
    everything = scope_conditions(Scope())

    def one_list(name: str) -> Milliseconds:
        questions = [_question(query, name) for query in queries]
        return _timed(lambda question: asked.collection.nearest([question], everything, DEPTH), questions, asked.rounds)

    candidates = found(asked, narrow=False).candidates
    chosen = [list(rank(each))[:LIMIT] for each in candidates]
    catalogue = Catalogue(asked.index, asked.embedder, Ledger(asked.index))

    def find(text: str, scope: Scope) -> Timings:
        return find_tool(FindRequest(tool_description=text), scope, catalogue).timings

    find(asked.texts[0], Scope())  # the ledger reads every record once
    everywhere = [find(text, Scope()) for _ in range(asked.rounds) for text in asked.texts]
    narrow = [find(*each) for _ in range(asked.rounds) for each in zip(asked.texts, asked.scopes, strict=True)]
    return Parts(
        name_list=one_list(NAME_VECTOR),
        text_list=one_list(TEXT_VECTOR),
        terms_list=one_list(TERMS_VECTOR),
        lists=_timed(lambda query: asked.index.search([query], Scope(), DEPTH), queries, asked.rounds),
        ranking=_timed(rank, candidates, asked.rounds),
        tools=_timed(asked.index.fetch, chosen, asked.rounds),
        search=Milliseconds.of([each.search_ms for each in everywhere]),
        filtered=Milliseconds.of([each.search_ms for each in narrow]),
    )


def _timed(ask: Callable[[Q], object], questions: Sequence[Q], rounds: int) -> Milliseconds:
    samples: list[float] = []
    for question in list(questions) * rounds:
        started = time.perf_counter()
        ask(question)
        samples.append((time.perf_counter() - started) * 1e3)
    return Milliseconds.of(samples)


def _question(query: QueryVectors, name: str) -> Nearest:
    if name == TERMS_VECTOR:
        return Nearest(name, query.terms)
    assert query.dense is not None
    return Nearest(name, query.dense)


def _best(candidates: Candidates, index: ToolIndex) -> list[str]:
    chosen = list(rank(candidates))[:5]
    tools = index.fetch(chosen)
    return [tools[point].digest for point in chosen]


def _common(ours: Sequence[str], exact: Sequence[str]) -> float:
    # copies of a tool have one digest, and count as often as there are any
    return sum((Counter(ours) & Counter(exact)).values()) / len(exact) if exact else 1.0


def _mean(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), 4)
