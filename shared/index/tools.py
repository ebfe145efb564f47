"""The index of tools: their payloads, the filter of a scope, and all reads and writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.catalog import (
    FORMS,
    SMALL_DEFINITION,
    Candidates,
    IndexedTool,
    SparseVector,
    TokenSum,
    ToolDefinition,
    ToolFeatures,
    ToolName,
    ToolPage,
    ToolVectors,
    annotations_of,
    point_id,
)
from shared.index.points import (
    Condition,
    Filter,
    IndexKind,
    NamedVector,
    Payload,
    Point,
    PointCollection,
    Scores,
    any_of,
    behind,
    equal_to,
    is_empty,
    must,
    walk,
)
from shared.index.records import Records

if TYPE_CHECKING:
    from shared.catalog import EmbeddedTool, Encoding, Form, QueryVectors, Scope, ScopeRule, Status

EMBEDDED_MAX_ADVISED_TOOLS = 20_000
"""Above this, use a Qdrant server: the embedded index compares every query with every tool."""

COUNT_KEYS: Mapping[Form, Mapping[Encoding, str]] = {
    "wire": {"cl100k_base": "token_count", "o200k_base": "token_count_o200k", "heuristic": "token_estimate"},
    "model": {"cl100k_base": "model_count", "o200k_base": "model_count_o200k", "heuristic": "token_estimate"},
}
# All keys of counts; both forms share the estimate.
_ALL_COUNT_KEYS = tuple(dict.fromkeys(key for keys in COUNT_KEYS.values() for key in keys.values()))
_STATE_KEYS = ("tool_name", "digest", "status", "groups", "changed_since", *_ALL_COUNT_KEYS)

NAME_VECTOR = "dense_name"
TEXT_VECTOR = "dense_text"
TERMS_VECTOR = "bm25"

TOOL_INDEXES: Mapping[str, IndexKind] = {
    "server_id": "keyword",
    "digest": "exact keyword",
    "names": "exact keyword",
    "tool_name": "exact keyword",
    "annotations": "exact keyword",
    "read_only": "keyword",
    "groups": "keyword",
    "status": "keyword",
    **dict.fromkeys(_ALL_COUNT_KEYS, "count"),
}

# Digests per request: about 300 KB of vectors, and below the batch limit of servers in strict mode.
DIGESTS_A_REQUEST = 64

# 100,000 real tools have about 1,500 distinct counts, and a large fleet has 10,000 servers.
FACET_LIMIT = 65_536

# Tools that need not be read again until a write, about 1 KB each beside their definition, which others share.
KNOWN_TOOLS = 1024

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ToolState:
    """The state of a tool that index versions must have in common; both counts lack an encoding whose count failed.

    `changed_since` is the date of a change that no operator has accepted yet.
    """

    digest: str
    status: Status
    groups: frozenset[str]
    token_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    model_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    changed_since: str | None = None


class ToolCounts(NamedTuple):
    """The counts of a tool in both forms; None: it has none."""

    server_id: str
    tool_name: str
    tokens: int | None
    model_tokens: int | None


class ToolIndex(Records):
    """Tools and servers in Qdrant. Safe to call from several threads.

    When a write returns, reads of all processes see it, and it survives a crash of the caller.
    With replicas of a Qdrant server, a read sees it on each replica that has the write.
    A repeated write changes nothing; a delete of a missing point is no error.
    Every method raises IndexUnavailable if Qdrant does not answer.
    """

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
        self._known: tuple[object, dict[str, IndexedTool]] = (None, {})

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        """Write these tools whole, replacing those of the same server and name."""
        self._tools.upsert(
            [
                Point(
                    point_id(each.tool.server_id, each.tool.definition.name),
                    tool_payload(each.tool),
                    {NAME_VECTOR: each.vectors.name, TEXT_VECTOR: each.vectors.text, TERMS_VECTOR: each.vectors.terms},
                )
                for each in tools
            ]
        )

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        """Remove these tools of a server."""
        self._tools.delete([point_id(server_id, name) for name in tool_names])

    def features_by_digest(self, digests: Collection[str]) -> dict[str, ToolFeatures]:
        """Return the features by digest, for each digest that a tool of any server has, in any status.

        The size of the result does not depend on the number of tools per digest.
        """
        asked, keys = list(digests), ("digest", "definition", *_ALL_COUNT_KEYS)
        found: dict[str, Point] = {}
        for start in range(0, len(asked), DIGESTS_A_REQUEST):
            found |= self._tools.sample_by_value("digest", asked[start : start + DIGESTS_A_REQUEST], keys)
        return {digest: _features(point) for digest, point in found.items()}

    def tool_states(self, server_id: str) -> dict[str, ToolState]:
        """Return the states of a server's tools by name, in any status."""
        rows = walk(self._tools, must(any_of("server_id", (server_id,))), _STATE_KEYS)
        return {row["tool_name"]: _state(row) for row in rows}

    def servers_with_tools(self) -> set[str]:
        """Return the ids of all servers that have tools in the index, in any status, with or without a record."""
        return set(self._tools_by_value({}, "server_id"))

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        """Set status and groups of all of a server's tools, and leave the rest unchanged."""
        payload = {"status": status, "groups": sorted(groups)}
        self._tools.set_payload(payload, must(any_of("server_id", (server_id,))))

    def clear_digests(self, digests: Collection[str]) -> None:
        """Set an empty digest on every tool with one of these digests, on any server, and leave the rest unchanged.

        One write clears all of them. The next reconciliation of their servers counts and writes these tools again.
        """
        if digests:
            self._tools.set_payload({"digest": ""}, must(any_of("digest", sorted(digests))))

    def search(
        self, queries: Sequence[QueryVectors], scope: Scope, depth: int, corpus: Scope | None = None
    ) -> list[Candidates]:
        """Return the candidates of each query, at most `depth` in each of their lists, in one round trip.

        The search itself applies the scope, so a small scope still fills the lists. The statistics of BM25 count the
        tools of `corpus`, by default those of the scope.
        """
        by_query = [_query_vectors(query) for query in queries]
        vectors = [question for vectors in by_query for question in vectors]
        if depth < 1 or not vectors or matches_nothing(scope):
            return [_candidates(depth, {}) for _ in queries]
        answers = iter(self._tools.query(vectors, scope_filter(scope), depth, scope_filter(corpus or scope)))
        lists_by_query = [{question.name: next(answers) for question in vectors} for vectors in by_query]
        return [_candidates(depth, lists) for lists in lists_by_query]

    def find_by_name(self, name: str, scope: Scope, limit: int) -> list[IndexedTool]:
        """Return at most `limit` tools of the scope with this exact name or qualified name."""
        if limit < 1 or matches_nothing(scope):
            return []
        page, _ = self._tools.scroll(_restricted(scope, _named(name)), limit)
        return [tool_from(payload) for payload in page]

    def tool_names(self, names: Collection[str], scope: Scope, limit: int) -> list[ToolName]:
        """Return the names of at most `limit` tools of the scope that have one of these names, without their server."""
        if limit < 1 or not names or matches_nothing(scope):
            return []
        rows = walk(self._tools, _restricted(scope, _named(*names)), ("server_id", "tool_name", "digest"))
        tools = (ToolName(row["server_id"], row["tool_name"], row["digest"]) for row in rows)
        return list(islice((tool for tool in tools if tool.name in names), limit))

    def get(self, ids: Sequence[str]) -> dict[str, IndexedTool]:
        """Return the tools of these points by point id, without missing points."""
        known = self._known_tools()
        missing = [point for point in ids if point not in known]
        read = self._tools.retrieve(missing) if missing else {}
        tools = {point: tool_from(payload) for point, payload in read.items()}
        known.update((point, tool) for point, tool in tools.items() if len(tool.definition.wire) <= SMALL_DEFINITION)
        return {point: tool for point in ids if (tool := known.get(point) or tools.get(point))}

    def _known_tools(self) -> dict[str, IndexedTool]:
        """Return tools that were read since the last write, by point id: most searches read tools of earlier ones."""
        content = self._tools.content  # before the read, which may miss a write that comes now
        found_in, known = self._known
        if content is None or content is not found_in or len(known) >= KNOWN_TOOLS:
            known = dict[str, IndexedTool]()
            self._known = content, known
        return known

    def token_sum(self, scope: Scope, encoding: Encoding, form: Form = "wire") -> TokenSum:
        """Return the exact sum of the scope's token counts in this form, and how many tools have none."""
        if matches_nothing(scope):
            return TokenSum(0, 0, 0)
        key = COUNT_KEYS[form][encoding]
        # Qdrant has no sum, but a facet counts each value exactly
        tools_by_count = self._tools_by_value(scope_filter(scope), key)
        return TokenSum(
            tokens=sum(count * tools for count, tools in tools_by_count.items()),
            counted=sum(tools_by_count.values()),
            uncounted=self._tools.count(_restricted(scope, is_empty(key))),
        )

    def counts(self, scope: Scope, encoding: Encoding) -> Iterator[ToolCounts]:
        """Yield the counts of each tool of the scope, in an order that does not change with writes."""
        if matches_nothing(scope):
            return
        wire, model = (COUNT_KEYS[form][encoding] for form in FORMS)
        for row in walk(self._tools, scope_filter(scope), ("server_id", "tool_name", wire, model)):
            yield ToolCounts(row["server_id"], row["tool_name"], row.get(wire), row.get(model))

    def distinct_names(self) -> Collection[str]:
        """Return the names of all tools, without their servers, in any status."""
        return self._tools_by_value({}, "tool_name")

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        """Return at most `limit` qualified names of the scope's tools without a count in this encoding."""
        if limit < 1 or matches_nothing(scope):
            return []
        where = _restricted(scope, is_empty(COUNT_KEYS["wire"][encoding]))
        rows = walk(self._tools, where, ("server_id", "tool_name"))
        return [f"{row['server_id']}:{row['tool_name']}" for row in islice(rows, limit)]

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        """Return a page of the scope's tools, in an order that does not change with writes.

        The page begins after the point id `after`: the `next_after` of the last page, or any tool's.
        """
        if matches_nothing(scope):
            return ToolPage(())
        page, following = self._tools.scroll(scope_filter(scope), limit, behind(after))
        read = [tool_from(payload) for payload in page]
        is_last = following is None or not read
        tools = [tool for tool in read if scope.permits(tool.server_id, tool.definition)]
        return ToolPage(tools, None if is_last else point_id(read[-1].server_id, read[-1].definition.name))

    def _tools_by_value(self, where: Filter, key: str) -> Mapping[Any, int]:
        found = self._tools.facet(key, where, self._facet_limit)
        if len(found) < self._facet_limit:
            return found
        # the facet may be incomplete: read every value instead
        return Counter(row[key] for row in walk(self._tools, where, (key,)) if key in row)


