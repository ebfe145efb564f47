"""Servers with tools in an index, as a finished ingestion leaves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from shared.catalog import ENCODINGS, FEATURES_VERSION, Encoding, Endpoint, Form, IndexedTool, ServerRecord
from shared.index.tools import ToolIndex
from shared.text.embedding import Embedder
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested


class CountedIndex(FakeIndex):
    """An index that counts its reads by method."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    @override
    def __getattribute__(self, name: str) -> Any:
        if name in ("get", "tool_names", "find_by_name", "search", "server", "servers", "revisions", "tools"):
            self.reads[name] += 1
        return super().__getattribute__(name)


def index_of(*tools: IndexedTool, embedder: Embedder | None = None, **record: Any) -> FakeIndex:
    """Return an index of these tools and of the records of their servers; see `fill`."""
    index = FakeIndex()
    fill(index, *tools, embedder=embedder, **record)
    return index


def fill(index: ToolIndex, *tools: IndexedTool, embedder: Embedder | None = None, **record: Any) -> None:
    """Write these tools, and the record of each of their servers; `record` changes fields of the records."""
    index.upsert([ingested(tool, embedder or FakeEmbedder()) for tool in tools])
    for revision, server_id in enumerate(sorted({tool.server_id for tool in tools}), start=1):
        own = [tool for tool in tools if tool.server_id == server_id]
        index.put_server(record_of(server_id, own, revision=revision, **record))


def record_of(server_id: str, tools: Sequence[IndexedTool] = (), **fields: Any) -> ServerRecord:
    """Return the record of a listed server with these tools, whose groups and status are its own."""
    told: dict[str, Any] = {
        "server_id": server_id,
        "endpoint": Endpoint(),
        "groups": tools[0].groups if tools else frozenset(),
        "status": tools[0].status if tools else "running",
        "features_version": FEATURES_VERSION,
        "last_listed_at": 1.0,
        "tool_count": len(tools),
        "tokens": _sums(tools, "wire"),
        "model_tokens": _sums(tools, "model"),
        "revision": 1,
    }
    return ServerRecord.model_validate(told | fields)


def _sums(tools: Sequence[IndexedTool], form: Form) -> dict[Encoding, int]:
    return {encoding: sum(tool.counts(form).get(encoding, 0) for tool in tools) for encoding in ENCODINGS}
