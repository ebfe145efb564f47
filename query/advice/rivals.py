"""Rivals: tools of different servers that seem to do the same, though their definitions differ.

Tools with one digest are no rivals: they are copies of a definition, as on replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict

from query.advice.choice import by_calls
from query.advice.use import ToolUse, Usage, usable_tools
from shared.catalog import IndexedTool, QueryVectors, point_id

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue

# Compared are so many tools, the most used first, each with so many neighbours in the caller's scope.
COMPARED = 20
NEIGHBOURS = 10
SIMILAR = 0.65
"""Least cosine of rivals' text vectors, for the bundled model: 35 of 42 such pairs of 70 servers do the same.

`benchmarks/results/retrieval-experiments.md` has their count by threshold.
"""


Near = tuple[IndexedTool, IndexedTool, float]


class Rivals(BaseModel):
    """Two tools of different servers, the more called first, and the cosine of their stored vectors."""

    model_config = ConfigDict(frozen=True)

    tools: tuple[ToolUse, ToolUse]
    similarity: float


def rivals(usage: Usage, caller: Caller, catalogue: Catalogue) -> list[Rivals]:
    """Return the rivals of the COMPARED most used tools, the most similar first.

    Two reads of the index find the stored vectors and their NEIGHBOURS; nothing is embedded.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    compared = usable_tools(usage.points[:COMPARED], caller, catalogue)
    pairs = near_pairs(compared, caller, catalogue)
    return [
        Rivals(tools=_more_called_first(usage.of(first, catalogue), usage.of(second, catalogue)), similarity=similarity)
        for first, second, similarity in pairs
        if similarity >= SIMILAR and takes_the_same(first.definition.as_object(), second.definition.as_object())
    ]


def near_pairs(tools: Sequence[IndexedTool], caller: Caller, catalogue: Catalogue) -> list[Near]:
    """Return each of these tools with its neighbours on other servers and their cosine, the highest first.

    Neighbours have other digests. A pair comes once.
    """
    cosines = _cosines(tools, caller, catalogue)
    near = {
        _point(tool): tool for tool in usable_tools({point for pair in cosines for point in pair}, caller, catalogue)
    }
    known = ((near.get(first), near.get(second), cosine) for (first, second), cosine in cosines.items())
    pairs = ((first, second, cosine) for first, second, cosine in known if first and second)
    apart = [pair for pair in pairs if pair[0].server_id != pair[1].server_id and pair[0].digest != pair[1].digest]
    return sorted(apart, key=lambda pair: (-pair[2], pair[0].qualified_name, pair[1].qualified_name))


def takes_the_same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether each definition has parameters of the types that the other one requires, under any names."""
    return _provides(first, second) and _provides(second, first)


def _cosines(tools: Iterable[IndexedTool], caller: Caller, catalogue: Catalogue) -> dict[tuple[str, str], float]:
    """Return the cosines of the tools' text vectors and their neighbours', by the sorted points of each pair."""
    scope = catalogue.ledger.replica_sets(caller.scope).without_copies(caller.scope)
    digests = {_point(tool): tool.digest for tool in tools if tool.digest}
    features = catalogue.index.features_by_digest(set(digests.values()))
    stored = {point: features[digest].vectors.text for point, digest in digests.items() if digest in features}
    queries = [QueryVectors(vector) for vector in stored.values()]
    found = catalogue.index.search(queries, scope, NEIGHBOURS)
    return {
        (min(point, other), max(point, other)): cosine
        for point, candidates in zip(stored, found, strict=True)
        for other, cosine in candidates.text.items()
        if other != point
    }


def _provides(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    required = _object(target.get("inputSchema")).get("required")
    names = set(map(str, cast("list[object]", required))) if isinstance(required, list) else set[str]()
    return not _types(target, names) - _types(source)


def _types(definition: Mapping[str, Any], names: set[str] | None = None) -> Counter[str]:
    """Return how many of these parameters, by default all, have each type; an integer counts as a number."""
    properties = _object(_object(definition.get("inputSchema")).get("properties"))
    types = (str(_object(schema).get("type")) for name, schema in properties.items() if names is None or name in names)
    return Counter("number" if each == "integer" else each for each in types)


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _more_called_first(first: ToolUse, second: ToolUse) -> tuple[ToolUse, ToolUse]:
    return (first, second) if by_calls(first) <= by_calls(second) else (second, first)


def _point(tool: IndexedTool) -> str:
    return point_id(tool.server_id, tool.definition.name)