def tool_payload(tool: IndexedTool) -> Payload:
    """Return the payload of a tool, without keys for failed counts or for an accepted definition."""
    counts = {COUNT_KEYS[form][encoding]: count for form in FORMS for encoding, count in tool.counts(form).items()}
    return {
        "server_id": tool.server_id,
        "groups": sorted(tool.groups),
        "status": tool.status,
        "tool_name": tool.definition.name,
        "names": [tool.definition.name, tool.qualified_name],
        "read_only": "yes" if tool.definition.read_only else "no",  # Qdrant Edge cannot match a bool
        "annotations": sorted(annotations_of(tool.definition)),
        "digest": tool.digest,
        # UTF-8 cannot encode lone surrogates; they occur only in strings, where JSON can escape them
        "definition": _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", tool.definition.wire),
        **({"changed_since": tool.changed_since} if tool.changed_since else {}),
        **counts,
    }


def tool_from(payload: Payload) -> IndexedTool:
    """Return the tool of a payload; lone surrogates are escaped in `wire`."""
    return IndexedTool(
        server_id=payload["server_id"],
        definition=ToolDefinition.from_wire(payload["definition"]),
        digest=payload["digest"],
        token_counts=_counts(payload, "wire"),
        model_counts=_counts(payload, "model"),
        groups=frozenset(payload["groups"]),
        status=payload["status"],
        changed_since=payload.get("changed_since"),
    )


