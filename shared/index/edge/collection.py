"""A collection of points on Qdrant Edge, and the conversion of points and conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from uuid import UUID

import numpy as np
from qdrant_edge import (
    CountRequest,
    FacetRequest,
    FieldCondition,
    HasIdCondition,
    IdfParams,
    IsEmptyCondition,
    MatchAny,
    MatchValue,
    PayloadSchemaType,
    Query,
    QueryBatchRequest,
    QueryRequest,
    RangeFloat,
    ScoredPoint,
    ScrollRequest,
    SearchParams,
    UpdateOperation,
)
from qdrant_edge import Filter as EdgeFilter
from qdrant_edge import Point as EdgePoint
from qdrant_edge import SparseVector as EdgeSparseVector
from typing_extensions import override

from shared.catalog import SparseVector
from shared.index.edge.shard import Shard
from shared.index.engine import CollectionSpec
from shared.index.points import (
    Condition,
    Filter,
    Indexes,
    IndexKind,
    NamedVector,
    Payload,
    Point,
    PointCollection,
    Scores,
    Vector,
    any_of,
    must,
)

if TYPE_CHECKING:
    from qdrant_edge import ConditionType

# More than any key of the condition `equal_to` has.
MAX_VALUES = 100

_SCHEMA: Mapping[IndexKind, PayloadSchemaType] = {
    "keyword": PayloadSchemaType.Keyword,
    "exact keyword": PayloadSchemaType.Keyword,
    "integer": PayloadSchemaType.Integer,
    "count": PayloadSchemaType.Integer,
}


class EdgeCollection(PointCollection):
    """A PointCollection in one shard on disk. Confirmed writes survive a kill."""

    def __init__(self, path: Path, spec: CollectionSpec) -> None:
        """Open the shard, created if it is missing.

        Raises:
            IndexHeld: another process holds it.
            IndexUnavailable: it cannot be opened.
        """
        self._shard = Shard(path, spec.vectors)
        self._content = object()  # another one after each write
        self._values: dict[str, tuple[object, frozenset[str]]] = {}
        self._found_nothing: tuple[object, Filter] = (None, {})
        self._create_indexes(spec.indexes)
        with self._shard.opened() as shard:
            shard.optimize()  # frees the space of deleted points before the first search

    @override
    def upsert(self, points: Sequence[Point]) -> None:
        self._update(UpdateOperation.upsert_points([_edge_point(point) for point in points]), len(points))

    @override
    def delete(self, ids: Sequence[str]) -> None:
        self._update(UpdateOperation.delete_points(list(ids)), len(ids))

    @override
    def set_payload(self, payload: Payload, where: Filter) -> None:
        self._update(UpdateOperation.set_payload_by_filter(_filter(where), payload), 1)

    @override
    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        wanted = True if keys is None else list(keys)
        with self._shard.opened() as shard:
            found = shard.retrieve(list(ids), with_payload=wanted, with_vector=False)
        return {str(point.id): point.payload or {} for point in found}

    @override
    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        requests = [
            QueryRequest(1, filter=_filter(must(any_of(key, (value,)))), with_payload=list(keys), with_vector=True)
            for value in values
        ]
        with self._shard.opened() as shard:
            answers = shard.query_batch(QueryBatchRequest(requests))
        return {value: _point(found[0]) for value, found in zip(values, answers, strict=True) if found}

    @override
    def query(
        self, vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None = None
    ) -> list[Scores]:
        only = _filter(self._cheaper(where))
        requests = [
            QueryRequest(limit, query=_query(query), filter=only, params=_params(query, corpus)) for query in vectors
        ]
        with self._shard.opened() as shard:
            answers = shard.query_batch(QueryBatchRequest(requests))
        lists = cast("list[list[_Found]]", answers)
        return [{_id_of(point.id.int): point.score for point in found} for found in lists]

    @override
    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        with self._shard.opened() as shard:
            response = shard.facet(FacetRequest(key, limit, exact=True, filter=_filter(where)))
        return {hit.value: hit.count for hit in response.hits}

    @override
    def count(self, where: Filter) -> int:
        with self._shard.opened() as shard:
            return shard.count(CountRequest(exact=True, filter=_filter(where)))

    @override
    def scroll(
        self, where: Filter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        content = self._content  # before the read, which may miss a write that comes now
        if self._found_nothing == (content, where):
            return [], None
        wanted = True if keys is None else list(keys)
        request = ScrollRequest(offset=offset, limit=limit, filter=_filter(where), with_payload=wanted)
        with self._shard.opened() as shard:
            records, following = shard.scroll(request)
        if not records and offset is None:
            self._found_nothing = content, where
        return [record.payload or {} for record in records], None if following is None else str(following)

    @override
    def close(self) -> None:
        self._shard.close()

    def _update(self, operation: UpdateOperation, points: int) -> None:
        try:
            self._shard.update(operation, points)
        finally:  # a write that fails may have written some points
            self._content = object()

    def _cheaper(self, where: Filter) -> Filter:
        """Return an equal filter without wanted values: most points have them, and a check of each takes longest.

        Not for the corpus of IDF: without conditions, the engine counts deleted points too.
        """
        kept, unwanted = list[Condition](), list[Condition]()
        for condition in where.get("must", ()):
            match condition:
                case {"key": key, "match": {"value": value}}:
                    others = self._stored_values(key) - {value}
                    unwanted += [any_of(key, sorted(others))] if others else []
                case _:
                    kept.append(condition)
        return {**where, "must": kept, "must_not": [*where.get("must_not", ()), *unwanted]}

    def _stored_values(self, key: str) -> frozenset[str]:
        """Return all values under `key`, read again after each write."""
        content, values = self._values.get(key, (None, frozenset[str]()))
        if content is not self._content:
            content = self._content  # before the read, which may miss a write that comes now
            values = frozenset(map(str, self.facet(key, {}, MAX_VALUES)))
            self._values[key] = content, values
        return values

    def _create_indexes(self, indexes: Indexes) -> None:
        with self._shard.opened() as shard:
            present = shard.info().payload_schema.keys()
        for key in indexes.keys() - present:
            self._shard.update(UpdateOperation.create_field_index(key, _SCHEMA[indexes[key]]))


# A search returns hundreds of ids, mostly of the same tools; formatting them takes longer than the search.
@lru_cache(maxsize=200_000)
def _id_of(number: int) -> str:
    return str(UUID(int=number))


class _Found(Protocol):
    """A point that a search found; all ids are UUIDs."""

    id: UUID
    score: float


def _query(question: NamedVector) -> Query:
    return Query.Nearest(_edge_vector(question.vector), using=question.name)


def _params(question: NamedVector, corpus: Filter | None) -> SearchParams | None:
    # a search of dense vectors rejects a corpus
    if not corpus or not isinstance(question.vector, SparseVector):
        return None
    return SearchParams(idf=IdfParams(_filter(corpus)))


def _edge_point(point: Point) -> EdgePoint:
    return EdgePoint(point.id, {name: _edge_vector(vector) for name, vector in point.vectors.items()}, point.payload)


def _point(stored: ScoredPoint) -> Point:
    vectors = cast("dict[str, EdgeSparseVector | list[float]]", stored.vector)
    return Point(str(stored.id), stored.payload or {}, {name: _vector(vector) for name, vector in vectors.items()})


def _vector(stored: EdgeSparseVector | list[float]) -> Vector:
    if isinstance(stored, EdgeSparseVector):
        return SparseVector(tuple(stored.indices), tuple(stored.values))
    return np.asarray(stored, dtype=np.float32)


def _edge_vector(vector: Vector) -> EdgeSparseVector | list[float]:
    if isinstance(vector, SparseVector):
        return EdgeSparseVector(list(vector.indices), list(vector.values))
    dense: list[float] = vector.tolist()
    return dense


def _filter(where: Filter) -> EdgeFilter:
    must, should, must_not = ([*map(_condition, where.get(name, ()))] for name in ("must", "should", "must_not"))
    return EdgeFilter(must, should or None, must_not)


def _condition(condition: Condition) -> ConditionType:
    match condition:
        case {"key": key, "match": {"any": values}}:
            return _match_any(key, values)
        case {"key": key, "match": {"value": value}}:
            return FieldCondition(key, match=MatchValue(value))
        case {"key": key, "range": {"gt": bound}}:
            return FieldCondition(key, range=RangeFloat(gt=float(bound)))
        case {"is_empty": {"key": key}}:
            return IsEmptyCondition(key)
        case {"has_id": ids}:
            return HasIdCondition(set(ids))
        case _:
            raise ValueError(f"a condition that no filter here has: {condition}")


# Searches share the conditions of a scope; converting one of 2,400 servers takes longer than all else of a filter.
@lru_cache(maxsize=16)
def _match_any(key: str, values: tuple[str, ...]) -> FieldCondition:
    return FieldCondition(key, match=MatchAny(list(values)))
