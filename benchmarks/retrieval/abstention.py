"""How well is it known that nothing fits? The same queries, with what they need in the index and without."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.retrieval.data import Query
from benchmarks.retrieval.results import AbstentionPoint, AbstentionSet
from benchmarks.retrieval.system import System
from query.abstain import NO_MATCH_BELOW, is_covered
from query.ranking import closeness
from query.search import best, search
from query.steps import embed_steps
from shared.catalog import Scope

THRESHOLDS = (0.15, 0.2, NO_MATCH_BELOW, 0.3, 0.35, 0.4, 0.45, 0.5)
LIMIT = 5
# Each query is searched three times; a set's first ones say enough.
MAX_QUERIES = 300


@dataclass(frozen=True, slots=True)
class Judged:
    """A query: how close its best tool came, on -1 to 1, with all tools, without the relevant ones, and without
    their servers; `found` is the share of relevant tools among the first five, with all tools.
    """

    with_all: float
    without_tools: float
    without_servers: float
    found: float


def judge(system: System, queries: Sequence[Query]) -> list[Judged]:
    """Return how close the best tool comes to each query; a tool that holds most of its words counts as 1."""
    return [_judge(system, query) for query in queries[:MAX_QUERIES]]


def at_default(name: str, judged: Sequence[Judged]) -> AbstentionSet:
    """Return what the default threshold does on one set."""
    tools, servers, lost = _shares(judged, NO_MATCH_BELOW)
    return AbstentionSet(name=name, tools_removed=tools, servers_removed=servers, lost_recall=lost)


def curve(sets: Mapping[str, Sequence[Judged]]) -> tuple[AbstentionPoint, ...]:
    """Return what each threshold does, as means over the sets, so that a large one counts no more than a small one."""
    return tuple(_point(list(sets.values()), threshold) for threshold in THRESHOLDS)


def _point(sets: Sequence[Sequence[Judged]], threshold: float) -> AbstentionPoint:
    shares = [_shares(judged, threshold) for judged in sets]
    tools, servers, lost = (round(statistics.fmean(column), 1) for column in zip(*shares, strict=True))
    return AbstentionPoint(no_match_below=threshold, tools_removed=tools, servers_removed=servers, lost_recall=lost)


def _shares(judged: Sequence[Judged], threshold: float) -> tuple[float, float, float]:
    return (
        _percent(judged, lambda each: each.without_tools < threshold),
        _percent(judged, lambda each: each.without_servers < threshold),
        _percent(judged, lambda each: each.found * (each.with_all < threshold)),
    )


def _percent(judged: Sequence[Judged], share: Callable[[Judged], float]) -> float:
    return round(100 * statistics.fmean(share(each) for each in judged), 1)


def _judge(system: System, query: Query) -> Judged:
    relevant = set(system.qualified(query.relevant))
    servers = frozenset(system.names) - {system.ids[server] for server, _ in query.relevant if server in system.ids}
    with_all, found = _closest(system, query, Scope())
    return Judged(
        with_all=with_all,
        without_tools=_closest(system, query, Scope(exclude=frozenset(relevant)))[0],
        without_servers=_closest(system, query, Scope(servers=servers))[0],
        found=len(relevant.intersection(found)) / len(relevant) if relevant else 0.0,
    )


def _closest(system: System, query: Query, scope: Scope) -> tuple[float, list[str]]:
    """Return how close the best tool is, and the names of the first five."""
    steps = embed_steps([query.text], system.embedder)
    results = search(steps, scope, system.index)
    tools = [hit.tool for hit in best(results, LIMIT, system.index)]
    names = [tool.qualified_name for tool in tools]
    if is_covered(steps[0].whole, tools):
        return 1.0, names
    return max(closeness(results[0].candidates).values(), default=-1.0), names