def _state(payload: Payload) -> ToolState:
    wire, model = (_counts(payload, form) for form in FORMS)
    groups, changed_since = frozenset(payload["groups"]), payload.get("changed_since")
    return ToolState(payload["digest"], payload["status"], groups, wire, model, changed_since)


def _counts(payload: Payload, form: Form) -> dict[Encoding, int]:
    return {encoding: payload[key] for encoding, key in COUNT_KEYS[form].items() if key in payload}


def _features(point: Point) -> ToolFeatures:
    name, text, terms = (point.vectors[name] for name in (NAME_VECTOR, TEXT_VECTOR, TERMS_VECTOR))
    if isinstance(name, SparseVector) or isinstance(text, SparseVector) or not isinstance(terms, SparseVector):
        raise TypeError(f"point {point.id} has other vectors than its collection")
    wire, model = (_counts(point.payload, form) for form in FORMS)
    for counts in (wire, model):
        counts.pop("heuristic", None)  # the estimate also reads the server's id
    return ToolFeatures(wire, model, ToolVectors(name, text, terms), point.payload["definition"])


def _query_vectors(query: QueryVectors) -> list[NamedVector]:
    questions: list[NamedVector] = []
    if query.dense is not None:
        questions += [NamedVector(NAME_VECTOR, query.dense), NamedVector(TEXT_VECTOR, query.dense)]
    if query.terms.indices:
        questions.append(NamedVector(TERMS_VECTOR, query.terms))
    return questions


