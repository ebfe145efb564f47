"""In-memory collaborators that keep the real ones' contracts, and builders of the values they take."""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shared.catalog import (
    ENCODINGS,
    FORMS,
    Candidates,
    EmbeddedTool,
    Encoding,
    Form,
    IndexedTool,
    QueryVectors,
    Scope,
    ServerRecord,
    SparseVector,
    Status,
    TokenSum,
    ToolDefinition,
    ToolFeatures,
    ToolName,
    ToolPage,
    ToolVectors,
    digest,
    point_id,
)
from shared.errors import IndexUnavailable, ModelUnavailable
from shared.index.tools import ToolCounts, ToolIndex, ToolState
from shared.text.bm25 import query_terms, tool_terms, words
from shared.text.embedding import tool_vectors
from shared.text.subjects import subject_passages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.text.embedding import Embedder
    from shared.toolset import Toolset

DIMENSION = 64


def make_tool(
    server_id: str = "s",
    name: str = "t",
    description: str = "...",
    tokens: int | Mapping[Encoding, int] = 10,
    groups: Collection[str] = (),
    status: Status = "running",
    read_only: bool = False,
    model_tokens: int | Mapping[Encoding, int] | None = None,
) -> IndexedTool:
    """Return a tool; an integer in `tokens` is its count in every encoding, a mapping leaves encodings out.

    `model_tokens` are those of the model form, by default as many.
    """
    declared: dict[str, object] = {"name": name, "description": description, "inputSchema": {"type": "object"}}
    if read_only:
        declared["annotations"] = {"readOnlyHint": True}
    definition = ToolDefinition.from_wire(json.dumps(declared))
    return IndexedTool(
        server_id=server_id,
        definition=definition,
        digest=digest(definition, server_id),
        token_counts=_counts(tokens),
        model_counts=_counts(tokens if model_tokens is None else model_tokens),
        groups=frozenset(groups),
        status=status,
    )


def _counts(tokens: int | Mapping[Encoding, int]) -> Mapping[Encoding, int]:
    return dict.fromkeys(ENCODINGS, tokens) if isinstance(tokens, int) else dict(tokens)


def state_of(tool: IndexedTool) -> ToolState:
    """Return the state of a tool as an index returns it."""
    return ToolState(tool.digest, tool.status, tool.groups, tool.token_counts, tool.model_counts, tool.changed_since)


def embedded(tool: IndexedTool, seed: int = 0, vector: NDArray[np.float32] | None = None) -> EmbeddedTool:
    """Return the tool with this dense vector twice, or with the unit vector of this seed; its terms are its own."""
    dense = unit_vector(seed) if vector is None else vector
    return EmbeddedTool(tool, ToolVectors(dense, dense, tool_terms(tool.definition, tool.server_id)))


def asking(seed: int = 0, terms: str = "") -> QueryVectors:
    """Return a query of the unit vector of this seed, and of these words."""
    return QueryVectors(unit_vector(seed), query_terms(terms))


def unit_vector(seed: int, dimension: int = DIMENSION) -> NDArray[np.float32]:
    """Return the same random direction for the same seed."""
    return _unit(np.random.default_rng(seed).standard_normal(dimension))


def ingested(tool: IndexedTool, embedder: Embedder) -> EmbeddedTool:
    """Return the tool with the vectors that the write path gives it."""
    (vectors,) = tool_vectors([tool.definition], tool.server_id, embedder)
    return EmbeddedTool(tool, vectors)


def closest(index: ToolIndex, query: QueryVectors, scope: Scope, depth: int) -> list[IndexedTool]:
    """Return the tools of the scope in the order of their names' vectors, closest first."""
    (candidates,) = index.search([query], scope, depth)
    tools = index.get(list(candidates.name))
    return [tools[point] for point in candidates.name if point in tools]  # others may be deleting


class FakeEmbedder:
    """Hashed bags of words: texts that share words are close, the same text gives the same vector.

    `embedded_texts` and `queries` list what it was asked, in order, but for the texts of subjects.
    """

    def __init__(self, model: str = "fake/bag-of-words", dimension: int = DIMENSION) -> None:
        self.model = model
        self.dimension = dimension
        self.embedded_texts: list[str] = []
        self.queries: list[str] = []

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if texts != subject_passages():  # once in the life of a process, by the server that comes first
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


class SaltedEmbedder(FakeEmbedder):
    """A model whose vectors of a text are far from those of every other model."""

    def _bag(self, text: str) -> NDArray[np.float32]:
        return super()._bag(" ".join(f"{self.model.replace('/', '')}{word}".lower() for word in words(text).split()))


class WithoutModel(FakeEmbedder):
    """An embedder whose model cannot be loaded."""

    def _bag(self, text: str) -> NDArray[np.float32]:
        raise ModelUnavailable(f"no model for {text!r}")


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class FakeIndex(ToolIndex):
    """An index in memory, held to the same contract suite as the real one.

    `upserted` and `deleted` list the qualified names written and removed, in order. While `is_down`,
    every method raises IndexUnavailable.
    """

    def __init__(self) -> None:
        self.is_down = False
        self.upserted: list[str] = []
        self.deleted: list[str] = []
        self._points: dict[str, EmbeddedTool] = {}
        self._records: dict[str, ServerRecord] = {}
        self._pointsets: dict[str, Toolset] = {}
        self._lock = threading.RLock()

    def points(self) -> dict[str, EmbeddedTool]:
        """Return all that is written, by qualified name."""
        with self._held():
            return {stored.tool.qualified_name: stored for stored in self._points.values()}

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        with self._held():
            for added in tools:
                self._points[_id(added.tool)] = added
                self.upserted.append(added.tool.qualified_name)

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        with self._held():
            for name in tool_names:
                if self._points.pop(point_id(server_id, name), None):
                    self.deleted.append(f"{server_id}:{name}")

    def features_by_digest(self, digests: Collection[str]) -> dict[str, ToolFeatures]:
        with self._held():
            held = [stored for stored in self._points.values() if stored.tool.digest in digests]
        return {stored.tool.digest: _features(stored) for stored in held}

    def tool_states(self, server_id: str) -> dict[str, ToolState]:
        with self._held():
            tools = [stored.tool for stored in self._points.values()]
        mine = [tool for tool in tools if tool.server_id == server_id]
        return {tool.definition.name: state_of(tool) for tool in mine}

    def servers_with_tools(self) -> set[str]:
        with self._held():
            return {stored.tool.server_id for stored in self._points.values()}

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        with self._held():
            for key, stored in self._points.items():
                if stored.tool.server_id == server_id:
                    self._points[key] = replace(stored, tool=replace(stored.tool, status=status, groups=groups))

    def clear_digests(self, digests: Collection[str]) -> None:
        with self._held():
            for key, stored in self._points.items():
                if stored.tool.digest in digests:
                    self._points[key] = replace(stored, tool=replace(stored.tool, digest=""))

    def search(
        self, queries: Sequence[QueryVectors], scope: Scope, depth: int, corpus: Scope | None = None
    ) -> list[Candidates]:
        within = {_id(stored.tool): stored for stored in self._within(scope)}
        counted = self._within(corpus or scope)
        return [self._candidates(query, within, max(depth, 0), counted) for query in queries]

    def find_by_name(self, name: str, scope: Scope, limit: int) -> list[IndexedTool]:
        tools = [stored.tool for stored in self._within(scope)]
        return [tool for tool in tools if name in (tool.definition.name, tool.qualified_name)][: max(limit, 0)]

    def tool_names(self, names: Collection[str], scope: Scope, limit: int) -> list[ToolName]:
        tools = [stored.tool for stored in self._within(scope) if stored.tool.definition.name in names]
        return [ToolName(tool.server_id, tool.definition.name, tool.digest) for tool in tools][: max(limit, 0)]

    def get(self, ids: Sequence[str]) -> dict[str, IndexedTool]:
        with self._held():
            return {point: self._points[point].tool for point in ids if point in self._points}

    def token_sum(self, scope: Scope, encoding: Encoding, form: Form = "wire") -> TokenSum:
        counts = [stored.tool.counts(form).get(encoding) for stored in self._within(scope)]
        counted = [count for count in counts if count is not None]
        return TokenSum(sum(counted), len(counted), len(counts) - len(counted))

    def counts(self, scope: Scope, encoding: Encoding) -> Iterator[ToolCounts]:
        for tool in (stored.tool for stored in self._within(scope)):
            yield ToolCounts(tool.server_id, tool.definition.name, *(tool.counts(form).get(encoding) for form in FORMS))

    def distinct_names(self) -> Collection[str]:
        with self._held():
            return {stored.tool.definition.name for stored in self._points.values()}

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        tools = [stored.tool for stored in self._within(scope)]
        return [tool.qualified_name for tool in tools if encoding not in tool.token_counts][:limit]

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        tools = [stored.tool for stored in self._within(scope)]
        rest = [tool for tool in tools if after is None or _id(tool) > after]
        return ToolPage(rest[:limit], _id(rest[limit - 1]) if len(rest) > limit else None)

    def put_server(self, record: ServerRecord) -> None:
        with self._held():
            self._records[record.server_id] = record

    def server(self, server_id: str) -> ServerRecord | None:
        with self._held():
            return self._records.get(server_id)

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        with self._held():
            return [record for record in self._records.values() if record.revision > newer_than]

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        return {record.server_id: record.revision for record in self.servers(newer_than=newer_than)}

    def put_toolset(self, toolset: Toolset) -> None:
        with self._held():
            self._pointsets[toolset.name] = toolset

    def toolset(self, name: str) -> Toolset | None:
        with self._held():
            return self._pointsets.get(name)

    def toolsets(self) -> list[Toolset]:
        with self._held():
            return [toolset for _, toolset in sorted(self._pointsets.items())]

    def delete_toolset(self, name: str) -> None:
        with self._held():
            self._pointsets.pop(name, None)

    def close(self) -> None:
        self.is_down = True

    def _candidates(
        self, query: QueryVectors, within: Mapping[str, EmbeddedTool], depth: int, corpus: Sequence[EmbeddedTool]
    ) -> Candidates:
        name = _closest({point: stored.vectors.name for point, stored in within.items()}, query.dense, depth)
        text = _closest({point: stored.vectors.text for point, stored in within.items()}, query.dense, depth)
        scores = {point: _bm25(query.terms, stored.vectors.terms, corpus) for point, stored in within.items()}
        terms = _first({point: score for point, score in scores.items() if score > 0}, depth)
        return Candidates(depth, name, text, terms)

    @contextmanager
    def _held(self) -> Generator[None]:
        with self._lock:
            if self.is_down:
                raise IndexUnavailable("the index is down")
            yield

    def _within(self, scope: Scope) -> list[EmbeddedTool]:
        """Return what the scope admits, in the order of the points' ids."""
        with self._held():
            return [stored for _, stored in sorted(self._points.items()) if scope.contains(stored.tool)]


