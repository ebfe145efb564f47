"""Knowing when nothing fits: better no tool than one that only looks like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from query.search.ranking import closeness
from query.search.tool_categories import closeness_of_kinds
from shared.catalog import Candidates, IndexedTool, QueryVectors
from shared.text.bm25 import tool_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.text.embedding import Embedder

# A tool that holds this share of the query's terms fits, whatever the model thinks: it may not know the language.
MIN_COVERAGE = 0.5
# Of the closeness of kinds of tools; a logistic regression found the same weight.
KINDS_WEIGHT = 0.3
# With the bundled model; docs/retrieval.md has the curve of what other thresholds recognise, and cost.
NO_MATCH_BELOW = 0.18
ANYTHING_MATCHES = -1.0


def is_close(query: QueryVectors, candidates: Candidates, embedder: Embedder, no_match_below: float) -> bool:
    """Return whether the closest candidate is close enough by meaning; where no model was asked, any is.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    if query.dense is None or not (candidates.name or candidates.text):
        return bool(candidates.terms)
    if no_match_below <= ANYTHING_MATCHES:
        return True
    return adjusted_closeness(query.dense, candidates, embedder) >= no_match_below


def adjusted_closeness(query: NDArray[np.float32], candidates: Candidates, embedder: Embedder) -> float:
    """Return how close the closest candidate is, less a share of how close the nearest kinds of tools are.

    Both are cosines, so it lies between -1.3 and 1.3, and hardly ever below 0.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    return max(closeness(candidates).values()) - KINDS_WEIGHT * closeness_of_kinds(query, embedder)


def is_covered(query: QueryVectors, tools: Sequence[IndexedTool]) -> bool:
    """Return whether one of these tools holds enough of the query's terms."""
    asked = set(query.terms.indices)
    shares = (len(asked.intersection(_terms(tool))) / len(asked) for tool in tools if asked)
    return any(share >= MIN_COVERAGE for share in shares)


def _terms(tool: IndexedTool) -> tuple[int, ...]:
    return tool_terms(tool.definition, tool.server_id).indices
