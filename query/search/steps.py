"""The steps of a request as queries: the whole text, and the clauses of a long text as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from shared.catalog import QueryVectors
from shared.errors import ModelUnavailable
from shared.text.embedding import Embedder
from shared.text.vectors import keyword_vectors, query_vectors

# Shorter queries have no clauses, and shorter clauses do not count.
LONG_QUERY_WORDS = 20
MIN_CLAUSE_WORDS = 3
# Each clause costs as much as a query.
MAX_CLAUSES = 8

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
    try:
        return _steps(texts, partial(query_vectors, embedder=embedder))
    except ModelUnavailable as error:
        _log.warning("keyword_search_fallback", reason=str(error))
        return _steps(texts, keyword_vectors)


def clauses(text: str) -> list[str]:
    """Return the clauses of a long text that has several, in order, else nothing."""
    if len(text.split()) < LONG_QUERY_WORDS:
        return []
    parts = [part.strip() for part in _CLAUSE_EDGE.split(text)]
    long_enough = [part for part in parts if len(part.split()) >= MIN_CLAUSE_WORDS]
    return long_enough[:MAX_CLAUSES] if len(long_enough) > 1 else []


def _steps(texts: Sequence[str], vectors: Callable[[str], QueryVectors]) -> list[Step]:
    return [Step(text, vectors(text), tuple(vectors(clause) for clause in clauses(text))) for text in texts]
