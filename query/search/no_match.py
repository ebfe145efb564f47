"""Detection of searches without a match: no tool is better than a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from query.search.ranking import similarity
from query.search.tool_categories import category_similarity
from shared.catalog import Candidates, IndexedTool, QueryVectors
from shared.text.bm25 import tool_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.catalog import ToolDefinition
    from shared.text.embedding import Embedder

# A tool with this share of the query's terms matches at any similarity: the model may not cover the language.
MIN_COVERAGE = 0.5
# Of the category similarity; results change little from 0.4 to 0.6.
CATEGORY_WEIGHT = 0.5
# For the bundled model; docs/retrieval.md has the curve of other thresholds.
NO_MATCH_THRESHOLD = 0.12
NO_THRESHOLD = -1.0
# Tools whose terms are remembered, some 6 KB each.
REMEMBERED_TERMS = 1024


def is_similar(query: QueryVectors, candidates: Candidates, embedder: Embedder, no_match_threshold: float) -> bool:
    """Return whether the most similar candidate is similar enough; without a model, every candidate is.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    if query.dense is None or not (candidates.name or candidates.text):
        return bool(candidates.terms)
    if no_match_threshold <= NO_THRESHOLD:
        return True
    return adjusted_similarity(query.dense, candidates, embedder) >= no_match_threshold


def adjusted_similarity(query: NDArray[np.float32], candidates: Candidates, embedder: Embedder) -> float:
    """Return the highest similarity of a candidate, less half the similarity of the nearest tool categories.

    Both are cosines, so it lies between -1.5 and 1.5, and hardly ever below 0.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    # a candidate by its terms alone is no closer than the last one of the other lists
    closest = float(similarity(candidates, list(candidates.name.keys() | candidates.text.keys())).max())
    return closest - CATEGORY_WEIGHT * category_similarity(query, embedder)


def is_covered(query: QueryVectors, tools: Sequence[IndexedTool]) -> bool:
    """Return whether one of these tools contains enough of the query's terms."""
    query_terms = set(query.terms.indices)
    shares = (len(query_terms.intersection(_terms(tool))) / len(query_terms) for tool in tools if query_terms)
    return any(share >= MIN_COVERAGE for share in shares)


def _terms(tool: IndexedTool) -> frozenset[int]:
    # a tool in the index has no declared name; the server id, which responses show, takes its place
    return _terms_of(tool.definition, tool.server_id)


@lru_cache(REMEMBERED_TERMS)
def _terms_of(definition: ToolDefinition, server_id: str) -> frozenset[int]:
    return frozenset(tool_terms(definition, server_id).indices)
