"""Fill an index with a corpus, repeated to a size: what real tools look like, without asking servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.retrieval.data import CorpusServer
from shared.catalog import ENCODINGS, RECIPE, EmbeddedTool, Endpoint, IndexedTool, Prepared, ServerRecord, digest
from shared.index.contract import ToolIndex
from shared.text.embedding import Embedder
from shared.text.tokens import count_all, counters
from shared.text.vectors import tool_vectors

A_WRITE = 64


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server of the corpus with what belongs to each of its tools."""

    server: CorpusServer
    prepared: tuple[Prepared, ...]


def prepare(servers: Sequence[CorpusServer], embedder: Embedder) -> list[PreparedServer]:
    """Return the servers with their tools counted and embedded."""
    return [_prepared(each, embedder) for each in servers]


def fill(index: ToolIndex, servers: Sequence[PreparedServer], tools: int, groups: int) -> int:
    """Write so many tools as looks at their servers would; return how many servers that are."""
    left = tools
    repeated = ((repetition, each) for repetition in count() for each in servers)
    for number, (repetition, each) in enumerate(repeated):
        name = f"{each.server.server_id}-{repetition}"
        written = _tools(each, name, frozenset({f"group-{number % groups}"}))[:left]
        for start in range(0, len(written), A_WRITE):
            index.upsert(written[start : start + A_WRITE])
        index.put_server(_record(name, number, [embedded.tool for embedded in written]))
        left -= len(written)
        if left <= 0:
            return number + 1
    return 0


def _prepared(server: CorpusServer, embedder: Embedder) -> PreparedServer:
    tools = server.listing.tools
    counts = count_all((tool.wire for tool in tools), counters())
    vectors = tool_vectors(tools, server.name, embedder)
    return PreparedServer(server, tuple(Prepared(*each) for each in zip(counts, vectors, strict=True)))


def _tools(each: PreparedServer, server_id: str, groups: frozenset[str]) -> list[EmbeddedTool]:
    name = each.server.name
    return [
        EmbeddedTool(IndexedTool(server_id, tool, digest(tool, name), made.token_counts, groups), made.vectors)
        for tool, made in zip(each.server.listing.tools, each.prepared, strict=True)
    ]


def _record(server_id: str, number: int, tools: Sequence[IndexedTool]) -> ServerRecord:
    return ServerRecord(
        recipe=RECIPE,
        last_listed_at=1.0,
        server_id=server_id,
        endpoint=Endpoint(),
        tool_count=len(tools),
        groups=tools[0].groups,
        tokens={encoding: sum(tool.token_counts.get(encoding, 0) for tool in tools) for encoding in ENCODINGS},
        revision=number + 1,
    )


def enough(servers: Sequence[CorpusServer], tools: int) -> list[CorpusServer]:
    """Return the first servers that have so many tools together, or all."""
    chosen: list[CorpusServer] = []
    for each in servers:
        if sum(len(server.listing.tools) for server in chosen) >= tools:
            break
        chosen.append(each)
    return chosen
