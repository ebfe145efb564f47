"""Write servers into an index without listing them: generated tools with random vectors, or a corpus with real ones.

Embedding 10,000 tools would take minutes. Definitions and counts are always real.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpora import MAX_BYTES, PROTOCOL_VERSION, CorpusServer
from benchmarks.generated import definitions, server_id
from shared.catalog import (
    ENCODINGS,
    FEATURES_VERSION,
    EmbeddedTool,
    Endpoint,
    Listing,
    ServerRecord,
    ToolDefinition,
    ToolFeatures,
    ToolVectors,
    catalog_digest,
    digest,
)
from shared.index.tools import ToolIndex
from shared.settings import Settings
from shared.text import BUNDLED_MODEL
from shared.text.bm25 import tool_terms
from shared.text.embedding import BUNDLED_DIMENSION, Embedder, tool_vectors
from shared.text.tokens import count_forms, counters, indexed_tool
from tests.support.indexes import open_index
from workers.fetch.definitions import read_definition

A_WRITE = 64
_COUNTERS = counters()

PreparedServer = tuple[CorpusServer, Sequence[ToolFeatures]]
"""A server of a corpus, and the counts and vectors of each of its tools."""


@contextmanager
def bundled_index(settings: Settings) -> Generator[ToolIndex]:
    """Open the index of the bundled model."""
    with closing(open_index(settings, BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        yield index


def fill(index: ToolIndex, numbers: range, tools: int, seed: int) -> None:
    """Write the generated servers of these numbers, with this many tools each.

    Their vectors are directions drawn from the seed.
    """
    for number in numbers:
        name = server_id(number)
        read = [read_definition(raw, PROTOCOL_VERSION, MAX_BYTES)[0] for raw in definitions(name, tools, seed)]
        rows = iter(_unit_vectors(2 * len(read), BUNDLED_DIMENSION, seed + number))
        vectors = [ToolVectors(next(rows), next(rows), tool_terms(tool, name)) for tool in read]
        put_server(index, name, name, read, map(features, read, vectors))


def put_replicas(index: ToolIndex, listings: Mapping[str, Listing], embedder: Embedder) -> None:
    """Write servers by their ids; a tool that several list is counted and embedded once."""

    @cache
    def features_of(tool: ToolDefinition, declared_name: str) -> ToolFeatures:
        (vectors,) = tool_vectors([tool], declared_name, embedder)
        return features(tool, vectors)

    for server, listing in listings.items():
        name = listing.declared_name
        put_server(index, server, name, listing.tools, [features_of(tool, name) for tool in listing.tools])


def prepare(servers: Iterable[CorpusServer], tools: int, embedder: Embedder) -> list[PreparedServer]:
    """Return the first servers that have so many tools together, or all, with their tools counted and embedded."""
    prepared: list[PreparedServer] = []
    for server in servers:
        if sum(len(features) for _, features in prepared) >= tools:
            break
        listed = server.listing.tools
        vectors = tool_vectors(listed, server.name, embedder)
        prepared.append((server, [features(*each) for each in zip(listed, vectors, strict=True)]))
    return prepared


def fill_corpus(index: ToolIndex, servers: Sequence[PreparedServer], tools: int, groups: int) -> int:
    """Write so many tools, each server in one of the groups; return how many servers that are.

    A repeated server has another id and declares another name, so its definitions are equal to no others.
    """
    left = tools
    repeated = ((repetition, *server) for repetition in count() for server in servers)
    for number, (repetition, server, made) in enumerate(repeated):
        listed = server.listing.tools[:left]
        group = frozenset({f"group-{number % groups}"})
        put_server(index, f"{server.server_id}-{repetition}", f"{server.name} {repetition}", listed, made, group)
        left -= len(listed)
        if left <= 0:
            return number + 1
    return 0


def features(tool: ToolDefinition, vectors: ToolVectors) -> ToolFeatures:
    """Return what is computed of a tool before it is written."""
    return ToolFeatures(*count_forms(tool, _COUNTERS), vectors, tool.wire)


def put_server(
    index: ToolIndex,
    server: str,
    declared_name: str,
    tools: Sequence[ToolDefinition],
    made: Iterable[ToolFeatures],
    groups: frozenset[str] = frozenset(),
) -> None:
    """Write a server and its tools as a reconciliation would."""
    written = [
        EmbeddedTool(indexed_tool(server, tool, digest(tool, declared_name), features, groups), features.vectors)
        for tool, features in zip(tools, made, strict=False)  # the last server of a size is cut
    ]
    for start in range(0, len(written), A_WRITE):
        index.upsert(written[start : start + A_WRITE])
    indexed = [embedded.tool for embedded in written]
    record = ServerRecord(
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        server_id=server,
        endpoint=Endpoint(),
        declared_name=declared_name,
        catalog_digest=catalog_digest({tool.definition.name: tool.digest for tool in indexed}),
        tool_count=len(indexed),
        groups=groups,
        tokens={encoding: sum(tool.token_counts[encoding] for tool in indexed) for encoding in ENCODINGS},
        model_tokens={encoding: sum(tool.model_counts[encoding] for tool in indexed) for encoding in ENCODINGS},
        revision=time.time_ns() // 1000,
    )
    index.put_server(record)


def _unit_vectors(count: int, dimension: int, seed: int) -> NDArray[np.float32]:
    """Return shape (count, dimension), unit rows, the same for the same seed."""
    drawn = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    unit: NDArray[np.float32] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit
