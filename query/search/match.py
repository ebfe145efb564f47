"""Detection of searches without a match: no tool is better than a wrong one.

Short queries are similar to everything and whole tasks to nothing, so a cosine means little by itself. It is compared
with that of reference objects, the tool categories (cohort normalisation). Speaker verification has the same problem
and compares with a cohort of other speakers. Source: Higgins, Bahler and Porter, "Speaker Verification Using Randomized
Phrase Prompting", Digital Signal Processing 1, 1991.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from query.search.ranking import similarity
from shared.catalog import Candidates, IndexedTool, QueryVectors
from shared.text.bm25 import tool_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from query.search.search import StepResult
    from shared.catalog import ToolDefinition
    from shared.text.embedding import Embedder

# A tool with this share of the query's terms matches at any similarity: the model may not cover the language.
MIN_COVERAGE = 0.7
# Of a smaller share; results change little from 0.05 to 0.12.
COVERAGE_WEIGHT = 0.1
# Of the category similarity; results change little from 0.15 to 0.25.
CATEGORY_WEIGHT = 0.2
# No adjusted similarity is lower.
LOWEST = -1 - CATEGORY_WEIGHT
# For the bundled model; docs/retrieval.md has the curve of other thresholds.
NO_MATCH_THRESHOLD = 0.26
NO_THRESHOLD = -1.0
# Tools whose terms are remembered, some 6 KB each.
REMEMBERED_TERMS = 1024
# Texts of tool categories; every query is about equally far from the others.
NEAREST = 3

CATEGORIES: Mapping[str, str] = json.loads(Path(__file__).with_name("categories.json").read_text(encoding="utf-8"))

_vectors_by_embedder: WeakKeyDictionary[Embedder, NDArray[np.float32]] = WeakKeyDictionary()
_lock = Lock()


def is_match(result: StepResult, closest: Sequence[IndexedTool], embedder: Embedder, no_match_threshold: float) -> bool:
    """Return whether a tool of this step fits it well enough; without a model, every tool does.

    `closest` are the best tools of the request.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    if result.named:
        return True
    if no_match_threshold <= NO_THRESHOLD or not _by_meaning(result.candidates):
        return bool(result.candidates.points)
    similarity = step_similarity(result, embedder)
    # the terms of tools take longer than the similarity
    return similarity >= no_match_threshold or similarity + _by_terms(result, closest) >= no_match_threshold


def fit(result: StepResult, closest: Sequence[IndexedTool], embedder: Embedder) -> float:
    """Return how well tools fit: the highest similarity, and a tenth of the largest share of terms in one of `closest`.

    Infinity: the query is a tool's name, or one of `closest` has most terms.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    return math.inf if result.named else step_similarity(result, embedder) + _by_terms(result, closest)


def step_similarity(result: StepResult, embedder: Embedder) -> float:
    """Return the adjusted similarity of the whole text, or that of its second-best clause, if it is higher.

    A long text is close to nothing. Two of its clauses need a tool, since a single one may fit by chance.
    LOWEST: there are no candidates by meaning.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    found = zip(result.step.queries, (result.candidates, *result.clauses), strict=True)
    whole, *clauses = (_adjusted_or_lowest(query, candidates, embedder) for query, candidates in found)
    return max([whole, *sorted(clauses)[-2:-1]])


def adjusted_similarity(query: NDArray[np.float32], candidates: Candidates, embedder: Embedder) -> float:
    """Return the highest similarity of a candidate, less a fifth of the similarity of the nearest tool categories.

    Both are cosines, so it lies between -1.2 and 1.2, and hardly ever below 0.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    # a candidate by its terms alone is no closer than the last one of the other lists
    closest = float(similarity(candidates, list(_by_meaning(candidates))).max())
    return closest - CATEGORY_WEIGHT * category_similarity(query, embedder)


def coverage(query: QueryVectors, tools: Sequence[IndexedTool]) -> float:
    """Return the largest share of the query's terms in one of these tools; 0 without terms or tools."""
    query_terms = set(query.terms.indices)
    shares = (len(query_terms.intersection(_terms(tool))) / len(query_terms) for tool in tools if query_terms)
    return max(shares, default=0.0)


def _by_terms(result: StepResult, closest: Sequence[IndexedTool]) -> float:
    share = coverage(result.step.whole, closest)
    return math.inf if share >= MIN_COVERAGE else COVERAGE_WEIGHT * share


def _adjusted_or_lowest(query: QueryVectors, candidates: Candidates, embedder: Embedder) -> float:
    if query.dense is None or not _by_meaning(candidates):
        return LOWEST
    return adjusted_similarity(query.dense, candidates, embedder)


def _by_meaning(candidates: Candidates) -> Set[str]:
    return candidates.name.keys() | candidates.text.keys()


def _terms(tool: IndexedTool) -> frozenset[int]:
    # a tool in the index has no declared name; the server id, which responses show, takes its place
    return _terms_of(tool.definition, tool.server_id)


@lru_cache(REMEMBERED_TERMS)
def _terms_of(definition: ToolDefinition, server_id: str) -> frozenset[int]:
    return frozenset(tool_terms(definition, server_id).indices)


def category_similarity(query: NDArray[np.float32], embedder: Embedder) -> float:
    """Return the mean cosine of a query's vector, of unit length, to the nearest texts of the tool categories.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    cosines = category_vectors(embedder) @ query
    cosines.sort()
    return float(cosines[-NEAREST:].mean())


def category_vectors(embedder: Embedder) -> NDArray[np.float32]:
    """Return the texts' vectors, shape (texts, dimension), unit rows; an embedder embeds them once.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    with _lock:
        if embedder not in _vectors_by_embedder:
            vectors = embedder.passages(passages())
            vectors.flags.writeable = False  # all callers share them
            _vectors_by_embedder[embedder] = vectors
        return _vectors_by_embedder[embedder]


def passages() -> list[str]:
    """Return the texts that represent the categories: one for each object, then one for each category."""
    listed = ((category, objects.split(", ")) for category, objects in CATEGORIES.items())
    of_objects = [f"create a new {each} in {category}" for category, objects in listed for each in objects]
    return [*of_objects, *(f"{category}: {objects}" for category, objects in CATEGORIES.items())]
