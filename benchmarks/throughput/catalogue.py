"""Fill an index without asking servers or the model, to reach sizes that would take minutes to embed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.throughput.corpus import definitions, server_id
from shared.catalog import (
    ENCODINGS,
    FEATURES_VERSION,
    EmbeddedTool,
    Endpoint,
    IndexedTool,
    Listing,
    ServerRecord,
    ToolDefinition,
    ToolFeatures,
    ToolVectors,
    catalog_digest,
    digest,
)
from shared.index.tools import ToolIndex
from shared.text.bm25 import tool_terms
from shared.text.embedding import Embedder, tool_vectors
from shared.text.tokens import count_forms, counters, indexed_tool
from workers.fetch.definitions import read_definition

PROTOCOL_VERSION = "2026-07-28"
MAX_BYTES = 1 << 20
_COUNTERS = counters()


def fill(index: ToolIndex, numbers: range, tools: int, seed: int, dimension: int) -> None:
    """Write the servers of these numbers with this many tools each, as a look at them would, but random vectors.

    The definitions and their counts are real, the vectors are directions drawn from the seed.
    """
    for number in numbers:
        name = server_id(number)
        put_server(index, name, read_tools(name, tools, seed), unit_vectors(2 * tools, dimension, seed + number))


def put_server(index: ToolIndex, name: str, tools: Sequence[ToolDefinition], rows: NDArray[np.float32]) -> None:
    """Write a server with these tools, as a look at it would; shape of `rows`: two for each tool."""
    row = iter(rows)
    written = [_embedded(name, name, tool, ToolVectors(next(row), next(row), tool_terms(tool, name))) for tool in tools]
    index.upsert(written)
    index.put_server(_record(name, name, [embedded.tool for embedded in written]))


def put_replicas(index: ToolIndex, listings: Mapping[str, Listing], embedder: Embedder) -> None:
    """Write servers by their ids, as looks at them would; a tool that several list is counted and embedded once."""

    @cache
    def vectors_of(tool: ToolDefinition, declared_name: str) -> ToolVectors:
        (vectors,) = tool_vectors([tool], declared_name, embedder)
        return vectors

    for server, listing in listings.items():
        name = listing.declared_name
        written = [_embedded(server, name, tool, vectors_of(tool, name)) for tool in listing.tools]
        index.upsert(written)
        index.put_server(_record(server, name, [embedded.tool for embedded in written]))


def _embedded(server: str, declared_name: str, tool: ToolDefinition, vectors: ToolVectors) -> EmbeddedTool:
    features = ToolFeatures(*count_forms(tool, _COUNTERS), vectors, tool.wire)
    return EmbeddedTool(indexed_tool(server, tool, digest(tool, declared_name), features), vectors)


def read_tools(server: str, tools: int, seed: int) -> list[ToolDefinition]:
    """Return a generated server's tools as the write path reads them off the wire."""
    return [read_definition(raw, PROTOCOL_VERSION, MAX_BYTES)[0] for raw in definitions(server, tools, seed)]


def unit_vectors(count: int, dimension: int, seed: int) -> NDArray[np.float32]:
    """Return shape (count, dimension), unit rows, the same for the same seed."""
    drawn = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    unit: NDArray[np.float32] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def _record(server: str, declared_name: str, tools: Sequence[IndexedTool]) -> ServerRecord:
    return ServerRecord(
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        server_id=server,
        endpoint=Endpoint(),
        declared_name=declared_name,
        catalog_digest=catalog_digest({tool.definition.name: tool.digest for tool in tools}),
        tool_count=len(tools),
        tokens={encoding: sum(tool.token_counts[encoding] for tool in tools) for encoding in ENCODINGS},
        model_tokens={encoding: sum(tool.model_counts[encoding] for tool in tools) for encoding in ENCODINGS},
        revision=time.time_ns() // 1000,
    )
