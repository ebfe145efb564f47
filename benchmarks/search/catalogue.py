"""Fill an index with a corpus, repeated to a size: what real tools look like, without asking servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.retrieval.data import CorpusServer
from shared.catalog import (
    ENCODINGS,
    FEATURES_VERSION,
    EmbeddedTool,
    Endpoint,
    IndexedTool,
    ServerRecord,
    ToolFeatures,
    catalog_digest,
    digest,
)
from shared.index.tools import ToolIndex
from shared.text.embedding import Embedder, tool_vectors
from shared.text.tokens import count_forms, counters, indexed_tool

A_WRITE = 64
_COUNTERS = counters()


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server of the corpus with what belongs to each of its tools."""

    server: CorpusServer
    prepared: tuple[ToolFeatures, ...]


def prepare(servers: Sequence[CorpusServer], embedder: Embedder) -> list[PreparedServer]:
    """Return the servers with their tools counted and embedded."""
    return [_prepared(server, embedder) for server in servers]


def fill(index: ToolIndex, servers: Sequence[PreparedServer], tools: int, groups: int) -> int:
    """Write so many tools as reconciliations of their servers would; return how many servers that are.

    A repeated server has another id and declares another name, so its definitions are equal to no others.
    """
    left = tools
    repeated = ((repetition, server) for repetition in count() for server in servers)
    for number, (repetition, server) in enumerate(repeated):
        server_id, declared_name = f"{server.server.server_id}-{repetition}", f"{server.server.name} {repetition}"
        written = _tools(server, server_id, declared_name, frozenset({f"group-{number % groups}"}))[:left]
        for start in range(0, len(written), A_WRITE):
            index.upsert(written[start : start + A_WRITE])
        index.put_server(_record(server_id, declared_name, [embedded.tool for embedded in written]))
        left -= len(written)
        if left <= 0:
            return number + 1
    return 0


def originals(servers: Sequence[PreparedServer], filled: int) -> frozenset[str]:
    """Return the ids of the servers that repeat no other, of the first `filled` that `fill` writes."""
    return frozenset(f"{server.server.server_id}-0" for server in servers[:filled])


def _prepared(server: CorpusServer, embedder: Embedder) -> PreparedServer:
    tools = server.listing.tools
    vectors = tool_vectors(tools, server.name, embedder)
    features = (
        ToolFeatures(*count_forms(tool, _COUNTERS), its_vectors, tool.wire)
        for tool, its_vectors in zip(tools, vectors, strict=True)
    )
    return PreparedServer(server, tuple(features))


def _tools(server: PreparedServer, server_id: str, declared_name: str, groups: frozenset[str]) -> list[EmbeddedTool]:
    return [
        EmbeddedTool(indexed_tool(server_id, tool, digest(tool, declared_name), made, groups), made.vectors)
        for tool, made in zip(server.server.listing.tools, server.prepared, strict=True)
    ]


def _record(server_id: str, declared_name: str, tools: Sequence[IndexedTool]) -> ServerRecord:
    return ServerRecord(
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        server_id=server_id,
        endpoint=Endpoint(),
        declared_name=declared_name,
        catalog_digest=catalog_digest({tool.definition.name: tool.digest for tool in tools}),
        tool_count=len(tools),
        groups=tools[0].groups,
        tokens={encoding: sum(tool.token_counts.get(encoding, 0) for tool in tools) for encoding in ENCODINGS},
        model_tokens={encoding: sum(tool.model_counts.get(encoding, 0) for tool in tools) for encoding in ENCODINGS},
        revision=time.time_ns() // 1000,
    )


def enough(servers: Sequence[CorpusServer], tools: int) -> list[CorpusServer]:
    """Return the first servers that have so many tools together, or all."""
    chosen: list[CorpusServer] = []
    for candidate in servers:
        if sum(len(server.listing.tools) for server in chosen) >= tools:
            break
        chosen.append(candidate)
    return chosen
