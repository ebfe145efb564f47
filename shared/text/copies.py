"""Whether the text of a tool is copied from another one.

Two texts are compared by their pairs of adjacent terms, in the share that the shorter one has in common with the other.
This share survives added sentences and templates. Broder, "On the Resemblance and Containment of Documents", 1997.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from shared.catalog import ToolDefinition
from shared.text.terms import prose_terms, words

MIN_SHARE = 0.6
# Fewer are often equal by chance.
MIN_PAIRS = 3
CACHED_TEXTS = 1_024
# A hostile text may be a hundred times as long.
MAX_CHARACTERS = 2_000

Pairs = frozenset[tuple[str, str]]


def is_copy(tool: ToolDefinition, original: ToolDefinition) -> bool:
    """Return whether the names and descriptions of two tools have most of the shorter text in common.

    A text of a few words is a copy of a text of another tool of the same name only.
    """
    one, other = (_pairs(each.name, each.description[:MAX_CHARACTERS]) for each in (tool, original))
    common, shorter = len(one & other), min(len(one), len(other))
    if shorter < MIN_PAIRS:
        return tool.name == original.name and common == shorter
    return common >= max(MIN_SHARE * shorter, MIN_PAIRS)


@lru_cache(CACHED_TEXTS)
def _pairs(name: str, description: str) -> Pairs:
    return frozenset((*pairwise(prose_terms(words(name))), *pairwise(prose_terms(description))))
