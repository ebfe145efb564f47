"""The order of hits where a scope has strangers: servers without an owner, beside servers with one.

Without this order, a server that copies the texts of others comes first for a third of the requests for them;
`benchmarks/results/capture.md` has the figures.

Two texts are compared by their pairs of adjacent terms, in the share that the shorter one has in common with the other.
This share survives added sentences and templates. Broder, "On the Resemblance and Containment of Documents", 1997.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from query.search.search import Hit
from query.search.steps import Step
from shared.catalog import ToolDefinition
from shared.text.bm25 import prose_terms, tool_terms, words

# Of the places of a usual page, a stranger's server has at most so many.
PLACES, PAGE = 3, 8
# While the tools of others score so much less than its own next tool: a share of that tool's score.
FITS_WITHIN = 0.3

# The share of the shorter text that a copy has in common with its original.
COPIED_SHARE = 0.6
# Fewer pairs are often equal by chance.
LEAST_PAIRS = 3
# A hostile text may be a hundred times as long.
COMPARED_CHARACTERS = 2_000
CACHED_TEXTS = 1_024


@dataclass(frozen=True, slots=True)
class Standing:
    """The servers that take no places of others, and the steps of the request."""

    strangers: Collection[str]
    steps: Sequence[Step]

    def placed(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits, best first, each definition once; strangers take no places of other servers' tools.

        A definition of several servers is represented by a server that is no stranger. A stranger's copy of another
        server's tool is behind the other hits, unless the request has a term of it that the original lacks.
        A stranger's server leaves places to tools that fit nearly as well.
        """
        distinct = self._represented(hits)
        originals = [hit.tool.definition for hit in distinct if not self._is_strange(hit)]
        copied = [self._is_strange(hit) and self._has_original(hit, originals) for hit in distinct]
        ahead = [hit for hit, is_behind in zip(distinct, copied, strict=True) if not is_behind]
        behind = [hit for hit, is_behind in zip(distinct, copied, strict=True) if is_behind]
        return [*self._shared(ahead), *behind]

    def _is_strange(self, hit: Hit) -> bool:
        """Return whether a stranger has the tool, and no step is its name with its server."""
        is_named = any(step.text == hit.tool.qualified_name for step in self.steps)
        return hit.tool.server_id in self.strangers and not is_named

    def _represented(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return each definition once, at its first place."""
        chosen: dict[str, Hit] = {}
        for hit in hits:
            first = chosen.setdefault(hit.tool.definition_id, hit)
            if self._is_strange(first) and not self._is_strange(hit):
                chosen[hit.tool.definition_id] = hit
        return list(chosen.values())

    def _has_original(self, hit: Hit, originals: Sequence[ToolDefinition]) -> bool:
        tool = hit.tool.definition
        return any(is_copy(tool, original) and not self._is_meant(tool, original) for original in originals)

    def _is_meant(self, tool: ToolDefinition, original: ToolDefinition) -> bool:
        """Return whether the request has a term of the tool that the original lacks, such as the name of a product."""
        asked = {term for step in self.steps for term in step.whole.terms.indices}
        return not asked.intersection(_terms(tool)) <= _terms(original)

    def _shared(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits with the fourth and later ones of a stranger's server behind those that fit nearly as well.

        They are behind a page at most, and behind no tool that fits less well.
        """
        ahead, waiting = list[Hit](), list[Hit]()
        taken = Counter[str]()
        for position, hit in enumerate(hits):
            if waiting and (len(ahead) >= PAGE or not _fits_nearly(hit, waiting[0])):
                return [*ahead, *waiting, *hits[position:]]
            taken[hit.tool.server_id] += 1
            is_over = self._is_strange(hit) and taken[hit.tool.server_id] > PLACES
            (waiting if is_over else ahead).append(hit)
        return [*ahead, *waiting]


def is_copy(tool: ToolDefinition, original: ToolDefinition) -> bool:
    """Return whether the names and descriptions of two tools have most of the shorter text in common.

    A text of a few words is a copy of a text of another tool of the same name only.
    """
    one, other = (_pairs(each.name, each.description[:COMPARED_CHARACTERS]) for each in (tool, original))
    common, shorter = len(one & other), min(len(one), len(other))
    if shorter < LEAST_PAIRS:
        return tool.name == original.name and common == shorter
    return common >= max(COPIED_SHARE * shorter, LEAST_PAIRS)


@lru_cache(CACHED_TEXTS)
def _pairs(name: str, description: str) -> frozenset[tuple[str, str]]:
    return frozenset((*pairwise(prose_terms(words(name))), *pairwise(prose_terms(description))))


def _terms(tool: ToolDefinition) -> set[int]:
    return set(tool_terms(tool, "").indices)


def _fits_nearly(hit: Hit, waiting: Hit) -> bool:
    if hit.score is None or waiting.score is None:
        return True
    return waiting.score - hit.score <= FITS_WITHIN * abs(waiting.score)
