"""BM25 as sparse vectors of tools and queries. Their dot product, with Qdrant's IDF, is the score.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009. Fields are weighted within
the term frequency, before saturation, as in BM25F of the same paper.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from shared.catalog import SparseVector, ToolDefinition
from shared.text.terms import name_terms, prose_terms

SERVER_WEIGHT = 1.0
NAME_WEIGHT = 2.0
DESCRIPTION_WEIGHT = 1.0
PARAMETER_WEIGHT = 0.5

K1 = 1.2
B = 0.75
# Weighted terms of a tool of usual length. A constant, because a stored vector cannot follow an average.
# Its value hardly changes the recall (20 to 100 measured).
AVERAGE_LENGTH = 40.0


def tool_terms(tool: ToolDefinition, declared_name: str) -> SparseVector:
    """Return the weights of a tool's terms without IDF, which the index applies to a query."""
    frequencies: defaultdict[str, float] = defaultdict(float)
    _add(frequencies, name_terms(declared_name), SERVER_WEIGHT)
    _add(frequencies, name_terms(tool.name), NAME_WEIGHT)
    _add(frequencies, prose_terms(tool.description), DESCRIPTION_WEIGHT)
    _add(frequencies, (term for parameter in tool.parameters for term in name_terms(parameter)), PARAMETER_WEIGHT)
    return _sparse(_saturated(frequencies))


def query_terms(text: str) -> SparseVector:
    """Return weight 1 for each distinct term of a query; empty if it has only stop words."""
    return _sparse(dict.fromkeys(prose_terms(text), 1.0))


def _add(frequencies: defaultdict[str, float], terms: Iterable[str], weight: float) -> None:
    for term in terms:
        frequencies[term] += weight


def _saturated(frequencies: Mapping[str, float]) -> dict[str, float]:
    length = sum(frequencies.values())
    norm = K1 * (1 - B + B * length / AVERAGE_LENGTH)
    return {term: frequency * (K1 + 1) / (frequency + norm) for term, frequency in frequencies.items()}


def _sparse(weights: Mapping[str, float]) -> SparseVector:
    """Return weights by a 32-bit hash. Terms with the same hash count as one; 50,000 terms may have one such pair."""
    hashed: dict[int, float] = {}
    for term, weight in weights.items():
        hashed[zlib.crc32(term.encode("utf-8", "surrogatepass"))] = weight
    return SparseVector(tuple(sorted(hashed)), tuple(hashed[index] for index in sorted(hashed)))
