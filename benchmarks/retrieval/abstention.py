"""Quality of the answer "no tool fits": the same queries with their relevant tools in the index and without.

"Without" has three levels of difficulty: queries in the corpus of another set with unrelated servers; without the
relevant servers; and without the relevant tools, where similar tools of the same and other servers remain.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.retrieval.data import Query
from benchmarks.retrieval.results import AbstentionPoint, AbstentionSet
from benchmarks.retrieval.system import System
from query.find import MATCH_CANDIDATES
from query.search.ranking import NO_MATCH_THRESHOLD, fit
from query.search.search import embed_steps, hits, merged, search
from shared.catalog import Scope

THRESHOLDS = (0.15, 0.2, 0.22, 0.24, NO_MATCH_THRESHOLD, 0.27, 0.28, 0.29, 0.3, 0.308, 0.31, 0.32, 0.33, 0.35)
FIRST = 5
# Each query is searched at least three times; the first queries of a set suffice.
MAX_QUERIES = 300
MAX_QUERIES_ELSEWHERE = 100
# A larger corpus has tools for nearly everything.
MAX_TOOLS_ELSEWHERE = 1_000
# Words of names that say nothing of what a server is for.
COMMON = frozenset({"api", "data", "mcp", "search", "server", "the", "tools", "web"})


@dataclass(frozen=True, slots=True)
class Judged:
    """A query: how well its best tool fits with all tools, without the relevant ones, and without their servers.

    `found` is the share of relevant tools among the first five with all tools.
    """

    with_all: float
    without_tools: float
    without_servers: float
    found: float


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """The queries of a set, and how well the best tool fits those that were asked elsewhere."""

    queries: Sequence[Judged]
    elsewhere: Sequence[float] = ()

    def point(self, threshold: float) -> AbstentionPoint:
        """Return what this threshold does."""
        return AbstentionPoint(
            no_match_threshold=threshold,
            tools_removed=_percent(query.without_tools < threshold for query in self.queries),
            servers_removed=_percent(query.without_servers < threshold for query in self.queries),
            elsewhere=_percent(fit < threshold for fit in self.elsewhere),
            lost_recall=_percent(query.found * (query.with_all < threshold) for query in self.queries),
        )


def judge(system: System, queries: Sequence[Query]) -> list[Judged]:
    """Return how well the best tool fits each query."""
    return [_judge(system, query) for query in queries[:MAX_QUERIES]]


def judge_elsewhere(system: System, queries: Sequence[Query]) -> list[float]:
    """Return how well the best tool fits queries of another set.

    It skips queries whose relevant server is similar in name to a server here.
    """
    here = _words(system.ids)
    strangers = [query for query in queries if not here & _words(server for server, _ in query.relevant)]
    return [_best_fit(system, query, Scope())[0] for query in strangers[:MAX_QUERIES_ELSEWHERE]]


def curve(name: str, judged: JudgedSet) -> AbstentionSet:
    """Return what each threshold does on one set."""
    return AbstentionSet(name=name, points=tuple(judged.point(threshold) for threshold in THRESHOLDS))


def mean_curve(sets: Mapping[str, JudgedSet]) -> tuple[AbstentionPoint, ...]:
    """Return what each threshold does, as means over the sets, so that a large one counts no more than a small one."""
    return tuple(_mean([judged.point(threshold) for judged in sets.values()]) for threshold in THRESHOLDS)


def _mean(points: Sequence[AbstentionPoint]) -> AbstentionPoint:
    columns = {
        name: round(statistics.fmean(getattr(point, name) for point in points), 1)
        for name in ("tools_removed", "servers_removed", "elsewhere", "lost_recall")
    }
    return AbstentionPoint(no_match_threshold=points[0].no_match_threshold, **columns)


def _percent(shares: Iterable[float]) -> float:
    """Return the mean in percent; 0 of nothing."""
    counted = list(shares)
    return round(100 * statistics.fmean(counted), 1) if counted else 0.0


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in re.findall(r"[a-z]{3,}", name.lower())} - COMMON


def _judge(system: System, query: Query) -> Judged:
    relevant = set(system.qualified(query.relevant))
    servers = frozenset(system.names) - {system.ids[server] for server, _ in query.relevant if server in system.ids}
    with_all, found = _best_fit(system, query, Scope())
    return Judged(
        with_all=with_all,
        without_tools=_best_fit(system, query, Scope(exclude=frozenset(relevant)))[0],
        without_servers=_best_fit(system, query, Scope(servers=servers))[0],
        found=len(relevant.intersection(found)) / len(relevant) if relevant else 0.0,
    )


def _best_fit(system: System, query: Query, scope: Scope) -> tuple[float, list[str]]:
    """Return how well the best tool fits, judged as `find_tool` does, and the names of the first five."""
    (step,) = embed_steps([query.text], system.embedder)
    (found,) = results = search([step], scope, system.index)
    tools = [hit.tool for hit in hits(merged(results)[:MATCH_CANDIDATES], results, system.index)]
    names = [tool.qualified_name for tool in tools[:FIRST]]
    return fit(found, tools, system.embedder) if tools else -math.inf, names
