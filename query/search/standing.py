"""The order of hits where a scope has strangers: servers that the operator does not vouch for.

Without this order, a server that copies the texts of others comes first for half of the questions about them;
`benchmarks/results/capture.md` has the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from query.search.search import Hit
from shared.text.copies import is_copy

# Of the places of a usual page, a stranger's server has at most so many.
PLACES, PAGE = 3, 8
# As long as the tools of others score so much of its own next tool's score.
FITS_AS_WELL = 0.7


def placed(hits: Sequence[Hit], strangers: Collection[str]) -> list[Hit]:
    """Return the hits, best first, each definition once; no stranger takes the place of another server's tool.

    A definition of several servers is represented by a server that is no stranger. A stranger's copy of another
    server's tool is behind all others, and a stranger's server leaves places to tools that fit nearly as well.
    """
    distinct = _represented(hits, strangers)
    trusted = [hit.tool.definition for hit in distinct if hit.tool.server_id not in strangers]
    copies = {
        hit.tool.definition_id
        for hit in distinct
        if hit.tool.server_id in strangers and any(is_copy(hit.tool.definition, each) for each in trusted)
    }
    originals = [hit for hit in distinct if hit.tool.definition_id not in copies]
    return [*_shared(originals, strangers), *(hit for hit in distinct if hit.tool.definition_id in copies)]


def _represented(hits: Sequence[Hit], strangers: Collection[str]) -> list[Hit]:
    """Return each definition once, at its first place."""
    chosen: dict[str, Hit] = {}
    for hit in hits:
        first = chosen.setdefault(hit.tool.definition_id, hit)
        if first.tool.server_id in strangers and hit.tool.server_id not in strangers:
            chosen[hit.tool.definition_id] = hit
    return list(chosen.values())


def _shared(hits: Sequence[Hit], strangers: Collection[str]) -> list[Hit]:
    """Return the hits with the fourth and later ones of a stranger's server behind those that fit as well."""
    ahead, waiting = list[Hit](), list[Hit]()
    taken = Counter[str]()
    for position, hit in enumerate(hits):
        if waiting and (len(ahead) >= PAGE or not _fits_as_well(hit, waiting[0])):
            return [*ahead, *waiting, *hits[position:]]
        taken[hit.tool.server_id] += 1
        is_over = hit.tool.server_id in strangers and taken[hit.tool.server_id] > PLACES
        (waiting if is_over else ahead).append(hit)
    return [*ahead, *waiting]


def _fits_as_well(hit: Hit, waiting: Hit) -> bool:
    return hit.score is None or waiting.score is None or hit.score >= FITS_AS_WELL * waiting.score
