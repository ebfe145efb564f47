"""Fill an index with a corpus, repeated to a size: what real tools look like, without asking servers."""

from __future__ import annotations

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
    digest,
)
from shared.index.contract import ToolIndex
from shared.text.embedding import Embedder
from shared.text.forms import count_forms, indexed_tool
from shared.text.tokens import counters
from shared.text.vectors import tool_vectors

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
    """Write so many tools as looks at their servers would; return how many servers that are."""
    left = tools
    repeated = ((repetition, server) for repetition in count() for server in servers)
    for number, (repetition, server) in enumerate(repeated):
        name = f"{server.server.server_id}-{repetition}"
        written = _tools(server, name, frozenset({f"group-{number % groups}"}))[:left]
        for start in range(0, len(written), A_WRITE):
            index.upsert(written[start : start + A_WRITE])
        index.put_server(_record(name, number, [embedded.tool for embedded in written]))
        left -= len(written)
        if left <= 0:
            return number + 1
    return 0


def _prepared(server: CorpusServer, embedder: Embedder) -> PreparedServer:
    tools = server.listing.tools
    vectors = tool_vectors(tools, server.name, embedder)
    features = (
        ToolFeatures(*count_forms(tool, _COUNTERS), its_vectors, tool.wire)
        for tool, its_vectors in zip(tools, vectors, strict=True)
    )
    return PreparedServer(server, tuple(features))


def _tools(server: PreparedServer, server_id: str, groups: frozenset[str]) -> list[EmbeddedTool]:
    name = server.server.name
    return [
        EmbeddedTool(indexed_tool(server_id, tool, digest(tool, name), made, groups), made.vectors)
        for tool, made in zip(server.server.listing.tools, server.prepared, strict=True)
    ]


def _record(server_id: str, number: int, tools: Sequence[IndexedTool]) -> ServerRecord:
    return ServerRecord(
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        server_id=server_id,
        endpoint=Endpoint(),
        tool_count=len(tools),
        groups=tools[0].groups,
        tokens={encoding: sum(tool.token_counts.get(encoding, 0) for tool in tools) for encoding in ENCODINGS},
        model_tokens={encoding: sum(tool.model_counts.get(encoding, 0) for tool in tools) for encoding in ENCODINGS},
        revision=number + 1,
    )


def enough(servers: Sequence[CorpusServer], tools: int) -> list[CorpusServer]:
    """Return the first servers that have so many tools together, or all."""
    chosen: list[CorpusServer] = []
    for candidate in servers:
        if sum(len(server.listing.tools) for server in chosen) >= tools:
            break
        chosen.append(candidate)
    return chosen
