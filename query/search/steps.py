"""The steps of a request as queries: the whole text, and the clauses of a long text as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import structlog

from query.turns import give_way
from shared.catalog import QueryVectors
from shared.errors import ModelUnavailable
from shared.text.embedding import Embedder, keyword_vectors, query_vectors

# Shorter queries have no clauses, and shorter clauses do not count.
LONG_QUERY_WORDS = 20
MIN_CLAUSE_WORDS = 3
# Bounds of one request, shared equally by its steps, and its clauses by the long ones: each clause costs as much as a
# query, and the time of the model grows with the characters that it reads.
MAX_CLAUSES = 8
MAX_CHARACTERS = 8_000

_CLAUSE_EDGE = re.compile(r"(?<=[.!?;])\s+|\n+|,\s+(?:and|then)\s+|\b(?:and\s+)?then\b")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a request. `clauses` is empty when the text is short."""

    text: str
    whole: QueryVectors
    clauses: tuple[QueryVectors, ...] = ()

    @property
    def queries(self) -> tuple[QueryVectors, ...]:
        """Return the queries of this step: the whole first, then the clauses."""
        return (self.whole, *self.clauses)


def embed_steps(texts: Sequence[str], embedder: Embedder) -> list[Step]:
    """Return the steps with their vectors; without a model, with terms only."""
    characters = MAX_CHARACTERS // max(len(texts), 1)
    try:
        return _steps(texts, characters, partial(query_vectors, embedder=embedder, characters=characters))
    except ModelUnavailable as error:
        _log.warning("keyword_search_fallback", reason=str(error))
        return _steps(texts, characters, keyword_vectors)


def clauses(text: str) -> list[str]:
    """Return the clauses of a long text that has several, in order, else nothing."""
    if len(text.split()) < LONG_QUERY_WORDS:
        return []
    parts = [part.strip() for part in _CLAUSE_EDGE.split(text)]
    long_enough = [part for part in parts if len(part.split()) >= MIN_CLAUSE_WORDS]
    return long_enough if len(long_enough) > 1 else []


def _steps(texts: Sequence[str], characters: int, vectors: Callable[[str], QueryVectors]) -> list[Step]:
    clauses_by_step = _shared([clauses(text[:characters]) for text in texts])
    parts = [(text, *own) for text, own in zip(texts, clauses_by_step, strict=True)]
    found = _one_by_one([query for step in parts for query in step], vectors)
    return [Step(text, next(found), tuple(islice(found, len(own)))) for text, *own in parts]


def _one_by_one(queries: Sequence[str], vectors: Callable[[str], QueryVectors]) -> Iterator[QueryVectors]:
    for number, query in enumerate(queries):
        if number:
            give_way()
        yield vectors(query)


def _shared(by_step: Sequence[list[str]]) -> list[list[str]]:
    """Return the first clauses of each long step, equally many; none if a long step would have only one."""
    share = MAX_CLAUSES // max(sum(map(bool, by_step)), 1)
    return [its_clauses[:share] if share > 1 else [] for its_clauses in by_step]
