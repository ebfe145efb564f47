"""How long a search takes, and how long before it the query's embedding, one caller at a time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.retrieval.data import Query
from benchmarks.retrieval.results import Latency
from benchmarks.retrieval.system import System
from query.catalogue import Catalogue
from query.find import Timings, find_tool
from query.records import Ledger
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.text.embedding import FastEmbedder

# A longer query would be searched by its clauses as well.
MAX_WORDS = 15
MAX_QUERIES = 200


def measure_latency(system: System, tools: int, queries: Sequence[Query]) -> Latency:
    """Return the milliseconds of queries cut to a few words, each asked once, its vector not yet remembered."""
    catalogue = Catalogue(system.index, FastEmbedder(), Ledger(system.index))  # an embedder that remembers no query yet
    asked = [" ".join(query.text.split()[:MAX_WORDS]) for query in queries[:MAX_QUERIES]]
    find = partial(_find, catalogue)
    find("ready")
    timings = [find(text) for text in asked]
    searched = [system.search_ms for system in timings]
    return Latency(
        tools=tools,
        queries=len(asked),
        embed_p50=round(statistics.median(timing.embed_ms for timing in timings), 2),
        search_p50=round(statistics.median(searched), 2),
        search_p95=round(statistics.quantiles(searched, n=20)[-1], 2),
    )


def _find(catalogue: Catalogue, text: str) -> Timings:
    return find_tool(FindRequest(tool_description=text), Scope(), catalogue)[1]
