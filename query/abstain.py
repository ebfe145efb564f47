"""Knowing when nothing fits: better no tool than one that only looks like it."""

from __future__ import annotations

from collections.abc import Sequence

from query.ranking import closeness
from shared.bm25 import tool_terms
from shared.catalog import Candidates, IndexedTool, QueryVectors

# A tool that holds this share of the query's terms fits, whatever the model thinks: it may not know the language.
MIN_COVERAGE = 0.5
# With the bundled model; docs/retrieval.md has the curve of what other thresholds recognise, and cost.
NO_MATCH_BELOW = 0.25


def is_close(candidates: Candidates, no_match_below: float) -> bool:
    """Return whether the closest candidate is close enough by meaning; where no model was asked, any is."""
    if not candidates.name and not candidates.text:
        return bool(candidates.terms)
    return max(closeness(candidates).values()) >= no_match_below


def is_covered(query: QueryVectors, tools: Sequence[IndexedTool]) -> bool:
    """Return whether one of these tools holds enough of the query's terms."""
    asked = set(query.terms.indices)
    shares = (len(asked.intersection(_terms(tool))) / len(asked) for tool in tools if asked)
    return any(share >= MIN_COVERAGE for share in shares)


def _terms(tool: IndexedTool) -> tuple[int, ...]:
    return tool_terms(tool.definition, tool.server_id).indices
