"""In-memory collaborators that keep the real ones' contracts, and builders of the values they take."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shared.catalog import (
    ENCODINGS,
    EmbeddedTool,
    Encoding,
    Hit,
    IndexedTool,
    Scope,
    ServerRecord,
    Status,
    TokenSum,
    ToolDefinition,
    ToolPage,
    digest,
    point_id,
)
from shared.embedding import words
from shared.errors import IndexUnavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIMENSION = 64


def make_tool(
    server_id: str = "s",
    name: str = "t",
    description: str = "...",
    tokens: int | Mapping[Encoding, int] = 10,
    groups: Collection[str] = (),
    status: Status = "running",
) -> IndexedTool:
    """Return a tool; an integer in `tokens` is its count in every encoding, a mapping leaves encodings out."""
    wire = json.dumps({"name": name, "description": description, "inputSchema": {"type": "object"}})
    definition = ToolDefinition.from_wire(wire)
    return IndexedTool(
        server_id=server_id,
        definition=definition,
        digest=digest(definition, server_id),
        token_counts=dict.fromkeys(ENCODINGS, tokens) if isinstance(tokens, int) else dict(tokens),
        groups=frozenset(groups),
        status=status,
    )


def embedded(tool: IndexedTool, seed: int = 0, vector: NDArray[np.float32] | None = None) -> EmbeddedTool:
    """Return the tool with this vector, or with the unit vector of this seed."""
    return EmbeddedTool(tool, unit_vector(seed) if vector is None else vector)


def unit_vector(seed: int, dimension: int = DIMENSION) -> NDArray[np.float32]:
    """Return the same random direction for the same seed."""
    return _unit(np.random.default_rng(seed).standard_normal(dimension))


class FakeEmbedder:
    """Hashed bags of words: texts that share words are close, the same text gives the same vector.

    `embedded_texts` and `queries` list what it was asked, in order.
    """

    def __init__(self, model: str = "fake/bag-of-words", dimension: int = DIMENSION) -> None:
        self.model = model
        self.dimension = dimension
        self.embedded_texts: list[str] = []
        self.queries: list[str] = []

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded_texts.extend(texts)
        return np.array([self._bag(text) for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)

    def query(self, text: str) -> NDArray[np.float32]:
        self.queries.append(text)
        return self._bag(text)

    def _bag(self, text: str) -> NDArray[np.float32]:
        bag = np.zeros(self.dimension)
        for word in words(text).lower().split() or [""]:
            bag[zlib.crc32(word.encode("utf-8", "surrogatepass")) % self.dimension] += 1
        return _unit(bag)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class FakeIndex:
    """A ToolIndex in memory, held to the same contract suite as the real ones.

    `upserted` and `deleted` list the qualified names written and removed, in order. While `is_down`,
    every method raises IndexUnavailable.
    """

    def __init__(self) -> None:
        self.is_down = False
        self.upserted: list[str] = []
        self.deleted: list[str] = []
        self._tools: dict[str, EmbeddedTool] = {}
        self._servers: dict[str, ServerRecord] = {}
        self._lock = threading.RLock()

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        with self._held():
            for each in tools:
                self._tools[_id(each.tool)] = each
                self.upserted.append(each.tool.qualified_name)

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        with self._held():
            for name in tool_names:
                if self._tools.pop(point_id(server_id, name), None):
                    self.deleted.append(f"{server_id}:{name}")

    def digests(self, server_id: str) -> dict[str, str]:
        with self._held():
            tools = [each.tool for each in self._tools.values()]
        return {tool.definition.name: tool.digest for tool in tools if tool.server_id == server_id}

    def assign(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        with self._held():
            for key, each in self._tools.items():
                if each.tool.server_id == server_id:
                    self._tools[key] = replace(each, tool=replace(each.tool, status=status, groups=groups))

    def search(self, vector: NDArray[np.float32], scope: Scope, limit: int) -> list[Hit]:
        hits = [Hit(each.tool, float(each.vector @ vector)) for each in self._within(scope)]
        return sorted(hits, key=lambda hit: -hit.score)[: max(limit, 0)]

    def token_sum(self, scope: Scope, encoding: Encoding) -> TokenSum:
        counts = [each.tool.token_counts.get(encoding) for each in self._within(scope)]
        counted = [count for count in counts if count is not None]
        return TokenSum(sum(counted), len(counted), len(counts) - len(counted))

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        tools = [each.tool for each in self._within(scope)]
        return [tool.qualified_name for tool in tools if encoding not in tool.token_counts][:limit]

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        tools = [each.tool for each in self._within(scope)]
        rest = [tool for tool in tools if after is None or _id(tool) > after]
        return ToolPage(rest[:limit], _id(rest[limit - 1]) if len(rest) > limit else None)

    def put_server(self, record: ServerRecord) -> None:
        with self._held():
            self._servers[record.server_id] = record

    def server(self, server_id: str) -> ServerRecord | None:
        with self._held():
            return self._servers.get(server_id)

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        with self._held():
            return [record for record in self._servers.values() if record.revision > newer_than]

    def close(self) -> None:
        self.is_down = True

    @contextmanager
    def _held(self) -> Generator[None]:
        with self._lock:
            if self.is_down:
                raise IndexUnavailable("the index is down")
            yield

    def _within(self, scope: Scope) -> list[EmbeddedTool]:
        """Return what the scope admits, in the order of the points' ids."""
        with self._held():
            return [each for _, each in sorted(self._tools.items()) if _admits(scope, each.tool)]


def _id(tool: IndexedTool) -> str:
    return point_id(tool.server_id, tool.definition.name)


def _admits(scope: Scope, tool: IndexedTool) -> bool:
    return (
        tool.status == scope.status
        and (scope.groups is None or bool(scope.groups & tool.groups))
        and (scope.servers is None or tool.server_id in scope.servers)
    )
