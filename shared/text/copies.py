"""Whether the text of a tool is copied from another one.

Two texts are compared by their pairs of adjacent terms, in the share that the shorter one has in common with the other.
This share survives added sentences and templates. Broder, "On the Resemblance and Containment of Documents", 1997.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from shared.catalog import ToolDefinition
from shared.text.terms import prose_terms, words

# The figures in `benchmarks/results/capture.md` hardly change from 0.5 to 0.7.
MIN_SHARE = 0.6
# Texts of a few words have pairs in common by chance.
MIN_PAIRS = 3
CACHED_TEXTS = 2_048

Pairs = frozenset[tuple[str, str]]


def is_copy(tool: ToolDefinition, original: ToolDefinition) -> bool:
    """Return whether the names and descriptions of two tools have most of the shorter text in common."""
    one, other = (_pairs(each.name, each.description) for each in (tool, original))
    common = len(one & other)
    return one == other or (common >= MIN_PAIRS and common >= MIN_SHARE * min(len(one), len(other)))


@lru_cache(CACHED_TEXTS)
def _pairs(name: str, description: str) -> Pairs:
    terms = prose_terms(f"{words(name)}. {description}")
    return frozenset(pairwise(terms)) or frozenset((term, "") for term in terms)