def _bm25(query: SparseVector, tool: SparseVector, corpus: Sequence[EmbeddedTool]) -> float:
    weights = dict(zip(tool.indices, tool.values, strict=True))
    asked = zip(query.indices, query.values, strict=True)
    return sum(value * weights[term] * _idf(term, corpus) for term, value in asked if term in weights)


def _idf(term: int, corpus: Sequence[EmbeddedTool]) -> float:
    """Return Qdrant's inverse document frequency, over all points of the corpus."""
    holding = sum(term in stored.vectors.terms.indices for stored in corpus)
    return math.log((len(corpus) - holding + 0.5) / (holding + 0.5) + 1)


def _features(stored: EmbeddedTool) -> ToolFeatures:
    tool = stored.tool
    wire, model = (_without_estimate(tool.counts(form)) for form in FORMS)
    return ToolFeatures(wire, model, stored.vectors, tool.definition.wire)


def _without_estimate(counts: Mapping[Encoding, int]) -> dict[Encoding, int]:
    return {encoding: count for encoding, count in counts.items() if encoding != "heuristic"}


def _id(tool: IndexedTool) -> str:
    return point_id(tool.server_id, tool.definition.name)


def _closest(
    vectors: Mapping[str, NDArray[np.float32]], query: NDArray[np.float32] | None, depth: int
) -> dict[str, float]:
    if query is None:
        return {}
    return _first({point: float(vector @ query) for point, vector in vectors.items()}, depth)


def _first(scores: Mapping[str, float], depth: int) -> dict[str, float]:
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:depth])
