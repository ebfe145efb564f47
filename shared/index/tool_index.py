"""The index over collections of points, on any engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from shared.catalog import (
    FORMS,
    Candidates,
    SparseVector,
    TokenSum,
    ToolFeatures,
    ToolName,
    ToolPage,
    ToolVectors,
    point_id,
)
from shared.index.contract import ToolState
from shared.index.documents import DocumentIndex
from shared.index.payload import (
    COUNT_KEYS,
    NAME_VECTOR,
    STATE_KEYS,
    TERMS_VECTOR,
    TEXT_VECTOR,
    TOOL_COUNT_KEYS,
    counts_from,
    matches_nothing,
    named,
    restricted,
    scope_filter,
    state_from,
    tool_from,
    tool_payload,
)
from shared.index.points import (
    Filter,
    NamedVector,
    Point,
    PointCollection,
    Scores,
    any_of,
    behind,
    is_empty,
    must,
    walk,
)

if TYPE_CHECKING:
    from shared.catalog import (
        EmbeddedTool,
        Encoding,
        Form,
        IndexedTool,
        QueryVectors,
        Scope,
        Status,
    )


# Digests per request: about 300 KB of vectors, and below the batch limit of servers in strict mode.
DIGESTS_A_REQUEST = 64

# 100,000 real tools have about 1,500 distinct counts, and a large fleet has 10,000 servers.
FACET_LIMIT = 65_536


class QdrantIndex(DocumentIndex):
    """A ToolIndex on collections of points."""

    def __init__(
        self,
        tools: PointCollection,
        servers: PointCollection,
        toolsets: PointCollection,
        facet_limit: int = FACET_LIMIT,
    ) -> None:
        super().__init__(servers, toolsets)
        self._tools = tools
        self._facet_limit = facet_limit

    @override
    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        self._tools.upsert([_tool_point(tool) for tool in tools])

    @override
    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        self._tools.delete([point_id(server_id, name) for name in tool_names])

    @override
    def features_by_digest(self, digests: Collection[str]) -> dict[str, ToolFeatures]:
        asked, keys = list(digests), ("digest", "definition", *TOOL_COUNT_KEYS)
        found: dict[str, Point] = {}
        for start in range(0, len(asked), DIGESTS_A_REQUEST):
            found |= self._tools.sample_by_value("digest", asked[start : start + DIGESTS_A_REQUEST], keys)
        return {digest: _features(point) for digest, point in found.items()}

    @override
    def tool_states(self, server_id: str) -> dict[str, ToolState]:
        rows = walk(self._tools, must(any_of("server_id", (server_id,))), STATE_KEYS)
        return {row["tool_name"]: state_from(row) for row in rows}

    @override
    def servers_with_tools(self) -> set[str]:
        return set(self._tools_by_value({}, "server_id"))

    @override
    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        payload = {"status": status, "groups": sorted(groups)}
        self._tools.set_payload(payload, must(any_of("server_id", (server_id,))))

    @override
    def clear_digests(self, digests: Collection[str]) -> None:
        if digests:
            self._tools.set_payload({"digest": ""}, must(any_of("digest", sorted(digests))))

    @override
    def search(
        self, queries: Sequence[QueryVectors], scope: Scope, depth: int, corpus: Scope | None = None
    ) -> list[Candidates]:
        by_query = [_query_vectors(query) for query in queries]
        vectors = [question for vectors in by_query for question in vectors]
        if depth < 1 or not vectors or matches_nothing(scope):
            return [_candidates(depth, {}) for _ in queries]
        answers = iter(self._tools.query(vectors, scope_filter(scope), depth, scope_filter(corpus or scope)))
        lists_by_query = [{question.name: next(answers) for question in vectors} for vectors in by_query]
        return [_candidates(depth, lists) for lists in lists_by_query]

    @override
    def find_by_name(self, name: str, scope: Scope, limit: int) -> list[IndexedTool]:
        if limit < 1 or matches_nothing(scope):
            return []
        page, _ = self._tools.scroll(restricted(scope_filter(scope), named(name)), limit)
        return [tool_from(payload) for payload in page]

    @override
    def tool_names(self, names: Collection[str], scope: Scope, limit: int) -> list[ToolName]:
        if limit < 1 or not names or matches_nothing(scope):
            return []
        where = restricted(scope_filter(scope), named(*names))
        rows = walk(self._tools, where, ("server_id", "tool_name", "digest"))
        tools = (ToolName(row["server_id"], row["tool_name"], row["digest"]) for row in rows)
        return list(islice((tool for tool in tools if tool.name in names), limit))

    @override
    def get(self, ids: Sequence[str]) -> dict[str, IndexedTool]:
        return {point: tool_from(payload) for point, payload in self._tools.retrieve(ids).items()} if ids else {}

    @override
    def token_sum(self, scope: Scope, encoding: Encoding, form: Form = "wire") -> TokenSum:
        """Return the exact sum from a facet, since Qdrant has no sum but counts each value exactly."""
        if matches_nothing(scope):
            return TokenSum(0, 0, 0)
        where, key = scope_filter(scope), COUNT_KEYS[form][encoding]
        tools_by_count = self._tools_by_value(where, key)
        return TokenSum(
            tokens=sum(count * tools for count, tools in tools_by_count.items()),
            counted=sum(tools_by_count.values()),
            uncounted=self._tools.count(restricted(where, is_empty(key))),
        )

    @override
    def distinct_tokens(self, scope: Scope, encoding: Encoding) -> int:
        key = COUNT_KEYS["wire"][encoding]
        rows = () if matches_nothing(scope) else walk(self._tools, scope_filter(scope), ("digest", "names", key))
        # a cleared digest identifies no definition
        counts: dict[str, int] = {row["digest"] or row["names"][1]: row.get(key, 0) for row in rows}
        return sum(counts.values())

    @override
    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        if limit < 1 or matches_nothing(scope):
            return []
        where = restricted(scope_filter(scope), is_empty(COUNT_KEYS["wire"][encoding]))
        rows = walk(self._tools, where, ("server_id", "tool_name"))
        return [f"{row['server_id']}:{row['tool_name']}" for row in islice(rows, limit)]

    @override
    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        if matches_nothing(scope):
            return ToolPage(())
        page, following = self._tools.scroll(scope_filter(scope), limit, behind(after))
        tools = [tool_from(payload) for payload in page]
        is_last = following is None or not tools
        return ToolPage(tools, None if is_last else point_id(tools[-1].server_id, tools[-1].definition.name))

    @override
    def close(self) -> None:
        with closing(self._tools):
            super().close()

    def _tools_by_value(self, where: Filter, key: str) -> Mapping[Any, int]:
        found = self._tools.facet(key, where, self._facet_limit)
        if len(found) < self._facet_limit:
            return found
        # the facet may be incomplete: read every value instead
        return Counter(row[key] for row in walk(self._tools, where, (key,)) if key in row)


def _tool_point(embedded: EmbeddedTool) -> Point:
    tool = embedded.tool
    vectors = embedded.vectors
    return Point(
        point_id(tool.server_id, tool.definition.name),
        tool_payload(tool),
        {NAME_VECTOR: vectors.name, TEXT_VECTOR: vectors.text, TERMS_VECTOR: vectors.terms},
    )


def _features(point: Point) -> ToolFeatures:
    name, text, terms = (point.vectors[name] for name in (NAME_VECTOR, TEXT_VECTOR, TERMS_VECTOR))
    if isinstance(name, SparseVector) or isinstance(text, SparseVector) or not isinstance(terms, SparseVector):
        raise TypeError(f"point {point.id} has other vectors than its collection")
    payload, vectors = point.payload, ToolVectors(name, text, terms)
    wire, model = (_without_estimate(counts_from(payload, form)) for form in FORMS)
    return ToolFeatures(wire, model, vectors, payload["definition"])


def _without_estimate(counts: Mapping[Encoding, int]) -> dict[Encoding, int]:
    return {encoding: count for encoding, count in counts.items() if encoding != "heuristic"}


def _query_vectors(query: QueryVectors) -> list[NamedVector]:
    questions: list[NamedVector] = []
    if query.dense is not None:
        questions += [NamedVector(NAME_VECTOR, query.dense), NamedVector(TEXT_VECTOR, query.dense)]
    if query.terms.indices:
        questions.append(NamedVector(TERMS_VECTOR, query.terms))
    return questions


def _candidates(depth: int, lists: Mapping[str, Scores]) -> Candidates:
    """Return the results of a query's vectors as candidates; a list without a vector is empty."""
    return Candidates(
        depth=depth,
        name=lists.get(NAME_VECTOR, {}),
        text=lists.get(TEXT_VECTOR, {}),
        terms=lists.get(TERMS_VECTOR, {}),
    )
