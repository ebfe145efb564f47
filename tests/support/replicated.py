"""Servers of a fleet that offer the same tools, in an index as a finished ingestion leaves them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shared.catalog import (
    ENCODINGS,
    FEATURES_VERSION,
    Encoding,
    Endpoint,
    Form,
    IndexedTool,
    ServerRecord,
    catalog_digest,
    digest,
)
from shared.index.tools import ToolIndex
from tests.support.fakes import FakeEmbedder, ingested, make_tool


def tool(name: str, description: str = "does something", tokens: int = 10) -> IndexedTool:
    """Return a tool that any server may offer."""
    return make_tool("", name, description, tokens)


def put_server(
    index: ToolIndex,
    server_id: str,
    tools: Iterable[IndexedTool],
    declared_name: str = "web",
    groups: frozenset[str] = frozenset(),
    **record: object,
) -> None:
    """Write a running server with these tools, and its record; `record` changes fields of the record."""
    own = [
        replace(tool, server_id=server_id, digest=digest(tool.definition, declared_name), groups=groups)
        for tool in tools
    ]
    index.upsert([ingested(tool, FakeEmbedder()) for tool in own])
    written = ServerRecord(
        server_id=server_id,
        endpoint=Endpoint(url=f"http://{server_id}.example/mcp"),
        declared_name=declared_name,
        groups=groups,
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        revision=1,
        tool_count=len(own),
        tokens=_sums(own, "wire"),
        model_tokens=_sums(own, "model"),
        catalog_digest=catalog_digest({tool.definition.name: tool.digest for tool in own}),
    )
    index.put_server(written.model_copy(update=record))


def _sums(tools: Iterable[IndexedTool], form: Form) -> dict[Encoding, int]:
    tools = list(tools)
    return {encoding: sum(tool.counts(form).get(encoding, 0) for tool in tools) for encoding in ENCODINGS}