def _candidates(depth: int, lists: Mapping[str, Scores]) -> Candidates:
    """Return the results of a query's vectors as candidates; a list without a vector is empty."""
    name, text, terms = (lists.get(vector, {}) for vector in (NAME_VECTOR, TEXT_VECTOR, TERMS_VECTOR))
    return Candidates(depth=depth, name=name, text=text, terms=terms)


def matches_nothing(scope: Scope) -> bool:
    """Return whether a scope cannot contain any tool."""
    is_none_selected = scope.within is not None and not scope.within.servers and not scope.within.tools
    is_empty_set = scope.groups == frozenset() or scope.servers == frozenset()
    return is_empty_set or is_none_selected or _permitted(scope.rules) is None


def scope_filter(scope: Scope) -> Filter:
    """Return the filter for the tools in the scope, without lists of no conditions."""
    within = scope.within
    found: dict[str, Sequence[Condition | None]] = {
        "must": (
            equal_to("status", scope.status) if scope.status else None,
            any_of("groups", _storable(scope.groups)) if scope.groups is not None else None,
            any_of("server_id", _server_ids(scope.servers)) if scope.servers is not None else None,
            equal_to("read_only", "yes") if scope.read_only else None,
        ),
        "must_not": (
            any_of("names", _storable(scope.exclude)) if scope.exclude else None,
            any_of("server_id", _server_ids(scope.hidden)) if scope.hidden else None,
            any_of("digest", sorted(scope.seen)) if scope.seen else None,
        ),
        "should": (
            # by id, since another server's tool may have a qualified name as its name
            {"has_id": _point_ids(within.tools)} if within is not None else None,
            any_of("server_id", sorted(within.servers)) if within is not None else None,
        ),
    }
    present = {name: [each for each in conditions if each] for name, conditions in found.items()}
    permitted = _permitted(scope.rules) or {}
    for name in ("must", "must_not"):
        present[name] += permitted.get(name, ())
    if "should" in permitted:
        present["must"].append({"should": permitted["should"]})
    return {name: conditions for name, conditions in present.items() if conditions}


# The rules of a caller stay the same ones until a server or the policy changes.
@lru_cache(maxsize=16)
def _permitted(rules: tuple[ScopeRule, ...]) -> Filter | None:
    """Return the filter for the tools that these rules permit, of which the first that covers a tool decides.

    None: they permit nothing.
    """
    where: Filter | None = {}
    for rule in reversed(rules):
        covered = _covered(rule)
        if rule.is_denial and covered and where is not None:
            where = {**where, "must_not": [*where.get("must_not", ()), covered]}
        elif rule.is_denial:
            where = None
        elif where is None or not covered:
            where = {"must": [covered]} if covered else {}
        elif where:
            where = {"should": [covered, where]}
    return where


def _covered(rule: ScopeRule) -> Condition:
    """Return the condition for the tools that a rule covers; empty for all tools."""
    conditions = [
        any_of("server_id", _server_ids(rule.servers)) if rule.servers is not None else None,
        any_of("tool_name", _storable(rule.names)) if rule.names is not None else None,
        any_of("annotations", sorted(rule.annotations)) if rule.annotations is not None else None,
    ]
    present = [condition for condition in conditions if condition]
    return present[0] if len(present) == 1 else {"must": present} if present else {}


def _restricted(scope: Scope, condition: Condition) -> Filter:
    where = scope_filter(scope)
    return {**where, "must": [*where.get("must", ()), condition]}


def _named(*names: str) -> Condition:
    """Return the condition for a tool with one of these names or qualified names."""
    return any_of("names", _storable(names))


def _point_ids(qualified_names: Iterable[str]) -> list[str]:
    parted = (name.partition(":") for name in qualified_names)
    return sorted(point_id(server_id, name) for server_id, _, name in parted)


# Replicas restrict each search to the same servers, until a server changes; 2,400 of them take 1.8 ms.
@lru_cache(maxsize=16)
def _server_ids(servers: frozenset[str]) -> tuple[str, ...]:
    return _storable(servers)


def _storable(values: Iterable[str]) -> tuple[str, ...]:
    # a caller may send any text, but engines reject lone surrogates; stored names have none
    return tuple(sorted({_LONE_SURROGATE.sub("\ufffd", value) for value in values}))
